#!/bin/sh
# Installs OpenSSH's client and server, and rsync, with which users enter the machines of jobs, if this user can do so
# without a password (root, with apt). Otherwise prints what to do and succeeds; the tests of ssh are skipped.
set -eu

PATH=$PATH:/usr/sbin:/sbin
command -v ssh >/dev/null 2>&1 && command -v sshd >/dev/null 2>&1 && command -v rsync >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing openssh-server and rsync ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # The server is started per session by the agent: the one of the system must not begin to listen.
    policy=/usr/sbin/policy-rc.d
    made=
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; made=1; }
    # An unreachable repository fails the update, but the packages may be in another one.
    if ! { apt-get update || true; apt-get install -y --no-install-recommends openssh-client openssh-server rsync; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: openssh-server could not be installed; the tests of ssh are skipped" >&2
    fi
    [ -z "$made" ] || rm -f $policy
    rm -f "$log"
else
    echo "perdure: sshd, ssh or rsync is missing; for the tests of ssh, install openssh-server and rsync" >&2
fi
