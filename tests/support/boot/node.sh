#!/bin/sh
# Boots a machine's own systemd: node.sh FOLDER ROOTFS NAME. It runs in a mount and a network namespace of its own, and
# waits on its standard input until its network is there. Ends when the machine does.
set -eu

folder=$1 rootfs=$2 name=$3
read -r _ # the network is there
ip link set lo up
ip address add 169.254.169.254/32 dev lo

mkdir -p "$folder/upper" "$folder/work" "$folder/root" "$folder/cgroup"
mount -t cgroup2 none "$folder/cgroup"
mkdir -p "$folder/cgroup/$name"
echo $$ >"$folder/cgroup/$name/cgroup.procs"
mount -t cgroup2 none /sys/fs/cgroup # systemd-nspawn looks for it here
mount -t overlay overlay -o "lowerdir=$rootfs,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
exec systemd-nspawn --quiet --directory="$folder/root" --boot --machine="$name" --register=no --keep-unit \
    --resolv-conf=off --bind=/dev/fuse --capability=all --link-journal=no --console=read-only
