"""Examples of the documents run on two nodes with a fault in them, word for word: all of them in `make long`."""

from __future__ import annotations

import pytest

from tests.acceptance import documented
from tests.acceptance.conftest import MakeSite

pytestmark = pytest.mark.cluster

HERE = documented.EXAMPLES[:2]
"""A file of one rank, and one that goes through the adapter: each on the file system of a node."""


@pytest.mark.long
def test_an_example_goes_on_from_its_checkpoint_after_a_fault(make_site: MakeSite) -> None:
    site = make_site(nodes=2, spares=0)
    documented.start(site)
    for example in HERE:
        documented.run(site, example)
