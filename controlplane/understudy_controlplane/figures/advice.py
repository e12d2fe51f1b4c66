"""Names settings of Slurm that cost recovery time or safety, and what to set. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_controlplane.figures.rule import Rule, Severity, Version
from understudy_controlplane.figures.settings import NotUnderstood, Settings
from understudy_controlplane.figures.slurm_rules import RULES

_HOOK = re.compile(r"(?:Prolog|Epilog|TaskProlog|HealthCheckProgram)\b")


@dataclass(frozen=True, slots=True)
class Advice:
    number: int  # of the rule
    setting: str
    found: str
    wanted: str
    severity: Severity
    why: str


def advise(config: Mapping[str, str], version: Version) -> list[Advice]:
    """The advice of each rule on this configuration (as `scontrol show config` prints it), the most severe first."""
    settings = Settings(config)
    advice = [_ask(rule, settings, version) for rule in RULES]
    order = list(Severity)
    return sorted(advice, key=lambda one: (order.index(one.severity), one.number))


def hooks_of(config: Mapping[str, str]) -> list[str]:
    """Settings of Slurm that name Understudy's hooks."""
    return [key for key, value in config.items() if _HOOK.match(key) and "understudy" in value.casefold()]


HOOKS = ("Prolog", "Epilog", "TaskProlog", "HealthCheckProgram")


def hooks_missing(config: Mapping[str, str]) -> list[str]:
    """Those that slurm.conf does not name, where it names others: a site without any wants none."""
    found = {key.partition("[")[0] for key in hooks_of(config)}
    return [one for one in HOOKS if one not in found] if found else []


def _ask(rule: Rule, settings: Settings, version: Version) -> Advice:
    try:
        severity, why = rule.judge(settings, version)
    except NotUnderstood as unknown:
        severity, why = Severity.UNKNOWN, f"{unknown}; check it by hand: {rule.why}"
    return Advice(rule.number, rule.setting, _found(rule, settings), rule.wanted, severity, why)


def _found(rule: Rule, settings: Settings) -> str:
    key, _, option = rule.setting.partition("=")
    if option and settings.prints(key):
        options = settings.options(key)
        return "not set" if option not in options else f"{option}={options[option]}".removesuffix("=")
    if len(rule.keys) == 1:
        return settings.found(rule.keys[0])
    return "; ".join(f"{key}={settings.found(key)}" for key in rule.keys if settings.prints(key)) or "not printed"
