#!/bin/sh
# Installs Prometheus with promtool, which the tests of the metrics, alert rules and dashboard start, if this user can do
# so without a password (root, with apt). Otherwise prints what to do and succeeds; those tests are skipped.
set -eu

if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing prometheus ..."
    log=$(mktemp)
    policy=/usr/sbin/policy-rc.d
    export DEBIAN_FRONTEND=noninteractive
    # Only the programs are needed: no service may start.
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=$policy; }
    # An unreachable repository fails the update, but prometheus may be in another one.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends prometheus; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: prometheus could not be installed; tests that need it are skipped" >&2
    fi
    rm -f "$log" ${made:+"$made"}
else
    echo "perdure: Prometheus is missing; to test the metrics with it, install your system's package" >&2
fi
