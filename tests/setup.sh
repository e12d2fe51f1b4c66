#!/bin/bash
# Installs what this checkout needs. Does nothing where all of it is installed.
#   tests/setup.sh check   for `make unit` and `make check`: Python packages in a virtual environment. Needs no root.
#   tests/setup.sh packages   for `make packages`: the same, and rpmbuild.
#   tests/setup.sh         for all else: PyTorch and the training frameworks, too, and Debian's packages (as root).
set -euo pipefail
cd "$(dirname "$0")/.."
what="${1:-all}"
packages=(slurmctld slurmd slurm-client munge gcc libc6-dev python3-venv wrk debootstrap iproute2 postgresql rpm openssl prometheus
  prometheus-alertmanager apache2-bin libapache2-mod-auth-openidc slurmdbd mariadb-server-core chromium fonts-liberation
  podman crun)

say() { echo "setup: $* (${SECONDS} s)"; }

missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing Debian packages: ${missing[*]}"
  [ "$(id -u)" = 0 ] || { echo "setup: no root; as root, run: apt-get install ${missing[*]}" >&2; return 1; }
  apt-get update -qq
  # RUNLEVEL=1: the packages do not start their services; the testbed runs daemons of its own.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  say "Debian packages are installed"
}

made_from() { cat "$@" pyproject.toml agents/pyproject.toml agents/understudy/release.py; }

installed() {  # STAMP FILE...: the stamp holds the text of what was installed
  local stamp="$VENV/$1"
  shift
  cmp -s <(made_from "$@") "$stamp"
}

install_python() {  # FILE...: what these files pin, and this checkout
  say "installing the Python packages of $* into $VENV"
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || {
    echo "setup: $PYTHON cannot make a virtual environment: install its venv module (Debian: python3-venv), or name" \
      "another Python of version 3.11 or newer: make PYTHON=python3.12 ..." >&2
    return 1
  }
  local pip=("$VENV/bin/python" -m pip install -q --disable-pip-version-check)
  local lock
  for lock in "$@"; do
    if [ "$lock" = requirements-torch.lock ]; then
      "${pip[@]}" --requirement="$lock"
    else  # the locks name all packages, but those that PyTorch brings
      "${pip[@]}" --no-deps --require-hashes --requirement="$lock"
    fi
  done
  "${pip[@]}" --no-deps --no-build-isolation --editable agents --editable .
  say "the Python packages are installed"
}

light=(requirements.lock)
whole=(requirements.lock requirements-frameworks.lock requirements-torch.lock)
[ "$what" != packages ] || install_packages rpm
if [ "$what" != all ]; then
  installed .installed-check "${light[@]}" || {
    install_python "${light[@]}"
    made_from "${light[@]}" > "$VENV/.installed-check"
  }
  exit
fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
# Debian's packages and Python's at the same time.
install_packages "${packages[@]}" &
debian=$!
installed .installed "${whole[@]}" || {
  install_python "${whole[@]}"
  made_from "${light[@]}" > "$VENV/.installed-check"
  made_from "${whole[@]}" > "$VENV/.installed"
}
wait "$debian"
