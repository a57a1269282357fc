#!/bin/sh
# Joins what `cargo xtask dist` has made on several platforms into the files of one release.
#
#     deploy/join-release.sh VERSION FOLDER OUT
#
# FOLDER has a folder for each platform, with the files that its SHA256SUMS lists. A file that two platforms made must be
# the same file.
set -eu

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

[ $# = 3 ] || fail "give the version, the folder of the platforms, and the folder of the release"
version=$1 from=$2 out=$3
mkdir -p "$out"

for folder in "$from"/*/; do
    (cd "$folder" && sha256sum --check --quiet SHA256SUMS) || fail "$folder does not hold what its SHA256SUMS lists"
    while read -r _ name; do
        if [ -e "$out/$name" ]; then
            cmp -s "$folder/$name" "$out/$name" || fail "two platforms have made different files $name"
        else
            cp "$folder/$name" "$out/$name"
        fi
    done <"$folder/SHA256SUMS"
done
cat "$from"/*/SHA256SUMS | sort -u -k 2 >"$out/SHA256SUMS"

for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-apple-darwin; do
    archive=nsbridge-$version-$target.tar.gz
    [ -f "$out/$archive" ] || fail "there is no $archive: has the tag the version of Cargo.toml?"
done
