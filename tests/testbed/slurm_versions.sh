#!/bin/bash
# Other versions of Slurm to test against, each in a folder with a small Debian of its own, beside this machine's 22.05:
#   26.05   Debian forky, with pyslurm from PyPI in /opt/pyslurm, and a Python 3.14 that this machine can run
#   22.05   Debian bookworm, with systemd: the clean machine on which the packages are installed
#   24.11   Debian trixie
#   slurm_versions.sh [VERSION...]   without a version: all
# Does nothing for a folder that is there already and was made by this very script. Needs root, about four minutes and
# 2.5 GB for all. The folders lie in $SLURM_ROOTS; nothing stays mounted in them, so they may be deleted at any time.
set -euo pipefail

roots="${SLURM_ROOTS:-/var/tmp/understudy-slurm}"
self="$(readlink -f "$0")"
log="$roots/setup.log"

[ "$(id -u)" = 0 ] || { echo "setup: not root; other versions of Slurm cannot be set up" >&2; exit 1; }
mkdir -p "$roots"
exec 9>"$roots/.lock"
flock --nonblock 9 || echo "setup: waits for another process that sets up the other versions of Slurm"
flock --timeout 1800 9 || { echo "setup: another process holds $roots/.lock" >&2; exit 1; }
exec 3>&1 >>"$log" 2>&1
say() { echo "setup: $*" >&3; }
trap 'say "failed; the end of $log:"; tail -20 "$log" >&3' ERR

# Where this machine's own packages come from is where the others come from, too.
find_mirror() {
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' \
    | awk '$2 == "bookworm" && $3 == "Debian" { print $1; exit }'
}
mirror="$(find_mirror)"
[ -n "$mirror" ] || { apt-get update -qq; mirror="$(find_mirror)"; }  # apt may never have looked
[ -n "$mirror" ] || { say "apt knows no mirror of Debian 12 (bookworm)"; exit 1; }

# within ROOT COMMAND...: what is mounted there is seen by the command alone and gone with it.
within() {
  # shellcheck disable=SC2016
  unshare --mount --propagation private sh -c '
    for place in proc dev sys; do mount --rbind "/$place" "$0/$place"; done
    exec chroot "$0" "$@"' "$@"
}

# make_root SUITE VERSION PACKAGE...
make_root() {
  local suite="$1" version="$2" root="$roots/$2.new"
  shift 2
  say "making a Debian $suite with Slurm $version in $roots/$version (about a minute)"
  rm -rf "$root" "${roots:?}/$version"
  # debootstrap on an older Debian has no script for newer suites: sid's serves all.
  debootstrap --variant=minbase "$suite" "$root" "$mirror" sid
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  mkdir -p "$root/etc/ssl/certs"
  # A mirror's copy of a moving suite may be past its Release date.
  echo 'Acquire::Check-Valid-Until "false";' > "$root/etc/apt/apt.conf.d/90testbed"
  printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"  # no daemon is started by its package
  chmod +x "$root/usr/sbin/policy-rc.d"
  within "$root" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive within "$root" apt-get install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client munge python3 "$@"
  local found
  found="$(within "$root" slurmctld -V)"
  case "$found" in
    "slurm-wlm $version."*) ;;
    *) say "Debian $suite has '$found' now, not $version: docs and tests must follow"; return 1 ;;
  esac
}

# PyPI's pyslurm is made for Slurm 25.11. With headers that name that version, and three names that have changed since,
# it builds and works with 26.05.
add_pyslurm() {
  local root="$1"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  cat > "$root/opt/build-pyslurm" <<'BUILD'
set -eu
mkdir -p /opt/headers/slurm
ln -sf /usr/include/slurm/*.h /opt/headers/slurm/
rm /opt/headers/slurm/slurm_version.h
sed 's/^\(#define SLURM_VERSION_NUMBER\).*/\1 0x190b02/' /usr/include/slurm/slurm_version.h \
  > /opt/headers/slurm/slurm_version.h
python3 -m venv /opt/pyslurm
SLURM_INCLUDE_DIR=/opt/headers SLURM_LIB_DIR="$(dirname /usr/lib/*/slurm-wlm/libslurmfull.so)" \
CFLAGS="-O1 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2025" \
  /opt/pyslurm/bin/pip install --quiet --disable-pip-version-check pyslurm==25.11.2
BUILD
  say "building pyslurm for it (about a minute)"
  within "$root" sh /opt/build-pyslurm
}

# With its own loader and libraries that Debian's Python runs on this machine, too.
add_python() {
  local outside="$1/opt/outside"
  mkdir -p "$outside/bin" "$outside/lib"
  ln -s ../../../usr/lib/python3.14 "$outside/lib/python3.14"
  cat > "$outside/bin/python3.14" <<'PROGRAM'
#!/bin/sh
root="$(readlink -f "$0")"
root="${root%/opt/*}"
libraries="$(dirname "$root"/usr/lib/*/libc.so.6)"
exec "$libraries"/ld-linux-*.so.* --argv0 "$0" --library-path "$libraries" "$root/usr/bin/python3.14" "$@"
PROGRAM
  chmod +x "$outside/bin/python3.14"
  "$outside/bin/python3.14" -c "import ssl, sqlite3"
}

# finish VERSION: only what is whole gets its name.
finish() {
  rm -rf "$roots/$1.new/var/cache/apt" "$roots/$1.new/var/lib/apt/lists"
  cp "$self" "$roots/$1.new/.made-by"
  mv "$roots/$1.new" "$roots/$1"
}

made() { cmp -s "$self" "$roots/$1/.made-by"; }

make_22.05() {
  make_root bookworm 22.05 systemd systemd-sysv dbus iproute2 openssl
}

make_24.11() {
  make_root trixie 24.11
}

make_26.05() {
  make_root forky 26.05 libslurm-dev python3-dev python3-venv gcc libc6-dev
  add_pyslurm "$roots/26.05.new"
  add_python "$roots/26.05.new"
}

[ $# -gt 0 ] || set -- 26.05 22.05 24.11
for version in "$@"; do
  made "$version" || { "make_$version"; finish "$version"; }
done
