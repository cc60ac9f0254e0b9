#!/bin/sh
# Before removing: stops the service. An upgrade lets it run until the new program is there.
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  deb-systemd-invoke stop gpuwho.service >/dev/null || true
fi
