#!/bin/sh
# Writes what a job had of this node's GPUs, in one line: an Epilog of slurmd, run as root when a job has
# ended on this node. Without an argument the line goes to the end of the job's output file, if that is
# a regular file of the job's user: gpuwho opens it with that user's rights, because root must not follow
# his paths, and runs nothing as the user, because a process of his in slurmd's cgroup would be outside
# his job. With `admincomment` it goes
# into the job's AdminComment; that asks slurmctld, which Slurm advises against on clusters with many
# jobs a second. How to use it is in README.md beside it.
#
# It never fails: an epilog that does drains the node. It takes ten seconds at most.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL

case ${SLURM_JOB_ID-} in
  '' | *[!0-9]*) exit 0 ;;
esac

# Nothing on standard output: the job had no GPU here, or no agent runs.
line=$(timeout 5 gpuwho receipt --line "slurm_job/$SLURM_JOB_ID" 2>/dev/null | head -n 1)
[ -n "$line" ] || exit 0
line="gpuwho ${SLURMD_NODENAME-}: $line"

if [ "${1-}" = admincomment ]; then
  timeout 5 scontrol update "JobId=$SLURM_JOB_ID" "AdminComment=$line" >/dev/null 2>&1
  exit 0
fi

case ${SLURM_JOB_UID-}:${SLURM_JOB_GID-}:${SLURM_JOB_STDOUT-} in
  *[!0-9]*:*:* | :* | *::*) exit 0 ;;
  *:/*) ;;
  *) exit 0 ;;
esac
printf '%s\n' "$line" | timeout 5 gpuwho append-line --user "$SLURM_JOB_UID" --group "$SLURM_JOB_GID" \
  "$SLURM_JOB_STDOUT" >/dev/null 2>&1
exit 0
