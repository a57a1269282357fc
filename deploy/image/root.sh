#!/bin/sh
# Lays the root of the container image. Runs as root on Debian or its like.
#
#     root.sh PREFIX SOURCES FOLDER
#
# PREFIX has the installed files, SOURCES this repository, and FOLDER gets the root. Of Debian 13 it has the C
# library, the authorities of TLS, an init for PID 1, and busybox for a shell: no package manager and no
# interpreter. config.json beside this script is the image's configuration: the health check is that of a worker, and a
# gateway is asked at 127.0.0.1:9090; tini passes signals on, and reaps the processes of others.
set -eu
prefix=$1 sources=$2 root=$3
suite=trixie
# apt asks for the newest version of each; status.d tells which came.
packages="base-files netbase libc6 libgcc-s1 ca-certificates tini busybox-static"

mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || mirror=
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ]; then
    mirror=${NSBRIDGE_DEBIAN_MIRROR:?"none of this machine's apt sources is a mirror of Debian: set NSBRIDGE_DEBIAN_MIRROR to one"}
fi
if [ ! -e "$keyring" ]; then
    echo "$keyring is missing: install debian-archive-keyring" >&2
    exit 1
fi
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
trap 'exit 130' HUP INT TERM
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/none" "$apt/debs"
: >"$apt/status"
{
    echo "deb [signed-by=$keyring] $mirror $suite main"
    echo "deb [signed-by=$keyring] $mirror $suite-updates main"
} >"$apt/sources.list"
apart() {
    apt-get -qq -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts="$apt/none" \
        -o Dir::Etc::preferencesparts="$apt/none" -o APT::Default-Release= \
        -o APT::Sandbox::User=root "$@"
}
apart update
# shellcheck disable=SC2086 # a list
(cd "$apt/debs" && apart download $packages)

mkdir -p "$root"
# First the links from /bin to /usr/bin and their like.
for package in "$apt"/debs/base-files_*.deb "$apt"/debs/*.deb; do
    dpkg-deb --extract "$package" "$root"
    name=$(dpkg-deb --field "$package" Package)
    mkdir -p "$root/var/lib/dpkg/status.d"
    # Where scanners for vulnerabilities look.
    dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$name"
done
find "$root/usr/share/ca-certificates" -name '*.crt' | LC_ALL=C sort | xargs cat >"$apt/authorities"
mkdir -p "$root/etc/ssl/certs"
mv "$apt/authorities" "$root/etc/ssl/certs/ca-certificates.crt"
# What runs in no container of ours, but for the licenses.
rm -rf "$root/usr/share/locale" "$root/usr/share/man" "$root/usr/share/ca-certificates" \
    "$root/usr/share/doc-base" "$root/usr/share/lintian" "$root/usr/share/bash-completion" \
    "$root/usr/lib/x86_64-linux-gnu/gconv" "$root/usr/lib/aarch64-linux-gnu/gconv" \
    "$root/usr/share/busybox-static"
find "$root/usr/share/doc" -type f ! -name copyright -delete
for command in sh cat ls env test id sleep kill ps; do
    ln -s busybox "$root/usr/bin/$command"
done

echo "root:x:0:0:root:/:/bin/sh" >"$root/etc/passwd"
echo "nsbridge:x:10001:10001:nsbridge:/nonexistent:/usr/sbin/nologin" >>"$root/etc/passwd"
printf 'root:x:0:\nnsbridge:x:10001:\n' >"$root/etc/group"
echo "hosts: files dns" >"$root/etc/nsswitch.conf"
install -D --mode 755 "$prefix/bin/nsbridge" "$root/usr/bin/nsbridge"
mkdir -p "$root/usr/share/doc" "$root/etc/nsbridge" "$root/models"
for document in LICENSE-MIT LICENSE-APACHE THIRD-PARTY.txt rust-std-COPYRIGHT.html nsbridge.cdx.json; do
    install -D --mode 644 "$prefix/share/doc/nsbridge/$document" "$root/usr/share/doc/nsbridge/$document"
done
cp -R "$prefix/share/nsbridge/models/." "$root/models"
install --mode 644 "$sources/deploy/container.toml" "$root/etc/nsbridge/worker.toml"
install --mode 644 "$sources/deploy/container-gateway.toml" "$root/etc/nsbridge/gateway.toml"
chown -R 0:0 "$root"
chmod -R go-w "$root"
mkdir -p "$root/tmp" "$root/var/tmp"
chmod 1777 "$root/tmp" "$root/var/tmp"
# A keyring must belong to its reader, and a named volume that is mounted here takes the owner over.
install --directory --owner 10001 --group 10001 --mode 700 "$root/keys"
