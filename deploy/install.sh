#!/bin/sh
# Installs nsbridge from a release: the command, the bundled models, man pages and completions.
#
#     curl -fsSL ADDRESS/install.sh | sh
#     curl -fsSL ADDRESS/install.sh | sh -s -- --prefix /opt/nsbridge --version 0.1.0
#     sh install.sh --uninstall
#
# NSBRIDGE_DOWNLOAD is the address of the folder with the release's files; `{version}` in it stands for
# the version. docs/installing.md describes the rest.

# The release writes its address and its version here.
download=@DOWNLOAD@
version=@VERSION@

# Free space for the archive and for its files, beside those of a version that is replaced.
needed_kib=153600
# Free space below which a file that could not be written was too large.
reserve_kib=64
glibc_minor=28
# Times that a download is begun or continued.
attempts=5
manifest=share/nsbridge/installed-files

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

say() {
    printf '%s\n' "$1" >&2
}

has() {
    command -v "$1" >/dev/null 2>&1
}

usage() {
    cat <<'END'
Usage: install.sh [--version VERSION] [--prefix FOLDER] [--uninstall]

  --version VERSION  version to install, for example 0.1.0 (default: that of this script)
  --prefix FOLDER    folder to install into (default: ~/.local; /usr/local for root)
  --uninstall        removes what this script has installed into the folder
END
}

# Sets the variables that the arguments name.
read_arguments() {
    action=install
    prefix=
    while [ $# -gt 0 ]; do
        case $1 in
            --version | --prefix)
                [ -n "${2-}" ] || fail "$1 needs a value"
                if [ "$1" = --version ]; then version=${2#v}; else prefix=$2; fi
                shift
                ;;
            --uninstall) action=uninstall ;;
            --help | -h) usage && exit 0 ;;
            *) fail "there is no option $1; --help lists the options" ;;
        esac
        shift
    done
    if [ -z "$prefix" ] && [ "$(id -u)" = 0 ]; then prefix=/usr/local; fi
    if [ -z "$prefix" ]; then
        [ -n "${HOME-}" ] || fail "HOME is not set: name the folder to install into with --prefix"
        prefix=$HOME/.local
    fi
    case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
    case $version in
        @*) version= ;;
        *[!0-9A-Za-z.+-]*) fail "$version is no version; 0.1.0 is one" ;;
    esac
}

# Sets `target` to the name of this platform, as compilers spell it.
find_platform() {
    system=$(uname -s)
    machine=$(uname -m)
    # A translated process sees an Intel processor.
    if [ "$system" = Darwin ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" = 1 ]; then machine=arm64; fi
    case "$system $machine" in
        "Linux x86_64" | "Linux amd64") target=x86_64-unknown-linux-gnu ;;
        "Linux aarch64" | "Linux arm64") target=aarch64-unknown-linux-gnu ;;
        "Darwin x86_64") target=x86_64-apple-darwin ;;
        "Darwin arm64") target=aarch64-apple-darwin ;;
        *) fail "there is no program for $system on $machine: build it from source with cargo build --release" ;;
    esac
    if [ "$system" = Linux ]; then check_libc; fi
}

check_libc() {
    if [ "$(getconf LONG_BIT 2>/dev/null)" = 32 ]; then
        fail "this is a 32-bit system, and the program needs a 64-bit one"
    fi
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=$(ldd --version 2>&1 | head -n 1)
    case $libc in
        *musl*)
            fail "this system has musl, and the program needs glibc 2.$glibc_minor or later: use the container image"
            ;;
    esac
    number=$(printf '%s\n' "$libc" | sed -n 's/.* \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p')
    [ -n "$number" ] ||
        fail "this system has no glibc, and the program needs 2.$glibc_minor or later: use the container image"
    minor=${number#*.}
    if [ "${number%%.*}" -lt 2 ] || { [ "${number%%.*}" = 2 ] && [ "$minor" -lt $glibc_minor ]; }; then
        fail "this system has glibc $number, and the program needs 2.$glibc_minor or later: use the container image"
    fi
}

# Says what a processor without the instructions of the fast kernels means.
note_processor() {
    [ "$target" = x86_64-unknown-linux-gnu ] && [ -r /proc/cpuinfo ] || return 0
    for flag in avx2 fma f16c; do
        grep -qw "$flag" /proc/cpuinfo && continue
        say "note: this processor has no $flag: models give the same tokens, at a fraction of the speed"
        return 0
    done
}

# Sets `base` to the address of the release's files.
find_download() {
    base=${NSBRIDGE_DOWNLOAD:-$download}
    case $base in
        @*) fail "this script is from no release: set NSBRIDGE_DOWNLOAD to the address of a release's files" ;;
        https://* | file:///* | http://127.0.0.1[:/]* | http://localhost[:/]*) ;;
        *) fail "NSBRIDGE_DOWNLOAD must begin with https:// or file:///, and is $base" ;;
    esac
    case $base in
        *"{version}"*)
            [ -n "$version" ] || fail "name the version to install with --version"
            base=${base%%"{version}"*}$version${base#*"{version}"}
            ;;
    esac
    base=${base%/}
    case $base in file://*) return ;; esac
    has curl || has wget || fail "neither curl nor wget is installed: install one of them"
}

# Makes the folders `prefix` and `stage`, and checks the space beside them.
prepare_prefix() {
    [ -d "$prefix" ] || made_prefix=yes
    mkdir -p "$prefix" 2>/dev/null || fail "$prefix cannot be made: name a folder that you may write with --prefix"
    stage=$(mktemp -d "$prefix/.nsbridge-install.XXXXXX" 2>/dev/null) ||
        fail "$prefix cannot be written: name a folder that you may write with --prefix"
    check_space $needed_kib
}

# Fails if the prefix has less free space than $1 KiB.
check_space() {
    free_kib=$(df -Pk "$prefix" | awk 'NR == 2 { print $4 }')
    [ "$free_kib" -ge "$1" ] ||
        fail "$prefix has $((free_kib / 1024)) MB of free space, and the installation needs $((needed_kib / 1024)) MB:" \
            "make room, or name another folder with --prefix"
}

# Removes the folder of the download; does nothing before there is one.
clean_up() {
    [ -z "${stage-}" ] || rm -rf "$stage"
    [ -z "${made_prefix-}" ] || rmdir "$prefix" 2>/dev/null || true
}

# Fetches or continues a file once: $1 its address, $2 its path. Sets `status` to HTTP's, if there was one.
fetch_once() {
    status=
    case $1 in
        file://*)
            cp "${1#file://}" "$2" 2>/dev/null || status=404
            [ -z "$status" ]
            return
            ;;
    esac
    if has curl; then
        # A stalled download is an interrupted one.
        status=$(curl --fail --location --silent --show-error --continue-at - --connect-timeout 20 \
            --speed-limit 1 --speed-time 30 --proto '=https,http' --proto-redir '=https' \
            --output "$2" --write-out '%{http_code}' "$1" 2>"$stage/said")
    else
        # BusyBox 1.35 crashes with a timeout.
        case $(wget --help 2>&1) in *BusyBox*) timeout= ;; *) timeout=-T30 ;; esac
        LC_ALL=C wget -c -t 1 ${timeout:+"$timeout"} -O "$2" "$1" 2>"$stage/said" && return
        status=$(sed -n -e 's/.*awaiting response\.\.\. \([0-9]*\) .*/\1/p' -e 's/.*HTTP\/[0-9.]* \([0-9]*\).*/\1/p' \
            "$stage/said" | tail -n 1)
        return 1
    fi
}

# Fetches the release's file $1 into the stage, and continues it after an interruption.
fetch() {
    attempt=1
    size=0
    until fetch_once "$base/$1" "$stage/$1"; do
        case $status in
            404 | 410) fail "$base/$1 does not exist: check the version and NSBRIDGE_DOWNLOAD" ;;
            40[0-9] | 41[0-57-9]) fail "$base/$1 was refused with status $status" ;;
        esac
        check_space $reserve_kib
        before=$size
        size=0
        if [ -f "$stage/$1" ]; then size=$(wc -c <"$stage/$1"); fi
        if [ $attempt -ge $attempts ] && [ $((${status:-0})) -eq 0 ] && [ $((size)) -eq 0 ]; then
            fail "$base/$1 cannot be reached: check NSBRIDGE_DOWNLOAD, the network and the proxy" \
                "($(tail -n 1 "$stage/said"))"
        fi
        [ $attempt -lt $attempts ] ||
            fail "the download of $base/$1 was interrupted $attempts times, last after $((size)) bytes:" \
                "run this script again ($(tail -n 1 "$stage/said"))"
        # A server that has answered and cannot continue a file must send it anew.
        case $status in
            200 | 206 | 416) if [ "$size" -le "$before" ]; then rm -f "$stage/$1" && size=0; fi ;;
        esac
        sleep "$attempt"
        attempt=$((attempt + 1))
    done
}

# Sets `archive` to the name of this platform's archive, and `expected` to its sum.
find_archive() {
    fetch SHA256SUMS
    if [ -z "$version" ]; then
        version=$(sed -n "s/^[0-9a-f]* [ *]nsbridge-\([0-9][^ ]*\)-$target\.tar\.gz\$/\1/p" "$stage/SHA256SUMS" | head -n 1)
    fi
    archive=nsbridge-$version-$target.tar.gz
    expected=$(awk -v name="$archive" '{ sub(/^\*/, "", $2) } $2 == name { print $1; exit }' "$stage/SHA256SUMS")
    [ -n "$expected" ] || fail "the release at $base has no program for $target${version:+ in version $version}"
}

sum_of() {
    if has sha256sum; then
        sha256sum <"$1"
    elif has shasum; then
        shasum -a 256 <"$1"
    elif has openssl; then
        openssl dgst -sha256 -r <"$1"
    else
        fail "none of sha256sum, shasum and openssl is installed: install one of them, to check the download"
    fi
}

check_sum() {
    sum=$(sum_of "$stage/$archive") || exit 1
    sum=${sum%% *}
    [ "$sum" = "$expected" ] ||
        fail "$archive has the SHA-256 sum $sum, and SHA256SUMS has $expected:" \
            "nothing was installed; try again, and report it if it stays so"
}

# Unpacks the archive into `stage/new`, and starts the program once.
unpack() {
    mkdir "$stage/new"
    tar -xzof "$stage/$archive" -C "$stage/new" 2>"$stage/said" || {
        check_space $reserve_kib
        fail "$archive cannot be unpacked: $(head -n 1 "$stage/said")"
    }
    new=$stage/new/nsbridge-$version-$target
    [ -f "$new/bin/nsbridge" ] || fail "$archive holds no bin/nsbridge"
    says=$("$new/bin/nsbridge" -V 2>&1) || fail "the program does not start on this machine: $says"
    (cd "$new" && find . ! -type d | sed 's/^\.\///' | sort) >"$stage/files"
}

# Refuses to replace files that are not of an earlier installation.
check_foreign() {
    : >"$stage/old"
    if [ -f "$prefix/$manifest" ]; then check_manifest; fi
    if [ -f "$prefix/$manifest" ]; then sort "$prefix/$manifest" >"$stage/old"; fi
    while read -r file; do
        if { [ -e "$prefix/$file" ] || [ -L "$prefix/$file" ]; } && ! grep -qxF "$file" "$stage/old"; then
            fail "$prefix/$file exists and is not from this script: remove it, or name another folder with --prefix"
        fi
    done <"$stage/files"
}

# Makes a folder of the prefix, and notes in `stage/folders` which ones it made.
make_folder() {
    [ "$1" != . ] && [ ! -d "$prefix/$1" ] || return 0
    make_folder "$(dirname "$1")"
    mkdir "$prefix/$1" || fail "$prefix/$1 cannot be made"
    printf '%s/\n' "$1" >>"$stage/folders"
}

# Replaces the manifest by the given lists at once.
write_manifest() {
    sort -u "$@" >"$stage/manifest"
    mv -f "$stage/manifest" "$prefix/$manifest" || fail "$prefix/$manifest cannot be written"
}

# Moves the new files into place, one rename each, and removes those of the old version that are gone. The manifest
# lists both meanwhile, so that an installation that was cut off can be repeated or removed.
move_files() {
    grep '/$' "$stage/old" >"$stage/folders"
    if [ -n "${made_prefix-}" ]; then echo ./ >>"$stage/folders"; fi
    while read -r file; do make_folder "$(dirname "$file")"; done <"$stage/files"
    make_folder "$(dirname $manifest)"
    write_manifest "$stage/old" "$stage/files" "$stage/folders"
    while read -r file; do
        mv -f "$new/$file" "$prefix/$file" || fail "$prefix/$file cannot be written: run this script again"
    done <"$stage/files"
    grep -v '/$' "$stage/old" | while read -r file; do
        grep -qxF "$file" "$stage/files" || rm -f "$prefix/$file"
    done
    write_manifest "$stage/files" "$stage/folders"
    made_prefix=
}

say_next() {
    say "installed $says in $prefix"
    case ":$PATH:" in
        *":$prefix/bin:"*)
            found=$(command -v nsbridge)
            [ "$found" = "$prefix/bin/nsbridge" ] || say "note: $found comes first in PATH"
            say "next: nsbridge demo"
            ;;
        *) say "next: export PATH=\"$prefix/bin:\$PATH\" && nsbridge demo" ;;
    esac
}

install_release() {
    find_platform
    find_download
    prepare_prefix
    note_processor
    find_archive
    say "downloading $base/$archive"
    fetch "$archive"
    check_sum
    unpack
    check_foreign
    move_files
    say_next
}

# A manifest that somebody else has changed must not lead out of the prefix.
check_manifest() {
    if grep -qE '^/|(^|/)\.\.(/|$)' "$prefix/$manifest"; then fail "$prefix/$manifest names a file outside of $prefix"; fi
}

uninstall() {
    [ -f "$prefix/$manifest" ] || fail "$prefix/$manifest does not exist: this script has installed nothing there"
    check_manifest
    [ -w "$prefix/$(dirname $manifest)" ] || fail "$prefix cannot be written: run this script as the user who installed it"
    # The longest path first: a folder after what is in it.
    listed=$(sort -r "$prefix/$manifest")
    printf '%s\n' "$listed" | grep -v '/$' | while read -r file; do
        rm -f "$prefix/$file" || exit 1
    done || fail "a file in $prefix cannot be removed: run this script again, as the user who installed it"
    rm -f "$prefix/$manifest"
    printf '%s\n' "$listed" | grep '/$' | while read -r folder; do rmdir "$prefix/${folder#./}" 2>/dev/null; done
    say "removed nsbridge from $prefix"
}

main() {
    set -u
    umask 022
    read_arguments "$@"
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if [ $action = uninstall ]; then uninstall; else install_release; fi
}

# The last line: a script that was cut off runs nothing.
main "$@"
