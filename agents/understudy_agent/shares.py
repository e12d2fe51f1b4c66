"""Room for a limited number of connections, in shares: no user and no job takes the room of others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

USERS_REMEMBERED_MAX = 1024

MemberT = TypeVar("MemberT", bound=Hashable)


class NoRoomError(Exception):
    """There is no room, and the newcomer has its share already."""


class Shares(Generic[MemberT]):
    """A newcomer without room takes the place of the newest member of the user that has most, unless its own user has
    as many. At a user's own limit, the same holds for the jobs of that user.
    """

    def __init__(self, members_max: int, of_user_max: int) -> None:
        self._members_max = members_max
        self._of_user_max = of_user_max
        self._members: dict[MemberT, tuple[int, int]] = {}  # user and job, in the order of arrival

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MemberT]:
        return iter(self._members)

    def enter(self, member: MemberT, user_id: int, job_id: int) -> MemberT | None:
        """Returns the member that has to go for it. Raises NoRoomError."""
        self._members.pop(member, None)
        jobs = {one: job for one, (user, job) in self._members.items() if user == user_id}
        leaving = None
        if len(jobs) >= self._of_user_max:
            leaving = _newest_of_the_largest(jobs, job_id)
        elif len(self._members) >= self._members_max:
            leaving = _newest_of_the_largest({one: user for one, (user, _) in self._members.items()}, user_id)
        if leaving is not None:
            del self._members[leaving]
        self._members[member] = (user_id, job_id)
        return leaving

    def leave(self, member: MemberT) -> None:
        self._members.pop(member, None)


class Arrivals(Generic[MemberT]):
    """A newcomer without room takes the place of the oldest member of its own group, or of the group that has most: a
    user, or an address. A member stays for a moment only.
    """

    def __init__(self, members_max: int, of_group_max: int) -> None:
        self._members_max = members_max
        self._of_group_max = of_group_max
        self._members: dict[MemberT, Hashable] = {}  # the group, in the order of arrival

    def enter(self, member: MemberT, group: Hashable) -> MemberT | None:
        """Returns the member that has to go for it."""
        sizes = Counter(self._members.values())
        leaving = None
        if sizes[group] >= self._of_group_max:
            leaving = next(one for one, other in self._members.items() if other == group)
        elif len(self._members) >= self._members_max:
            largest = sizes.most_common(1)[0][0]
            leaving = next(one for one, other in self._members.items() if other == largest)
        if leaving is not None:
            del self._members[leaving]
        self._members[member] = group
        return leaving

    def leave(self, member: MemberT) -> None:
        self._members.pop(member, None)


class Pace:
    """How often each user, or address, may come: a burst at once, then this many each second."""

    def __init__(self, burst: int, each_second: float) -> None:
        self._burst = burst
        self._each_second = each_second
        self._left: dict[Hashable, tuple[float, float]] = {}  # by user: how many are left, and when that was so

    def admits(self, who: Hashable, now: float) -> bool:
        left = self._left_of(who, now)
        admitted = left >= 1
        self._note(who, left - admitted, now)
        return admitted

    def wait_seconds(self, who: Hashable, now: float) -> float:
        """How long it waits for its turn: it comes in any case."""
        left = self._left_of(who, now) - 1
        self._note(who, left, now)
        return max(0.0, -left / self._each_second)

    def _left_of(self, who: Hashable, now: float) -> float:
        left, at = self._left.pop(who, (float(self._burst), now))
        return min(self._burst, left + (now - at) * self._each_second)

    def _note(self, who: Hashable, left: float, now: float) -> None:
        self._left[who] = (left, now)
        while len(self._left) > USERS_REMEMBERED_MAX:
            del self._left[next(iter(self._left))]  # the one that came longest ago


def _newest_of_the_largest(groups: dict[MemberT, int], newcomers: int) -> MemberT:
    """`groups` has the user or the job of each member. Raises NoRoomError where the newcomers have as many."""
    sizes = Counter(groups.values())
    largest, size = sizes.most_common(1)[0]
    if size <= sizes[newcomers] + 1:
        raise NoRoomError
    return next(member for member in reversed(groups) if groups[member] == largest)
