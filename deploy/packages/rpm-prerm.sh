#!/bin/sh
# Before the last version is removed: stops and disables the service, and stops its slice, which systemd would
# keep with its cgroup.
if [ "$1" -eq 0 ] && command -v systemctl >/dev/null; then
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now gpuwho.service >/dev/null 2>&1 || :
    systemctl stop gpuwho.slice >/dev/null 2>&1 || :
  else
    systemctl --no-reload disable gpuwho.service >/dev/null 2>&1 || :
  fi
fi
exit 0
