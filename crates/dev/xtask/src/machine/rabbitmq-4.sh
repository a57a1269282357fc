# Unpacks RabbitMQ 4 and as much of Debian 13 as it runs on. Runs as root; $1: the folder to make.
#
# Nothing is installed: apt looks at an empty system of its own, and no package's script is run.
set -eu
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/*$') || {
    echo "none of this machine's apt sources is a mirror of Debian" >&2
    exit 1
}
apt=$1/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/none"
: >"$apt/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror trixie main" >"$apt/sources.list"

apart() {
    apt-get -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts="$apt/none" \
        -o Dir::Etc::preferencesparts="$apt/none" -o APT::Default-Release= \
        -o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@"
}
apart update
# What RabbitMQ's own scripts call, which Debian takes for granted.
apart install --yes --download-only base-files dash coreutils sed grep rabbitmq-server

# First of all the links from /bin to /usr/bin and their like.
for package in "$apt"/cache/archives/base-files_*.deb "$apt"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$1"
done
rm -rf "$apt" "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale"

mknod -m 666 "$1/dev/null" c 1 3
mknod -m 444 "$1/dev/urandom" c 1 9
echo "root:x:0:0:root:/root:/bin/sh" >"$1/etc/passwd"
echo "127.0.0.1 localhost" >"$1/etc/hosts"
# Does it run? It says which it is.
HOME=/root unshare --mount chroot "$1" /usr/lib/rabbitmq/bin/rabbitmqctl version
