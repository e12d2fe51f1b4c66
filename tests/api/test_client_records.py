"""The client reads what the models of the API allow. It has records of its own: they import nothing of the service,
know no enumeration, and ignore what a newer control plane adds, so that each works with a release older or newer.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import NODEFAULT as NO_DEFAULT
from msgspec import inspect

import understudy_client
from understudy_controlplane.api import openapi, operator_requests
from understudy_controlplane.cli.commission import CommissioningReport
from understudy_controlplane.cli.topology import Topology
from understudy_controlplane.fleet.event import Event

READS: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    understudy_client.Accepted: operator_requests.Accepted,
    understudy_client.Event: Event,
    understudy_client.Status: openapi.ANSWERED["/v1/status"],
    understudy_client.Drill: openapi.ANSWERED["/v1/drills"],
    understudy_client.CheckpointExplanation: openapi.ANSWERED["/v1/explain/checkpoints/{job_id}"],
    understudy_client.EvidenceList: openapi.ANSWERED["/v1/jobs/{job_id}/evidence"],
    understudy_client.Explanation: openapi.ANSWERED["/v1/explain/jobs/{job_id}"],
    understudy_client.FleetReport: openapi.ANSWERED["/v1/report"],
    understudy_client.Maintenances: openapi.ANSWERED["/v1/maintenance"],
    understudy_client.Observed: openapi.ANSWERED["/v1/observed"],
    understudy_client.Signals: openapi.ANSWERED["/v1/signals"],
    understudy_client.Node: openapi.LISTED["/v1/nodes"],
    understudy_client.Job: openapi.LISTED["/v1/jobs"],
    understudy_client.Recovery: openapi.LISTED["/v1/recoveries"],
    understudy_client.Incident: openapi.LISTED["/v1/incidents"],
    understudy_client.Decision: openapi.LISTED["/v1/decisions"],
    understudy_client.Checkpoint: openapi.LISTED["/v1/checkpoints"],
    understudy_client.RequestState: openapi.LISTED["/v1/requests"],
    understudy_client.Ticket: openapi.LISTED["/v1/tickets"],
    understudy_client.Notification: openapi.LISTED["/v1/notifications"],
    understudy_client.PartSeen: openapi.LISTED["/v1/parts"],
    understudy_client.StageMeasured: openapi.LISTED["/v1/stages"],
    CommissioningReport: openapi.ANSWERED["/v1/commissioning"],
    Topology: openapi.ANSWERED["/v1/topology"],
}
WIDER = {"int": "float", "record": "dict"}
RECORDS = (inspect.StructType, inspect.DataclassType)
LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType, inspect.CollectionType)


@pytest.mark.parametrize("kind", READS, ids=lambda kind: kind.__name__)
def test_a_record_of_the_client_can_hold_every_answer_that_its_model_allows(kind: type[msgspec.Struct]) -> None:
    assert [*unreadable(inspect.type_info(kind), inspect.type_info(READS[kind]), kind.__name__)] == []


def test_every_record_of_the_client_is_compared() -> None:
    compared: set[str] = set()
    for kind in READS:
        compared |= names(inspect.type_info(kind))
    exported = {
        name for name in understudy_client.__all__ if hasattr(getattr(understudy_client, name), "__struct_fields__")
    }
    assert exported - compared == set()


def test_what_does_not_fit_is_found() -> None:
    class Wrong(msgspec.Struct):
        name: int
        since: int
        slurm: str
        jobs: list[str]
        colour: str

    model = openapi.LISTED["/v1/nodes"]
    assert [*unreadable(inspect.type_info(Wrong), inspect.type_info(model), "node")] == [
        "node.name may be str",
        "node.since may be float",
        "node.slurm may be none",
        "node.jobs[] may be int",
        "node.colour is not in the model",
    ]


def unreadable(reader: inspect.Type, model: inspect.Type, where: str) -> Iterator[str]:
    """What the model allows and the reader does not take."""
    takes, may_be = {one: kind for kind in parts(reader) for one in of(kind)}, parts(model)
    if "any" in takes:
        return
    for one in may_be:
        for name in of(one):
            if name not in takes and WIDER.get(name) not in takes:
                yield f"{where} may be {name}"
        if isinstance(one, RECORDS) and isinstance(taken := takes.get("record"), RECORDS):
            yield from of_fields(taken, one, where)
        elif isinstance(one, LISTS) and isinstance(taken := takes.get("list"), LISTS):
            yield from unreadable(taken.item_type, one.item_type, f"{where}[]")
        elif isinstance(one, inspect.DictType) and isinstance(taken := takes.get("dict"), inspect.DictType):
            yield from unreadable(taken.value_type, one.value_type, f"{where}{{}}")


def of_fields(
    reader: inspect.StructType | inspect.DataclassType, model: inspect.StructType | inspect.DataclassType, where: str
) -> Iterator[str]:
    has = {field.encode_name: field for field in model.fields}
    for field in reader.fields:
        name = f"{where}.{field.encode_name}"
        if field.encode_name not in has:
            yield f"{name} is not in the model"
            continue
        answered = has[field.encode_name]
        if field.required and not answered.required and {answered.default, answered.default_factory} == {NO_DEFAULT}:
            yield f"{name} may be left out"  # its default is UNSET
        yield from unreadable(field.type, answered.type, name)


def parts(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def of(kind: inspect.Type) -> tuple[str, ...]:
    """Forms that it has in JSON."""
    if isinstance(kind, RECORDS):
        return ("record",)
    if isinstance(kind, LISTS):
        return ("list",)
    return (SCALARS[type(kind)],)


SCALARS: dict[type[inspect.Type], str] = {
    inspect.AnyType: "any",
    inspect.StrType: "str",
    inspect.EnumType: "str",
    inspect.LiteralType: "str",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.BoolType: "bool",
    inspect.NoneType: "none",
    inspect.DictType: "dict",
}


def names(kind: inspect.Type) -> set[str]:
    """Names of a record and those inside."""
    inside = [field.type for field in kind.fields] if isinstance(kind, RECORDS) else []
    inside += [kind.item_type] if isinstance(kind, LISTS) else []
    inside += [kind.value_type] if isinstance(kind, inspect.DictType) else []
    inside += kind.types if isinstance(kind, inspect.UnionType) else ()
    own = {kind.cls.__name__} if isinstance(kind, RECORDS) else set()
    return own.union(*(names(one) for one in inside))
