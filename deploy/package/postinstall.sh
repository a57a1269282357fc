#!/bin/sh
# Of the deb and the rpm, after the files are there.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers /usr/lib/sysusers.d/nsbridge.conf
elif ! getent passwd nsbridge >/dev/null 2>&1; then
    useradd --system --user-group --no-create-home --home-dir /var/lib/nsbridge \
        --shell /usr/sbin/nologin nsbridge
fi
# A keyring must belong to its reader.
chown nsbridge:nsbridge /etc/nsbridge/keys
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # After an upgrade. A stop is a drain: running replies end or move to other workers.
    systemctl try-restart 'nsbridge-worker@*.service' nsbridge-gateway.service
fi
