#!/bin/sh
# Installs `ip`, with which the network failure tests build a network of their own, if this user can do so without a
# password (root, with apt). Otherwise prints what to do and succeeds; those tests are skipped.
set -eu

command -v ip >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing iproute2 ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # An unreachable repository fails the update, but iproute2 may be in another one.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends iproute2; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: iproute2 could not be installed; network failure tests are skipped" >&2
    fi
    rm -f "$log"
else
    echo "perdure: ip is missing; to run the network failure tests, install your system's iproute2 package" >&2
fi
