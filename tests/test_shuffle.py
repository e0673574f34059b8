"""Batches: every row once an epoch, in an order that is fixed and can be taken up again."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data import shuffle
from fieldwise.data.schema import Field, Schema
from fieldwise.data.shuffle import Batches, Cursor
from fieldwise.data.store import Store, StoreWriter
from fieldwise.errors import SettingError


def numbered(path, n) -> Store:
    with StoreWriter.create(path, {"codes": 1, "target": 1}) as writer:
        writer.write(codes=np.arange(n)[:, None], target=np.arange(n) * 2.0)
        writer.finish(Schema(fields=(Field(name="row"),)), b"", [np.ones(n)])
    return Store(path)


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(shuffle, "BLOCK", 8)


def epoch(batches) -> list[int]:
    return [int(r) for b in batches for r in b["codes"][:, 0]]


@pytest.mark.usefixtures("_small_blocks")
@given(st.integers(1, 150), st.integers(1, 40), st.integers(0, 3), st.data())
def test_every_row_once_and_resumed_exactly(tmp_path_factory, n, size, seed, data):
    store = numbered(tmp_path_factory.mktemp("s") / "s", n)
    straight = Batches(store, size, seed=seed, group_rows=24)
    told = [[b["codes"][:, 0].tolist() for b in straight] for _ in range(2)]
    for batches in told:
        assert sorted(r for b in batches for r in b) == list(range(n))
        assert [len(b) for b in batches[:-1]] == [size] * (len(batches) - 1)
    assert straight.cursor == Cursor(seed, 2, 0, n, size, 24)
    stop = data.draw(st.integers(0, len(told[0]) - 1))
    first = Batches(store, size, seed=seed, group_rows=24)
    taken = []
    for batch in first:
        if len(taken) == stop:
            break
        taken.append(batch["codes"][:, 0].tolist())
        saved = json.dumps(first.cursor.to_dict())
    if taken:
        second = Batches(store, size, cursor=Cursor.from_dict(json.loads(saved)), group_rows=24)
        rest = [b["codes"][:, 0].tolist() for b in second]
        assert taken + rest == told[0]
        assert [b["codes"][:, 0].tolist() for b in second] == told[1]


@pytest.mark.usefixtures("_small_blocks")
def test_arrays_travel_together_and_epochs_differ(tmp_path):
    store = numbered(tmp_path / "s", 100)
    batches = Batches(store, 7, seed=3)
    for batch in batches:
        assert np.array_equal(batch["target"], batch["codes"] * 2)
    assert epoch(batches) != epoch(Batches(store, 7, seed=3))
    assert epoch(Batches(store, 7, seed=3)) != epoch(Batches(store, 7, seed=4))
    assert epoch(Batches(store, 7, seed=3)) == epoch(Batches(store, 30, seed=3))


def test_the_order_is_the_same_on_every_machine(tmp_path):
    store = numbered(tmp_path / "s", 50_000)
    order = np.array(epoch(Batches(store, 4096, seed=7)), dtype="<i4")
    digest = hashlib.sha256(order.tobytes()).hexdigest()
    assert digest[:16] == "da6dacf60be2d821"
    # Far from the order on disk: neighbours end up far apart.
    assert np.abs(np.diff(order)).mean() > 50_000 / 4


def test_another_cursor_gives_other_rows(tmp_path):
    store = numbered(tmp_path / "s", 300)
    batches = Batches(store, 50, seed=1)
    first = epoch(batches)
    batches.cursor = Batches(store, 50, seed=2).cursor
    assert epoch(batches) == epoch(Batches(store, 50, seed=2)) != first


def test_a_cursor_of_another_shuffle_is_refused(tmp_path):
    store = numbered(tmp_path / "s", 300)
    cursor = Batches(store, 50, seed=1).cursor
    with pytest.raises(SettingError, match="batch_size=50, here it is 60"):
        Batches(store, 60, cursor=cursor)
    grown = store.append(codes=np.zeros((1, 1)), target=np.zeros(1))
    with pytest.raises(SettingError, match="n_rows=300, here it is 301"):
        Batches(grown, 50, cursor=cursor)


@pytest.mark.usefixtures("_small_blocks")
def test_only_some_rows(tmp_path):
    store = numbered(tmp_path / "s", 100)
    only = np.arange(100) % 3 == 0
    only[40:64] = False  # whole blocks without a row
    batches = Batches(store, 7, seed=3, only=only, group_rows=16)
    assert sorted(epoch(batches)) == np.flatnonzero(only).tolist()
    assert batches.n_rows == only.sum()


def test_bad_settings(tmp_path):
    store = numbered(tmp_path / "s", 5)
    with pytest.raises(SettingError, match="batch_size=0"):
        Batches(store, 0)
    with pytest.raises(SettingError, match="seed=-1"):
        Batches(store, 1, seed=-1)
    with pytest.raises(SettingError, match="group_rows=1"):
        Batches(store, 1, group_rows=1)
