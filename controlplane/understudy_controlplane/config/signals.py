"""The section `signals`: what follows from signals of other systems of the site."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from understudy_controlplane.config.section import Section


class SignalKind(StrEnum):
    """What another system of the site reports."""

    LEAK = "leak"  # of a cooling loop
    OVER_TEMPERATURE = "over_temperature"
    POWER = "power"  # a feed or a supply failed, or its redundancy is lost
    FABRIC = "fabric"  # a switch, a link or the fabric manager is in trouble
    PLANNED_OUTAGE = "planned_outage"  # such as the reboot of a switch
    OTHER = "other"


class SignalEffect(StrEnum):
    """What follows from a signal while it lives. Each effect includes those before it."""

    EXPLAIN = "explain"  # it is shown, and stands in the evidence of incidents there
    WARN = "warn"  # a person gets a ticket that names the gangs there, and those that ask when to save do so
    BLOCK = "block"  # no node there is taken as a spare
    ACT = "act"  # nodes there are quarantined, within the budgets

    def includes(self, other: SignalEffect) -> bool:
        order = list(SignalEffect)
        return order.index(other) <= order.index(self)


EFFECTS = dict.fromkeys(SignalKind, SignalEffect.WARN) | {SignalKind.OTHER: SignalEffect.EXPLAIN}
"""What follows where the site sets nothing."""


class Signals(Section):
    FIXED = frozenset({"live_max"})

    effects: dict[SignalKind, SignalEffect] = Field(
        {},
        description="What follows from [signals](topology.md#signals-of-the-site) of a kind: `effects = { leak = "
        '"act" }`, with `explain`, `warn`, `block` or `act`. Kinds: `leak`, `over_temperature`, `power`, '
        "`fabric`, `planned_outage` (all `warn` by default) and `other` (`explain`).",
    )
    live_max: int = Field(
        200,
        ge=1,
        le=2000,
        description="Signals of one sender that are live, or ended within the last hour; further ones are refused "
        "(HTTP 429).",
    )
    alerts: dict[str, SignalKind] = Field(
        default_factory=dict,
        description='Names of Alertmanager\'s alerts and the kind of each: `CoolantLeak = "leak"`. The label '
        "`understudy_kind` of an alert counts before it; an alert with neither is of kind `other`.",
    )
    alert_seconds: float = Field(
        6 * 3600.0,
        ge=60,
        le=31 * 86400,
        description="Time for which an alert is live after Alertmanager sent it, unless it is resolved before; more "
        "than Alertmanager's `repeat_interval` (4 h).",
    )

    def effect_of(self, kind: SignalKind) -> SignalEffect:
        return self.effects.get(kind, EFFECTS[kind])
