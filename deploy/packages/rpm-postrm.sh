#!/bin/sh
# After the old version of an upgrade is gone: a service that runs is restarted. RPM has no purge: the last removal
# takes what the agent has written, and keeps what the admin has: /etc/gpuwho/environment, and a changed gpuwho.toml as
# gpuwho.toml.rpmsave.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload >/dev/null 2>&1 || :
  if [ "$1" -ge 1 ]; then
    systemctl try-restart gpuwho.service >/dev/null 2>&1 || :
  fi
fi
if [ "$1" -eq 0 ]; then
  rm -rf /var/lib/gpuwho /var/log/gpuwho /run/gpuwho
fi
exit 0
