"""Names of nodes as Slurm writes a list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.hostlist import expand
from understudy_launcher.node_list import REASONS_MAX, by_reason, fold

NAMES = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}" if width else prefix,
    st.sampled_from(["n", "gpu-a", "r1c2-", "7x"]),
    st.integers(0, 120),
    st.integers(0, 4),
)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("n1", "n1"),
        ("n1 n2 n3 n7", "n[1-3,7]"),
        ("n1 n5 n3 n4", "n[1,5,3-4]"),
        ("n8 n9 n10 n11", "n[8-11]"),
        ("c008 c009 c010", "c[008-010]"),
        ("c098 c099 c100", "c[098-099],c100"),
        ("login a1 a2 b3", "login,a[1-2],b3"),
        ("", ""),
    ],
)
def test_consecutive_names_are_folded_and_their_order_stays(names: str, folded: str) -> None:
    assert fold(names.split()) == folded


@given(st.lists(NAMES, max_size=40))
def test_slurm_reads_the_same_names_in_the_same_order(names: list[str]) -> None:
    assert list(expand(fold(names))) == names


def test_nodes_with_the_same_reason_are_named_together() -> None:
    reasons = {"n1": "no seat there after 60.0 s", "n7": "a verdict", "n2": "no seat there after 60.0 s"}
    assert by_reason(reasons) == "n[1-2]: no seat there after 60.0 s; n7: a verdict"


def test_a_message_about_thousands_of_nodes_that_differ_stays_short() -> None:
    reasons = {f"n{number}": f"no message for {number} s" for number in range(1, 12_501)}
    assert by_reason(reasons).endswith(f"n8: no message for 8 s; and {12_500 - REASONS_MAX} more nodes")
