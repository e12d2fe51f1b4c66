"""What agents and slurmds show is recorded of each node, whatever another one shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tests import builders as b
from understudy_controlplane.agent_recorder import each_alone
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.gpus import GpuStore
from understudy_wire.hardware import Gpu


def test_a_gpu_that_cannot_be_stored_keeps_no_other_node_from_it(database: str) -> None:
    """The border refuses it; a defect there must not stop every round."""
    engine = open_database(database)
    names = [f"n{number}" for number in range(4)]
    seen = {name: [b.gpu(uuid=f"GPU-{name}", serial="\ud800" if name == "n1" else "4711")] for name in names}
    with capture_logs() as logs:
        each_alone(lambda some: GpuStore(engine).see_gpus(some, b.NOW), seen)
    assert [(one["event"], one["node"]) for one in logs] == [("parts_not_stored", "n1")]
    assert sorted(gpu["node"] for gpu in GpuStore(engine).gpus(9)) == ["n0", "n2", "n3"]
    engine.dispose()


def test_a_database_that_does_not_answer_is_no_nodes_fault() -> None:
    def see(_seen: Mapping[str, Sequence[Gpu]]) -> None:
        raise OperationalError("", {}, Exception("away"))

    with pytest.raises(OperationalError):
        each_alone(see, {"n1": [b.gpu()]})
