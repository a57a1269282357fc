#!/bin/sh
# Of the deb (`remove`, `upgrade`, ..) and the rpm (0: the last version goes), before the files go.
set -e
case "$1" in
    remove | 0)
        if [ -d /run/systemd/system ]; then
            systemctl stop 'nsbridge-worker@*.service' nsbridge-gateway.service || true
        fi
        ;;
esac
