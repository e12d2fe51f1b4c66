"""`understudy doctor`: whether Slurm can be used here, and which of its settings cost recovery time or safety.

It queries Slurm and this host once and prints the result. `plan.advice` judges the settings. It changes nothing.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from understudy_controlplane.cli.options import DEFAULT_CONFIG, config_of, config_option, json_option
from understudy_controlplane.cli.output import Exit, pair_lines, show
from understudy_controlplane.clock import Clock, SystemClock
from understudy_controlplane.config import Config, Mode, Silence
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.detect.silence import BEFORE_SLURM_SECONDS, unconfirmed_seconds
from understudy_controlplane.figures.advice import Advice, advise, hooks_of
from understudy_controlplane.figures.rule import Severity
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.gres import shared_by
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.slurm.choose import Choice
from understudy_controlplane.slurm.choose import choose as choose_gateway
from understudy_controlplane.slurm.parse import slurmd_timeout
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, miscounts_dead_gangs, read_view, slurm_version
from understudy_controlplane.store.database import StoreError, is_shared, look_at
from understudy_controlplane.store.holder import who_leads

COLOURS = {Severity.DANGER: "red", Severity.COST: "yellow", Severity.UNKNOWN: "magenta", Severity.GOOD: "green"}
_USER_ID = re.compile(r".*\((\d+)\)")
SLOW_SHARE = 0.5
"""A reading of Slurm that takes a larger share of the poll interval leaves the loop too little time."""


@dataclass(frozen=True, slots=True)
class Check:
    """`why`: what it costs and what to do; empty where nothing is wrong."""

    name: str
    severity: Severity
    found: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    checks: tuple[Check, ...]
    advice: tuple[Advice, ...] = ()

    @property
    def severities(self) -> list[Severity]:
        return [check.severity for check in self.checks] + [one.severity for one in self.advice]

    @property
    def dangerous(self) -> bool:
        return Severity.DANGER in self.severities


@click.command()
@config_option
@json_option
def doctor(config: Path, as_json: bool) -> None:
    """Check Slurm: whether it can be used, and which settings to change because they cost recovery time or safety.

    Exits with 1 where a setting is dangerous or Slurm cannot be reached.
    """
    # The defaults apply if there is no configuration file.
    diagnosis = diagnose(config_of(config) if config != DEFAULT_CONFIG or config.exists() else None)
    record = msgspec.to_builtins(diagnosis) | {"dangerous": diagnosis.dangerous}
    show(record, as_json, lambda _: lines(diagnosis))
    sys.exit(Exit.FAILED if diagnosis.dangerous else Exit.DONE)


def diagnose(
    config: Config | None,
    choose: Callable[[Policy], Choice] = choose_gateway,
    clock: Clock | None = None,
    user_id: int | None = None,
) -> Diagnosis:
    """`config`: None where there is no configuration yet; then the defaults apply."""
    policy = config.slurm if config else Policy()
    checks: list[Check] = []
    try:
        gateway = choose(policy)
        checks.append(Check("gateway", Severity.GOOD, gateway.name, gateway.why))
        settings = gateway.slurm.config()
        version = slurm_version(settings)
    except SlurmError as error:
        todo = "check that slurmctld is up and that SLURM_CONF names its slurm.conf: `scontrol ping` must print UP"
        checks.append(Check("Slurm", Severity.DANGER, "cannot be reached", f"{error}; {todo}"))
        return Diagnosis((*checks, _database(config)))
    user_id = os.geteuid() if user_id is None else user_id
    checks += [
        _release(settings),
        _cluster(settings, config),
        *_reading(gateway.slurm, policy, clock or SystemClock()),
        _user(settings, user_id, config),
        _timeouts(settings, config.silence if config else Silence()),
        *([] if config is None else [_validation(config, user_id), _notifications(config)]),
        _hooks(settings),
        _database(config),
    ]
    return Diagnosis(tuple(checks), tuple(advise(settings, version)))


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield click.style("Slurm and this host", bold=True)
    yield from pair_lines(
        (_mark(one.severity, one.name), f"{one.found}: {one.why}" if one.why else one.found) for one in diagnosis.checks
    )
    remarkable = [one for one in diagnosis.advice if one.severity is not Severity.GOOD]
    if remarkable:
        yield click.style("\nSettings of Slurm", bold=True)
        yield from pair_lines(
            (_mark(one.severity, f"S{one.number}"), f"{one.setting}: {one.found}; set {one.wanted}: {one.why}")
            for one in remarkable
        )
    good = [f"{one.setting} (S{one.number})" for one in diagnosis.advice if one.severity is Severity.GOOD]
    yield from pair_lines([(click.style("good", fg="green"), ", ".join(good))] if good else [])
    counts = {severity: diagnosis.severities.count(severity) for severity in Severity}
    summary = ", ".join(f"{count} {severity.value}" for severity, count in counts.items() if count)
    yield f"\n{click.style(f'{summary}.', bold=True)} What each setting does: `understudy help slurm-settings`"


def _mark(severity: Severity, name: str) -> str:
    return f"{click.style(f'{severity.value:8}', fg=COLOURS[severity])}{one_line(name)}"


def _release(settings: Mapping[str, str]) -> Check:
    found = f"version {settings['SLURM_VERSION']}"
    if not miscounts_dead_gangs(settings):
        return Check("Slurm", Severity.GOOD, found)
    why = (
        "after an exclusive job has lost all its nodes at once, each gets one more such job and then none, until an "
        "administrator runs `scontrol reconfigure` (`understudy status` lists them); Slurm 23.11.11, 24.05.6, 24.11.1 "
        "and 25.05 have the mend"
    )
    return Check("Slurm", Severity.COST, found, why)


def _cluster(settings: Mapping[str, str], config: Config | None) -> Check:
    name = settings.get("ClusterName", "")
    if config is None:
        return Check("cluster", Severity.GOOD, name, f'write cluster = "{name}" into the configuration')
    if name.casefold() == config.cluster.casefold():
        return Check("cluster", Severity.GOOD, name)
    why = (
        f"the configuration says {config.cluster!r}, and the control plane does not act on another cluster; set cluster"
    )
    return Check("cluster", Severity.DANGER, name, why)


def _reading(slurm: Slurm, policy: Policy, clock: Clock) -> Iterator[Check]:
    begun = clock.now()
    try:
        view = read_view(slurm, begun)
    except SlurmError as error:
        why = f"{error}; the control plane decides nothing while Slurm cannot be read"
        yield Check("reading", Severity.DANGER, "failed", why)
        return
    seconds = clock.now() - begun
    found = (
        f"{counted(len(view.nodes), 'node')}, {counted(len(view.jobs), 'job')}, "
        f"{counted(len(view.reservations), 'reservation')} "
        f"in {seconds:.3f} s"
    )
    interval = policy.poll_interval_seconds
    if seconds <= SLOW_SHARE * interval:
        yield Check("reading", Severity.GOOD, found)
    else:
        better = min(60.0, max(1.0, 4 * seconds))
        why = (
            f"slurm.poll_interval_seconds is {interval:g}: raise it to {better:.0f}, or find out why slurmctld is busy"
        )
        yield Check("reading", Severity.COST, found, why)
    yield from _shared_gpus(view)


def _shared_gpus(view: SlurmView) -> Iterator[Check]:
    """What is not watched of GPUs that jobs share. MIG mode itself is known only to the agents."""
    shared = Counter(how for node in view.nodes.values() for how in shared_by(node.gres))
    if shared:
        found = ", ".join(f"{how} on {counted(nodes, 'node')}" for how, nodes in sorted(shared.items()))
        not_watched = "utilization, remapped rows and NVLinks of a GPU in MIG mode are not watched; " * (
            "MIG" in shared
        )
        why = f"{not_watched}no gang moves for a rank that is slow there, because a job beside it may be the cause"
        yield Check("shared GPUs", Severity.COST, found, f"{why}: `understudy help signals`")


def _user(settings: Mapping[str, str], user_id: int, config: Config | None) -> Check:
    """Root, SlurmUser, and administrators in Slurm's accounting may drain nodes. Its operators may not."""
    name = _user_name(user_id)
    slurm_user = settings.get("SlurmUser", "unknown")
    match = _USER_ID.fullmatch(slurm_user)
    if user_id == 0 or (match is not None and int(match[1]) == user_id):
        return Check("user", Severity.GOOD, name, "may drain nodes and requeue jobs")
    if "slurmdbd" in settings.get("AccountingStorageType", ""):
        why = (
            f"besides root and SlurmUser ({slurm_user}) only administrators in Slurm's accounting may drain nodes: see "
            f"`sacctmgr show user {name}`. The level operator is not enough: set adminlevel=Admin"
        )
        return Check("user", Severity.COST, name, why)
    why = f"only root and SlurmUser ({slurm_user}) may drain nodes; run the control plane as one of them"
    return Check("user", Severity.DANGER if _acts(config) else Severity.COST, name, why)


def _timeouts(settings: Mapping[str, str], policy: Silence) -> Check:
    """Slurm ends the jobs of a silent node by itself: what the control plane waits for has to be over by then."""
    timeout = slurmd_timeout(settings)
    dead = unconfirmed_seconds(timeout, policy)
    found = f"SlurmdTimeout {timeout} s, a silent node is dead after {policy.dead_after_seconds:g} to {dead:g} s"
    why = []
    if timeout and dead + BEFORE_SLURM_SECONDS > timeout:
        why.append(
            f"Slurm may end the job of a silent node before the control plane holds its gang's seats, and waiting jobs "
            f"take them: set SlurmdTimeout to {dead + BEFORE_SLURM_SECONDS:g} or more"
        )
    if timeout and policy.domain_wait_seconds >= timeout:
        why.append(
            "Slurm ends the jobs of a rack that falls silent before it has had its "
            f"{policy.domain_wait_seconds:g} s to come back: set SlurmdTimeout above that"
        )
    return Check("time-outs", Severity.COST if why else Severity.GOOD, found, "; ".join(why))


def _validation(config: Config, user_id: int) -> Check:
    """Slurm lets only root submit jobs of another user."""
    wanted, name = config.validation.user, _user_name(user_id)
    if not config.validation.enabled:
        return Check("validation", Severity.GOOD, "off")
    if user_id == 0 or wanted == name:
        return Check("validation", Severity.GOOD, f"jobs of {wanted}")
    why = f"only root may submit jobs of another user: every validation fails; set validation.user to {name}"
    return Check("validation", Severity.DANGER if _acts(config) else Severity.COST, f"jobs of {wanted}", why)


def _notifications(config: Config) -> Check:
    names = [*config.notify.receivers]
    if names:
        remark = "`understudy notify test` shows whether they arrive"
        return Check("notifications", Severity.GOOD, f"to {', '.join(names)}", remark)
    why = "when a person is needed, only `understudy status` and the dashboard show it; set [notify.receivers]"
    return Check("notifications", Severity.COST, "none", why)


def _acts(config: Config | None) -> bool:
    return config is not None and config.highest_mode is Mode.ACT


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _hooks(settings: Mapping[str, str]) -> Check:
    hooks = hooks_of(settings)
    if hooks:
        return Check("hooks", Severity.GOOD, f"{', '.join(hooks)} name understudy")
    return Check("hooks", Severity.GOOD, "none", "Understudy's Prolog and Epilog are not installed; they are optional")


def _database(config: Config | None) -> Check:
    if config is None:
        why = "the defaults are checked; `understudy init` writes one"
        return Check("configuration", Severity.UNKNOWN, f"{DEFAULT_CONFIG} is missing", why)
    try:
        found = look_at(config.server.database)
        if is_shared(config.server.database):
            leads, why = who_leads(config.server.database)
            return Check("database", Severity.COST if why else Severity.GOOD, f"{found}; control planes: {leads}", why)
        return Check("database", Severity.GOOD, found)
    except (OSError, StoreError, ImportError) as error:
        problem = " ".join(str(error).split())
        why = f"{problem}; set server.database, or run this as the user of the control plane"
        return Check("database", Severity.COST, "cannot be opened", why)
