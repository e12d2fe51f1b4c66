"""What `scontrol show nodes|jobs|reservations -o` prints, as values. Pure.

One object a line, `Key=value` pairs, no quoting: a value may contain blanks, `=`, even line breaks, where a user or
admin chose it (job name, comment, reason). So the text of users is never searched for Slurm's own fields: these
are read from the part of the record that only Slurm writes. A job whose owner's text makes that part
ambiguous is left out: nothing may act on it.

Expects the times in UTC: call scontrol with TZ=UTC and SLURM_TIME_FORMAT=standard.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from understudy_controlplane.fleet.gres import alike, gpu_types
from understudy_controlplane.fleet.slurm import (
    HETEROGENEOUS_JOB,
    PENDING_STATES,
    SLURM_USERS,
    WAITING_TASKS,
    ArrayTask,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmStep,
    TopologyUnit,
    UnitKind,
)
from understudy_controlplane.hostlist import HostListError, expand
from understudy_controlplane.slurm.protocol import SlurmError

Claimed = TypeVar("Claimed", int, str)

_VALUE = re.compile(r"\S*(?:\s+(?![A-Z][\w/:]*=)\S+)*")
"""Words up to the next key. So each blank is looked at once: texts of users may be long and full of them."""
_PAIR = re.compile(rf"(?:^|\s)([A-Z][\w/:]*)=({_VALUE.pattern})")
_NODE_START = re.compile(r"NodeName=")
_JOB_START = re.compile(r"JobId=(\d+) ")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_OWNER = re.compile(r" UserId=(?P<user>[^=()\n]*)\((?P<user_id>\d+)\) GroupId=")
"""Names of directory services have blanks, `@`, `\\`, `+` and `$` in them."""
_OWN_KEYS = re.compile(
    r"(?<!\w)(JobState|Reason|Requeue|Restarts|BatchFlag|SubmitTime|EligibleTime|StartTime|EndTime|Partition|ReqNodeList"
    r"|ExcNodeList|NodeList|NumNodes|Priority|TimeLimit|Features|DelayBoot|ExitCode|Account|QOS|PreemptEligibleTime|SuspendTime"
    r"|NumCPUs|NumTasks|MinMemoryNode|MinMemoryCPU|MinTmpDiskNode|OverSubscribe|Contiguous)="
)
"""Keys in Slurm's part of a job's record. Users' text can occur there as well (an MCS label, a QOS, features of a
cluster)."""
_ALLOTTED = re.compile(
    r"NumCPUs=(?P<cpus>\d{1,9}[KM]?)\S* NumTasks=(?P<tasks>\d{1,9}[KM]?) .*? (?:Alloc)?TRES=(?P<tres>\S+)", re.DOTALL
)
_ALLOTTED_GPUS = re.compile(r"gres/gpu=(\d{1,9}[KM]?)")
_ALWAYS_THERE = (" JobState=", " Restarts=", " SubmitTime=", " NumNodes=")
"""Slurm prints them for each job, behind what users write between its own fields."""
_SIZE = re.compile(r"(\d{1,15})([KMGTP]?)")
_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_SWITCHES = re.compile(r" Switches=(\d{1,9})@\S+(?!\S)")
_SEGMENT = re.compile(r" SegmentSize=(\d{1,9})(?!\S)")
_TRES_PER = re.compile(r" TresPer(?:Job|Node|Socket|Task)=(\S+)")
"""Slurm prints these after the user's texts. One that imitates them lies about its own job."""
_NO_CREDENTIAL = re.compile(r" SystemComment=slurm_cred_create failure, holding job\.(?!\S)")
"""Slurm prints it from 25.05 on (job_mgr.c, job_mgr_handle_cred_failure), also after the job was released."""
UNPRIVILEGED = (65534, 99)
"""Numbers of the user "nobody": of today's systems, and of Red Hat's before version 8."""
_RESERVATION = re.compile(r" Reservation=(\S+)\s+OverSubscribe=")
_ARRAY = re.compile(r"JobId=\d+ ArrayJobId=(?P<array>\d+) ArrayTaskId=(?:(?P<task>\d+) )?")
_HETEROGENEOUS = re.compile(r"JobId=\d+ (?:ArrayJobId=\d+ ArrayTaskId=\S+ )?HetJobId=\d+ ")
_USER_TEXT = re.compile(r" (?:Network|Command|WorkDir|AdminComment)=")
_ADMIN_COMMENT = re.compile(r" AdminComment=")
_JOB_TEXT = (
    r"(\S*(?:\s+(?!(?:Extra|StdErr|StdIn|StdOut|Power|SegmentSize|Switches|BurstBuffer|BurstBufferState|CPU_min_freq|CPU_max_freq"
    r"|CPU_Governor|Gres(?:AllowTaskSharing|EnforceBind|OneTaskPerSharing)|KillO(?:n|In)InvalidDependent|SpreadJob|ExpeditedRequeue"
    r"|OOMKillStep|CpusPerTres|MemPerTres|TresBind|TresFreq|TresPer\w+|MailUser|NtasksPerTRES|Container(?:Type)?|SELinuxContext"
    r"|ResvPorts)=)\S+)*)"
)
"""Up to what Slurm prints behind it: src/api/job_info.c of 22.05 to 24.05, src/scontrol/info_job.c of later ones."""
_COMMENT = re.compile(" Comment=" + _JOB_TEXT)
_MAIL = re.compile(r" MailUser=(\S+) MailType=([A-Z0-9_,]+)")
_EXTRA = re.compile(" Extra=" + _JOB_TEXT)
_BATCH_HOST = re.compile(r"\sNodeList=\S+(?:\s+(?:SchedNodeList|BatchFeatures)=\S+)*\s+BatchHost=(\S+)")
_NODE_REASON = " Reason="
_NODE_TEXTS = (" Comment=", " Extra=", _NODE_REASON)
_SIGNED = re.compile(
    r"\s\[(?P<user>[^\[\]\n]+)@(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]"
    r"(?=\s*$|\s{8}|\s+(?:Comment|Extra|Instance(?:Id|Type)|ReservationName|TLSCert\w+|Topology|Parameters)=)"
)
"""Slurm prints user and time behind the first line of the reason, other lines after eight blanks, and the texts of
administrators after it (src/api/node_info.c). A reason may quote another one.
"""
_UNIT_KEYS = {
    "SwitchName": UnitKind.SWITCH,
    "BlockName": UnitKind.BLOCK,
    "AggregatedBlock": UnitKind.AGGREGATED,
}
_UNIT_START = re.compile(r"\s*(?:\w+Name|AggregatedBlock)=")
_SETTING = re.compile(r"^(\w+(?:\[\d+\])?)\s*=[ \t]*(.*)$", re.MULTILINE)
_AS_OF = re.compile(r"^Configuration data as of (\S+)$", re.MULTILINE)
AS_OF = "as of"
"""The setting that holds slurmctld's clock, as the first line of its configuration shows it."""

_DURATION = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<hours>\d{1,9}):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_STATE_SUFFIXES = "*~#!%$@^-"


def parse_config(text: str) -> dict[str, str]:
    """The output of `scontrol show config`, with the ClusterName at least. Raises SlurmError."""
    found: dict[str, str] = {}
    for match in _SETTING.finditer(text):
        found.setdefault(match[1], match[2].strip())
    as_of = _AS_OF.search(text)
    if as_of is not None:
        found[AS_OF] = as_of[1]
    if "ClusterName" not in found:
        raise SlurmError("scontrol show config printed no ClusterName; this version of Slurm may not be supported")
    return found


def slurmctld_started_at(config: Mapping[str, str]) -> int | None:
    """BOOT_TIME of the configuration; None where it is missing."""
    return epoch_seconds(config.get("BOOT_TIME", ""))


def slurmctld_clock(config: Mapping[str, str]) -> int | None:
    """What slurmctld's clock showed when it printed its configuration; None: not known."""
    return epoch_seconds(config.get(AS_OF, ""))


def slurm_user(config: Mapping[str, str]) -> frozenset[str]:
    """Name and number of SlurmUser ("slurm(64030)"), by which Slurm signs its reasons: the number where the host of
    scontrol does not know the name.
    """
    return frozenset(re.split(r"[()]", config.get("SlurmUser", ""))) - {"", *SLURM_USERS}


def signed_by_slurm(nodes: list[SlurmNode], names: frozenset[str]) -> list[SlurmNode]:
    """Nodes with the user slurm for SlurmUser, whatever the site has called it."""
    if not names:
        return nodes
    return [replace(node, reason_user=SLURM_USERS[0]) if node.reason_user in names else node for node in nodes]


def min_job_age(config: Mapping[str, str]) -> int:
    """Seconds for which slurmctld keeps a job that has ended (MinJobAge); 0: without end, or unknown."""
    match = re.match(r"\d+", config.get("MinJobAge", ""))
    return int(match[0]) if match else 0


def slurmd_timeout(config: Mapping[str, str]) -> int:
    """After how many seconds slurmctld sets a silent node DOWN (SlurmdTimeout); 0: never, or it is not known."""
    match = re.match(r"\d+", config.get("SlurmdTimeout", ""))
    return int(match[0]) if match else 0


class NodeReader:
    """Reads the nodes of one cluster repeatedly. A record printed as before gives the same object: of twelve thousand
    nodes few change within a second.
    """

    def __init__(self) -> None:
        self._last: dict[str, SlurmNode] = {}

    def read(self, text: str) -> list[SlurmNode]:
        """Root of a node chooses its architecture and operating system, which can imitate a record: a name may occur
        twice. An unreadable record is left out; an error is raised only when no record can be read.

        Raises SlurmError.
        """
        last, now = self._last, dict[str, SlurmNode]()
        problem = ""
        for record in _records(text, _NODE_START):
            try:
                now[record] = last.get(record) or _node(record)
            except SlurmError as error:
                problem = str(error)  # the exception itself would keep this frame, and with it all the text
        self._last = now
        if problem and not now:
            raise SlurmError(problem)
        return list(now.values())


def parse_nodes(text: str) -> list[SlurmNode]:
    return NodeReader().read(text)


class JobReader:
    """Reads the jobs of one cluster repeatedly. A record printed as before, but for its clocks, gives the same object:
    of fifty thousand jobs few change within a second.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, SlurmJob | None] = {}

    def read(self, text: str) -> list[SlurmJob]:
        """Users' text can imitate a record: an id may occur twice, or belong to no job. An unreadable record is left
        out, because it may be a user's text; an error is raised only when no record can be read.

        Raises SlurmError.
        """
        last, now = self._last, dict[bytes, SlurmJob | None]()
        jobs: list[SlurmJob] = []
        problem = ""
        for record in _records(text, _JOB_START):
            key = _digest(record)
            try:
                job = now[key] = last[key] if key in last else _job(record)
            except SlurmError as error:
                problem = problem or str(error)
                continue
            if job is not None:
                jobs.append(job)
        self._last = now
        if problem and not jobs:
            raise SlurmError(problem)
        return jobs


def parse_jobs(text: str) -> list[SlurmJob]:
    return JobReader().read(text)


def _digest(record: str) -> bytes:
    """Digest of all that is read from a job's record. Run time and the scheduler's last look change all the time and
    are left out.
    """
    for clock in (" RunTime=", " LastSchedEval="):
        head, _, rest = record.partition(clock)
        value, _, tail = rest.partition(" ")
        if value and not value.strip("0123456789-:T"):  # else a user's text, which is left as it is
            record = f"{head} {tail}"
    return hashlib.blake2b(record.encode(errors="surrogatepass"), digest_size=16).digest()


def parse_reservations(text: str) -> list[SlurmReservation]:
    return [_reservation(record) for record in _records(text, re.compile("ReservationName="))]


def parse_steps(text: str) -> list[SlurmStep]:
    return [_step(record) for record in _records(text, re.compile(r"StepId=\d+"))]


def parse_topology(text: str) -> tuple[TopologyUnit, ...]:
    """Switches and blocks in the output of `scontrol show topology`. Rings and toruses are left out."""
    found: list[TopologyUnit] = []
    for record in _records(text, _UNIT_START):
        pairs = _pairs(record)
        kind, name = next(((kind, pairs[key]) for key, kind in _UNIT_KEYS.items() if key in pairs), (None, ""))
        if kind is None:
            continue
        if not name or not (level := pairs.get("Level", "0")).isdecimal():
            raise SlurmError(f"scontrol printed no name or no level of a switch or block in {record[:120]!r}")
        size = pairs.get("BlockSize", "")
        nodes = hosts(pairs.get("Nodes", ""))
        found.append(TopologyUnit(kind, name, nodes, int(level), int(size) if size.isdecimal() else 0))
    return tuple(found)


def parse_topology_names(text: str) -> list[str]:
    """Names of the topologies that are not the default one, in the output of `scontrol show topoconf`."""
    named = re.findall(r"^- topology: (\S+)\n +cluster_default: (\w+)$", text, re.MULTILINE)
    default = next((name for name, is_default in named if is_default == "true"), named[0][0] if named else "")
    return [name for name, _ in named if name != default]


def parse_partition_states(text: str) -> dict[str, str]:
    """Partition → State, in the output of `scontrol show partition`."""
    return {
        pairs["PartitionName"]: pairs["State"]
        for record in _records(text, re.compile("PartitionName="))
        if "State" in (pairs := _pairs(record))
    }


def parse_partition_nodes(text: str) -> set[str]:
    """Nodes of all partitions, in the same output. No user and no root of a node has a text in it."""
    return {node for record in _records(text, re.compile("PartitionName=")) for node in hosts(_pairs(record)["Nodes"])}


def minutes(text: str) -> int | None:
    """Minutes in "01:30:00" or "2-00:00:00", rounded up; None for "UNLIMITED", "Partition_Limit" and the like."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, mins, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return (days * 24 + hours) * 60 + mins + (seconds > 0)


def ambiguous(claimed: Iterable[Claimed]) -> set[Claimed]:
    """Ids of jobs, or names of nodes, that more than one record claims."""
    return {one for one, count in Counter(claimed).items() if count > 1}


def epoch_seconds(text: str) -> int | None:
    """None for "Unknown", "None", "N/A" and the like."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _records(text: str, start: re.Pattern[str]) -> list[str]:
    records: list[str] = []
    for line in text.split("\n"):
        if start.match(line):
            records.append(line)
        elif records and line.strip():
            records[-1] += f"\n{line}"  # a value with a line break in it
    return records


def _pairs(text: str) -> dict[str, str]:
    """The first of equal keys counts: what only Slurm writes comes before what users chose."""
    found: dict[str, str] = {}
    for match in _PAIR.finditer(text):
        found.setdefault(match[1], "" if match[2] == "(null)" else match[2])
    return found


def _value(record: str, key: str) -> str | None:
    """The value that `_pairs` finds for the key, but several times faster; None: there is none."""
    at = record.find(f" {key}=")
    if at < 0:
        return None
    match = _VALUE.match(record, at + len(key) + 2)
    assert match is not None  # it matches anywhere
    return "" if match[0] == "(null)" else match[0]


def _need(own_part: str, key: str, record: str) -> str:
    value = _value(own_part, key)
    if value is None:
        raise SlurmError(f"scontrol printed no {key} in {record[:120]!r}: this version of Slurm may not be supported")
    return value


def _number(own_part: str, key: str, record: str) -> int:
    text = _need(own_part, key, record)
    match = re.match(r"\d+", text)
    if match is None:
        raise SlurmError(f"scontrol printed {key}={text!r}, which is no number, in {record[:120]!r}")
    return _integer(match[0], record)  # of "4-8", the nodes wanted, the lower bound


def _integer(text: str, record: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # also thousands of digits
        raise SlurmError(f"scontrol printed {text[:40]!r} instead of a number in {record[:120]!r}") from error


def node_state(text: str) -> tuple[str, frozenset[str]]:
    """Base state and flags in "IDLE+DRAIN+NOT_RESPONDING" or "IDLE*+DRAIN"."""
    base, *flags = text.split("+")
    if "*" in base:
        flags.append("NOT_RESPONDING")  # as sinfo and some versions of scontrol spell it
    return base.rstrip(_STATE_SUFFIXES), frozenset(flag.rstrip(_STATE_SUFFIXES) for flag in flags)


def hosts(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostListError as error:
        raise SlurmError(f"scontrol printed an unreadable host list: {error}") from error


def _list(text: str) -> tuple[str, ...]:
    return tuple(item for item in text.split(",") if item)


def _node(record: str) -> SlurmNode:
    name = record.removeprefix("NodeName=").partition(" ")[0]
    reason_from = record.find(_NODE_REASON) + len(_NODE_REASON)
    signed = _SIGNED.search(record, reason_from) if _NODE_REASON in record else None
    own_part = record[: min((at for key in _NODE_TEXTS if (at := record.find(key)) >= 0), default=None)]
    base, flags = node_state(_need(own_part, "State", record))
    return SlurmNode(
        name=name,
        address=_value(own_part, "NodeAddr") or name,
        # Printed only where it is not the default, in old versions.
        port=_integer(_value(own_part, "Port") or "6818", record),
        base_state=base,
        flags=flags,
        partitions=_list(_value(own_part, "Partitions") or ""),
        reason=record[reason_from : signed.start()] if signed else _value(record, "Reason") or "",
        reason_user=signed["user"] if signed else "",
        reason_at=(epoch_seconds(signed["at"]) or 0) if signed else 0,
        gres=alike(_value(own_part, "Gres") or ""),
        features=frozenset(_list(_value(own_part, "ActiveFeatures") or "")),
        weight=_integer(_value(own_part, "Weight") or "1", record),
        cpus=_integer(_value(own_part, "CPUTot") or "0", record),
        memory_mb=_integer(_value(own_part, "RealMemory") or "0", record),
        tmp_disk_mb=_integer(_value(own_part, "TmpDisk") or "0", record),
    )


def _job(record: str) -> SlurmJob | None:
    owners = list(_OWNER.finditer(record))
    if len(owners) != 1:
        return None  # a user's job name or comment imitates Slurm's fields
    owner = owners[0]
    user_text = _USER_TEXT.search(record, owner.end())
    if user_text is None:
        return None
    start = _JOB_START.match(record)
    assert start is not None  # each record begins with it
    own_part = record[owner.start() : user_text.start()]
    keys = _OWN_KEYS.findall(own_part)
    if len(keys) != len(set(keys)):
        return None  # a text of the user's repeats one of Slurm's keys
    rest = record[user_text.start() :]
    if " OverSubscribe=" in rest or all(key in rest for key in _ALWAYS_THERE):
        return None  # a text of the user's ends with what looks like the end of Slurm's part
    segments, switches = (one.findall(record, user_text.start()) for one in (_SEGMENT, _SWITCHES))
    reserved = _RESERVATION.search(own_part)
    state = _need(own_part, "JobState", record)
    submit_at = epoch_seconds(_need(own_part, "SubmitTime", record))
    if submit_at is None:
        raise SlurmError(f"scontrol printed no usable SubmitTime in {record[:120]!r}")
    user_id = _integer(owner["user_id"], record)
    reason = _value(own_part, "Reason") or ""
    exit_code, _, exit_signal = (_value(own_part, "ExitCode") or "0:0").partition(":")
    return SlurmJob(
        job_id=_integer(start[1], record),
        submit_at=submit_at,
        user=user_name(owner["user"], user_id),
        user_id=user_id,
        name=record[: owner.start()].partition(" JobName=")[2],
        partition=_value(own_part, "Partition") or "",
        account=_value(own_part, "Account") or "",
        state=state,
        restart_count=_number(own_part, "Restarts", record),
        # While pending, Slurm may still show the nodes of the attempt before.
        nodes=() if state in PENDING_STATES else hosts(_value(own_part, "NodeList") or ""),
        node_count=_number(own_part, "NumNodes", record),
        ranks_max=_ranks_max(own_part),
        comment=_comment(record, user_text.start()),
        batch=(_value(own_part, "BatchFlag") or "0") != "0",
        requeue=_value(own_part, "Requeue") == "1",
        reservation=reserved[1] if reserved else "",
        reason="" if reason == "None" else reason,
        start_at=epoch_seconds(_value(own_part, "StartTime") or ""),
        eligible_at=epoch_seconds(_value(own_part, "EligibleTime") or ""),
        excluded_nodes=hosts(_value(own_part, "ExcNodeList") or ""),
        priority=_number(own_part, "Priority", record),
        time_limit_minutes=minutes(_value(own_part, "TimeLimit") or ""),
        required_nodes=hosts(_value(own_part, "ReqNodeList") or ""),
        features=_value(own_part, "Features") or "",
        array_task=_array_task(record),
        part_of=_part_of(record),
        exit_code=_integer(exit_code, record) if exit_code.isdecimal() else 0,
        exit_signal=_integer(exit_signal, record) if exit_signal.isdecimal() else 0,
        end_at=None if state in PENDING_STATES else epoch_seconds(_value(own_part, "EndTime") or ""),
        qos=_value(own_part, "QOS") or "",
        preempt_at=epoch_seconds(_value(own_part, "PreemptEligibleTime") or ""),
        suspended_or_resumed_at=epoch_seconds(_value(own_part, "SuspendTime") or ""),
        memory_mb=_memory_mb(own_part),
        tmp_disk_mb=_megabytes(own_part, "MinTmpDiskNode"),
        contiguous=_value(own_part, "Contiguous") == "1",
        segment=int(segments[-1]) if segments else 0,
        switches_max=int(switches[-1]) if switches else 0,
        gpu_types=gpu_types(",".join(_TRES_PER.findall(record, user_text.start()))),
        no_credential=_NO_CREDENTIAL.search(rest) is not None,
        mail_to=_mail_to(rest),
    )


def user_name(printed: str, user_id: int) -> str:
    """The user's number where this host does not know the user, as Slurm prints it from 23.11 on."""
    unknown = not printed or (printed == "nobody" and user_id not in UNPRIVILEGED)
    return str(user_id) if unknown else printed


def _memory_mb(own_part: str) -> int:
    """Memory on each node, requested by node or by CPU."""
    cpus, nodes = (_value(own_part, key) or "1" for key in ("NumCPUs", "NumNodes"))
    counts = [int(match[0]) if (match := re.match(r"\d{1,9}", one)) else 1 for one in (cpus, nodes)]
    per_cpu = _megabytes(own_part, "MinMemoryCPU")
    return _megabytes(own_part, "MinMemoryNode") or per_cpu * -(-counts[0] // max(1, counts[1]))


def _megabytes(own_part: str, key: str) -> int:
    """Megabytes of "100M" or "2G"; 0 if nothing is requested or the text is another."""
    match = _SIZE.fullmatch(_value(own_part, key) or "")
    return int(int(match[1]) * _MB[match[2]]) if match else 0


def _mail_to(user_text: str) -> str:
    """Slurm prints it after all texts that the job's user writes but the container: the last one counts."""
    found = _MAIL.findall(user_text)
    return mail_to(*found[-1]) if found else ""


def mail_to(address: str, types: str) -> str:
    """Address for the job's mail; empty: its user wants none about anything that Understudy does."""
    return address if {"FAIL", "REQUEUE"} & set(types.split(",")) else ""


def _array_task(record: str) -> ArrayTask | None:
    array = _ARRAY.match(record)
    if array is None or array["task"] is None:
        return None
    return ArrayTask(_integer(array["array"], record), _integer(array["task"], record))


def _part_of(record: str) -> str:
    """Tasks that have never started are one record, with a list of their numbers."""
    if _HETEROGENEOUS.match(record):
        return HETEROGENEOUS_JOB
    array = _ARRAY.match(record)
    return WAITING_TASKS if array is not None and array["task"] is None else ""


def _ranks_max(own_part: str) -> int | None:
    found = _ALLOTTED.search(own_part)
    if found is None:
        return None
    gpus = _ALLOTTED_GPUS.search(found["tres"])
    return max(_in_units(gpus[1] if gpus else found["cpus"]), _in_units(found["tasks"]))


def _in_units(text: str) -> int:
    """Slurm may print 51200 as "50K"."""
    return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)


def _comment(record: str, start: int) -> str:
    """The job's own comment. An administrator's comment comes first and may contain anything: the last one counts."""
    rest = record[start:]
    if _ADMIN_COMMENT.search(rest):
        position = rest.rfind(" Comment=")
        rest = rest[position:] if position >= 0 else ""
    match = _COMMENT.search(rest)
    return match[1] if match else ""


def parse_extra(record: str) -> str:
    """The Extra of one job. It comes after the comment, which may contain " Extra=": the last one counts."""
    position = record.rfind(" Extra=")
    match = _EXTRA.match(record, position) if position >= 0 else None
    return match[1] if match else ""


def parse_batch_host(record: str) -> str:
    """Node of one running job's batch script. Slurm takes no other for it. Raises SlurmError."""
    owners = list(_OWNER.finditer(record))
    match = _BATCH_HOST.search(record, owners[0].end()) if len(owners) == 1 else None
    if match is None:
        raise SlurmError(f"scontrol printed no BatchHost in {record[:120]!r}: the job does not run")
    return match[1]


def _step(record: str) -> SlurmStep:
    return SlurmStep(
        step_id=record.removeprefix("StepId=").partition(" ")[0].partition(".")[2],
        name=_value(record, "Name") or "",
        state=_need(record, "State", record),
        nodes=hosts(_value(record, "NodeList") or ""),
    )


def _reservation(record: str) -> SlurmReservation:
    pairs = _pairs(record)
    name = pairs.get("ReservationName")
    if not name:
        raise SlurmError(f"scontrol printed no name of a reservation in {record[:120]!r}")
    return SlurmReservation(
        name=name,
        nodes=hosts(pairs.get("Nodes", "")),
        users=_list(pairs.get("Users", "")),
        flags=frozenset(_list(pairs.get("Flags", ""))),
        start_at=epoch_seconds(pairs.get("StartTime", "")) or 0,
    )
