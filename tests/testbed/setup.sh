#!/bin/bash
# Installs what the demo and the tests need: Debian's packages (as root) and Python's, pinned, into a virtual
# environment of this checkout. Does nothing where all is there already.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=(slurmctld slurmd slurm-client munge gcc libc6-dev python3-venv wrk debootstrap)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing Debian packages: ${missing[*]}"
  [ "$(id -u)" = 0 ] || { echo "setup: not root; run: apt-get install ${missing[*]}" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # RUNLEVEL=1: the packages' own services are not started; the testbed runs daemons of its own.
  RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp="$VENV/.installed"
if ! cmp -s <(cat requirements.lock pyproject.toml agents/pyproject.toml) "$stamp"; then
  echo "setup: installing Python packages into $VENV (about a minute)"
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r requirements.lock
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --editable agents --editable .
  cat requirements.lock pyproject.toml agents/pyproject.toml > "$stamp"
fi
