#!/usr/bin/env bash
# Writes the lock files: every package of a controller, and what builds its image, with the hashes of all its files.
# Versions that are locked stay as they are, unless pyproject.toml excludes them; UPGRADE=1 takes the newest ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

UV_VERSION=0.13
UV=${UV:-uv}
RUNTIME=controller/perdure/controller/hosting/requirements.lock
BUILD=deploy/docker/build.lock

if ! command -v "$UV" >/dev/null; then
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    python3 -m venv "$tools"
    "$tools/bin/pip" install -qq --disable-pip-version-check "uv~=$UV_VERSION.0"
    UV=$tools/bin/uv
fi

compile() { # OUTPUT INPUT [OPTION ...]
    local output=$1 input=$2
    shift 2
    "$UV" pip compile "$input" "$@" --output-file "$output" --quiet --universal --python-version 3.11 \
        --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
        --custom-compile-command "make lock" ${UPGRADE:+--upgrade}
}

compile "$RUNTIME" pyproject.toml --extra controller --extra acme --extra aws --extra gcp --extra azure --extra postgres
python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
    compile "$BUILD" -
echo "wrote $RUNTIME and $BUILD"
