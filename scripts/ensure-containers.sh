#!/bin/sh
# Installs Podman, Docker and a container registry, with which the tests of containers run images that they make, if this
# user can do so without a password (root, with apt). Otherwise prints what to do and succeeds; those tests are skipped.
set -eu

# busybox and bash are what the images are made of.
wanted="podman runc docker dockerd docker-registry htpasswd busybox"
missing=
for program in $wanted; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing podman, docker and a registry ..."
    log=$(mktemp)
    policy=/usr/sbin/policy-rc.d
    export DEBIAN_FRONTEND=noninteractive
    # Only the programs are needed: no service may start.
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=$policy; }
    packages="podman crun runc docker.io docker-registry apache2-utils busybox-static"
    # An unreachable repository fails the update, but the packages may be in another one.
    # shellcheck disable=SC2086
    if ! { apt-get update || true; apt-get install -y --no-install-recommends $packages; } >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        echo "perdure: podman, docker and a registry could not be installed; tests of containers are skipped" >&2
    fi
    rm -f "$log" ${made:+"$made"}
else
    echo "perdure:$missing missing; to test containers, install podman, runc, docker, docker-registry and busybox" >&2
fi
