"""Views of nodes, each made when it is first asked for: of thousands nearly all are plain, and no rule asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping
from functools import lru_cache
from typing import NamedTuple

from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_wire.messages import Report

Versions = tuple[tuple[str, str], ...]
"""What, and its version."""


class MachineKind(NamedTuple):
    gres: str
    versions: Versions


def versions_of(node: NodeView | Report) -> Versions:
    """What is known of the node. Of those that are equal, the same value: a fleet has few."""
    driver = (("driver", node.driver_version),) if node.driver_version else ()
    vbios = sorted({gpu.vbios for gpu in node.gpus if gpu.vbios})
    host = node.host.versions.items() if node.host is not None else ()
    return _the_same((*driver, *((("VBIOS", ", ".join(vbios)),) if vbios else ()), *host))


@lru_cache(maxsize=1024)
def _the_same(versions: Versions) -> Versions:
    return versions


class NodeViews(Mapping[str, NodeView]):
    """`notable`: names of all nodes but plain ones, in the order of `slurm`. A plain node is in service, Slurm can use
    it, its agent has reported lately and shows hardware that works, no event of it is known, nothing is recorded about
    it, and it is no spare. Where a plain node is named, rules look at it for nothing.

    Values passed in must not be changed afterwards: a view may be asked for much later, by any thread.
    """

    def __init__(
        self,
        make: Callable[..., NodeView],
        slurm: Mapping[str, SlurmNode | None],
        versions: Mapping[str, Versions],
        notable: tuple[str, ...],
    ) -> None:
        self._make = make
        self.slurm = slurm
        self._versions = versions
        self._made: dict[str, NodeView] = {}
        self.notable = notable

    def __getitem__(self, name: str) -> NodeView:
        view = self._made.get(name)
        if view is None:
            if name not in self.slurm:
                raise KeyError(name)
            view = self._made[name] = self._make(name)
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self.slurm)

    def __len__(self) -> int:
        return len(self.slurm)

    def __contains__(self, name: object) -> bool:
        return name in self.slurm

    def keys(self) -> KeysView[str]:
        return self.slurm.keys()

    def notable_views(self) -> Iterator[NodeView]:
        return (self[name] for name in self.notable)

    def made_again(self) -> dict[str, NodeView]:
        """All views as they are where none is kept."""
        return {name: self._make(name, is_kept=False) for name in self}

    @property
    def made(self) -> int:
        """How many of them were asked for."""
        return len(self._made)

    def plain_machines(self) -> dict[MachineKind, list[str]]:
        """Kind → the plain nodes of it."""
        apart, versions, found = frozenset(self.notable), self._versions, dict[MachineKind, list[str]]()
        of_objects: dict[tuple[str, int], list[str]] = {}
        for name, slurm in self.slurm.items():
            if name not in apart and slurm is not None:
                key = slurm.gres, id(versions[name])  # to compare the versions themselves takes longer
                names = of_objects.get(key)
                if names is None:
                    names = of_objects[key] = found.setdefault(MachineKind(slurm.gres, versions[name]), [])
                names.append(name)
        return found
