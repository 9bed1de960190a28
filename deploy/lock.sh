#!/usr/bin/env bash
# Writes deploy/requirements.lock and deploy/build.lock again: what the image installs, for each platform and each Python
# that the project supports, with the hashes of the files. Needs uv (pip install uv). A lock that is there is a
# preference: versions stay unless pyproject.toml forbids them, or `deploy/lock.sh --upgrade` asks for the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() { # OUTPUT ARGUMENT...
    local output=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --custom-compile-command deploy/lock.sh --output-file "$output" "$@"
}

lock deploy/requirements.lock --extra server pyproject.toml "$@"
python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
    lock deploy/build.lock - "$@"
