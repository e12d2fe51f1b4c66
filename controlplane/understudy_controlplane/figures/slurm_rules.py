"""The rules about Slurm's settings, each with its figures. Pure; `docs/slurm-settings.md` is generated from them.

The figures are defaults of slurm.conf(5) and what was measured on 22.05.8 (docs/adr/0003).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from understudy_controlplane.figures.rule import Rule, Severity, Verdict, Version
from understudy_controlplane.figures.settings import NotUnderstood, Settings, as_seconds

REQUEUE_DELAY_SINCE: Version = (25, 11)
"""SchedulerParameters=requeue_delay: Slurm's own changelog, 25.11.0rc2. Before, AuthInfo=cred_expire was the delay."""

CRED_EXPIRE_SECONDS = 120.0
"""Slurm's default."""

BATCH_SCHED_DELAY_SECONDS = 3.0
"""Slurm's default; what it costs was measured on 22.05.8."""


def _within(
    key: str, low: float, high: float, below: Verdict, above: Verdict
) -> Callable[[Settings, Version], Verdict]:
    """A time that is good from `low` to `high` seconds. "{seconds}" in the words is the time found."""

    def judge(settings: Settings, _version: Version) -> Verdict:
        seconds = settings.seconds(key)
        if low <= seconds <= high:
            return Severity.GOOD, f"{_spell(seconds)} is fine"
        severity, words = below if seconds < low else above
        return severity, words.format(seconds=_spell(seconds))

    return judge


def _spell(seconds: float) -> str:
    return "without end" if math.isinf(seconds) else f"{seconds:g} s"


def _cred_expire(settings: Settings) -> float:
    value = settings.options("AuthInfo").get("cred_expire")
    return CRED_EXPIRE_SECONDS if value is None else as_seconds(value, "cred_expire")


def _has_script(settings: Settings) -> bool:
    return bool(settings.text("Prolog") or settings.text("Epilog"))


def _requeue_delay(settings: Settings, version: Version) -> Verdict:
    if version < REQUEUE_DELAY_SINCE:
        return Severity.GOOD, "Slurm has it from 25.11 on; before that, cred_expire is the delay"
    value = settings.options("SchedulerParameters").get("requeue_delay")
    delay = _cred_expire(settings) if value is None else as_seconds(value, "requeue_delay")
    if delay <= 10:
        return Severity.GOOD, f"a requeued job may start after {_spell(delay)}"
    return (
        Severity.COST,
        f"a requeued job waits {_spell(delay)} before it may start. Understudy clears the delay of the gangs that it "
        "moves; every other requeue waits, and so does a gang while the control plane is down",
    )


def _cred_expire_rule(settings: Settings, version: Version) -> Verdict:
    delay = _cred_expire(settings)
    if delay < 30:
        return (
            Severity.DANGER,
            f"credentials live for {_spell(delay)}: a job whose Prolog takes longer fails as it starts",
        )
    if version < REQUEUE_DELAY_SINCE and delay > 70:
        return (
            Severity.COST,
            f"a requeued job waits {_spell(delay)} before it may start. Understudy clears the delay of the gangs that "
            "it moves; every other requeue waits, and so does a gang while the control plane is down",
        )
    return Severity.GOOD, f"{_spell(delay)} is fine"


def _slurmd_timeout(settings: Settings, _version: Version) -> Verdict:
    seconds = settings.seconds("SlurmdTimeout")
    if seconds == 0 or math.isinf(seconds):
        return (
            Severity.DANGER,
            "Slurm never declares a silent node DOWN: a dead node that Understudy must leave to Slurm keeps its job",
        )
    if seconds < 30:
        return (
            Severity.DANGER,
            f"Slurm kills all jobs of a node after {_spell(seconds)} without an answer: a restart of slurmd or a short "
            "network failure can take that long",
        )
    if seconds > 120:
        return (
            Severity.COST,
            f"a dead node that Understudy leaves to Slurm (its agent or slurmd never answered, or a job that is not "
            f"managed runs there too) costs {_spell(seconds)} and more: with 300 s a job ran again after 521 s",
        )
    return Severity.GOOD, f"{_spell(seconds)} is fine"


def _job_requeue(settings: Settings, _version: Version) -> Verdict:
    if settings.number("JobRequeue") == 1:
        return Severity.GOOD, "batch jobs can be requeued unless they forbid it"
    return Severity.COST, "a gang submitted without --requeue cannot be recovered: it ends with its first dead node"


def _nohold(settings: Settings, _version: Version) -> Verdict:
    if "nohold_on_prolog_fail" in settings.options("SchedulerParameters"):
        return Severity.GOOD, "a job whose Prolog fails is requeued and starts on other nodes"
    if not settings.text("Prolog"):
        return Severity.GOOD, "there is no Prolog that could fail; set it with the first one"
    return Severity.COST, "a job whose Prolog fails on one node is requeued held, and waits until a person releases it"


def _return_to_service(settings: Settings, _version: Version) -> Verdict:
    value = settings.number("ReturnToService")
    if value == 0:
        return (
            Severity.GOOD,
            "a node that was DOWN waits for an administrator, or for its validation where repair is on, as all do "
            "after a power outage",
        )
    if value == 1:
        return Severity.COST, "a node that was DOWN for its silence takes jobs again as soon as its slurmd is back"
    return (
        Severity.DANGER,
        "a node that was DOWN takes jobs again as soon as its slurmd registers, whatever the fault was: "
        "a crashed node returns to service silently",
    )


def _prolog_flags(settings: Settings, _version: Version) -> Verdict:
    if not settings.text("Prolog"):
        return Severity.GOOD, "there is no Prolog: flags matter with the first one"
    flags = settings.options("PrologFlags")
    if "serial" in flags:
        return Severity.COST, "with Serial prologs and epilogs wait for each other on a node: starts take longer"
    # Contain implies Alloc; X11 implies Contain.
    if flags.keys() & {"alloc", "contain", "x11"}:
        return Severity.GOOD, "the Prolog runs on every node before the job starts"
    return (
        Severity.COST,
        "without Alloc the Prolog runs only with a node's first step: a bad node is found when all others wait already",
    )


def _prolog_timeout(settings: Settings, _version: Version) -> Verdict:
    if not _has_script(settings):
        return Severity.GOOD, "there is no Prolog or Epilog that could hang"
    keys = [key for key in _PROLOG_TIMEOUTS if settings.prints(key)]
    if not keys:
        raise NotUnderstood(f"this Slurm prints none of {', '.join(_PROLOG_TIMEOUTS)}")
    limits = {key: settings.seconds(key) for key in keys}
    both = limits.pop("PrologEpilogTimeout", math.inf)
    longest = max((min(both, one) for one in limits.values()), default=both)
    if longest <= 300:
        return Severity.GOOD, f"a Prolog or Epilog that hangs is ended after {_spell(longest)}"
    return (
        Severity.COST,
        f"a Prolog or Epilog that hangs, as on a broken GPU, holds its node and the requeued job {_spell(longest)}",
    )


_PROLOG_TIMEOUTS = ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")


def _kill_on_bad_exit(settings: Settings, _version: Version) -> Verdict:
    if settings.number("KillOnBadExit") == 1:
        return Severity.GOOD, "a step ends with its first failed rank"
    return (
        Severity.COST,
        "when one rank dies, the others wait until their own timeout, minutes later, unless srun was started with "
        "--kill-on-bad-exit=1",
    )


def _health_check(settings: Settings, _version: Version) -> Verdict:
    if not settings.text("HealthCheckProgram"):
        return Severity.GOOD, "none is needed: the agents check the nodes"
    seconds = settings.seconds("HealthCheckInterval")
    if seconds == 0:
        return Severity.COST, "HealthCheckInterval is 0: the program never runs"
    return Severity.GOOD, f"it runs every {_spell(seconds)}; Understudy does not touch the nodes that it drains"


def _batch_start(settings: Settings, _version: Version) -> Verdict:
    seconds = settings.seconds("BatchStartTimeout")
    if seconds > 300:
        return Severity.COST, f"a launch that was lost with its node is noticed after {_spell(seconds)} only"
    if seconds <= 10 and settings.text("Prolog"):
        return (
            Severity.COST,
            f"a job whose Prolog takes longer than {_spell(seconds)} may count as missing and lose its nodes",
        )
    return Severity.GOOD, f"{_spell(seconds)} is fine"


def _max_batch_requeue(settings: Settings, version: Version) -> Verdict:
    if not settings.prints("MaxBatchRequeue"):
        if version < (23, 2):
            return Severity.GOOD, "fixed at 5 in this version"
        raise NotUnderstood("this Slurm does not print MaxBatchRequeue")
    number = settings.number("MaxBatchRequeue")
    if number >= 5:
        return Severity.GOOD, f"{number} failed launches in a row are allowed"
    return Severity.COST, f"after {number} failed launches a job is held (JobHoldMaxRequeue) until a person releases it"


def _epilog(settings: Settings, _version: Version) -> Verdict:
    if settings.text("Epilog"):
        return Severity.GOOD, "each node reports its own end of a job"
    return (
        Severity.COST,
        "slurmctld hears that a job has ended on its living nodes only after its message to the dead one has timed out "
        f"({settings.found('MessageTimeout')} and more); until then a requeued job stays COMPLETING",
    )


def _min_job_age(settings: Settings, _version: Version) -> Verdict:
    seconds = settings.seconds("MinJobAge")
    if seconds == 0:
        return Severity.COST, "0 keeps every ended job forever: each reading of Slurm takes longer than the last"
    if seconds < 60:
        return (
            Severity.DANGER,
            f"an ended job is forgotten after {_spell(seconds)}: how it ended is never seen if Slurm or the control "
            "plane is down for longer",
        )
    if seconds > 3600:
        return Severity.COST, f"ended jobs are kept for {_spell(seconds)}: each reading of Slurm takes longer"
    return Severity.GOOD, f"{_spell(seconds)} is fine"


def _reboot_program(settings: Settings, _version: Version) -> Verdict:
    if settings.text("RebootProgram"):
        return Severity.GOOD, "a quarantined node can be rebooted through Slurm"
    return (
        Severity.COST,
        "a node cannot be rebooted through Slurm: an administrator has to, although a reboot clears many faults",
    )


def _resume_timeout(settings: Settings, _version: Version) -> Verdict:
    if not (settings.text("RebootProgram") or settings.text("ResumeProgram")):
        return Severity.GOOD, "nothing boots nodes through Slurm"
    seconds = settings.seconds("ResumeTimeout")
    if seconds >= 600:
        return Severity.GOOD, f"{_spell(seconds)} is fine"
    return Severity.COST, f"a node that takes longer than {_spell(seconds)} to boot, as GPU servers do, is set DOWN"


def _expedited(settings: Settings, version: Version) -> Verdict:
    if version < (25, 11):
        return Severity.GOOD, "Slurm has it from 25.11 on"
    if "enable_expedited_requeue" in settings.options("SlurmctldParameters"):
        return (
            Severity.COST,
            "a job that asks for --requeue=expedite is held by Slurm when its program fails while all epilogs succeed, "
            "until a person releases it; managed gangs gain nothing from it",
        )
    return Severity.GOOD, "off: the control plane holds the seats of its gangs itself"


def _private_data(settings: Settings, _version: Version) -> Verdict:
    hidden = settings.options("PrivateData").keys() & {"jobs", "nodes", "reservations"}
    if hidden:
        return (
            Severity.COST,
            f"{', '.join(sorted(hidden))} are hidden from ordinary users: only as root, SlurmUser or a Slurm operator "
            "does the control plane see them; as any other user it sees an idle cluster",
        )
    if settings.text("ResumeProgram") and "cloud" not in settings.options("PrivateData"):
        return Severity.COST, 'without "cloud" Slurm hides powered-down nodes from all users: they seem to vanish'
    return Severity.GOOD, "nothing that matters is hidden"


def _spares_stay_on(settings: Settings, version: Version) -> Verdict:
    """Slurm's power_save.c switches an idle node off, reserved or not, unless one of these excepts it."""
    if not settings.text("SuspendProgram") or not settings.text("SuspendTime")[:1].isdigit():
        return Severity.GOOD, "Slurm switches no idle node off"
    has_states = version >= (23, 2)
    if has_states and "RESERVED" in settings.text("SuspendExcStates").upper().split(","):
        return Severity.GOOD, "reserved nodes stay on, and the spare pool is a reservation"
    if settings.text("SuspendExcNodes").strip("()") not in ("", "null"):
        return Severity.GOOD, "the spares stay on if SuspendExcNodes has enough nodes for them"
    how = "SuspendExcStates=RESERVED" if has_states else "SuspendExcNodes"
    return Severity.COST, f"idle spares are switched off, and a gang waits until one has booted: set {how}"


def _complete_wait(settings: Settings, _version: Version) -> Verdict:
    seconds = settings.seconds("CompleteWait")
    if seconds == 0:
        return Severity.GOOD, "no start waits for the end of other jobs"
    return Severity.COST, f"nothing starts for up to {_spell(seconds)} while any job of the partition is COMPLETING"


def _batch_sched_delay(settings: Settings, _version: Version) -> Verdict:
    value = settings.options("SchedulerParameters").get("batch_sched_delay")
    delay = BATCH_SCHED_DELAY_SECONDS if value is None else as_seconds(value, "batch_sched_delay")
    if delay == 0:
        return Severity.GOOD, "the scheduler runs as soon as a job may start"
    return (
        Severity.COST,
        f"after a drain or a change of a reservation the scheduler does not run again for {_spell(delay)}: a gang that "
        "is moved to a spare of the pool waits for it (with 3 s, the default, 2.3 to 2.9 s; with 0 at most 1 s)",
    )


# fmt: off
# Setting and the value wanted; what it is about; what judges it, and the settings that are shown.
RULES = (
    Rule(1, "SchedulerParameters=requeue_delay", "requeue_delay=5 (Slurm 25.11 and later)",
         "how long a requeued job must wait; without it the lifetime of a credential, 120 s",
         _requeue_delay, ("SchedulerParameters",)),
    Rule(2, "AuthInfo=cred_expire", "cred_expire=70, or somewhat more than the longest Prolog takes",
         "lifetime of a job's credential, 120 s by default; before 25.11 also how long a requeued job must wait",
         _cred_expire_rule, ("AuthInfo",)),
    Rule(3, "SlurmdTimeout", "90 to 120",
         "when Slurm by itself declares a silent node DOWN; 300 s by default",
         _slurmd_timeout, ("SlurmdTimeout",)),
    Rule(4, "JobRequeue", "1",
         "whether jobs that set neither --requeue nor --no-requeue may be requeued",
         _job_requeue, ("JobRequeue",)),
    Rule(5, "SchedulerParameters=nohold_on_prolog_fail", "nohold_on_prolog_fail",
         "a job whose Prolog failed is requeued held without it",
         _nohold, ("SchedulerParameters",)),
    Rule(6, "ReturnToService", "0",
         "which nodes return to service without being resumed by an administrator",
         _return_to_service, ("ReturnToService",)),
    Rule(7, "PrologFlags", "Alloc (or Contain)",
         "when the Prolog runs; without effect while there is none",
         _prolog_flags, ("Prolog", "PrologFlags")),
    Rule(8, "PrologEpilogTimeout, or PrologTimeout and EpilogTimeout", "60 to 300",
         "how long a hanging Prolog or Epilog holds its node; without end by default",
         _prolog_timeout, _PROLOG_TIMEOUTS),
    Rule(9, "KillWait", "5 to 15, unless jobs write checkpoints on SIGTERM",
         "time between SIGTERM and SIGKILL: what ignores the first delays every requeue by it; 30 s by default",
         _within("KillWait", 2, 15,
                 (Severity.COST, "{seconds} leave no time to close files"),
                 (Severity.COST, "ranks that ignore SIGTERM, or hang, delay every requeue by {seconds}")),
         ("KillWait",)),
    Rule(10, "UnkillableStepTimeout", "60 to 180, not below five times MessageTimeout",
         "how long a process that SIGKILL does not end, as on a broken GPU, holds its node before it is drained",
         _within("UnkillableStepTimeout", 50, 180,
                 (Severity.COST, "{seconds}: nodes are drained for processes that only die slowly"),
                 (Severity.COST, "a process that hangs in the driver keeps its job COMPLETING for {seconds}")),
         ("UnkillableStepTimeout",)),
    Rule(11, "KillOnBadExit", "1",
         "whether a step ends with its first failed rank; srun --kill-on-bad-exit sets it for one step",
         _kill_on_bad_exit, ("KillOnBadExit",)),
    Rule(12, "MessageTimeout", "10 to 30",
         "how long Slurm waits for the answer of a node; 10 s by default",
         _within("MessageTimeout", 5, 30,
                 (Severity.COST, "answers of busy nodes that take longer than {seconds} are lost"),
                 (Severity.COST, "each message to a dead node costs {seconds}, and a requeue sends several")),
         ("MessageTimeout",)),
    Rule(13, "TCPTimeout", "2 to 10",
         "how long a connection to a node may take; 2 s by default",
         _within("TCPTimeout", 1, 10,
                 (Severity.COST, "{seconds} is too short for a busy network"),
                 (Severity.COST, "each connection to a dead node costs {seconds}")),
         ("TCPTimeout",)),
    Rule(14, "HealthCheckProgram, HealthCheckInterval", "none, or an interval above 0",
         "Slurm's own health check; Understudy treats its drains as an administrator's",
         _health_check, ("HealthCheckProgram", "HealthCheckInterval")),
    Rule(15, "BatchStartTimeout", "more than the longest Prolog takes, at most 300",
         "when a job that was launched counts as missing; 10 s by default",
         _batch_start, ("BatchStartTimeout",)),
    Rule(16, "MaxBatchRequeue", "5 or more",
         "failed launches after which a job is held; 5 by default",
         _max_batch_requeue, ("MaxBatchRequeue",)),
    Rule(17, "Epilog", "any program, such as /bin/true",
         "with one, each node reports its own end of a job, and a requeue with a dead node does not wait for it",
         _epilog, ("Epilog",)),
    Rule(18, "MinJobAge", "60 to 3600",
         "how long an ended job can be seen; 300 s by default",
         _min_job_age, ("MinJobAge",)),
    Rule(19, "RebootProgram", "a program that reboots the node",
         "with it `scontrol reboot` works",
         _reboot_program, ("RebootProgram",)),
    Rule(20, "ResumeTimeout", "600 or more, if nodes are booted through Slurm",
         "a node that takes longer to boot is set DOWN; 60 s by default",
         _resume_timeout, ("ResumeTimeout",)),
    Rule(21, "SlurmctldParameters=enable_expedited_requeue", "off, unless other jobs need it (Slurm 25.11 and later)",
         "lets jobs ask Slurm to requeue them without delay (--requeue=expedite); docs/adr/0011",
         _expedited, ("SlurmctldParameters",)),
    Rule(22, "PrivateData", "none of jobs, nodes, reservations; cloud, if nodes are powered down",
         "what Slurm hides from whom",
         _private_data, ("PrivateData",)),
    Rule(23, "CompleteWait", "0",
         "how long starts wait for jobs that are COMPLETING; 0 by default",
         _complete_wait, ("CompleteWait",)),
    Rule(24, "SchedulerParameters=batch_sched_delay",
         "batch_sched_delay=0, unless many batch jobs are submitted every second",
         "how long the start of a batch job may be put off so that the scheduler runs less often; 3 s by default",
         _batch_sched_delay, ("SchedulerParameters",)),
    Rule(25, "SuspendExcStates", "RESERVED, if idle nodes are switched off; SuspendExcNodes before Slurm 23.02",
         "which nodes power saving leaves on",
         _spares_stay_on, ("SuspendExcStates", "SuspendExcNodes", "SuspendTime")),
)
# fmt: on
