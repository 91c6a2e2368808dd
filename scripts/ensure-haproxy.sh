#!/bin/sh
# Installs HAProxy, which is in front of the replicas of services, if this user can do so without a password (root, with
# apt). Otherwise prints what to do and succeeds; the tests of services are skipped.
set -eu

PATH=$PATH:/usr/sbin:/sbin
command -v haproxy >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing haproxy ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # The controller starts a HAProxy for each service: the one of the system must not begin to run.
    policy=/usr/sbin/policy-rc.d
    made=
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; made=1; }
    # An unreachable repository fails the update, but the package may be in another one.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends haproxy; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: haproxy could not be installed; the tests of services are skipped" >&2
    fi
    [ -z "$made" ] || rm -f $policy
    rm -f "$log"
else
    echo "perdure: haproxy is missing; for the tests of services, install it" >&2
fi
