#!/bin/sh
# Installs fusermount3, which bucket mounts need, if this user can do so without a password (root, with apt). Otherwise
# prints what to do and succeeds: everything else works without mounts.
set -eu

if ! command -v fusermount3 >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing fuse3 ..."
        log=$(mktemp)
        export DEBIAN_FRONTEND=noninteractive
        # An unreachable repository fails the update, but fuse3 may be in another one.
        if ! { apt-get update || true; apt-get install -y --no-install-recommends fuse3; } >"$log" 2>&1 </dev/null; then
            tail -n 5 "$log" >&2
            echo "perdure: fuse3 could not be installed; jobs that use MOUNT or MOUNT_CACHED need it" >&2
        fi
        rm -f "$log"
    else
        echo "perdure: fusermount3 is missing; to use MOUNT or MOUNT_CACHED, install your system's fuse3 package" >&2
    fi
fi

if [ ! -e /dev/fuse ]; then
    echo "perdure: /dev/fuse is missing; jobs that use MOUNT or MOUNT_CACHED need it (modprobe fuse)" >&2
fi
