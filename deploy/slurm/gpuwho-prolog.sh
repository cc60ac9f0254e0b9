#!/bin/sh
# Tells gpuwho about a Slurm job: run by slurmd as root when a job gets this node, it leaves
# /run/gpuwho/slurm/jobs/JOBID with what slurmd says about the job. gpuwho needs no such file: it
# knows jobs, steps and GPUs from the kernel. With it, names that a user could otherwise forge or
# hide (account, partition, restart count, GPUs granted) come from root, and are there before the
# job's first process.
#
# To use it, copy it and gpuwho-epilog.sh to every GPU node, owned by root, mode 755, and add to
# slurm.conf:
#
#   PrologFlags=Alloc
#   Prolog=/usr/libexec/gpuwho/gpuwho-prolog.sh
#   Epilog=/usr/libexec/gpuwho/gpuwho-epilog.sh
#
# then run `scontrol reconfigure`. Without Alloc, a job of srun or salloc has its file only from its
# first step on. Beside a prolog of your own, call this script from yours, or give Slurm a pattern
# (Prolog=/etc/slurm/prolog.d/*). For another folder than the usual one, call both scripts with the
# folder's name, and say the same in gpuwho's configuration.
#
# The file has a line KEY=VALUE for each variable of the list below that slurmd has set, KEY being
# Slurm's own name for it. Control characters in values become `?`, and so does what is not UTF-8,
# so that a value is never more than its line. The job's comment, directories and files are not
# copied: they are text of the user's that says nothing about who pays for the GPU.
#
# It never fails, whatever happens: a prolog that does drains the node. It asks Slurm nothing.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022

jobs=${1:-/run/gpuwho/slurm/jobs}

keys='
SLURM_CLUSTER_NAME
SLURMD_NODENAME
SLURM_JOB_ID
SLURM_JOB_SLUID
SLURM_HET_JOB_ID
SLURM_ARRAY_JOB_ID
SLURM_ARRAY_TASK_ID
SLURM_JOB_NAME
SLURM_JOB_USER
SLURM_JOB_UID
SLURM_JOB_GID
SLURM_JOB_ACCOUNT
SLURM_JOB_PARTITION
SLURM_JOB_QOS
SLURM_JOB_RESERVATION
SLURM_JOB_RESTART_COUNT
SLURM_JOB_START_TIME
SLURM_JOB_END_TIME
SLURM_JOB_NUM_NODES
SLURM_JOB_NODELIST
SLURM_NODELIST
SLURM_JOB_NTASKS
SLURM_JOB_GPUS
'

# Only what does not fit on a line as it is costs other programs.
one_line() {
  text=$(printf '%s' "$1" | tr '\000-\037\177' '[?*]')
  if ! printf '%s' "$text" | iconv -f UTF-8 -t UTF-8 >/dev/null 2>&1; then
    text=$(printf '%s' "$text" | tr '\200-\377' '[?*]')
  fi
  printf '%s' "$text"
}

describe() {
  for key in $keys; do
    eval "value=\${$key-}"
    case $value in
      '') continue ;;
      *[!\ -~]*) value=$(one_line "$value") ;;
    esac
    printf '%s=%s\n' "$key" "$value"
  done
}

# A folder that others may write in would let them speak for root.
ours() {
  [ -n "$(find "$jobs" -prune -type d -user 0 ! -perm -020 ! -perm -002 2>/dev/null)" ]
}

case ${SLURM_JOB_ID-} in
  '' | *[!0-9]*) exit 0 ;;
esac
{
  mkdir -p "$jobs" && ours || exit 0
  # Renamed into place, so that nobody reads half of it.
  unfinished=$jobs/.$SLURM_JOB_ID.$$
  { describe >"$unfinished" && mv -f "$unfinished" "$jobs/$SLURM_JOB_ID"; } || rm -f "$unfinished"
} 2>/dev/null
exit 0
