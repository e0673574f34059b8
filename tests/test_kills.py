"""Commands killed at any moment: what is there is whole, and the same command comes to the same."""

from __future__ import annotations

import pytest

from kills import CASES, Killing, warm


@pytest.fixture(scope="module")
def runner():
    with warm() as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_killed_at_any_moment(case, runner, tmp_path):
    """Three kills here; `make faults` has hundreds and records them."""
    killing = Killing(case, runner, tmp_path, 0)
    killing.run(3)
    print(killing.tally)
    assert killing.tally.problems == []
