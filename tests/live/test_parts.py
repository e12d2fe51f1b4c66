"""The parts of the last report that had any are known until the next one that has."""

from __future__ import annotations

from tests import builders as b
from understudy_controlplane.live.telemetry import Telemetry
from understudy_wire.hardware import Part, PartKind

CARD = Part(PartKind.CARD, "mlx5_0", "ConnectX-7", "MT2233X00123")
OTHER = Part(PartKind.CARD, "mlx5_0", "ConnectX-7", "MT2233X00777")


def test_parts_are_those_of_the_last_report_that_had_them() -> None:
    telemetry = Telemetry()
    telemetry.know({"n1"})
    known = []
    for at, parts in enumerate(([], [CARD], [], [OTHER], [])):
        telemetry.receive(b.report("n1", parts=parts), float(at))
        latest = telemetry.latest("n1")
        assert latest is not None
        known.append(latest.parts)
    assert known == [(), (CARD,), (CARD,), (OTHER,), (OTHER,)]
