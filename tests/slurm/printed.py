"""Records of jobs and nodes as scontrol prints them with --oneliner, written down from Slurm's source.

The order of the fields is that of src/api/node_info.c, and of src/api/job_info.c up to 24.05, then
src/scontrol/info_job.c. Texts of users and administrators are arguments: no one of them may become a field.
"""

from __future__ import annotations

VERSIONS = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")

JOB_TEXTS = (
    *("name", "mcs_label", "account", "wckey", "cronspec", "cluster_features", "network"),
    *("command", "submit_line", "workdir", "admin_comment", "comment", "extra"),
)
"""Texts in a job's record, in their order. Slurm checks no one of them: an account only where it has slurmdbd."""


def job(version: str, batch: bool = True, *, user: str = "alice(1001)", group: str = "ml(2001)", **given: str) -> str:
    """`given`: texts of JOB_TEXTS and the fields that Slurm prints only at times; an empty one is not printed."""
    at = VERSIONS.index(version)

    def since(first: str, text: str) -> str:
        return text if at >= VERSIONS.index(first) else ""

    def until(last: str, text: str) -> str:
        return text if at <= VERSIONS.index(last) else ""

    def optional(key: str, name: str, default: str = "") -> str:
        value = given.get(name, default)
        return f"{key}={value} " if value else ""

    invalid = since("25.11", "KillOnInvalidDependent=Yes ") or "KillOInInvalidDependent=Yes "
    state, nodes = given.get("state", "RUNNING"), given.get("nodes", "n[1-2]")
    tres = "cpu=16,mem=1G,node=2,billing=16,gres/gpu=16"
    files = "StdErr=/home/x/%j.out StdIn=/dev/null StdOut=/home/x/%j.out " if batch else ""
    return "".join(
        [
            f"JobId=4711 {given.get('array', '')}JobName={given.get('name', 'train')} ",
            f"UserId={user} GroupId={group} MCS_label={given.get('mcs_label', 'N/A')} ",
            f"Priority={given.get('priority', '100')} Nice=0 Account={given.get('account', 'ml')} QOS=normal ",
            optional("WCKey", "wckey"),
            f"JobState={state} Reason={given.get('reason', 'None')} ",
            since("23.02", optional("FailedNode", "failed_node")),
            "Dependency=(null) Requeue=1 Restarts=6 ",
            f"BatchFlag={int(batch)} Reboot=0 ExitCode=0:0 RunTime=00:01:00 TimeLimit=1-00:00:00 TimeMin=N/A ",
            "SubmitTime=2026-03-01T10:00:00 EligibleTime=2026-03-01T10:00:00 AccrueTime=2026-03-01T10:00:00 ",
            "StartTime=2026-03-01T10:00:05 EndTime=2026-03-02T10:00:05 Deadline=N/A ",
            optional("CrontabSpec", "cronspec"),
            "SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-03-01T10:00:01 Scheduler=Main ",
            "Partition=gpu AllocNode:Sid=login1:1234 ReqNodeList=(null) ExcNodeList=(null) ",
            f"NodeList={nodes} {optional('SchedNodeList', 'sched_nodes')}{optional('BatchFeatures', 'batch_features')}",
            "BatchHost=n1 " if batch else "",
            since("24.05", optional("StepMgrEnabled", "stepmgr")),
            "NumNodes=2 NumCPUs=16 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* ",
            since("23.02", f"ReqTRES={tres} AllocTRES={tres} ") or f"TRES={tres} ",
            "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 ",
            f"Features={given.get('features', '(null)')} DelayBoot=00:00:00 ",
            optional("ClusterFeatures", "cluster_features") + optional("Prefer", "prefer"),
            optional("Reservation", "reservation"),
            f"OverSubscribe=NO {since('26.05', 'Exclusive=NODE ')}Contiguous=0 Licenses=(null) ",
            f"{since('25.05', 'LicensesAlloc=(null) ')}Network={given.get('network', '(null)')} ",
            f"Command={given.get('command', '/home/x/train.sh')} ",
            since("25.11", f"SubmitLine={given.get('submit_line', 'sbatch train.sh')} "),
            f"WorkDir={given.get('workdir', '/home/x')} ",
            optional("AdminComment", "admin_comment") + optional("SystemComment", "system_comment"),
            optional("Comment", "comment", "understudy") + since("23.02", optional("Extra", "extra")),
            files,
            since("25.05", optional("SegmentSize", "segment")),
            optional("Switches", "switches") + until("23.11", "Power= "),
            invalid if given.get("kill_on_invalid") else "",
            optional("TresPerNode", "tres_per_node") + optional("MailUser", "mail"),
            until("25.11", optional("Container", "container")) + since("26.05", optional("ContainerType", "container")),
            "\n",
        ]
    )


def node(version: str, *, state: str = "IDLE", reason: str = "", user: str = "slurm", **given: str) -> str:
    """A reason with line breaks is printed as Slurm does: user and time stand behind its first line."""
    first, *others = reason.split("\n")
    signed = f" Reason={first} [{user}@2026-07-25T11:59:03]" + "".join(f"        {one}" for one in others)
    energy = "CapWatts=n/a CurrentWatts=n/s AveWatts=n/s ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
    texts = (("Comment", "comment"), ("Extra", "extra"), ("InstanceId", "instance"), ("ReservationName", "reservation"))
    return "".join(
        [
            "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.00 ",
            f"AvailableFeatures={given.get('features', '(null)')} ActiveFeatures={given.get('features', '(null)')} ",
            "Gres=gpu:8 NodeAddr=n1 NodeHostName=n1 Version=24.11.5 ",
            "OS=Linux 6.8.0-31-generic #31-Ubuntu SMP PREEMPT_DYNAMIC Sat Apr 20 00:40:06 UTC 2024  ",
            f"RealMemory=250000 AllocMem=0 FreeMem=38206 Sockets=2 Boards=1 State={state} ThreadsPerCore=2 TmpDisk=0 ",
            f"Weight=1 Owner={given.get('owner', 'N/A')} MCS_label=N/A Partitions=gpu,all  ",
            "BootTime=2026-07-01T11:23:24 SlurmdStartTime=2026-07-07T13:36:57 LastBusyTime=2026-07-25T11:54:03 ",
            "ResumeAfterTime=None CfgTRES=cpu=16,mem=250000M,billing=16 AllocTRES= ",
            energy if version == "22.05" else "CurrentWatts=0 AveWatts=0",
            signed if reason else "",
            *(f" {key}={given[name]}" for key, name in texts if name in given),
            "\n",
        ]
    )
