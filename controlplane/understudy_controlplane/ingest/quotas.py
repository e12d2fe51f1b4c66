"""How many bytes of facts the database takes in an hour: of each user on each node, and of each node itself.

A gang of 8 ranks on a node that saves every minute, in 8 files a rank, takes 1 MB in an hour. What a user may store
grows with the nodes that Slurm gives to it, and not with what its processes claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.ingest.rates import Rates
from understudy_wire.facts import Fact, JobFact

USER_BYTES_EACH_HOUR = 16 << 20
NODE_BYTES_EACH_HOUR = 256 << 20
"""More than a hundred lines of the kernel log in every second of it."""
ROW_BYTES = 512
"""Bytes of a row besides its content, with its indices."""


class Quotas:
    """A sender that was quiet for an hour may send an hour's bytes at once, and then as many in each hour."""

    def __init__(
        self, user_bytes_each_hour: int = USER_BYTES_EACH_HOUR, node_bytes_each_hour: int = NODE_BYTES_EACH_HOUR
    ) -> None:
        self._of_user = Rates(user_bytes_each_hour / HOUR_SECONDS, HOUR_SECONDS)
        self._of_node = Rates(node_bytes_each_hour / HOUR_SECONDS, HOUR_SECONDS)
        self._user_mib = user_bytes_each_hour >> 20
        self._node_mib = node_bytes_each_hour >> 20

    def admitted(self, node: str, facts: Iterable[Fact], now: float) -> tuple[list[Fact], list[str]]:
        """Those within the quotas, and a sentence for each sender that is over its own. `now` is monotonic."""
        kept: list[Fact] = []
        over: Counter[str] = Counter()
        for fact in facts:
            rates, sender = self._charged(node, fact)
            if rates.admits(sender, now, _size(fact)):
                kept.append(fact)
            else:
                over[f"of {sender}: {self._user_mib if rates is self._of_user else self._node_mib} MiB"] += 1
        return kept, [f"{count} facts {what} in an hour are stored, and no more" for what, count in over.items()]

    def give_back(self, node: str, facts: Iterable[Fact]) -> None:
        """Returns the quota of facts that were admitted and are not stored: the agent sends them again."""
        for fact in facts:
            rates, sender = self._charged(node, fact)
            rates.give_back(sender, _size(fact))

    def _charged(self, node: str, fact: Fact) -> tuple[Rates, str]:
        return (self._of_user, f"user {fact.user_id} on {node}") if isinstance(fact, JobFact) else (self._of_node, node)


def _size(fact: Fact) -> int:
    return ROW_BYTES + len(msgspec.json.encode(fact))
