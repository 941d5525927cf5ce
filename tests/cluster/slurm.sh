#!/usr/bin/env bash
# Two Slurm nodes on loopback, for tests: `tests/cluster/slurm.sh FOLDER PORT` serves until it is ended, on three ports
# from PORT on, and leaves its settings in FOLDER/slurm.conf for `SLURM_CONF`. Debian's slurm-wlm alone: no munge, no
# cgroups, no accounting.
set -euo pipefail
at=$(realpath "$1")
port=$2
host=$(hostname -s)
mkdir -p "$at/state" "$at/n1" "$at/n2"

# auth/none and linuxproc: nothing else needs to run. cred_expire: without it a requeue takes two minutes. SlurmdTimeout:
# a machine that stands still for a while must not lose its nodes, whose jobs Slurm would begin again.
cat > "$at/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=1
SlurmdTimeout=300
SlurmdParameters=config_overrides
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/%n
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/%n.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/%n.log
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=1 RealMemory=8000
PartitionName=test Nodes=n[1-2] Default=YES MaxTime=60 State=UP
CONF

export SLURM_CONF=$at/slurm.conf
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
trap 'exit 0' TERM INT
ended="timeout --kill-after=10 0" # no limit of time; 10 s after a request to end, a daemon that has not ended is killed
$ended slurmctld -Dc & $ended slurmd -D -N n1 & $ended slurmd -D -N n2 &
wait
