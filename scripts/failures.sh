#!/usr/bin/env bash
# `make failures`: kills a controller while its job runs, and shows that the job continues.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PWD/.venv/bin:$PATH"
PERDURE_HOME=$(mktemp -d)
export PERDURE_HOME COLUMNS=130
unset PERDURE_ENDPOINT PERDURE_TOKEN PERDURE_TOKEN_FILE

clean_up() {
    perdure jobs cancel --all --yes --no-graceful >/dev/null 2>&1 || true
    perdure controller stop >/dev/null 2>&1 || true
    rm -rf "$PERDURE_HOME"
}
trap clean_up EXIT

show() {
    echo "\$ $*"
    bash -c "$*"
}

until_logged() {
    timeout 120 bash -c "until perdure jobs logs 1 --no-follow 2>&1 | grep -q '$1'; do sleep 0.2; done"
}

perdure jobs launch examples/numpy_train/train.yaml --env STEPS=500 --detach-run --yes >/dev/null 2>&1
until_logged "step 100 "
show "perdure jobs queue"
show "pgrep -fa 'train.py --checkpoints' | grep -v bash"
pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$PERDURE_HOME/controller.json")
show "kill -9 $pid    # the controller"
show "perdure controller status || true"
show "pgrep -fa 'train.py --checkpoints' | grep -v bash"
show "perdure jobs queue"
show "perdure jobs logs 1 2>&1 | grep -E '^(---|step .00 |resumed|done|Job)'"
show "perdure jobs logs 1 --no-follow | grep -c '^step'"
