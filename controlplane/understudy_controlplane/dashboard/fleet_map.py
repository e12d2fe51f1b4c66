"""The fleet as a map: a tile for each node, by rack or switch, as one small SVG for each group. Pure.

A run of tiles that look alike is one dashed line, so that the page of a large fleet stays small and is drawn at once.
Each kind of tile has a colour and, but for nodes at work, a mark of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from markupsafe import Markup

from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.state_words import STATES
from understudy_controlplane.fleet.topology import DomainKind, Topology

PITCH, TILE = 10, 8
COLUMNS = 8
CHUNK = 64
"""Nodes of no group are shown by this number, in the order of their names."""

WITHOUT_GROUP = "no group"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tile. `mark` is a path within a tile of 8 by 8; empty: the tile has no mark."""

    code: str
    words: str
    meaning: str
    mark: str = ""
    healthy: bool = False


def _of_state(code: str, state: NodeState, mark: str) -> Kind:
    return Kind(code, words_of(state), STATES[state].guarantee, mark)


def words_of(state: NodeState) -> str:
    return state.value.replace("_", " ")


BUSY = Kind("o", "in service, busy", "nothing is known against it, and a job runs there", healthy=True)
IDLE = Kind("i", "in service, idle", "nothing is known against it, and no job runs there", healthy=True)
DRILL = Kind(
    "d", "drill", "out of service because of a drill, which an operator began", "m2.4 1.6v4.8q4.2 0 4.2-2.4t-4.2-2.4z"
)
SPARE = Kind("e", "spare", "held in the spare pool", "m2 2h4v4h-4z", healthy=True)
KINDS = {
    NodeState.MANUAL_REPAIR: _of_state("m", NodeState.MANUAL_REPAIR, "m4 1.2v3.4m0 1.4v1"),
    NodeState.QUARANTINED: _of_state("q", NodeState.QUARANTINED, "m2 2l4 4m0-4l-4 4"),
    NodeState.SUSPECT: _of_state("s", NodeState.SUSPECT, "m3.2 4h1.6"),
    NodeState.UNKNOWN: _of_state("u", NodeState.UNKNOWN, "m.7.7h6.6v6.6h-6.6z"),
    NodeState.REPAIRING: _of_state("r", NodeState.REPAIRING, "m1.5 6.5l5-5"),
    NodeState.VALIDATING: _of_state("v", NodeState.VALIDATING, "m1.7 4.2l1.7 1.8l3-4"),
    NodeState.PROBATION: _of_state("p", NodeState.PROBATION, "m1.5 6h5"),
    NodeState.OPERATOR_HOLD: _of_state("h", NodeState.OPERATOR_HOLD, "m2.7 2v4m2.6-4v4"),
    NodeState.FOREIGN_DRAIN: _of_state("f", NodeState.FOREIGN_DRAIN, "m1.5 2.8h5m-5 2.4h5"),
    NodeState.RETIRED: _of_state("x", NodeState.RETIRED, "m1.5 1.5l5 5"),
}
"""Colours in the order of the legend: what needs a person first."""

LEGEND = (*KINDS.values(), DRILL, BUSY, IDLE, SPARE)
MARKS = {kind.code: kind.mark for kind in LEGEND if kind.mark}
HEALTHY = frozenset(kind.code for kind in LEGEND if kind.healthy)

GROUPINGS = (DomainKind.RACK, DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.POD)
"""Kinds by which a fleet can be shown; the first of them that the topology has is shown unless another one is asked
for.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are shown together, such as those of a rack."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Who stands where. It changes with the topology and the names of nodes, not with their states."""

    by: str  # the kind of the groups
    choices: tuple[str, ...]
    groups: tuple[Group, ...]
    scale: float

    @property
    def columns(self) -> int:
        largest = max((len(group.nodes) for group in self.groups), default=1)
        return COLUMNS if largest <= 72 else math.ceil(math.sqrt(largest) * 1.3)


def layout(topology: Topology, names: Iterable[str], asked: str = "") -> Layout:
    known = sorted(names, key=natural)
    choices = tuple(kind.value for kind in GROUPINGS if any(one.kind is kind for one in topology.domains))
    by = asked if asked in choices else next(iter(choices), WITHOUT_GROUP)
    placed: dict[str, str] = {}
    for domain in topology.domains:
        if domain.kind.value == by:
            for name in domain.nodes:
                placed.setdefault(name, domain.name)
    members: dict[str, list[str]] = {}
    for name in known:
        if name in placed:
            members.setdefault(placed[name], []).append(name)
    groups = [Group(name, tuple(members[name])) for name in sorted(members, key=natural)]
    rest = [name for name in known if name not in placed]
    for first in range(0, len(rest), CHUNK):
        part = tuple(rest[first : first + CHUNK])
        groups.append(Group(part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}", part))
    return Layout(by, choices, tuple(groups), _scale(len(known)))


def _scale(nodes: int) -> float:
    """Pixels of a unit: a small fleet has large tiles."""
    return next((scale for limit, scale in ((64, 2.6), (512, 1.6), (3000, 1.1)) if nodes <= limit), 0.7)


def code_of(node: NodeView, *, busy: bool, drill: bool = False) -> str:
    if node.state is not NodeState.IN_SERVICE:
        if drill:
            return DRILL.code
        return KINDS[node.state].code
    if node.is_spare:
        return SPARE.code
    return BUSY.code if busy else IDLE.code


def codes(snapshot: Snapshot) -> dict[str, str]:
    """Node → the code of its tile."""
    drills = snapshot.operator.drills
    return {
        name: code_of(node, busy=bool(snapshot.job_on(name)), drill=name in drills)
        for name, node in snapshot.nodes.items()
    }


def tiles_of(group: Group, code_by_node: Mapping[str, str]) -> str:
    return "".join(code_by_node.get(name, KINDS[NodeState.RETIRED].code) for name in group.nodes)


@lru_cache(maxsize=8192)
def drawn(name: str, tiles: str, columns: int, scale: float) -> Markup:
    """A group: its name, how many of its nodes need a look, and its tiles."""
    ill = sum(tile not in HEALTHY for tile in tiles)
    count = Markup('<b class="ill">{}</b>').format(ill) if ill else Markup("")
    rows = math.ceil(len(tiles) / columns)
    width, height = min(len(tiles), columns) * PITCH - 2, rows * PITCH - 2
    drawing = Markup(
        '<svg viewBox="0 0 {w} {h}" width="{pw}" height="{ph}" data-tiles="{tiles}" data-columns="{columns}" '
        'aria-hidden="true">{paths}</svg>'
    ).format(
        w=width,
        h=height,
        pw=_short(width * scale),
        ph=_short(height * scale),
        tiles=tiles,
        columns=columns,
        paths=Markup("").join(_paths(tiles, columns)),
    )
    return Markup('<h3 title="{name}"><span>{name}</span>{count}</h3>{drawing}').format(
        name=name, count=count, drawing=drawing
    )


def _paths(tiles: str, columns: int) -> Iterable[Markup]:
    """Dashed path through the tiles of each code, and one of its marks."""
    lines: dict[str, list[str]] = {}
    marks: dict[str, list[str]] = {}
    for row in range(0, len(tiles), columns):
        y, x = row // columns * PITCH, 0
        for code, run in groupby(tiles[row : row + columns]):
            length = len(list(run))
            lines.setdefault(code, []).append(f"M{x} {y + TILE // 2}h{length * PITCH - 2}")
            if code in MARKS:
                marks.setdefault(code, []).extend(f"M{x + n * PITCH} {y}{MARKS[code]}" for n in range(length))
            x += length * PITCH
    for code, parts in lines.items():
        yield Markup('<path class="t t-{}" d="{}"/>').format(code, "".join(parts))
    for code, parts in marks.items():
        yield Markup('<path class="k k-{}" d="{}"/>').format(code, "".join(parts))


def _short(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Share:
    kind: Kind
    count: int
    sample: Markup  # its tile


def shares(code_by_node: Mapping[str, str]) -> list[Share]:
    """The legend: every kind that is there, with how many nodes are of it."""
    counts = Counter(code_by_node.values())
    return [Share(kind, counts[kind.code], sample(kind)) for kind in LEGEND if counts[kind.code] or kind.healthy]


def sample(kind: Kind) -> Markup:
    return Markup('<svg class="sample" viewBox="0 0 8 8" width="14" height="14" aria-hidden="true">{}</svg>').format(
        Markup("").join(_paths(kind.code, 1))
    )


def sample_of(code: str) -> Markup:
    return sample(next(kind for kind in LEGEND if kind.code == code))


def not_in_service(names: Sequence[str], code_by_node: Mapping[str, str]) -> list[str]:
    """What is neither at work nor ready for it, most urgent first."""
    order = {kind.code: position for position, kind in enumerate(LEGEND)}
    ill = [name for name in names if code_by_node[name] not in HEALTHY]
    return sorted(ill, key=lambda name: (order[code_by_node[name]], natural(name)))
