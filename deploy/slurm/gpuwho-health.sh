#!/bin/sh
# Drains a Slurm node whose accelerators have a critical condition, with the reason. It asks the
# gpuwho agent on the node over its socket, and Slurm only if there is something to say.
#
# As HealthCheckProgram it looks at all devices of the node:
#
#   HealthCheckProgram=/usr/libexec/gpuwho/gpuwho-health.sh
#   HealthCheckInterval=120
#   HealthCheckNodeState=ANY
#
# As Prolog or Epilog it does the same before or after each job: in slurm.conf a pattern of scripts
# (Prolog=/etc/slurm/prolog.d/*), or called from a script of yours. A Prolog that finds a critical
# condition fails, so that Slurm requeues the job elsewhere. In all other cases the script exits with
# 0: a warning, a device that cannot be judged, or an agent that does not answer drains nothing. It
# never undrains a node: who repaired it does that.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL

gpuwho=${1:-/usr/bin/gpuwho}
scontrol=${2:-scontrol}
# Slurm ends a health check after a minute, a Prolog after its own time.
limit=20
# `gpuwho health --help` lists the exit codes.
critical=5

reason=$(timeout "$limit" "$gpuwho" health --brief 2>/dev/null)
[ $? -eq "$critical" ] || exit 0

node=${SLURMD_NODENAME:-$(hostname -s)}
# A node that is drained already keeps its reason: another one may have been there first.
state=$(timeout "$limit" "$scontrol" show node --oneliner "$node" 2>/dev/null)
case $state in
  *State=*DRAIN*) ;;
  *)
    timeout "$limit" "$scontrol" update NodeName="$node" State=DRAIN \
      Reason="gpuwho: $(printf '%.200s' "$reason")"
    ;;
esac
case ${SLURM_SCRIPT_CONTEXT-} in
  prolog*) exit 1 ;;
esac
exit 0
