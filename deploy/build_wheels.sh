#!/bin/bash
# Builds both distributions from what git tracks: build_wheels.sh PYTHON DIRECTORY
# PYTHON needs pip and setuptools. The build runs on a copy, because setuptools writes beside the sources.
set -euo pipefail
[ $# = 2 ] || { echo "usage: build_wheels.sh PYTHON DIRECTORY" >&2; exit 2; }
python=$1
mkdir -p "$2"
wheels=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -co --exclude-standard | while IFS= read -r -d '' path; do
  [ ! -e "$path" ] || printf '%s\0' "$path"  # deleted and not committed yet
done | tar --create --null --no-recursion --files-from=- | tar --extract --directory="$copy"

mkdir -p "$copy/agents/understudy_agent/documents"
cp "$copy"/docs/*.md "$copy/agents/understudy_agent/documents/"  # `understudy help TOPIC`

rm -f "$wheels"/slurm_understudy-*.whl "$wheels"/slurm_understudy_hook-*.whl
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$wheels" "$copy/agents" "$copy"
