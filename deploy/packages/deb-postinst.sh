#!/bin/sh
# After unpacking: enables the service on the first installation, starts it, and restarts it after an
# upgrade. The same steps as debhelper's dh_installsystemd writes.
set -e

unit=gpuwho.service

case $1 in
  configure | abort-upgrade | abort-deconfigure | abort-remove) ;;
  *) exit 0 ;;
esac

# What the admin has enabled, disabled or masked stays so.
deb-systemd-helper unmask "$unit" >/dev/null || true
if deb-systemd-helper --quiet was-enabled "$unit"; then
  deb-systemd-helper enable "$unit" >/dev/null || true
else
  deb-systemd-helper update-state "$unit" >/dev/null || true
fi

if [ -d /run/systemd/system ]; then
  systemctl --system daemon-reload >/dev/null || true
  if [ -n "$2" ]; then action=restart; else action=start; fi
  # Asks policy-rc.d, and leaves a service alone that is not enabled.
  deb-systemd-invoke "$action" "$unit" >/dev/null || true
fi
