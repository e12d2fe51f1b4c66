"""The configuration: one TOML file, checked whole at start, frozen, unknown keys refused with a hint.

Every setting stands here with its unit in its name and its reason in its description; `docs/configuration.md` is
generated from this module. Sections are what the pure rooms call policy.
"""

from __future__ import annotations

import difflib
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class ConfigError(Exception):
    """The configuration file cannot be used; the message names file, key and remedy."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Mode(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


class Server(Section):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(7117, ge=0, le=65535, description="Port to listen on.")
    database: str = Field(
        "sqlite:////var/lib/understudy/understudy.db", description="SQLAlchemy URL of the fleet database."
    )
    agent_token_file: Path = Field(
        Path("/etc/understudy/agent.token"), description="File with the bearer token that agents send."
    )
    operator_token_file: Path | None = Field(
        None, description="File with the bearer token for operator actions. Without it they are refused."
    )


class Gateway(StrEnum):
    AUTO = "auto"
    PYSLURM = "pyslurm"
    CLI = "cli"


class Slurm(Section):
    gateway: Gateway = Field(
        Gateway.AUTO,
        description="How Slurm is talked to: `cli` (scontrol and squeue), `pyslurm` (refuses to start where it cannot "
        "be used), or `auto`: pyslurm where it imports and was built for the cluster's version of Slurm, else cli.",
    )
    pyslurm_python: str = Field(
        "", description="A Python that can import pyslurm. Empty: the one that runs the control plane."
    )
    scontrol: str = Field("scontrol", description="Program to run as scontrol.")
    poll_interval_seconds: float = Field(
        1.0, ge=0.1, le=60, description="How often nodes, jobs and reservations are read."
    )
    timeout_seconds: float = Field(10.0, gt=0, le=120, description="After this a Slurm command counts as lost.")
    probe_timeout_seconds: float = Field(
        0.5,
        gt=0,
        le=10,
        description="How long a slurmd may take to accept a connection when its node is silent.",
    )


class Jobs(Section):
    opt_in_word: str = Field(
        "understudy",
        min_length=1,
        description="A job is ours to recover when this word stands in its Slurm comment "
        "(`sbatch --comment=understudy`). Other jobs are never touched.",
    )
    swaps_per_hour_max: int = Field(
        6, ge=0, description="A job that was moved this often within an hour is left to a person."
    )
    releases_per_hour_max: int = Field(
        6,
        ge=0,
        description="A job that our Prolog kept off nodes this often within an hour stays held for a person.",
    )


class Spares(Section):
    count: int = Field(0, ge=0, description="Nodes to keep as hot spares in a reservation of our own.")
    reservation: str = Field("understudy_spares", description="Name of that reservation.")
    partition: str = Field("", description="Take spares from this partition only; empty: from any.")


class Guards(Section):
    quarantined_nodes_max: int = Field(4, ge=0, description="No further node is quarantined while this many are.")
    quarantined_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The same as a share of all nodes; the smaller of both counts, but never below 1.",
    )
    quarantines_per_hour_max: int = Field(8, ge=0, description="New quarantines within an hour, fleet-wide.")


class Silence(Section):
    silent_after_seconds: float = Field(
        4.0, ge=1, description="A node whose agent did not report for this long is unknown."
    )
    dead_after_seconds: float = Field(
        6.0,
        ge=1,
        description="A node silent for this long, whose slurmd answers nobody either, is dead, unless its job goes on.",
    )
    slurmd_silent_seconds: float = Field(
        1.0, ge=0, description="So long nobody must answer at the slurmd's port: a single lost answer is none."
    )
    mass_nodes_min: int = Field(3, ge=2, description="This many nodes silent at once, and the share below: our fault.")
    mass_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="With this share of nodes silent at once nothing is concluded from silence.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.dead_after_seconds < self.silent_after_seconds:
            raise ValueError("dead_after_seconds must not be less than silent_after_seconds")
        return self


class Straggler(Section):
    window_steps: int = Field(10, ge=5, le=64, description="Steps whose median is judged as one value.")
    windows: int = Field(4, ge=1, le=8, description="Consecutive windows that are looked at.")
    windows_slow_min: int = Field(3, ge=1, le=8, description="Slow windows among them that make a suspect.")
    ratio: float = Field(1.05, gt=1, description="Slow: self time over the median of peers of the same role.")
    robust_z: float = Field(3.5, gt=0, description="Slow, too: distance from that median in robust deviations.")
    peers_few: int = Field(8, ge=2, description="With fewer peers than this the ratio below is asked for.")
    ratio_few_peers: float = Field(1.15, gt=1, description="Ratio asked for with few peers.")
    ratio_gross: float = Field(1.3, gt=1, description="Two windows in a row above this make a suspect at once.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.windows_slow_min > self.windows:
            raise ValueError("windows_slow_min must not be more than windows")
        return self


class Recovery(Section):
    step_timeout_seconds: float = Field(
        120.0, gt=0, description="A recovery step that is not seen done by then fails the recovery and pages."
    )
    first_step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="The same for the gang's first training step after the restore, and for what people have to do.",
    )
    repeat_after_seconds: float = Field(
        2.0, gt=0, description="A step whose effect is not seen in Slurm after this is tried again."
    )
    seats_minutes: int = Field(60, ge=5, description="Life of a seat reservation, should we die and not come back.")

    @model_validator(mode="after")
    def _seats_outlast_the_wait(self) -> Self:
        if self.seats_minutes * 60 <= self.first_step_timeout_seconds:
            raise ValueError("seats_minutes must be longer than first_step_timeout_seconds")
        return self


class Config(Section):
    cluster: str = Field(min_length=1, description="Name of the Slurm cluster (ClusterName).")
    mode: Mode = Field(
        Mode.OBSERVE,
        description="`observe` (decides, writes down what it would do, touches nothing) or `act`.",
    )
    server: Server = Server()
    slurm: Slurm = Slurm()
    jobs: Jobs = Jobs()
    spares: Spares = Spares()
    guards: Guards = Guards()
    silence: Silence = Silence()
    straggler: Straggler = Straggler()
    recovery: Recovery = Recovery()


def parse_config(text: str, origin: str) -> Config:
    """`text` is TOML; `origin` names it in errors. Raises ConfigError."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(origin, one) for one in error.errors())) from error


def load_config(path: Path) -> Config:
    """Raises ConfigError when the file is missing, unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give another with --config") from error
    return parse_config(text, str(path))


def _explain(origin: str, error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location)
    if error["type"] != "extra_forbidden":
        return f"{origin}: {key}: {error['msg']}"
    section: type[BaseModel] = Config
    for part in location[:-1]:
        annotation = section.model_fields[part].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        section = annotation
    near = difflib.get_close_matches(location[-1], section.model_fields, n=1)
    known = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(section.model_fields)}"
    return f"{origin}: unknown key '{key}'; {known}"
