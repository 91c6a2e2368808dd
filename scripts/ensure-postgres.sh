#!/bin/sh
# Installs PostgreSQL's server, which the tests of several controllers start, if this user can do so without a password
# (root, with apt). Otherwise prints what to do and succeeds; those tests are skipped.
set -eu

if command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing postgresql ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # Only the programs are needed: the package must create neither a database cluster nor a service.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    # An unreachable repository fails the update, but postgresql may be in another one.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends postgresql; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: postgresql could not be installed; tests that need it are skipped" >&2
    fi
    rm -f "$log"
else
    echo "perdure: PostgreSQL's server is missing; to test several controllers, install your system's package" >&2
fi
