"""An InfiniBand fabric is read from what its two usual commands print."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.topology import DomainKind, merged
from understudy_controlplane.observe.fabric_map import FabricMapError, parse_fabric_map

NODES = ("n1", "n2", "n3", "n4")
LEAVES = {
    "a1": ("leaf1", "n1 mlx5_0", "n2 mlx5_0"),
    "b1": ("leaf2", "n1 mlx5_1", "n2 mlx5_1"),
    "a2": ("leaf3", "n3.hpc.site mlx5_0", "n4 mlx5_0"),
    "b2": ("leaf4", "n3 mlx5_1", "n4 mlx5_1", "storage7 mlx5_0"),
}
PODS = {"c1": ("agg1", "a1", "b1"), "c2": ("agg1b", "a1", "b1"), "c3": ("agg2", "a2", "b2")}
CORE = {"d1": ("core", "c1", "c2", "c3")}


def ibnetdiscover() -> str:
    lines = []
    for guid, (name, *hosts) in LEAVES.items():
        lines += ["vendid=0x2c9", f'Switch\t36 "S-{guid}"\t\t# "MF0;{name}:MQM8700/U1" enhanced port 0 lid 3 lmc 0']
        lines += [f'[{i}]\t"H-{guid}{i}"[1](ec0d9a) \t\t# "{host}" lid 4 4xHDR' for i, host in enumerate(hosts)]
        lines += ["", f'Ca\t1 "H-{guid}0"\t\t# "n1 mlx5_0"', f'[1](ec0d9a) \t"S-{guid}"[1]\t\t# lid 1 lmc 0 "x" lid 3']
    for guid, (name, *below) in (PODS | CORE).items():
        lines.append(f'Switch\t40 "S-{guid}"\t\t# "MF0;{name}:MQM8700/U1" enhanced port 0 lid 9 lmc 0')
        lines += [f'[{i}]\t"S-{peer}"[40]\t\t# "some switch" lid 3 4xHDR' for i, peer in enumerate(below)]
    return "\n".join(lines)


def iblinkinfo() -> str:
    up, down = "==( 4X        53.125 Gbps Active/  LinkUp)==>", "==(                Down/ Polling)==>"
    described = {guid: f"MF0;{name}:MQM8700/U1" for guid, (name, *_) in (LEAVES | PODS | CORE).items()}
    lines = ["CA: n1 mlx5_0:", f'      0x98039b      3    1[  ] {up}       2    1[  ] "{described["a1"]}" ( )']
    for guid, (_, *others) in (LEAVES | PODS | CORE).items():
        lines.append(f"Switch: 0x{guid} {described[guid]}:")
        for other in others:
            lines.append(f'           2    1[  ] {up}       3    1[  ] "{described.get(other, other)}" ( )')
        lines.append(f'           2    9[  ] {down}             [  ] "" ( )')
    return "\n".join(lines)


@pytest.mark.parametrize("text", [ibnetdiscover(), iblinkinfo()], ids=["ibnetdiscover", "iblinkinfo"])
def test_leaves_rails_pods_and_the_spine_are_found(text: str) -> None:
    topology = merged(parse_fabric_map(text, "fabric", NODES))
    assert {one.label: set(one.nodes) for one in topology.domains} == {
        "switch leaf1": {"n1", "n2"},
        "switch leaf2": {"n1", "n2"},
        "switch leaf3": {"n3", "n4"},
        "switch leaf4": {"n3", "n4"},
        "rail mlx5_0": set(NODES),
        "rail mlx5_1": set(NODES),
        "pod agg1": {"n1", "n2"},
        "pod agg2": {"n3", "n4"},
        "spine core": set(NODES),
    }
    assert topology.names_of("n3", DomainKind.SWITCH) == ["leaf3", "leaf4"]


def test_switches_of_one_name_are_known_by_their_guid() -> None:
    text = ibnetdiscover().replace("MF0;leaf1:MQM8700/U1", "Quantum").replace("MF0;leaf2:MQM8700/U1", "Quantum")
    labels = {one.label for one in parse_fabric_map(text, "fabric", NODES)}
    assert {"switch Quantum a1", "switch Quantum b1", "switch leaf3"} <= labels


def test_a_file_without_a_switch_is_refused_with_a_remedy() -> None:
    with pytest.raises(FabricMapError, match=r"fabric\.txt: no switch is named; write the output of ibnetdiscover"):
        parse_fabric_map("ibwarn: [1] mad_rpc_open_port: can't open UMAD port", "fabric.txt", NODES)


def test_a_switch_that_joins_the_leaves_of_one_rail_is_a_spine() -> None:
    text = "\n".join(
        [
            *(line for line in ibnetdiscover().split("\n") if "S-c" not in line and "S-d" not in line),
            'Switch\t40 "S-e1"\t\t# "MF0;rail0:MQM8700/U1" enhanced port 0 lid 9 lmc 0',
            '[1]\t"S-a1"[40]\t\t# "leaf1" lid 3 4xHDR',
            '[2]\t"S-a2"[40]\t\t# "leaf3" lid 3 4xHDR',
        ]
    )
    labels = {one.label for one in parse_fabric_map(text, "fabric", NODES)}
    assert {one for one in labels if one.startswith(("pod", "spine"))} == {"spine rail0"}
