"""Commands killed at any moment: what is there is whole, and the same command comes to the same."""

from __future__ import annotations

import pytest

from kills import CASES, Killing, warm


@pytest.fixture(scope="module")
def runner():
    with warm() as found:
        yield found


FEW = ("encode --append", "train", "train, 2 workers", "update", "rollback")


@pytest.mark.parametrize("name", FEW)
def test_killed_at_any_moment(name, runner, tmp_path):
    """Two kills of some commands here; `make faults` has hundreds of all, and records them."""
    (case,) = (case for case in CASES if case.name == name)
    killing = Killing(case, runner, tmp_path, 0)
    killing.run(2)
    assert killing.tally.problems == []
    assert killing.tally.kills == 2
