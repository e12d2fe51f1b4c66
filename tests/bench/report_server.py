"""The server that `tests.bench.report` loads: the real control plane, on a Slurm that only says what there is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tests.bench.report_load import CLUSTER, JOB_ID, NODES, node_name
from tests.testbed.serve import load
from understudy_controlplane.app import Outside
from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmReservation, TopologyUnit
from understudy_controlplane.serve import serve
from understudy_controlplane.slurm.protocol import Slurm


class StillSlurm:
    """A cluster on which one gang runs on every node, and nothing ever changes. Refuses to act."""

    def __init__(self) -> None:
        self._names = tuple(node_name(i) for i in range(NODES))
        self._submit_at = int(time.time())

    def config(self) -> Mapping[str, str]:
        return {"ClusterName": self.cluster_name(), "SLURM_VERSION": "22.05.8"}

    def cluster_name(self) -> str:
        return CLUSTER

    def nodes(self) -> list[SlurmNode]:
        return [SlurmNode(name, "127.0.0.1", 6818, "ALLOCATED", frozenset(), ("train",)) for name in self._names]

    def jobs(self) -> list[SlurmJob]:
        job = SlurmJob(
            job_id=JOB_ID,
            submit_at=self._submit_at,
            user="researcher",
            user_id=1000,
            name="gang",
            partition="train",
            state="RUNNING",
            restart_count=0,
            nodes=self._names,
            node_count=NODES,
            comment="understudy",
            batch=True,
            requeue=True,
        )
        return [job]

    def reservations(self) -> list[SlurmReservation]:
        return []

    def topology(self) -> tuple[TopologyUnit, ...]:
        return ()

    def partition_states(self) -> dict[str, str]:
        return {}

    def preemption(self) -> PreemptionRules:
        return PreemptionRules(None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a benchmark must not act on Slurm: {name}")


def main() -> None:
    file = Path(sys.argv[1])
    serve(load(file), file, Outside(cast(Slurm, StillSlurm()), probe=lambda _node: True))


if __name__ == "__main__":
    main()
