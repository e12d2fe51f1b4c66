"""How the database finds what a stage has measured, newest first."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, insert

from tests import builders as b
from tests.store.query_plans import captured, plan_of
from understudy_controlplane.store import tables
from understudy_controlplane.store.stages import StageStore
from understudy_wire.stages import StageName

pytestmark = pytest.mark.integration


def test_the_history_of_one_stage_reads_no_result_of_others(engine: Engine) -> None:
    recovery = {"id": 1, "kind": "validate", "status": "succeeded", "plan": {}, "decided_at": b.NOW, "outcome": ""}
    recovery |= {"fault_at": b.NOW, "detected_at": b.NOW}
    usual = {"recovery": 1, "stage": StageName.GPU.value, "status": "passed", "pass_mark": 1.0, "seconds": 1.0}
    rows = [{**usual, "node": f"n{number}", "why": "", "at": b.NOW} for number in range(2000)]
    with engine.begin() as connection:
        connection.execute(insert(tables.recovery).values(**recovery))
        connection.execute(insert(tables.stage_result), rows)
    with captured(engine) as statements:
        assert StageStore(engine).history(5, stage=StageName.NETWORK) == []
    ((query, (values,)),) = ((text, of) for text, of in statements.items() if "stage_result" in text)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            plan = "; ".join(plan_of(connection, query, values))
        else:
            connection.exec_driver_sql("ANALYZE stage_result")
            found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", values).scalar_one()
            plan = json.dumps(found)
    assert "ix_stage_result_stage" in plan
