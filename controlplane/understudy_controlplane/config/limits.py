"""The section `limits`: what clients can cost the control plane."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from understudy_controlplane.config.section import Section


class Limits(Section):
    FIXED = frozenset(
        {
            "reads_at_once",
            "reads_waiting_max",
            "reads_waiting_per_token_max",
            "reads_per_second_per_token",
            "writes_per_second_per_token",
            "event_streams_per_token_max",
            "reports_per_second_per_node",
            "connections_max",
            "requests_per_second_per_address",
            "connections_per_address_max",
            "request_seconds_max",
            "response_seconds_max",
            "event_streams_max",
            "connections_per_second_per_address",
            "gpus_in_metrics_max",
        }
    )

    reads_at_once: int = Field(
        2, ge=1, le=64, description="Reads of people and programs that are carried out at the same time; others wait."
    )
    reads_waiting_max: int = Field(
        256, ge=1, description="Reads that wait; a read above that is refused (HTTP 503) and may be repeated."
    )
    read_seconds_max: ClassVar[float] = 5.0
    """Time after which the database ends a query of a read (HTTP 503)."""
    reads_waiting_per_token_max: int = Field(
        64,
        ge=1,
        description="Reads of one token that wait (others: HTTP 503). Tokens take turns: one that reads much delays "
        "only itself.",
    )
    reads_per_second_per_token: float = Field(
        50.0,
        gt=0,
        description="Reads of one token that are carried out (others: HTTP 429); ten times as many at once. All tokens "
        "of a node count as one.",
    )
    writes_per_second_per_token: float = Field(
        100.0,
        gt=0,
        description="Other requests of one token: reports, requests of operators, signals. As above. An agent sends "
        "one to three a second.",
    )
    event_streams_max: int = Field(
        64, ge=1, description="Open streams of `GET /v1/events`; a further one is refused (HTTP 503)."
    )
    event_streams_per_token_max: int = Field(
        8, ge=1, description="Open streams of one token, or of one address without a token (others: HTTP 429)."
    )
    requests_per_second_per_address: float = Field(
        500.0,
        gt=0,
        description="Requests of one address without a valid token that are carried out (others: HTTP 429); ten times "
        "as many at once. An agent sends a few an hour. Raise it where many nodes come from one address (NAT, a "
        "proxy).",
    )
    reports_per_second_per_node: float = Field(
        50.0, gt=0, description="Reports of one node that are taken (others: HTTP 429); ten times as many at once."
    )
    gpus_in_metrics_max: int = Field(
        5000,
        ge=0,
        description="Each GPU has about 20 series in `/metrics` while there are no more GPUs than this; above it, only "
        "GPUs that are not well.",
    )
    connections_max: int = Field(
        50_000,
        ge=16,
        description="Open connections; further ones are closed. No more than the limit of open files of the process "
        "(`ulimit -Hn`) allows. 12,500 nodes have about 25,000.",
    )
    connections_per_address_max: int = Field(
        512, ge=1, description="Open connections of one address; further ones are closed. A node has about five."
    )
    connections_per_second_per_address: float = Field(
        100.0,
        gt=0,
        description="New connections of one address; ten times as many at once. Further ones are closed. With TLS each "
        "takes about a millisecond of the processor.",
    )
    request_seconds_max: float = Field(
        10.0,
        gt=0,
        description="Time for a request to arrive, from its first byte or the connection to its last byte; and for a "
        "TLS handshake.",
    )
    response_seconds_max: float = Field(
        30.0, gt=0, description="Time for a client to go on reading an answer; after that its connection is closed."
    )
