"""Slurm through its command line: `scontrol`, the tool that has stayed the same over versions.

It runs the commands and classifies their failures; `parse` reads their output.
"""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence

from understudy_controlplane.config.action import USER_NAME
from understudy_controlplane.fleet.preemption import PreemptionRules, PreemptType
from understudy_controlplane.fleet.slurm import (
    JobAddress,
    JobRequest,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmStep,
    TopologyUnit,
)
from understudy_controlplane.hostlist import NAME_CHARACTERS_MAX, compress
from understudy_controlplane.slurm.fenced import ends_at, seconds_left
from understudy_controlplane.slurm.parse import (
    JobReader,
    NodeReader,
    ambiguous,
    parse_batch_host,
    parse_config,
    parse_extra,
    parse_jobs,
    parse_nodes,
    parse_partition_nodes,
    parse_partition_states,
    parse_reservations,
    parse_steps,
    parse_topology,
    parse_topology_names,
    signed_by_slurm,
    slurm_user,
)
from understudy_controlplane.slurm.parse_preemption import QOS_FIELDS, parse_preemption
from understudy_controlplane.slurm.protocol import (
    SlurmError,
    SlurmMissing,
    SlurmUnavailable,
    loses_dead_gangs,
    slurm_version,
)

UNAVAILABLE = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Connection timed out|connect failure"
    r"|Zero Bytes were transmitted|standby mode|Unexpected message received|Protocol authentication error"
    r"|Unable to establish a? ?connection|Resource temporarily unavailable",
    re.IGNORECASE,
)
COMMANDS_MAX = 64
"""Commands of one reading about nodes that one of them imitates: enough for root of two nodes on the largest cluster.
"""
NEW_MAX = 500
"""Names at once of which Slurm is asked whether it has them: in one argument of a command, 128 KiB at most."""
SEVERAL_TOPOLOGIES = (25, 5)
"""The first version with topology.yaml."""

KILL_SECONDS = 2.0
"""Time for `timeout` to end a command and itself. It is ended first only where it cannot do so."""

_FILTERS = ("SQUEUE_", "SCONTROL_", "SINFO_", "SBATCH_", "SLURM_CLUSTERS")
_OF_JOBS = re.compile(r"PATH|LD_LIBRARY_PATH|SLURM_.*|SPANK_.*")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # `timeout` ends itself, too, or reports it
_CANCELLED_ALREADY = re.compile(r"Invalid job id specified|Job/step already completing or completed")
_NOT_FOUND = re.compile(r"^Node \S+ not found$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_][\w.@-]*")


class CommandLineGateway:
    """Implements `Slurm`. `environment` is the child's whole environment; None: that of this process."""

    def __init__(
        self,
        scontrol: str = "scontrol",
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = 10,
    ) -> None:
        self._scontrol = scontrol
        self._timeout_seconds = timeout_seconds
        self._node_reader = NodeReader()
        self._job_reader = JobReader()
        self._slurm_user = frozenset[str]()
        self._known: set[str] = set()
        """Nodes that Slurm has: root of one can make up others, too."""
        self._imitating: set[str] = set()
        """Nodes that imitated themselves and others when they were read last: each is asked for alone."""
        self._confirmed: list[SlurmJob] = []
        """Jobs as scontrol printed them last, if squeue knew each of them."""
        given = os.environ if environment is None else environment
        self._environment = {
            # The user who started the control plane may have set filters for these commands.
            **{name: value for name, value in given.items() if not name.startswith(_FILTERS)},
            # FederationParameters=fed_display shows the jobs of all clusters of a federation.
            "SCONTROL_LOCAL": "1",
            "SQUEUE_LOCAL": "1",
            # scontrol prints and reads local time, without a zone: here it is UTC.
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "standard",
            "LC_ALL": "C",
        }
        # What a job of the control plane gets. sbatch needs Slurm's own variables itself: with auth/jwt, its token too.
        self._job_environment = {name: value for name, value in self._environment.items() if _OF_JOBS.fullmatch(name)}

    def config(self) -> Mapping[str, str]:
        found = parse_config(self._run("show", "config"))
        self._slurm_user = slurm_user(found)
        return found

    def signed(self, nodes: list[SlurmNode]) -> list[SlurmNode]:
        """See `signed_by_slurm`. SlurmUser is known once the configuration was read, with which each reading begins."""
        return signed_by_slurm(nodes, self._slurm_user)

    def cluster_name(self) -> str:
        return self.config()["ClusterName"]

    def nodes(self) -> list[SlurmNode]:
        return self.signed(self._nodes())

    def _nodes(self) -> list[SlurmNode]:
        printed = self._node_reader.read(self._run("--all", "show", "nodes", "--oneliner"))
        names = {node.name for node in printed}
        twice = ambiguous(node.name for node in printed)
        if not twice and names <= self._known:
            return printed
        listed = parse_partition_nodes(self._run("--all", "show", "partition", "--oneliner"))
        others = names - listed  # in no partition, or made up
        new = {name for name in others - self._known if len(name) <= NAME_CHARACTERS_MAX}
        asked_for = self._nodes_named(twice & listed, others & self._known, set(sorted(new)[:NEW_MAX]))
        self._known = listed | {node.name for node in asked_for}
        clear = listed - twice
        return [node for node in printed if node.name in clear] + asked_for

    def jobs(self) -> list[SlurmJob]:
        printed = self._job_reader.read(self._run("--all", "show", "jobs", "--oneliner"))
        if not printed:
            return []
        if _the_same_jobs(self._confirmed, printed):  # squeue makes slurmctld pack all jobs once more
            self._confirmed = printed
            return printed
        # A job name or comment with a line break can imitate a record. squeue prints ids only, without any text of
        # users: an id that it does not print is no job.
        printed_ids = self._squeue("--noheader", "--all", "--states=all", "--format=%A").split()
        known = {int(text) for text in printed_ids if text.isdecimal()}
        if not known:
            raise SlurmError(f"scontrol prints {len(printed)} jobs and squeue knows none of them")
        jobs = [job for job in printed if job.job_id in known]
        twice = ambiguous(job.job_id for job in jobs)
        self._confirmed = printed if not twice and len(jobs) == len(printed) else []
        if not twice:
            return jobs
        # A record imitates an existing job. In the answer to a query by id the real job comes first.
        alone = [self._jobs_claiming(job_id)[:1] for job_id in sorted(twice)]
        return [job for job in jobs if job.job_id not in twice] + [job for found in alone for job in found]

    def job(self, job_id: int) -> SlurmJob | None:
        try:
            printed = parse_jobs(self._run("--all", "show", "job", "--oneliner", str(int(job_id))))
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            if "Invalid job id" not in str(error):
                raise
            return None
        found = [job for job in printed if job.job_id == job_id]  # the id of an array shows all its tasks
        if len(found) > 1:  # a text of a user imitates it
            found = [job for job in self.jobs() if job.job_id == job_id]
        return found[0] if found else None

    def reservations(self) -> list[SlurmReservation]:
        return parse_reservations(self._run("--all", "show", "reservations", "--oneliner"))

    def steps(self, job_id: int) -> list[SlurmStep]:
        try:
            return parse_steps(self._run("--all", "show", "step", "--oneliner", str(int(job_id))))
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            if f"Job step {job_id}. not found" not in str(error):
                raise
            # Slurm prints this for a job without steps, and for any id when it has no jobs: query the job itself.
            self._run("--all", "show", "job", "--oneliner", str(int(job_id)))
            return []

    def job_extra(self, job_id: int) -> str:
        return parse_extra(self._run("--all", "show", "job", "--oneliner", str(int(job_id))))

    def topology(self) -> tuple[TopologyUnit, ...]:
        units = parse_topology(self._run("show", "topology", "--oneliner"))
        if slurm_version(self.config()) < SEVERAL_TOPOLOGIES:
            return units
        for name in parse_topology_names(self._run("show", "topoconf")):
            units += parse_topology(self._run("show", "topology", checked_name(name), "--oneliner"))
        return units

    def partition_states(self) -> Mapping[str, str]:
        return parse_partition_states(self._run("--all", "show", "partition", "--oneliner"))

    def preemption(self) -> PreemptionRules:
        settings = self.config()
        partitions = self._run("--all", "show", "partition", "--oneliner")
        qos = ""
        if settings.get("PreemptType") == PreemptType.QOS:
            fields = f"format={','.join(QOS_FIELDS)}"
            qos = self._command(self._beside("sacctmgr"), "--parsable2", "--noheader", "show", "qos", fields)
        return parse_preemption(settings, partitions, qos)

    def drain_node(self, node: str, reason: str) -> None:
        self._run("update", f"NodeName={checked_name(node)}", "State=DRAIN", f"Reason={checked_reason(reason)}")

    def down_nodes(self, nodes: Sequence[str], reason: str) -> None:
        names = ",".join(checked_name(node) for node in nodes)
        self._run("update", f"NodeName={names}", "State=DOWN", f"Reason={checked_reason(reason)}")

    def keep_batch_host(self, job: JobAddress) -> None:
        if loses_dead_gangs(self.config()):
            host = parse_batch_host(self._run("--all", "show", "job", "--oneliner", str(job)))
            self._update_job(job, "NodeList", checked_name(host))

    def resume_node(self, node: str) -> None:
        self._run("update", f"NodeName={checked_name(node)}", "State=RESUME")

    def reboot_node(self, node: str, reason: str) -> None:
        self._run("reboot", "ASAP", "nextstate=DOWN", f"reason={checked_reason(reason)}", checked_name(node))

    def set_weight(self, node: str, weight: int) -> None:
        self._run("update", f"NodeName={checked_name(node)}", f"Weight={int(weight)}")

    def create_reservation(self, name: str, nodes: Sequence[str], user: str, duration_minutes: int) -> None:
        self._run(
            "create",
            "reservation",
            f"ReservationName={checked_name(name)}",
            f"Nodes={_node_list(name, nodes)}",
            f"Users={checked_user(user)}",
            "StartTime=now",
            f"Duration={int(duration_minutes)}",
            # OVERLAP: with the spare pool, which releases its node a moment later, so that the node is never free.
            # No FLEX: with it the job could get nodes outside the reservation.
            # NO_HOLD_JOBS_AFTER: if it expires while no control plane runs, the job bound to it is not held.
            "Flags=IGNORE_JOBS,OVERLAP,NO_HOLD_JOBS_AFTER",
        )

    def set_reservation_nodes(self, name: str, nodes: Sequence[str]) -> None:
        self._run("update", f"ReservationName={checked_name(name)}", f"Nodes={_node_list(name, nodes)}")

    def delete_reservation(self, name: str) -> None:
        self._run("delete", f"ReservationName={checked_name(name)}")

    def set_job_reservation(self, job: JobAddress, reservation: str) -> None:
        self._update_job(job, "ReservationName", checked_names(reservation) if reservation else "")

    def submit_job(self, request: JobRequest) -> None:
        given = [f"--gres={request.gres}"] if request.gres else []
        if request.user != getpass.getuser():
            given.append(f"--uid={checked_user(request.user)}")  # only root may use it
        self._command(
            self._beside("sbatch"),
            "--parsable",
            f"--job-name={checked_name(request.name)}",
            f"--reservation={checked_name(request.reservation)}",
            f"--partition={checked_names(request.partition)}",
            f"--nodelist={checked_name(request.node)}",
            "--nodes=1",
            "--exclusive",
            "--no-requeue",
            f"--time={int(request.time_limit_minutes)}",
            f"--output={request.output}",
            # NONE or a list lets slurmd run `su - USER` first: a profile that hangs holds up the job for a minute.
            "--export=ALL",
            "--chdir=/",
            *given,
            text=request.script,
            environment=self._job_environment,
        )

    def cancel_job(self, job_id: int) -> None:
        try:
            self._command(self._beside("scancel"), str(int(job_id)))
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            if not _CANCELLED_ALREADY.search(str(error)):
                raise

    def requeue_job(self, job: JobAddress) -> None:
        self._run("requeue", "incomplete", str(job))

    def requeue_failed_job(self, job: JobAddress) -> None:
        self._run("requeue", str(job))

    def start_job(self, job: JobAddress, not_before: int = 0) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(not_before))  # its environment has TZ=UTC
        self._update_job(job, "StartTime", at if not_before else "now")

    def hold_job(self, job: JobAddress) -> None:
        self._run("hold", str(job))

    def release_job(self, job: JobAddress) -> None:
        self._run("release", str(job))

    def set_excluded_nodes(self, job: JobAddress, nodes: Sequence[str]) -> None:
        self._update_job(job, "ExcNodeList", compress(checked_name(node) for node in nodes))

    def set_job_priority(self, job: JobAddress, priority: int) -> None:
        self._update_job(job, "Priority", str(int(priority)))

    def set_time_limit(self, job: JobAddress, minutes: int) -> None:
        self._update_job(job, "TimeLimit", str(int(minutes)))

    def set_job_comment(self, job: JobAddress, comment: str) -> None:
        self._update_job(job, "Comment", " ".join(comment.split()))

    def set_job_extra(self, job: JobAddress, extra: str) -> None:
        self._update_job(job, "Extra", " ".join(extra.split()))

    def _update_job(self, job: JobAddress, key: str, value: str) -> None:
        self._run("update", f"JobId={job}", f"{key}={value}")

    def _nodes_named(self, *groups: set[str]) -> list[SlurmNode]:
        """Asked for by name, nodes come without what others imitate. One that imitates is among them where a record
        comes twice: it is parted from the others by halves, and asked for alone, where its own record comes first.
        Those that COMMANDS_MAX commands do not part are left out, as those that Slurm does not have. The groups
        have their turn one after the other.
        """
        real: list[SlurmNode] = []
        imitating, self._imitating = self._imitating, set()
        left = COMMANDS_MAX
        for group in groups:
            waiting = deque([name] for name in sorted(group & imitating))
            waiting += [sorted(group - imitating)] if group - imitating else []
            while waiting and left:
                asked, left = waiting.popleft(), left - 1
                printed = self._nodes_claiming(asked)
                found = [node for node in printed if node.name in set(asked)]
                if len(asked) == 1:
                    self._imitating |= set(asked) if len(printed) > 1 else set()
                    real += found[:1]
                elif ambiguous(node.name for node in found):
                    waiting += (asked[: len(asked) // 2], asked[len(asked) // 2 :])
                else:
                    real += found
        return real

    def _nodes_claiming(self, names: Sequence[str]) -> list[SlurmNode]:
        try:
            wanted = compress(name for name in names if _NAME.fullmatch(name))
            show = ("--all", "show", "node", "--oneliner", wanted)
            return parse_nodes(_NOT_FOUND.sub("", self._command(self._scontrol, *show, accepted=_NOT_FOUND)))
        except SlurmUnavailable:
            raise
        except SlurmError:
            return []

    def _jobs_claiming(self, job_id: int) -> list[SlurmJob]:
        try:
            return parse_jobs(self._run("--all", "show", "job", "--oneliner", str(job_id)))
        except SlurmUnavailable:
            raise
        except SlurmError:
            return []  # there is no such job: the record was an imitation

    def _run(self, *arguments: str) -> str:
        return self._command(self._scontrol, *arguments)

    def _squeue(self, *arguments: str) -> str:
        return self._command(self._beside("squeue"), *arguments)

    def _beside(self, program: str) -> str:
        """The path of another Slurm command, in the directory of scontrol."""
        folder, slash, _ = self._scontrol.rpartition("/")
        return f"{folder}{slash}{program}"

    def _command(
        self,
        program: str,
        *arguments: str,
        text: str = "",
        environment: Mapping[str, str] | None = None,
        accepted: re.Pattern[str] | None = None,
    ) -> str:
        """`accepted`: what it prints where its exit code is no failure."""
        command = " ".join([program, *arguments])
        timeout_seconds = seconds_left(self._timeout_seconds)
        ends_itself = ends_at() is not None
        limit = ["timeout", "-s", "KILL", f"{max(timeout_seconds, 0.001):.3f}"] if ends_itself else []
        try:
            done = subprocess.run(
                [*limit, program, *arguments],
                env=self._environment if environment is None else environment,
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_seconds + (KILL_SECONDS if ends_itself else 0.0),
                check=False,
            )
            was_ended = ends_itself and done.returncode in _KILLED
        except subprocess.TimeoutExpired:
            was_ended = True
        except OSError as error:
            raise SlurmMissing(
                f"`{command}` cannot be run: {error}; install Slurm's client commands or set slurm.scontrol"
            ) from error
        if was_ended:
            raise SlurmUnavailable(
                f"`{command}` did not end within {timeout_seconds:.3g} s; check that slurmctld is up"
            )
        if done.returncode == 0 or (accepted is not None and accepted.search(done.stdout)):
            return done.stdout
        printed = " ".join(f"{done.stderr} {done.stdout}".split())
        kind = SlurmUnavailable if UNAVAILABLE.search(printed) else SlurmError
        raise kind(f"`{command}` failed with exit code {done.returncode}: {printed or 'it printed nothing'}")


def _the_same_jobs(before: list[SlurmJob], now: list[SlurmJob]) -> bool:
    """Each at its place, and none that had ended runs again: no text has taken the place of a job that is gone."""
    return len(before) == len(now) and all(
        new is old or (new.job_id == old.job_id and (new.ended or not old.ended))
        for old, new in zip(before, now, strict=True)
    )


def checked_name(text: str) -> str:
    """Names go into `Key=value` arguments, in which a comma or a blank would end the name."""
    if not _NAME.fullmatch(text):
        raise SlurmError(f"{text!r} is no valid name of a node, a user or a reservation in Slurm")
    return text


def checked_user(text: str) -> str:
    if not re.fullmatch(USER_NAME, text):
        raise SlurmError(f"{text!r} is no valid name of a user in Slurm")
    return text


def checked_names(text: str) -> str:
    """One name, or several with commas between them."""
    return ",".join(checked_name(name) for name in text.split(","))


def _node_list(reservation: str, nodes: Sequence[str]) -> str:
    if not nodes:
        # Slurm 22.05 answers an empty list with success and leaves the reservation as it was.
        raise SlurmError(f"reservation {reservation} must keep a node: delete it instead of emptying it")
    return compress(checked_name(node) for node in nodes)


def checked_reason(text: str) -> str:
    """The reason on one line: with line breaks the output of scontrol would be ambiguous."""
    reason = " ".join(text.split())
    if not reason:
        raise SlurmError("the reason is empty: Slurm takes a node out of service only with a reason")
    return reason
