#!/bin/sh
# Several controllers share one PostgreSQL; the tests start servers of their own. Installs one where that takes no
# question (root, apt), and lets everything that needs none go on: those tests are then skipped, and say so.
set -eu

if command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing postgresql ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # No cluster of the machine's own is wanted, and no service: only the programs.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    # One repository that does not answer fails the update, and need not be the one that has it.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends postgresql; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: postgresql could not be installed; the tests that need it are skipped" >&2
    fi
    rm -f "$log"
else
    echo "perdure: PostgreSQL's server is missing; for the tests of several controllers, install your system's package" >&2
fi
