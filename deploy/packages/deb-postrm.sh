#!/bin/sh
# After removing: systemd forgets the unit. After a purge nothing of the agent's own is left.
set -e

unit=gpuwho.service

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl --system daemon-reload >/dev/null || true
fi
if [ -x /usr/bin/deb-systemd-helper ]; then
  case $1 in
    remove) deb-systemd-helper mask "$unit" >/dev/null || true ;;
    purge)
      deb-systemd-helper purge "$unit" >/dev/null || true
      deb-systemd-helper unmask "$unit" >/dev/null || true
      ;;
  esac
fi
if [ "$1" = purge ]; then
  rm -rf /var/lib/gpuwho /var/log/gpuwho /run/gpuwho
  # Named by the unit, made by the admin, and it may hold secrets.
  rm -f /etc/gpuwho/environment
  rmdir --ignore-fail-on-non-empty /etc/gpuwho 2>/dev/null || true
fi
