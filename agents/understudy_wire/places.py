"""A place where a gang stood still or broke off, and whether it repeats what it did before. The control plane and a
launcher judge it alike. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

ABOUT = 50
"""A number within one in so many of another is about the same: of its last steps a rank that ends reports not all."""


class Place(NamedTuple):
    """Steps are counted on over all launches of a job where the numbers that its program gives them fall."""

    step: int = -1  # the furthest that any rank has finished; -1: none
    count_from: int = 0  # what has to be taken off for the number that the program gave it

    def repeats(self, before: Place) -> bool:
        """True if its program has come to the same number again. The count goes on from where the last one began, also
        where a program begins with its first epoch again: it comes further by the count each time.
        """
        number, known = self.step - self.count_from, before.step - before.count_from
        return self.count_from > before.count_from and abs(number - known) <= max(number, known) // ABOUT


NOWHERE = Place()
