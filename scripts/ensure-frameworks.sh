#!/bin/sh
# Installs the frameworks that the checkpoint library has adapters for into the virtual environment whose bin folder is
# `$1`. If that fails or takes longer than FRAMEWORKS_TIMEOUT_S, this script still succeeds, and the tests that need the
# frameworks are skipped. It tries once per environment, and again when pyproject.toml changes.
set -eu

bin=$1
tried=$bin/../.frameworks
limit_s=${FRAMEWORKS_TIMEOUT_S:-900}
if [ -e "$tried" ] && [ ! pyproject.toml -nt "$tried" ]; then
    exit 0
fi

has_all() {
    "$bin/python" -c 'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))' "$@"
}

if ! has_all torch transformers accelerate lightning jax keras flax optax orbax safetensors torchdata; then
    echo "installing PyTorch, JAX and training frameworks (at most $limit_s s) ..."
    # A build without CUDA is a tenth of the size, but not every index has one, and for `torch` pip prefers the newest.
    cpu=$("$bin/pip" --disable-pip-version-check index versions torch 2>/dev/null | grep -o '[0-9][0-9.]*+cpu' | head -n 1) || true
    log=$(mktemp)
    if ! timeout "$limit_s" "$bin/pip" install -q --disable-pip-version-check ${cpu:+"torch==$cpu"} -e '.[dev,frameworks]' >"$log" 2>&1 </dev/null; then
        tail -n 3 "$log" >&2
        echo "perdure: some frameworks could not be installed; tests that need them are skipped" >&2
    fi
    rm -f "$log"
fi
touch "$tried"
