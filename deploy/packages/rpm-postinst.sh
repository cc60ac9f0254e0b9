#!/bin/sh
# After installing: the distribution's presets say whether the service is enabled, as Red Hat's
# %systemd_post does. After an upgrade a service that runs is restarted by the post-removal script.
if [ "$1" -eq 1 ] && command -v systemctl >/dev/null; then
  systemctl --no-reload preset gpuwho.service >/dev/null 2>&1 || :
fi
exit 0
