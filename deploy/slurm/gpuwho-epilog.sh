#!/bin/sh
# Removes what gpuwho-prolog.sh left for a job, when the job has ended on this node; how to use
# both is said there. It never fails: an epilog that does drains the node.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

jobs=${1:-/run/gpuwho/slurm/jobs}

case ${SLURM_JOB_ID-} in
  '' | *[!0-9]*) exit 0 ;;
esac
# Also what a prolog that was killed has not finished.
rm -f "$jobs/$SLURM_JOB_ID" "$jobs/.$SLURM_JOB_ID".* 2>/dev/null
exit 0
