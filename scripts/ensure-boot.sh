#!/bin/sh
# Makes the root file system that the boot tests boot, in build/boot/rootfs, and installs what boots it, if this user
# can do so without a password (root, with apt). Otherwise prints what to do and succeeds; those tests are skipped.
# Takes some minutes the first time.
set -eu

rootfs=build/boot/rootfs
packages=systemd,systemd-sysv,dbus,cloud-init,python3,fuse3,sudo,ca-certificates,iproute2,netbase,udev,procps,kmod
# python3-cffi-backend: debootstrap does not resolve cloud-init's dependency on a virtual package.
packages=$packages,unattended-upgrades,python3-cffi-backend

[ -e "$rootfs/.complete" ] && command -v systemd-nspawn >/dev/null && command -v slirp4netns >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "perdure: booting machines needs root, systemd-nspawn, slirp4netns and debootstrap; boot tests are skipped" >&2
    exit 0
fi
mkdir -p build/boot
log=build/boot/install.log
export DEBIAN_FRONTEND=noninteractive
echo "installing systemd-container, slirp4netns and debootstrap ..."
{ apt-get update || true; apt-get install -y --no-install-recommends systemd-container slirp4netns debootstrap iproute2; } \
    >"$log" 2>&1 </dev/null || { tail -n 5 "$log" >&2; exit 0; }
[ -e "$rootfs/.complete" ] && exit 0

echo "installing Debian into $rootfs, which takes some minutes ..."
rm -rf "$rootfs"
mkdir -p "$rootfs/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$rootfs/etc/dpkg/dpkg.cfg.d/unsafe-io"
debootstrap --variant=minbase --include="$packages" bookworm "$rootfs" >"$log" 2>&1 </dev/null || {
    tail -n 5 "$log" >&2
    echo "perdure: no distribution could be installed; boot tests are skipped" >&2
    exit 0
}
: >"$rootfs/etc/machine-id"
rm -f "$rootfs/etc/resolv.conf"
echo "nameserver 10.0.2.3" >"$rootfs/etc/resolv.conf"
printf 'datasource_list: [NoCloud, None]\nnetwork: {config: disabled}\n' >"$rootfs/etc/cloud/cloud.cfg.d/90_test.cfg"
touch "$rootfs/.complete"
