#!/bin/sh
# Before removing: stops the service, and its slice, which systemd would keep with its cgroup. An upgrade lets it
# run until the new program is there.
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  deb-systemd-invoke stop gpuwho.service >/dev/null || true
  systemctl --system stop gpuwho.slice >/dev/null || true
fi
