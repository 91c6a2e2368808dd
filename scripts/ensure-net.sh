#!/bin/sh
# The tests that break a network make one of their own, with `ip`. Installs it once where that takes no question (root,
# apt); elsewhere those tests are skipped, and say so.
set -eu

command -v ip >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing iproute2 ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # One repository that does not answer fails the update, and need not be the one that has iproute2.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends iproute2; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: iproute2 could not be installed; tests of a broken network are skipped" >&2
    fi
    rm -f "$log"
else
    echo "perdure: ip is missing; for the tests of a broken network, install your system's iproute2 package" >&2
fi
