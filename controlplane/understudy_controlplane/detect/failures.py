"""Detectors that fail: each is a finding of its own, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from traceback import extract_tb

import msgspec

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import DetectorDetail, Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot

FRAMES_SHOWN_MAX = 8
NODES_SHOWN_MAX = 8
ERROR_CHARACTERS_MAX = 300
"""It may name what a user has sent."""

FAILING_NODES_MAX = 3
"""Most nodes whose failures are blamed on them: if a detector fails on more, it is not the nodes."""


class Failures:
    def __init__(self, now: float) -> None:
        self._now = now
        self.findings: list[Finding] = []

    @property
    def detectors(self) -> set[str]:
        return {one.detail.detector for one in self.findings if isinstance(one.detail, DetectorDetail)}

    def caught(
        self,
        detector: str,
        look: Callable[[], Iterable[Finding]],
        *,
        otherwise: Iterable[Finding] = (),
        mass: Callable[[], bool] | None = None,
        nodes: tuple[str, ...] | None = None,
    ) -> list[Finding]:
        """All that it finds, or where it fails `otherwise`: what it had found until then may be half of one fault.
        `mass`: whether what it finds may be so much that everything is held back; where that fails, too, it may.
        `nodes`: of which nothing is concluded where it fails; None: of the whole fleet.
        """
        try:
            return [*look()]
        except Exception as error:  # noqa: BLE001 - whatever it is, the other detectors go on
            detail = DetectorDetail(detector=detector, mass=mass is not None and _may_be(mass), nodes=nodes)
            self.findings.append(failure(detail, raised(error), self._now))
            return [*otherwise]

    def caught_by_node(
        self, detector: str, look: Callable[[Snapshot], Iterable[Finding]], snapshot: Snapshot
    ) -> list[Finding]:
        """Does as `caught` for a detector that looks at each node by itself: if it fails on a few nodes, its findings
        on the others count.
        """
        try:
            return [*look(snapshot)]
        except Exception as error:  # noqa: BLE001 - as above
            failing = (name for name in snapshot.nodes if _fails_alone(look, snapshot, name))
            nodes = tuple(islice(failing, FAILING_NODES_MAX + 1))
            nodes = nodes if len(nodes) <= FAILING_NODES_MAX else ()
            rest = {name: node for name, node in snapshot.nodes.items() if name not in nodes}
            unjudged = replace(snapshot.round, unjudged=dict.fromkeys(nodes, detector))
            others = replace(snapshot, nodes=rest, round=unjudged)
            found = self.caught(detector, lambda: look(others)) if nodes else []
            if detector not in self.detectors:
                detail = DetectorDetail(detector=detector, mass=False, nodes=nodes or None)
                self.findings.append(failure(detail, raised(error), self._now))
            return found


def _fails_alone(look: Callable[[Snapshot], Iterable[Finding]], snapshot: Snapshot, name: str) -> bool:
    try:
        _ = [*look(replace(snapshot, nodes={name: snapshot.nodes[name]}))]
    except Exception:  # noqa: BLE001 - as above
        return True
    return False


@dataclass(frozen=True, slots=True)
class Raised:
    """What is shown of an exception. It itself would keep its frames, and with them all that was looked at."""

    cause: str
    frames: tuple[str, ...]


def raised(error: Exception) -> Raised:
    trace = extract_tb(error.__traceback__)[-FRAMES_SHOWN_MAX:]
    cause = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return Raised(cause, tuple(f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in trace))


def failure(failed: DetectorDetail, why: Raised, now: float) -> Finding:
    """`failed`: without where it was raised."""
    nodes = failed.nodes or ()
    concerned = f" for {', '.join(nodes[:NODES_SHOWN_MAX])}{', …' if len(nodes) > NODES_SHOWN_MAX else ''}"
    return Finding(
        Signal.DETECTOR_FAILED,
        f"{'decision' if failed.is_decision else 'detection'}.{failed.detector}",
        "",
        now,
        f"{failed.label} failed{concerned if nodes else ''}: {why.cause}",
        Evidence({"detector": failed.detector, "raised_in": [*why.frames]}),
        nodes=nodes,
        detail=msgspec.structs.replace(failed, raised_in=why.frames),
    )


def _may_be(mass: Callable[[], bool]) -> bool:
    try:
        return mass()
    except Exception:  # noqa: BLE001 - not known
        return True
