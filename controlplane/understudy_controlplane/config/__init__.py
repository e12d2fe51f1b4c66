"""The configuration: one TOML file, checked whole at start, frozen, unknown keys refused with a hint.

Each setting has its unit in its name and its effect in its description; `docs/configuration.md` is generated from this
package. The pure rooms call a section a policy.
"""

from __future__ import annotations

import difflib
import textwrap
import tomllib
from collections.abc import Iterable
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from understudy_controlplane.config.access import Access
from understudy_controlplane.config.action import Guards, Recovery, Repair, RunStages, Validation
from understudy_controlplane.config.checkpoints import Checkpoints
from understudy_controlplane.config.detection import Hang, Hardware, Lemon, Silence, Straggler, Xid
from understudy_controlplane.config.limits import Limits
from understudy_controlplane.config.notify import OWNERS, Importance, Notify, OwnersWhen, Receiver, ReceiverKind
from understudy_controlplane.config.provider import Provider
from understudy_controlplane.config.reports import Reports
from understudy_controlplane.config.retention import Retention
from understudy_controlplane.config.section import Section
from understudy_controlplane.config.service import Gateway, Jobs, NoSpare, Server, Slurm, Spares, Topology
from understudy_controlplane.config.signals import SignalEffect, SignalKind, Signals
from understudy_controlplane.hostlist import HostListError, expand
from understudy_controlplane.xid_policy import RowOverride

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "OWNERS",
    "Access",
    "Checkpoints",
    "Config",
    "ConfigError",
    "Gateway",
    "Guards",
    "Hang",
    "Hardware",
    "Importance",
    "Jobs",
    "Lemon",
    "Limits",
    "Mode",
    "NoSpare",
    "Notify",
    "OwnersWhen",
    "PartMode",
    "Provider",
    "Receiver",
    "ReceiverKind",
    "Recovery",
    "Repair",
    "Reports",
    "Retention",
    "RunStages",
    "Server",
    "SignalEffect",
    "SignalKind",
    "Signals",
    "Silence",
    "Slurm",
    "Spares",
    "Straggler",
    "Topology",
    "Validation",
    "Xid",
    "load_config",
    "parse_config",
]


SECRET = ("server.database",)
"""Settings with values that may hold a password."""


class ConfigError(Exception):
    """The configuration file cannot be used; the message names file, key and remedy."""


class Mode(StrEnum):
    """The first one does least."""

    OBSERVE = "observe"
    APPROVE = "approve"
    ACT = "act"

    def at_most(self, other: Mode) -> Mode:
        return least((self, other))


def least(modes: Iterable[Mode]) -> Mode:
    """The most careful one."""
    return min(modes, key=list(Mode).index)


class PartMode(Section):
    nodes: str = Field("", description="Nodes in this mode: a host list, such as `gpu[1-64]`.")
    partition: str = Field("", description="Or all nodes of this partition of Slurm.")
    mode: Mode = Field(description="Their mode. Of several entries for a node the most careful mode counts.")

    @model_validator(mode="after")
    def _names_nodes_or_a_partition(self) -> Self:
        if bool(self.nodes) == bool(self.partition):
            raise ValueError("name either nodes or a partition")
        return self

    @field_validator("nodes")
    @classmethod
    def _is_host_list(cls, text: str) -> str:
        try:
            expand(text)
        except HostListError as error:
            raise ValueError(str(error)) from error
        return text

    @property
    def label(self) -> str:
        return f"nodes {self.nodes}" if self.nodes else f"partition {self.partition}"


class Config(Section):
    cluster: str = Field(min_length=1, description="Name of the Slurm cluster (ClusterName).")
    mode: Mode = Field(
        Mode.OBSERVE,
        description="`observe` (decides and records what it would do; changes nothing), `approve` (an operator "
        "approves each recovery) or `act`. It is that of all nodes that `modes` does not name.",
    )
    modes: tuple[PartMode, ...] = Field(
        (),
        description="Modes of parts of the fleet, each an entry `[[modes]]`. A job on nodes of several parts is in the "
        "most careful of their modes, and so are all its nodes while it runs.",
    )
    server: Server = Server()
    access: Access = Access()
    limits: Limits = Limits()
    slurm: Slurm = Slurm()
    jobs: Jobs = Jobs()
    spares: Spares = Spares()
    topology: Topology = Topology()
    signals: Signals = Signals()
    guards: Guards = Guards()
    silence: Silence = Silence()
    straggler: Straggler = Straggler()
    xid: Xid = Xid()
    hardware: Hardware = Hardware()
    lemon: Lemon = Lemon()
    hang: Hang = Hang()
    recovery: Recovery = Recovery()
    repair: Repair = Repair()
    provider: Provider = Provider()
    validation: Validation = Validation()
    checkpoints: Checkpoints = Checkpoints()
    notify: Notify = Notify()
    reports: Reports = Reports()
    retention: Retention = Retention()

    @model_validator(mode="after")
    def _what_counts_against_a_node_is_kept(self) -> Self:
        if self.retention.events_days < self.lemon.days:
            raise ValueError(
                f"retention.events_days must be at least {self.lemon.days:g}: the score of a node counts as many days"
            )
        return self

    @property
    def highest_mode(self) -> Mode:
        """What the control plane may do to any node at all."""
        return max((self.mode, *(one.mode for one in self.modes)), key=list(Mode).index)

    def probes_suspects(self, mode: Mode) -> bool:
        return mode is not Mode.OBSERVE and self.validation.enabled and self.validation.test_suspects


def parse_config(text: str, origin: str) -> Config:
    """`text` is TOML; `origin` names it in errors. Raises ConfigError."""
    try:
        raw = tomllib.loads(text)
        _refuse_fixed(raw, origin)
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(origin, one) for one in error.errors())) from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and endless nesting
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error


def _refuse_fixed(raw: dict[str, Any], origin: str) -> None:
    for name, values in raw.items():
        section = Config.model_fields[name].get_default() if name in Config.model_fields else None
        if isinstance(section, Section) and isinstance(values, dict):
            for key in section.FIXED & values.keys():
                value = getattr(section, key)
                raise ConfigError(f"{origin}: {name}.{key} is no setting, it is always {value!r}; remove the key")


def load_config(path: Path) -> Config:
    """Raises ConfigError when the file is missing, unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "`understudy init` writes it; or name another file with --config"
        if isinstance(error, PermissionError):
            remedy = "run this as the control plane's user, who may read it"
        raise ConfigError(f"{path}: cannot be read: {error}; {remedy}") from error
    return parse_config(text, str(path))


def _explain(origin: str, error: ErrorDetails) -> str:
    location = [str(part) for part in error["loc"] if part != "[key]"]
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        return f"{origin}: unknown key '{key}'; {_meant(location)}"
    if error["type"] == "value_error":  # the message of a validator of this package, which has a remedy
        return f"{': '.join(filter(None, (origin, key)))}: {error['msg'].removeprefix('Value error, ')}"
    field = _field(location)
    about = f" ({field.description})" if field and field.description else ""
    if error["type"] == "missing":
        return f"{origin}: {key}: is missing; set it{about}"
    shown = "" if key in SECRET else f" = {textwrap.shorten(repr(error['input']), 60)}"
    cause = error["msg"].replace("Input should be", "has to be").replace("String should", "has to")
    remedy = "set another value"
    default = field.get_default() if field else None
    if default not in (None, PydanticUndefined):
        remedy += f", or remove the key for its default {default.value if isinstance(default, Enum) else default!r}"
    return f"{origin}: {key}{shown}: {cause}; {remedy}{about}"


def _meant(location: list[str]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        if part not in section.model_fields:  # the name of a table that the site chose
            section = Receiver if section is Notify else RowOverride
            break
        annotation = section.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    fixed = section.FIXED if issubclass(section, Section) else ()
    keys = [field.alias or name for name, field in section.model_fields.items() if name not in fixed]
    if section is not Config and location[-1] in Config.model_fields:
        return f"'{location[-1]}' belongs above the first [section] of the file"
    near = difflib.get_close_matches(location[-1], keys, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(keys)}"


def _field(location: list[str]) -> FieldInfo | None:
    """The setting that the location is, or is in."""
    section: type[BaseModel] = Config
    for part in location:
        field = section.model_fields.get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return field
        section = annotation
    return None
