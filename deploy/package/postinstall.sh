#!/bin/sh
# Of the deb and the rpm, after the files are there.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers /usr/lib/sysusers.d/nsbridge.conf
elif ! getent passwd nsbridge >/dev/null 2>&1; then
    # Systems without systemd.
    useradd --system --user-group --no-create-home --home-dir /var/lib/nsbridge \
        --shell /usr/sbin/nologin nsbridge
fi
# A keyring must belong to its reader. No package has the folder, which would give it back to root.
install -d -o nsbridge -g nsbridge -m 700 /etc/nsbridge/keys
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    # After an upgrade. A stop is a drain: running replies end or move to other workers. The package does not wait for
    # it, nor for a model that loads.
    systemctl --no-block try-restart 'nsbridge-worker@*.service' nsbridge-gateway.service || true
fi
