#!/bin/sh
# Bucket mounts need fusermount3. Installs it once where that takes no question (root, apt); elsewhere says what to do,
# and lets everything that needs no mount go on.
set -eu

if ! command -v fusermount3 >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing fuse3 ..."
        log=$(mktemp)
        export DEBIAN_FRONTEND=noninteractive
        # One repository that does not answer fails the update, and need not be the one that has fuse3.
        if ! { apt-get update || true; apt-get install -y --no-install-recommends fuse3; } >"$log" 2>&1 </dev/null; then
            tail -n 5 "$log" >&2
            echo "perdure: fuse3 could not be installed; jobs with MOUNT and MOUNT_CACHED need it" >&2
        fi
        rm -f "$log"
    else
        echo "perdure: fusermount3 is missing; for jobs with MOUNT and MOUNT_CACHED, install your system's fuse3 package" >&2
    fi
fi

if [ ! -e /dev/fuse ]; then
    echo "perdure: /dev/fuse is missing; jobs with MOUNT and MOUNT_CACHED need it (modprobe fuse)" >&2
fi
