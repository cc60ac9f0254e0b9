#!/bin/sh
# A custom plugin of node-problem-detector: sets the node's condition AcceleratorUnhealthy from what the
# gpuwho agent on the node says. node-problem-detector.json, beside this file, is its configuration.
#
# Both files go into the folder /config/plugin of node-problem-detector's pod (a ConfigMap), which also
# needs the program gpuwho (copied from gpuwho's image by an init container into an emptyDir) and the
# host's folder /run/gpuwho, read-only. Then: --config.custom-plugin-monitor=
# /config/plugin/node-problem-detector.json. gpuwho itself asks no API; node-problem-detector does.

# 0 is healthy, 1 is a problem, anything else is unknown.
gpuwho=${1:-/gpuwho/gpuwho}
reason=$(timeout 15 "$gpuwho" health --brief --socket /run/gpuwho/gpuwho.sock 2>&1)
code=$?
printf '%.200s\n' "$reason"
case $code in
  # A warning is no reason to keep pods away.
  0 | 3 | 4) exit 0 ;;
  5) exit 1 ;;
  *) exit 2 ;;
esac
