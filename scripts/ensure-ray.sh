#!/bin/sh
# Installs Ray into a virtual environment of its own, build/ray, for the tests of Ray. If that fails or takes longer than
# RAY_TIMEOUT_S, this script still succeeds, and those tests are skipped.
set -eu

home=build/ray
python=$1
limit_s=${RAY_TIMEOUT_S:-600}
[ -e "$home/.installed" ] && exit 0
echo "installing Ray into $home (at most $limit_s s) ..."
log=$(mktemp)
rm -rf "$home"
mkdir -p build
if "$python" -m venv "$home" >"$log" 2>&1 &&
    timeout "$limit_s" "$home/bin/pip" install -q --disable-pip-version-check 'ray[default,data,train]>=2.50' \
        >>"$log" 2>&1 </dev/null; then
    touch "$home/.installed"
else
    tail -n 5 "$log" >&2
    rm -rf "$home"
    echo "perdure: Ray could not be installed; tests that need it are skipped" >&2
fi
rm -f "$log"
