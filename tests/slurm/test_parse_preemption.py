"""Slurm's rules of preemption, as its commands print them."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.preemption import Partition, PreemptType, Qos
from understudy_controlplane.slurm.parse_preemption import parse_preemption
from understudy_controlplane.slurm.protocol import SlurmError

SETTINGS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "PreemptParameters": "(null)"}
PARTITIONS = (
    "PartitionName=low AllowGroups=ALL ExclusiveUser=NO GraceTime=0 PriorityTier=0 OverSubscribe=EXCLUSIVE"
    " OverTimeLimit=NONE PreemptMode=CANCEL State=UP\n"
    "PartitionName=train AllowGroups=ALL Exclusive=NODE GraceTime=0 PriorityTier=3 OverSubscribe=EXCLUSIVE"
    " OverTimeLimit=NONE PreemptMode=PRIORITY,REQUEUE State=UP\n"
    "PartitionName=mine AllowGroups=ALL Exclusive=USER GraceTime=0 PriorityTier=1 OverTimeLimit=NONE PreemptMode=OFF\n"
)
QOS = "normal|0||cluster\nlow|1||cancel\nhigh|10|low,normal|cluster\n"


def test_partitions_have_tier_and_modes() -> None:
    rules = parse_preemption(SETTINGS, PARTITIONS, "")
    assert rules.kind is PreemptType.PARTITION
    assert rules.partitions == {
        "low": Partition(0, frozenset({"CANCEL"})),
        "train": Partition(3, frozenset({"PRIORITY", "REQUEUE"})),
        "mine": Partition(1, frozenset({"OFF"}), exclusive=True),
    }


def test_qos_have_priority_and_those_that_they_preempt() -> None:
    rules = parse_preemption(SETTINGS | {"PreemptType": "preempt/qos"}, PARTITIONS, QOS)
    assert rules.qos == {
        "normal": Qos(0, frozenset()),
        "low": Qos(1, frozenset(), frozenset({"CANCEL"})),
        "high": Qos(10, frozenset({"low", "normal"})),
    }


def test_the_order_and_the_exempt_priority_are_read() -> None:
    settings = SETTINGS | {"PreemptParameters": "min_exempt_priority=500,youngest_first"}
    rules = parse_preemption(settings, PARTITIONS, "")
    assert (rules.exempt_above, rules.youngest_first) == (500, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"PreemptType": "(null)"}, "PreemptType is (null)"),
        ({"PreemptType": "preempt/of_the_site"}, "PreemptType is preempt/of_the_site"),
        ({"PreemptMode": "GANG,SUSPEND"}, "PreemptMode=GANG,SUSPEND"),
        ({"MCSPlugin": "mcs/user"}, "MCSPlugin=mcs/user"),
    ],
)
def test_what_cannot_be_foreseen_is_named(changes: dict[str, str], words: str) -> None:
    rules = parse_preemption(SETTINGS | changes, PARTITIONS, "")
    assert rules.kind is None
    assert words in rules.unknown


def test_what_is_unreadable_is_refused() -> None:
    with pytest.raises(SlurmError, match="partition train"):
        parse_preemption(SETTINGS, "PartitionName=train State=UP\n", "")
    with pytest.raises(SlurmError, match="unreadable QOS"):
        parse_preemption(SETTINGS | {"PreemptType": "preempt/qos"}, PARTITIONS, "normal|0|\n")
