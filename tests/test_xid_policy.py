"""The policy file: whole, and nonsense in it refused with a hint."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from understudy_controlplane.xid_policy import (
    Decode,
    FaultClass,
    PolicyError,
    Repair,
    default_policy,
    driver_branch,
    parse_policy,
)

CATALOGUE = {
    13, 31, 32, 38, 43, 44, 45, 46, 48, 54, 56, 57, 58, 61, 62, 63, 64, 65, 66, 67, 68, 69, 73, 74, 78, 79, 80, 81, 92,
    93, 94, 95, 96, 97, 98, *range(99, 111), 119, 120, *range(121, 177),
}  # fmt: skip
"""Codes of NVIDIA's catalogue of October 2025, and the four that newer drivers have."""

TEXT = (resources.files("understudy_controlplane") / "xid_policy.toml").read_text()


def test_every_code_of_the_catalogue_has_a_row() -> None:
    assert set(default_policy().xid) == CATALOGUE


def test_a_node_leaves_service_exactly_when_it_needs_a_repair() -> None:
    policy = default_policy()
    verdicts = [(row.fault, row.repair) for row in (*policy.xid.values(), *policy.sxid.values())]
    verdicts += [(row.fault, row.repair) for row in policy.recovery_action.values()]
    for fault, repair in verdicts:
        leaves = fault in (FaultClass.HARDWARE, FaultClass.DRAIN)
        assert leaves == (repair in (Repair.RESET_GPU, Repair.REBOOT, Repair.MANUAL_REPAIR))
        assert (fault is FaultClass.APPLICATION) == (repair is Repair.RESTART_APP)


@pytest.mark.parametrize("code", [13, 31, 32, 43, 68, 69, 80, 137])
def test_what_a_program_can_do_condemns_no_node(code: int) -> None:
    assert default_policy().xid[code].fault is FaultClass.APPLICATION


def test_rows_are_decoded_where_their_lines_say_more() -> None:
    rows = default_policy().xid
    assert {code for code, row in rows.items() if row.decode is Decode.NVLINK5} == set(range(144, 151))
    assert {code for code, row in rows.items() if row.decode is Decode.FLAGS} == {94, 95}
    assert rows[154].decode is Decode.RECOVERY_ACTION


def test_every_unit_of_nvlink_5_has_a_code_that_is_decoded() -> None:
    policy = default_policy()
    assert {unit.xid for unit in policy.nvlink5} == {c for c, row in policy.xid.items() if row.decode is Decode.NVLINK5}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('class = "application"', 'class = "aplication"', "xid.13.class: Input should be 'hardware', 'drain'"),
        ('class = "application"', 'clas = "application"', "unknown key 'xid.13.clas'; did you mean 'class'?"),
        ('repair = "restart_app"', 'repair = "pray"', "xid.13.repair"),
        ("[xid.13]", "[xid.thirteen]", "xid.thirteen"),
        ("[xid.154]", "[xid.9154]", "must be there"),
        ('version = "', 'vers = "', "unknown key 'vers'"),
        ("[xid.13]", "[xid.13", "not valid TOML"),
        ("times = 2", "times = 1", "repeat.times"),
    ],
)
def test_nonsense_is_refused_with_row_and_key(old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(PolicyError) as caught:
        parse_policy(TEXT.replace(old, new, 1), "policy.toml")
    assert "policy.toml: " in str(caught.value)
    assert words in str(caught.value)


def test_a_code_stands_in_the_file_once() -> None:
    assert TEXT.count("\n[xid.") == len(tomllib.loads(TEXT)["xid"])


@pytest.mark.parametrize(("version", "branch"), [("550.54.15", 550), ("595", 595), ("", None), ("new", None)])
def test_a_drivers_branch_is_the_first_number_of_its_version(version: str, branch: int | None) -> None:
    assert driver_branch(version) == branch
