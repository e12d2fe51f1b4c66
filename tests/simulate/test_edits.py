"""Changes of single lines, and that those of the drawn mutants still fit the product."""

from __future__ import annotations

import pytest

from tests.simulate.drawn import DRAWN, REVIEWED
from tests.simulate.edits import Edit, edited, tried
from understudy_controlplane.decide import guards
from understudy_controlplane.fleet.counted import times

LEAST = Edit(guards.scaled, "limit = max(least, int(share * of))", "limit = least")


@pytest.mark.parametrize("name", DRAWN | REVIEWED)
def test_a_drawn_mutant_fits_the_code(name: str) -> None:
    assert all(one.after().__code__ != one.before().__code__ for one in (DRAWN | REVIEWED)[name].edits)


def test_an_edit_changes_the_code_until_it_ends() -> None:
    with edited(LEAST):
        assert guards.scaled(0.5, 10, 1) == 1
    assert guards.scaled(0.5, 10, 1) == 5


def test_lines_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="'no such line' is 0 times in times"), edited(Edit(times, "no such line", "")):
        pass


def test_an_edit_that_is_tried_changes_no_answer_and_is_named_where_it_would() -> None:
    with tried([("least", LEAST)]) as differ:
        assert guards.scaled(0.01, 10, 1) == 1
        assert differ == set()
        assert guards.scaled(0.5, 10, 1) == 5
        assert differ == {"least"}
    assert guards.scaled(0.5, 10, 1) == 5
