#!/bin/sh
# Runs a machine's host process in a network of its own, joined to the daemon's bridge by a cable that can be broken.
# node.sh DAEMON_PID FOLDER COMMAND...: the machine's number is the name of the folder that it makes in FOLDER.
set -eu

daemon=$1 folder=$2
shift 2
if [ -z "${NODE_NUMBER:-}" ]; then
    NODE_NUMBER=10
    until mkdir "$folder/$NODE_NUMBER" 2>/dev/null; do NODE_NUMBER=$((NODE_NUMBER + 1)); done
    export NODE_NUMBER
    exec unshare --net sh "$0" "$daemon" "$folder" "$@"
fi

ip link set lo up
ip link add eth0 address "02:00:00:00:00:$NODE_NUMBER" type veth peer name "node$NODE_NUMBER" netns "$daemon"
nsenter --target "$daemon" --net ip link set "node$NODE_NUMBER" master bridge0 up
ip address add "10.77.0.$NODE_NUMBER/24" dev eth0
ip link set eth0 up
for word; do
    case $word in */instances/*) basename "$word" >"$folder/$NODE_NUMBER/instance" ;; esac
done
unset NODE_NUMBER
exec "$@"
