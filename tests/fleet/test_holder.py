"""Who leads, who stands by, and when a person has to know that none does any more."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_controlplane.api.needs import needs_of
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.live.pulse import Pulse

NOW = 1_000_000.0


def leading(seen_at: Mapping[str, float], looked_at: float = NOW) -> Leading:
    return Leading("head1:7117", 7, NOW - 3600, looked_at, seen_at)


def needs(found: Leading | None) -> list[str]:
    return [str(one) for one in needs_of(Pulse(leading=found), NOW)]


def test_one_that_never_had_a_standby_misses_none() -> None:
    assert leading({}).gone_since is None
    assert needs(leading({})) == needs(None) == []


def test_a_person_is_needed_once_none_has_stood_by_for_five_minutes() -> None:
    assert needs(leading({"head2:7117": NOW - 299})) == []
    assert needs(leading({"head2:7117": NOW - 301, "head3:7117": NOW - 1})) == []
    (text,) = needs(leading({"head2:7117": NOW - 301}))
    assert text.startswith("no control plane stands by any more; seen before: head2:7117")


def test_while_the_database_is_away_no_standby_counts_as_gone() -> None:
    """The leader cannot look then."""
    assert leading({"head2:7117": NOW - 600}, looked_at=NOW - 599).standbys == ["head2:7117"]
