#!/bin/sh
# Of the deb (`remove`, `purge`, `upgrade`, ..) and the rpm (0: the last version went), after the files went.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
case "$1" in
    purge | 0)
        # Caches can be fetched again. Keyrings, configurations and stored replies are the operator's.
        rm -rf /var/cache/nsbridge
        rmdir /var/lib/nsbridge /var/lib/nsbridge-gateway 2>/dev/null || true
        rmdir /etc/nsbridge/workers /etc/nsbridge/keys /etc/nsbridge 2>/dev/null || true
        if [ ! -d /etc/nsbridge ] && [ ! -d /var/lib/nsbridge ] && [ ! -d /var/lib/nsbridge-gateway ]; then
            userdel nsbridge 2>/dev/null || true
            groupdel nsbridge 2>/dev/null || true
        fi
        ;;
esac
