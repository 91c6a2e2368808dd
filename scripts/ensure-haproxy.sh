#!/bin/sh
# Installs HAProxy, which is in front of the replicas of services, and Pebble, a test server of certificates, if this user
# can do so without a password (root, with apt). Otherwise prints what to do and succeeds; the tests that need them are
# skipped.
set -eu

PATH=$PATH:/usr/sbin:/sbin
missing=
for name in haproxy pebble; do
    command -v $name >/dev/null 2>&1 || missing="$missing $name"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # The controller starts a HAProxy for each service: the one of the system must not begin to run.
    policy=/usr/sbin/policy-rc.d
    made=
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; made=1; }
    # An unreachable repository fails the update, but the package may be in another one.
    apt-get update >"$log" 2>&1 </dev/null || true
    for name in $missing; do # one by one: a distribution may lack one of them
        if ! apt-get install -y --no-install-recommends "$name" >"$log" 2>&1 </dev/null; then
            tail -n 5 "$log" >&2
            echo "perdure: $name could not be installed; the tests that need it are skipped" >&2
        fi
    done
    [ -z "$made" ] || rm -f $policy
    rm -f "$log"
else
    echo "perdure: for the tests of services, install$missing" >&2
fi
