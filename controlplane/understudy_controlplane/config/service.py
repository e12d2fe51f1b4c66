"""Sections for the process itself and for what it manages: server, Slurm, jobs, spares."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from understudy_controlplane.config.section import Section


class Server(Section):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(7117, ge=0, le=65535, description="Port to listen on.")
    tls_certificate: Path | None = Field(
        None, description="Certificate with its chain (PEM). With it and its key all connections are encrypted."
    )
    tls_key: Path | None = Field(
        None, description="Key of the certificate (PEM, no passphrase, closed to other users)."
    )
    tls_client_ca: Path | None = Field(
        None,
        description="Certificates (PEM) that may sign those of clients. With it agents, commands and Prometheus need "
        "one, beside their token.",
    )
    database: str = Field(
        "sqlite:////var/lib/understudy/understudy.db",
        description="SQLAlchemy URL of the fleet database. PostgreSQL: postgresql+psycopg://USER@HOST/NAME.",
    )
    without_token: Literal["nothing", "metrics", "reads"] = Field(
        "nothing",
        description="What every client that reaches the port may read without a token: `nothing`, `metrics` "
        "(`/metrics`) or `reads` (`/v1`, too).",
    )
    audit_to_syslog: bool = Field(
        False,
        description="Each entry of the audit also goes to syslog, or the journal, as a line of JSON (`understudy-"
        "audit`, facility authpriv).",
    )
    grafana_url: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="Address of the Grafana that has the dashboards of `deploy/grafana`: the pages of nodes and jobs "
        "lead to their history there. Empty: no link.",
    )
    munge_socket: Path | None = Field(
        None, description="Socket of munged, which proves which node an agent runs on. Without it MUNGE's own default."
    )
    node_addresses: dict[str, tuple[str, ...]] = Field(
        {},
        description="Addresses and host names from which agents connect, where Slurm's NodeAddr is another one: "
        '`node_addresses = { n1 = ["10.2.0.1"] }`.',
    )

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: set both or none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key: without them nothing is encrypted")
        return self

    @property
    def is_local(self) -> bool:
        """True if only programs on this host can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Gateway(StrEnum):
    AUTO = "auto"
    PYSLURM = "pyslurm"
    CLI = "cli"


class Slurm(Section):
    FIXED = frozenset({"timeout_seconds"})

    gateway: Gateway = Field(
        Gateway.AUTO,
        description="How the control plane calls Slurm: `cli` (scontrol and squeue), `pyslurm`, or `auto`: pyslurm "
        "where it can be imported and was built for the cluster's version of Slurm, else cli.",
    )
    pyslurm_python: str = Field(
        "", description="Python interpreter that can import pyslurm. Empty: the one that runs the control plane."
    )
    scontrol: str = Field("scontrol", description="Path of the program scontrol.")
    poll_interval_seconds: float = Field(
        1.0, ge=0.1, le=60, description="Time between two readings of Slurm's nodes, jobs and reservations."
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=120,
        description="Time after which a Slurm command counts as failed. With PostgreSQL, one that changes something in "
        "Slurm has 2 s at most: another control plane may take the lead.",
    )
    probe_timeout_seconds: ClassVar[float] = 0.5
    """Time for the slurmd of a silent node to accept and end a connection."""


class Jobs(Section):
    FIXED = frozenset({"releases_per_hour_max", "swaps_per_hour_max"})

    opt_in_word: str = Field(
        "understudy",
        min_length=1,
        description="Word in the Slurm comment of jobs that Understudy manages (`sbatch --comment=understudy`). "
        "Further words: `checkpoints=/scratch/me/run` (the only folder from which the job is restored), "
        "`tp=8 pp=4 cp=2 ep=4` and `block=16` ([topology](topology.md)), `mfu=0.4` "
        "([stragglers](straggler.md#a-gang-that-is-slow-as-a-whole)), `keep=3` "
        "([checkpoints](checkpoints.md#how-many-are-kept)).",
    )
    swaps_per_hour_max: int = Field(
        6,
        ge=0,
        description="Swaps of one job within an hour, or 0.3 % of its nodes where that is more; after that a person "
        "has to look at it.",
    )
    swaps_per_hour_share: ClassVar[float] = 0.003
    """Swaps of one job within an hour, as a share of the number of its nodes."""
    restarts_without_progress_max: ClassVar[int] = 3
    """Restarts of a hung gang without progress in between; after that a person has to look at it."""
    releases_per_hour_max: int = Field(
        6,
        ge=0,
        description="Releases of one job within an hour after Understudy's Prolog refused nodes to it; after that it "
        "stays held for a person.",
    )


class Topology(Section):
    file: Path | None = Field(
        None,
        description="File (TOML) with what Slurm does not know of racks, rows, cooling, power, rails and NVLink blocks "
        "([topology](topology.md)). It is read again every five minutes.",
    )
    infiniband: Path | None = Field(
        None,
        description="File with the output of `ibnetdiscover` or `iblinkinfo`, as a timer writes it: leaf switches, "
        "rails, pods and spines of an InfiniBand fabric. Read like `file`.",
    )


class NoSpare(StrEnum):
    IDLE = "idle"
    WAIT = "wait"
    PAGE = "page"
    PREEMPT = "preempt"
    SHRINK = "shrink"

    @property
    def takes_idle(self) -> bool:
        return self not in (NoSpare.WAIT, NoSpare.PAGE)


class Spares(Section):
    count: int = Field(0, ge=0, description="Nodes to keep as hot spares, in a reservation of the control plane.")
    reservation: str = Field(
        "understudy_spares",
        description="Name of the reservation that holds the spares. After a change delete the one with the old name "
        "(`scontrol delete reservationname=NAME`).",
    )
    partition: str = Field("", description="Partition to take spares from. Empty: any.")
    no_spare: NoSpare = Field(
        NoSpare.IDLE,
        description="What a gang on a failed node gets when no spare of the pool fits: `idle` (an idle healthy node),"
        " `wait` (it stays until there is a spare), `page` (it stays, and a person is notified), "
        "`preempt` (as `idle`, else Slurm [preempts](topology.md#preemption) a job), or `shrink` (as "
        "`idle`, else a gang of `understudy run` with `--min-nodes` [continues with "
        "fewer](launcher.md#what-happens-when)).",
    )

    program_gigabytes: float = Field(
        8.0,
        ge=0,
        description="Gigabytes of each gang's program files, at most, that a spare of the pool "
        "[reads in advance](topology.md#what-a-spare-has-read-in-advance). 0: none.",
    )
    reserved: dict[str, int] = Field(
        {},
        description='Spares of the pool that are kept for the gangs of a user, an account or a named job: `"user '
        'alice" = 1`, `"account physics" = 2`, `"job pretrain" = 2`.',
    )
    account_shares: dict[str, float] = Field(
        {},
        description="Shares of accounts in Slurm, from 0 to 1: `physics = 0.25`. A gang whose account has had more "
        "than its share of the spares within a week comes after the others.",
    )

    @field_validator("reserved")
    @classmethod
    def _are_holders(cls, reserved: dict[str, int]) -> dict[str, int]:
        for holder, count in reserved.items():
            kind, _, name = holder.partition(" ")
            if kind not in ("user", "account", "job") or not name or count < 0:
                words = 'write "user NAME", "account NAME" or "job NAME", and a number from 0 on'
                raise ValueError(f"{holder!r} = {count}: {words}")
        return reserved

    @field_validator("account_shares")
    @classmethod
    def _are_shares(cls, shares: dict[str, float]) -> dict[str, float]:
        for account, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{account!r} = {share}: a share is a number from 0 to 1")
        return shares
