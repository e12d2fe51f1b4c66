"""What each port of a node is for. A gang trains over some of them; the others are for storage, for management, or for
the NVSwitches, and are no fault of a node where they are down.

The kernel does not show it. Certain is what a port's VPD says, and what the site sets for all programs on the node:
NCCL_IB_HCA in /etc/nccl.conf. Else adapters are compared: those for training are alike, but for one that may
have been replaced, and together the fastest.
Sources: nvidia-fabricmanager-start.sh looks for "SMDL=SW_MNG" in the VPD (ports by which the Fabric Manager reaches the
NVSwitches of HGX B200 and B300, Fabric Manager User Guide); NCCL 2.30: src/transport/net_ib/init.cc, src/misc/utils.cc,
src/misc/param.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from understudy_wire.hardware import Port, PortRole

SWITCH_MANAGEMENT = "SMDL=SW_MNG"
INFINIBAND_WEIGHT = 4.0
"""InfiniBand, and EFA ("Unknown" to the kernel), is for training where a node has Ethernet as well, unless Ethernet has
many times its rate (eight ports of RoCE beside one of InfiniBand to a file system).
"""
NEVER_UP_GBPS = 100.0
"""Rate of a port that was not up in this boot. The kernel shows 10 Gb/s for it, whatever the port can do."""
FABRIC_PORTS_MIN = 4
"""So many ports of InfiniBand that were not up in this boot, and more than any other adapters have in use, are a fabric
that is down. Fewer may have no cables: an adapter that can do both is InfiniBand until it is set to Ethernet.
"""


def hca_setting(text: str) -> str:
    """NCCL_IB_HCA of the text of nccl.conf, of which NCCL takes the first line; empty: not set."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "NCCL_IB_HCA":
            return value
    return ""


def is_named(setting: str, device: str, number: int) -> bool:
    """True if NCCL uses this port with this NCCL_IB_HCA: `mlx5` (names that begin so), `=mlx5_0,mlx5_1:1` (these
    alone), `^mlx5_2` (all others).
    """
    excludes = setting.startswith("^")
    setting = setting.removeprefix("^")
    exact = setting.startswith("=")
    entries = [entry.split(":") for entry in setting.removeprefix("=").split(",") if entry]
    found = not entries or any(
        (device == name if exact else device.startswith(name)) and (not port or not port[0] or port[0] == str(number))
        for name, *port in entries
    )
    return found is not excludes


def roles(ports: Sequence[Port], setting: str) -> Mapping[str, PortRole]:
    """Role of each port, by its label. `ports` are all of the node, also those that are down or gone; a role other than
    TRAINING stays. `setting` is NCCL_IB_HCA, or empty.
    """
    others = [port for port in ports if port.role is PortRole.TRAINING]
    training = [port for port in others if is_named(setting, port.device, port.number)] if setting else []
    if not training or len(training) == len(others):  # the setting distinguishes none
        groups: dict[tuple[str, str], list[Port]] = {}
        for port in others:
            groups.setdefault((port.link_layer, port.adapter), []).append(port)
        in_use = max((len(alike) for alike in groups.values() if _was_up(alike)), default=0)
        training = max(groups.values(), key=lambda alike: (_gbps(alike, in_use), _was_up(alike)), default=[])
        training = [*training, *_replacement(groups.values(), training)]
    found = {port.label: PortRole.OTHER if port in others else port.role for port in ports}
    return found | {port.label: PortRole.TRAINING for port in training}


def _replacement(groups: Iterable[Sequence[Port]], training: Sequence[Port]) -> Sequence[Port]:
    """The card of another board by which one of those for training was replaced, if any. Those come in even numbers:
    one is missing, and there is a single card of one port with their link layer and rate.
    """
    gbps = max((port.rate_gbps_max or 0.0 for port in training), default=0.0)
    if len(training) % 2 == 0 or not gbps:
        return ()
    like = (training[0].link_layer, gbps)
    single = [alike for alike in groups if alike is not training and len(alike) == 1]
    found = [alike for alike in single if (alike[0].link_layer, alike[0].rate_gbps_max) == like]
    return found[0] if len(found) == 1 else ()


def _was_up(alike: Sequence[Port]) -> bool:
    """True if one of these ports was up in this boot."""
    return any(port.rate_gbps_max for port in alike)


def _gbps(alike: Sequence[Port], in_use: int) -> float:
    """Rate of these ports together, with the weight of InfiniBand. `in_use`: as many ports has the largest group of
    which one was up.
    """
    is_fabric = _was_up(alike) or len(alike) >= max(FABRIC_PORTS_MIN, in_use + 1)
    weight = INFINIBAND_WEIGHT if is_fabric and alike[0].link_layer != "Ethernet" else 1.0
    return weight * sum(port.rate_gbps_max or NEVER_UP_GBPS for port in alike)
