#!/bin/sh
# Mounts the disk with a controller's state, and formats a blank one.
# $1: its device; if that depends on how the disk is attached, all its possible names, with commas. $2: the mount point.
set -eu
names=$(echo "$1" | tr ',' ' ') folder=$2
device=
tries=0
while [ -z "$device" ]; do # it is attached after the machine has started
  for name in $names; do
    if [ -z "$device" ] && [ -b "$name" ]; then device=$(readlink -f "$name"); fi
  done
  [ -z "$device" ] || break
  tries=$((tries + 1))
  [ "$tries" -le 600 ] || { echo "perdure: there is no disk $names" >&2; exit 1; }
  sleep 1
done
# Format the disk only if it is certainly blank: one that cannot be read is not blank.
status=0
blkid -p "$device" >/dev/null || status=$?
case $status in
  0) ;;
  2) mkfs.ext4 -q -L perdure-state "$device" ;;
  *) echo "perdure: $device cannot be read (blkid: $status)" >&2; exit 1 ;;
esac
mkdir -p "$folder"
grep -q " $folder " /etc/fstab || echo "LABEL=perdure-state $folder ext4 defaults,nofail 0 2" >>/etc/fstab
mountpoint -q "$folder" || mount "$device" "$folder"
chown perdure:perdure "$folder"
chmod 700 "$folder"
