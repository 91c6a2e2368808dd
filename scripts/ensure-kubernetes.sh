#!/bin/sh
# Builds the servers of Kubernetes from Debian's source package into build/kubernetes/bin, and installs etcd and what a
# kubelet needs, if this user can do so without a password (root, with apt, on Debian 12). Otherwise prints what to do and
# succeeds; those tests are skipped. No package has these servers. Takes about 13 minutes of two cores the first time, and
# 4 GB while it lasts.
set -eu

version=1.20.2
folder=$PWD/build/kubernetes
servers="kube-apiserver kube-controller-manager kube-scheduler kubelet"

is_complete() {
    for server in $servers; do
        [ -x "$folder/bin/$server" ] || return 1
    done
    command -v etcd >/dev/null && command -v containerd >/dev/null && [ -x /usr/lib/cni/bridge ]
}

give_up() {
    [ -f "$log" ] && tail -n 5 "$log" >&2
    echo "perdure: $1; tests against a real Kubernetes are skipped" >&2
    exit 0
}

log=$folder/install.log
is_complete && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1 || ! grep -qs '^VERSION_ID="12"' /etc/os-release; then
    echo "perdure: a Kubernetes to test against is built on Debian 12, by root; those tests are skipped" >&2
    exit 0
fi
mkdir -p "$folder/bin"
export DEBIAN_FRONTEND=noninteractive
echo "installing etcd, containerd and Go ..."
# Only the programs are needed: no service may start.
policy=/usr/sbin/policy-rc.d
[ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=$policy; }
trap 'rm -f ${made:+"$made"}' EXIT
packages="golang-1.19-go etcd-server containerd runc containernetworking-plugins busybox-static iptables ebtables conntrack socat ethtool"
# An unreachable repository fails the update, but the packages may be in another one.
# shellcheck disable=SC2086
{ apt-get update || true; apt-get install -y --no-install-recommends $packages; } >"$log" 2>&1 </dev/null ||
    give_up "etcd, containerd or Go could not be installed"
is_complete && exit 0

# The source, by a list of sources of its own: this machine's, with `deb-src` in place of `deb`.
work=$folder/work
mkdir -p "$work/lists/partial" "$work/sources"
if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/sources/debian.sources"
else
    sed 's/^deb /deb-src /' /etc/apt/sources.list >"$work/sources/debian.list"
fi
archive() {
    apt-get -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists" "$@"
}
if ! ls "$work"/kubernetes_1.20*.orig.tar.gz >/dev/null 2>&1; then
    echo "fetching the source of Kubernetes $version ..."
    { archive update && cd "$work" && archive source --download-only kubernetes; } >"$log" 2>&1 </dev/null ||
        give_up "the source of Kubernetes could not be fetched"
fi
export GOPATH="$work/gopath" GOCACHE="$work/gocache" PATH="/usr/lib/go-1.19/bin:$PATH"
export GOPROXY=off GO111MODULE=off CGO_ENABLED=0
source=$GOPATH/src/k8s.io/kubernetes
if [ ! -d "$source" ]; then
    mkdir -p "$GOPATH/src/k8s.io" "$work/unpacked"
    tar -xzf "$work"/kubernetes_1.20*.orig.tar.gz -C "$work/unpacked" --strip-components 1
    mv "$work/unpacked" "$source"
fi
cd "$source"

echo "building Kubernetes $version from its source, which takes a quarter of an hour ..."
# The tarball lacks one generated file: the OpenAPI definitions of the API.
generated=pkg/generated/openapi/zz_generated.openapi.go
if [ ! -s "$generated" ]; then
    inputs=$(grep -rl --include='*.go' '+k8s:openapi-gen=true' staging/src/k8s.io pkg cmd | xargs -n1 dirname | sort -u |
        grep -vE 'sample-apiserver|code-generator|/generated/|_examples|testdata' |
        sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^pkg/#k8s.io/kubernetes/pkg/#; s#^cmd/#k8s.io/kubernetes/cmd/#' |
        paste -sd,)
    { go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen &&
        "$work/openapi-gen" --logtostderr -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi \
            -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations.txt" \
            --output-base "$GOPATH/src"; } >"$log" 2>&1 || give_up "the API's definitions could not be generated"
fi
vendor=k8s.io/kubernetes/vendor/k8s.io
flags="-s -w"
for part in component-base/version client-go/pkg/version; do
    flags="$flags -X $vendor/$part.gitVersion=v$version -X $vendor/$part.gitMajor=1 -X $vendor/$part.gitMinor=20"
done
for server in $servers; do
    [ -x "$folder/bin/$server" ] && continue
    go build -trimpath -ldflags "$flags" -o "$work/$server" "./cmd/$server" >"$log" 2>&1 ||
        give_up "$server could not be built"
    mv "$work/$server" "$folder/bin/$server"
done
cd "$folder"
chmod -R u+w "$work"
rm -rf "$work"
