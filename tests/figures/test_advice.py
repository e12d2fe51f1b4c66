"""Each rule about Slurm's settings says what it should of what real versions of Slurm print."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.figures.advice import Advice, advise, hooks_missing
from understudy_controlplane.figures.rule import Severity
from understudy_controlplane.figures.settings import NotUnderstood, Settings, as_seconds
from understudy_controlplane.figures.slurm_rules import RULES
from understudy_controlplane.slurm.parse import parse_config

RECORDED = parse_config((Path(__file__).parent / "data" / "config-22.05.txt").read_text(encoding="utf-8"))
V22, V24, V25 = (22, 5), (24, 11), (25, 11)
DANGER, COST, UNKNOWN, GOOD = Severity.DANGER, Severity.COST, Severity.UNKNOWN, Severity.GOOD
PROLOG = {"Prolog": "/etc/slurm/prolog"}


def of(number: int, changes: dict[str, str], version: tuple[int, int] = V22) -> Advice:
    (found,) = [one for one in advise(RECORDED | changes, version) if one.number == number]
    return found


@pytest.mark.parametrize(
    ("number", "version", "changes", "severity"),
    [
        (1, V22, {}, GOOD),  # not known there
        (1, V25, {}, COST),  # the credential's 120 s
        (1, V25, {"SchedulerParameters": "bf_continue,requeue_delay=5"}, GOOD),
        (1, V25, {"SchedulerParameters": "requeue_delay=60"}, COST),
        (1, V25, {"SchedulerParameters": "requeue_delay=soon"}, UNKNOWN),
        (2, V22, {}, COST),
        (2, V22, {"AuthInfo": "socket=/run/munge,cred_expire=70"}, GOOD),
        (2, V22, {"AuthInfo": "cred_expire=10"}, DANGER),
        (2, V25, {}, GOOD),  # no longer the delay
        (3, V22, {}, COST),
        (3, V22, {"SlurmdTimeout": "60 sec"}, GOOD),
        (3, V22, {"SlurmdTimeout": "0 sec"}, DANGER),
        (3, V22, {"SlurmdTimeout": "10 sec"}, DANGER),
        (3, V22, {"SlurmdTimeout": "a while"}, UNKNOWN),
        (4, V22, {}, GOOD),
        (4, V22, {"JobRequeue": "0"}, COST),
        (5, V22, {}, GOOD),  # no Prolog
        (5, V22, PROLOG, COST),
        (5, V22, PROLOG | {"SchedulerParameters": "nohold_on_prolog_fail"}, GOOD),
        (6, V22, {}, GOOD),
        (6, V22, {"ReturnToService": "1"}, COST),
        (6, V22, {"ReturnToService": "2"}, DANGER),
        (6, V22, {"ReturnToService": "(null)"}, UNKNOWN),
        (7, V22, {}, GOOD),
        (7, V22, PROLOG, COST),
        (7, V22, PROLOG | {"PrologFlags": "Contain"}, GOOD),
        (7, V22, PROLOG | {"PrologFlags": "Alloc,Serial"}, COST),
        (8, V22, {}, COST),  # an Epilog, and no limit
        (8, V22, {"Epilog": "(null)"}, GOOD),
        (8, V22, {"PrologEpilogTimeout": "120"}, GOOD),
        (8, V24, {"PrologTimeout": "60 sec", "EpilogTimeout": "90 sec"}, GOOD),
        (8, V24, {"PrologTimeout": "60 sec", "EpilogTimeout": "65534 sec"}, COST),
        (9, V22, {}, COST),
        (9, V22, {"KillWait": "10 sec"}, GOOD),
        (9, V22, {"KillWait": "0 sec"}, COST),
        (10, V22, {}, GOOD),
        (10, V22, {"UnkillableStepTimeout": "900 sec"}, COST),
        (10, V22, {"UnkillableStepTimeout": "5 sec"}, COST),
        (11, V22, {}, COST),
        (11, V22, {"KillOnBadExit": "1"}, GOOD),
        (12, V22, {}, GOOD),
        (12, V22, {"MessageTimeout": "100 sec"}, COST),
        (12, V22, {"MessageTimeout": "2 sec"}, COST),
        (13, V22, {}, GOOD),
        (13, V22, {"TCPTimeout": "30 sec"}, COST),
        (13, V22, {"TCPTimeout": "0 sec"}, COST),
        (14, V22, {}, GOOD),
        (14, V22, {"HealthCheckProgram": "/usr/sbin/nhc"}, COST),
        (14, V22, {"HealthCheckProgram": "/usr/sbin/nhc", "HealthCheckInterval": "300 sec"}, GOOD),
        (15, V22, {}, GOOD),
        (15, V22, PROLOG, COST),
        (15, V22, PROLOG | {"BatchStartTimeout": "120 sec"}, GOOD),
        (15, V22, {"BatchStartTimeout": "3600 sec"}, COST),
        (16, V22, {}, GOOD),
        (16, V24, {}, UNKNOWN),
        (16, V24, {"MaxBatchRequeue": "5"}, GOOD),
        (16, V24, {"MaxBatchRequeue": "1"}, COST),
        (17, V22, {}, GOOD),
        (17, V22, {"Epilog": "(null)"}, COST),
        (18, V22, {}, GOOD),
        (18, V22, {"MinJobAge": "2 sec"}, DANGER),
        (18, V22, {"MinJobAge": "0 sec"}, COST),
        (18, V22, {"MinJobAge": "86400 sec"}, COST),
        (19, V22, {}, COST),
        (19, V22, {"RebootProgram": "/sbin/reboot"}, GOOD),
        (20, V22, {}, GOOD),
        (20, V22, {"RebootProgram": "/sbin/reboot"}, COST),
        (20, V22, {"RebootProgram": "/sbin/reboot", "ResumeTimeout": "900 sec"}, GOOD),
        (21, V22, {}, GOOD),
        (21, V25, {}, GOOD),
        (21, V25, {"SlurmctldParameters": "enable_expedited_requeue"}, COST),
        (22, V22, {}, GOOD),
        (22, V22, {"PrivateData": "accounts,jobs,nodes"}, COST),
        (22, V22, {"ResumeProgram": "/bin/true"}, COST),
        (22, V22, {"ResumeProgram": "/bin/true", "PrivateData": "cloud"}, GOOD),
        (23, V22, {}, GOOD),
        (23, V22, {"CompleteWait": "32 sec"}, COST),
        (24, V22, {}, COST),
        (24, V22, {"SchedulerParameters": "bf_continue,batch_sched_delay=0"}, GOOD),
        (24, V22, {"SchedulerParameters": "batch_sched_delay=10"}, COST),
        (24, V22, {"SchedulerParameters": "batch_sched_delay=soon"}, UNKNOWN),
        (25, V22, {}, GOOD),
        (25, V22, {"SuspendProgram": "/bin/off", "SuspendTime": "INFINITE"}, GOOD),
        (25, V22, {"SuspendProgram": "/bin/off", "SuspendTime": "600 sec"}, COST),
        (25, V25, {"SuspendProgram": "/bin/off", "SuspendTime": "600 sec", "SuspendExcStates": "(null)"}, COST),
        (
            25,
            V25,
            {"SuspendProgram": "/bin/off", "SuspendTime": "600 sec", "SuspendExcStates": "PLANNED,RESERVED"},
            GOOD,
        ),
        (25, V22, {"SuspendProgram": "/bin/off", "SuspendTime": "600 sec", "SuspendExcNodes": "n[1-8]:3"}, GOOD),
    ],
)
def test_a_setting_is_judged(
    number: int, version: tuple[int, int], changes: dict[str, str], severity: Severity
) -> None:
    found = of(number, changes, version)
    assert (found.severity, bool(found.why), bool(found.wanted)) == (severity, True, True)


def test_every_rule_has_a_number_of_its_own_and_is_tested_with_more_than_one_outcome() -> None:
    assert [rule.number for rule in RULES] == list(range(1, len(RULES) + 1))
    (mark,) = test_a_setting_is_judged.pytestmark  # type: ignore[attr-defined]
    outcomes: dict[int, set[Severity]] = {}
    for number, _, _, severity in mark.args[1]:
        outcomes.setdefault(number, set()).add(severity)
    assert [rule.number for rule in RULES if len(outcomes.get(rule.number, ())) < 2] == []


def test_words_carry_the_figures_and_what_was_found() -> None:
    assert "300 s" in of(3, {}).why
    assert "30 s" in of(9, {}).why
    assert (of(2, {}).found, of(2, {"AuthInfo": "socket=/s,cred_expire=90"}).found) == ("not set", "cred_expire=90")
    assert of(5, {"SchedulerParameters": "nohold_on_prolog_fail"}).found == "nohold_on_prolog_fail"
    assert of(6, {"ReturnToService": "2"}).found == "2"
    assert "without end" in of(8, {}).why


def test_the_most_severe_comes_first() -> None:
    order = list(Severity)
    severities = [one.severity for one in advise(RECORDED | {"ReturnToService": "2", "KillWait": "?"}, V22)]
    assert severities[0] is DANGER
    assert severities == sorted(severities, key=order.index)


def test_several_values_of_a_setting_are_all_seen() -> None:
    both = {key: value for key, value in RECORDED.items() if key not in ("Prolog", "Epilog")}
    both |= {"Prolog[0]": "/a", "Prolog[1]": "/b", "Epilog[0]": "/c"}
    settings = Settings(both)
    assert (settings.text("Prolog"), settings.found("Prolog")) == ("/a,/b", "/a, /b")
    assert next(one for one in advise(both, V25) if one.number == 17).severity is GOOD


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300 sec", 300),
        ("0 (default)", 0),
        ("60 sec (default)", 60),
        ("2 min", 120),
        ("2000 usec", 0.002),
        ("00:05:00", 300),
        ("1-00:00:00", 86_400),
        ("(null)", math.inf),
        ("INFINITE", math.inf),
        ("65534", math.inf),
    ],
)
def test_times_are_understood_as_slurm_spells_them(text: str, seconds: float) -> None:
    assert as_seconds(text, "Some") == seconds


def test_what_is_no_time_is_reported_as_such() -> None:
    for text in ("soon", "3 parsecs", "-1", "1.5 sec", "12:3"):
        with pytest.raises(NotUnderstood, match="Some"):
            as_seconds(text, "Some")


@given(st.dictionaries(st.sampled_from(sorted(RECORDED)), st.text(max_size=20)), st.sampled_from([V22, V24, V25]))
def test_no_value_is_too_strange_to_be_answered(changes: dict[str, str], version: tuple[int, int]) -> None:
    assert len(advise(RECORDED | changes, version)) == len(RULES)


def test_a_slurm_that_prints_nothing_is_answered_too() -> None:
    assert {one.severity for one in advise({}, V25)} <= {UNKNOWN, COST, GOOD}


def test_hooks_are_missing_only_where_slurm_conf_names_others() -> None:
    understudy = "/etc/understudy/hooks/"
    assert hooks_missing({"Prolog": "/etc/site/prolog", "Epilog": ""}) == []
    found = {"Prolog[0]": f"{understudy}prolog", "Epilog[0]": "/etc/site/epilog", "TaskProlog": f"{understudy}t"}
    assert hooks_missing(found) == ["Epilog", "HealthCheckProgram"]
