"""Host lists are read and written as Slurm does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.hostlist import HostListError, compress, expand

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[0-9]{0,5}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("login", ("login",)),
        ("n1,n3", ("n1", "n3")),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[008-010]", ("n008", "n009", "n010")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("a[1-2]-ib[0-1]", ("a1-ib0", "a1-ib1", "a2-ib0", "a2-ib1")),
        ("n[1-2],gpu-a[01-02]-x,login", ("n1", "n2", "gpu-a01-x", "gpu-a02-x", "login")),
        ("r[1-2]n[3,5]", ("r1n3", "r1n5", "r2n3", "r2n5")),
    ],
)
def test_a_host_list_names_its_hosts_in_order(text: str, hosts: tuple[str, ...]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[[1]]", "n[3-1]", "n[a-b]", "n1,,n2", "n[]", "a b", "n[0-9999999]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(HostListError):
        expand(text)


@pytest.mark.parametrize("text", ["(null),(null)", "n1,None", "(null),n[1-2]"])
def test_what_slurm_prints_for_no_host_names_none_beside_others(text: str) -> None:
    """It would be a name, and compressed alone it would be none again."""
    with pytest.raises(HostListError, match="no host"):
        expand(text)


def test_many_ranges_cannot_fill_the_memory() -> None:
    with pytest.raises(HostListError):
        expand("a[0-60000],b[0-60000]")
    with pytest.raises(HostListError):
        expand("a[0-60000][0-60000]")


@pytest.mark.parametrize(
    "text", [f"n[{'9' * 5000}]", f"{'x' * 5000}[1-9]", f"n[{','.join(['0-65535'] * 1000)}]", "a" + "[0-65535]" * 10_000]
)
def test_few_characters_cannot_fill_the_memory_either(text: str) -> None:
    with pytest.raises(HostListError):
        expand(text)


def test_neighbours_become_a_range() -> None:
    assert compress(["n3", "n1", "n2", "n7"]) == "n[1-3,7]"
    assert compress(["n08", "n09", "n10"]) == "n[08-10]"
    assert compress(["login", "n1"]) == "login,n1"


def test_only_the_digits_of_slurm_make_a_range() -> None:
    """Python takes those of other scripts for digits as well, and a name with one came back as another one."""
    assert compress(["n\u07c4", "n\u07c5", "n4"]) == "n\u07c4,n\u07c5,n4"


@given(st.sets(names, max_size=40))
def test_compressing_loses_and_adds_no_host(hosts: set[str]) -> None:
    expanded = expand(compress(hosts))
    assert set(expanded) == hosts
    assert len(expanded) == len(hosts)
