#!/bin/sh
# Mounts the disk that holds a controller's state; one that has no file system yet gets one. $1: its device, $2: where.
set -eu
device=$1 folder=$2
tries=0
until [ -b "$device" ]; do # it is attached when the machine is up
  tries=$((tries + 1))
  [ "$tries" -le 600 ] || { echo "perdure: there is no disk $device" >&2; exit 1; }
  sleep 1
done
device=$(readlink -f "$device")
# Only a disk that is known to be blank is formatted: one that can not be read is not blank.
status=0
blkid -p "$device" >/dev/null || status=$?
case $status in
  0) ;;
  2) mkfs.ext4 -q -L perdure-state "$device" ;;
  *) echo "perdure: $device can not be read (blkid: $status)" >&2; exit 1 ;;
esac
mkdir -p "$folder"
grep -q " $folder " /etc/fstab || echo "LABEL=perdure-state $folder ext4 defaults,nofail 0 2" >>/etc/fstab
mountpoint -q "$folder" || mount "$device" "$folder"
chown perdure:perdure "$folder"
chmod 700 "$folder"
