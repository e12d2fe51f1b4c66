"""The policy for Xids and SXids as data: `xid_policy.toml`, read strictly, and the rows that a site changes.

`understudy_wire.kernel_line` parses the lines of the log, `detect.xid` chooses the row for a line.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache, cached_property, reduce
from hashlib import sha256
from importlib import resources
from typing import Any, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from understudy_wire.facts import (
    KERNEL_PATTERNS_MAX,
    KernelLogPolicy,
    KernelPattern,
)
from understudy_wire.kernel_line import quotes_a_process


class PolicyError(ValueError):
    """The policy file cannot be used; the message names row, key and remedy."""


class FaultClass(StrEnum):
    """What is at fault, and how soon the node leaves service."""

    HARDWARE = "hardware"  # the node leaves service at once
    DRAIN = "drain"  # jobs there continue to their end, then the node leaves service
    APPLICATION = "application"  # the program is the cause: no node is at fault
    SUSPECT = "suspect"  # the node stays in service and is no spare, for the time that the row gives
    RECORD = "record"  # recorded; nothing follows


class Repair(StrEnum):
    """What the GPU needs before it works again."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    MANUAL_REPAIR = "manual_repair"  # a person's


class Decode(StrEnum):
    """Details that the line itself gives."""

    FLAGS = "flags"
    NVLINK4 = "nvlink4"
    NVLINK5 = "nvlink5"
    RECOVERY_ACTION = "recovery_action"
    SEVERITY = "severity"


class EchoOf(StrEnum):
    """What a code follows without being a fault of its own."""

    ANY = "any"  # another Xid on the node
    PEER = "peer"  # a fault of another GPU, or of a switch
    LINK = "link"  # an NVLink error


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Repeat(_Strict):
    """Class and repair for this many times within these hours on the same GPU."""

    times: int = Field(ge=2)
    hours: float = Field(gt=0, le=168)
    fault: FaultClass = Field(alias="class")
    repair: Repair


class PolicyRow(_Strict):
    meaning: str = Field(min_length=1)
    fault: FaultClass = Field(alias="class")
    repair: Repair
    name: str = ""
    nvidia: str = ""
    gpus: str = Field("", pattern=r"^A?H?B?G?$")
    source: str = Field("nvidia", pattern="^(nvidia|judgement|site)$")
    action_since: int | None = Field(None, ge=400)
    decode: Decode | None = None
    echo_of: EchoOf | None = None
    spread: bool = False
    repeat: Repeat | None = None


_BUS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
_PARTS = {
    "{bus}": _BUS,
    "{drive}": r"(?!loop|nbd|ram|zram|sr\d|fd\d|dm-|rbd|drbd|ublk)[a-z][\w!-]{0,31}",  # nor one with a disk below it
    "{disk}": r"(?!loop|nbd|ram|zram|sr\d|fd\d)[a-z][\w!-]{0,31}",  # not one that a user owns, or that has no medium
    "{interface}": _BUS + r" [\w.@-]{1,15}(?: \(\w{1,32}\))?",
    "{mlx5}": _BUS + r": (?:\w{1,64}:\d{1,6}:\(pid \d{1,10}\): )?",
    "{rm}": r"NVRM: (?:GPU\d{1,3} )?(?:\w{1,64}: )?",  # GPU and function, where the driver's branch prints them
}
"""What stands in many forms. No part has an end that another part could take, so that none is tried twice."""

_PREFIX = re.compile(r"(?:\(\?:([\w|/ -]+)\))?((?:(?:[^\\.^$*+?{}\[\]|()]|\\[^\w\s])(?![?*+{]))+)")
"""What a form begins with: words of which one must be there, and characters that mean themselves."""


class KernelRow(_Strict):
    """Lines of the kernel log without a code, from the driver or from the kernel."""

    lines: tuple[str, ...] = Field(min_length=1)
    """Regular expressions, which fit from a line's first character on: a spelling of each driver and kernel."""
    meaning: str = Field(min_length=1)
    fault: FaultClass = Field(alias="class")
    repair: Repair
    hours: float = Field(24.0, gt=0, le=168)  # for which it makes its node suspect
    origin: str = Field(min_length=1)  # where the lines were read

    @cached_property
    def pattern(self) -> KernelPattern:
        forms = [reduce(lambda form, part: form.replace(*part), _PARTS.items(), line) for line in self.lines]
        prefixes = tuple(prefix for form in forms for prefix in _prefixes(form))
        return KernelPattern(tuple(dict.fromkeys(prefixes)), f"(?:{'|'.join(forms)})")

    def device(self, text: str) -> str:
        """Address of the device that a line is about; empty: it names none."""
        found = self.pattern.match(text)
        address = re.search(_BUS, found[0]) if found else None
        return address[0] if address else ""

    @model_validator(mode="after")
    def _lines_can_be_read(self) -> Self:
        try:
            re.compile(self.pattern.form)
        except re.error as error:
            raise ValueError(f"lines: no regular expression: {error}") from error
        return self


def _prefixes(form: str) -> list[str]:
    found = _PREFIX.match(form)
    if found is None:
        raise ValueError(f"lines: begins with nothing that every line has: {form}")
    return [word + re.sub(r"\\(.)", r"\1", found[2]) for word in (found[1] or "").split("|")]


class RowOverride(_Strict):
    """A site's change of a row. The changed row applies as it is: details in the line are ignored."""

    fault: FaultClass | None = Field(None, alias="class")
    repair: Repair | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.fault is None and self.repair is None:
            raise ValueError("changes nothing: set class, repair, or both")
        return self


class NvlinkBits(_Strict):
    """Bits of a register that Xid 74 gives."""

    word: int = Field(ge=1, le=7)
    bits: tuple[int, ...]
    verdict: str = Field(pattern="^(ignore|secondary|go_on|service)$")


class NvlinkUnit(_Strict):
    """A unit of NVLink 5 that Xids 144 to 150 name."""

    xid: int
    unit: str
    v1: tuple[int, ...]
    v2: tuple[int, ...]
    by: str = Field("status", pattern="^(status|value|reason)$")
    always: str = Field("", pattern="^(reset|ignore)?$")
    reset: tuple[int, ...] = ()
    follow: tuple[int, ...] = ()
    ignore: tuple[int, ...] = ()
    reset_if: bool = False
    peer: tuple[int, ...] = ()


class ActionRow(_Strict):
    """One value of NVML's GPU recovery action."""

    meaning: str
    fault: FaultClass = Field(alias="class")
    repair: Repair


class Policy(_Strict):
    version: str = Field(min_length=1)
    xid: dict[int, PolicyRow]
    sxid: dict[int, PolicyRow]
    recovery_action: dict[int, ActionRow]
    kernel: dict[str, KernelRow] = {}
    nvlink4: tuple[NvlinkBits, ...] = ()
    nvlink5: tuple[NvlinkUnit, ...] = ()
    overridden: frozenset[tuple[str, int]] = frozenset()  # ("xid", 94): rows that the site changed

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.kernel) > KERNEL_PATTERNS_MAX:
            raise ValueError(f"at most {KERNEL_PATTERNS_MAX} rows of the kernel log")
        if 154 not in self.xid or 79 not in self.xid or 0 not in self.recovery_action:
            raise ValueError("rows xid.79, xid.154 and recovery_action.0 must be there")
        return self

    @cached_property
    def kernel_log(self) -> KernelLogPolicy:
        """What agents pass on. Its version changes with its content."""
        patterns = tuple(row.pattern for row in self.kernel.values())
        return KernelLogPolicy(sha256(msgspec.json.encode(patterns)).hexdigest()[:16], patterns)

    def kernel_row(self, text: str) -> str:
        """Name of the first row that fits; empty: there is none."""
        found = next((name for name, row in self.kernel.items() if row.pattern.match(text)), "")
        return "" if found and quotes_a_process(text) else found

    def with_kernel_overrides(self, overrides: Mapping[str, RowOverride]) -> Policy:
        """Raises PolicyError for a name that the file does not have."""
        unknown = overrides.keys() - self.kernel.keys()
        if unknown:
            raise PolicyError(f"kernel.{min(unknown)}: no such row; rows: {', '.join(self.kernel)}")
        changed = {
            name: self.kernel[name].model_copy(
                update={"fault": one.fault or self.kernel[name].fault, "repair": one.repair or self.kernel[name].repair}
            )
            for name, one in overrides.items()
        }
        return self.model_copy(update={"kernel": self.kernel | changed})

    def with_overrides(self, xid: Mapping[int, RowOverride], sxid: Mapping[int, RowOverride]) -> Policy:
        """Raises PolicyError for a code without class or repair in the file or from the site."""
        changed = {"xid": dict(self.xid), "sxid": dict(self.sxid)}
        for kind, overrides in (("xid", xid), ("sxid", sxid)):
            for code, override in overrides.items():
                changed[kind][code] = _overridden(kind, code, changed[kind].get(code), override)
        names = {("xid", code) for code in xid} | {("sxid", code) for code in sxid}
        return self.model_copy(update=changed | {"overridden": self.overridden | names})


def _overridden(kind: str, code: int, row: PolicyRow | None, override: RowOverride) -> PolicyRow:
    fault = override.fault or (row.fault if row else None)
    repair = override.repair or (row.repair if row else None)
    if fault is None or repair is None:
        raise PolicyError(f"{kind} {code} is in no known catalogue: set both class and repair")
    if row is None:
        return PolicyRow(meaning=override.reason or "a row of this site", fault=fault, repair=repair, source="site")
    changes: dict[str, Any] = {"fault": fault, "repair": repair, "source": "site", "decode": None, "repeat": None}
    if override.reason:
        changes["meaning"] = f"{row.meaning} ({override.reason})"
    return row.model_copy(update=changes)


def parse_policy(text: str, origin: str) -> Policy:
    """`text` is TOML; `origin` names it in errors. Raises PolicyError."""
    try:
        return Policy.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{origin}: not valid TOML: {error}") from error
    except ValidationError as error:
        raise PolicyError("\n".join(_explain(origin, one) for one in error.errors())) from error


@cache
def default_policy() -> Policy:
    """The policy that is installed with the control plane."""
    name = "xid_policy.toml"
    return parse_policy((resources.files("understudy_controlplane") / name).read_text(encoding="utf-8"), name)


def driver_branch(version: str) -> int | None:
    """ "550.54.15" is of branch 550."""
    head = version.split(".", 1)[0]
    return int(head) if head.isascii() and head.isdigit() and len(head) <= 5 else None


KEYS = sorted({(field.alias or name) for name, field in PolicyRow.model_fields.items()})


def _explain(origin: str, error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{origin}: {key}: {error['msg']}"
    near = difflib.get_close_matches(str(error["loc"][-1]), KEYS, n=1)
    known = f"did you mean '{near[0]}'?" if near else f"keys of a row: {', '.join(KEYS)}"
    return f"{origin}: unknown key '{key}'; {known}"
