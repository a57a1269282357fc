#!/bin/sh
# Of the deb (`remove`, `purge`, `upgrade`, ..) and the rpm (0: the last version went), after the files went.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
case "$1" in
    purge | 0)
        # Services that were enabled. After `remove` alone, a new installation finds them again.
        rm -f /etc/systemd/system/*.wants/nsbridge-worker@*.service \
            /etc/systemd/system/*.wants/nsbridge-gateway.service
        # Caches can be fetched again. Keyrings, configurations and stored replies are the operator's, and so is the
        # user: a new one with its number could read what it has left elsewhere.
        rm -rf /var/cache/nsbridge
        rmdir /var/lib/nsbridge /var/lib/nsbridge-gateway 2>/dev/null || true
        rmdir /etc/nsbridge/workers /etc/nsbridge/keys /etc/nsbridge 2>/dev/null || true
        ;;
esac
