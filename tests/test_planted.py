"""Synthetic tables: the paper's shapes, a known best loss, the formats of the real files."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fieldwise import SettingError, encode, synthetic
from fieldwise.data import planted
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES
from fieldwise.data.readers import open_source
from fieldwise.maths import importance, scores


def test_shapes_are_the_papers():
    assert (len(CRITEO_SIZES), sum(CRITEO_SIZES)) == (39, 395_894)
    assert (len(AVAZU_SIZES), sum(AVAZU_SIZES)) == (22, 2_018_012)


def test_rows_do_not_depend_on_how_many_are_asked_for(monkeypatch):
    monkeypatch.setattr(planted, "BLOCK", 64)
    codes, labels = synthetic([5, 40, 3], 200, seed=1).arrays()
    fewer, fewer_labels = synthetic([5, 40, 3], 130, seed=1).arrays()
    assert np.array_equal(codes[:128], fewer[:128])
    assert np.array_equal(labels[:128], fewer_labels[:128])
    assert not np.array_equal(codes, synthetic([5, 40, 3], 200, seed=2).arrays()[0])


def test_codes_follow_zipf():
    codes, _ = synthetic([50, 7], 60_000).arrays()
    counts = np.roll(np.bincount(codes[:, 0], minlength=50), -1)  # the rarest is code 0
    weight = np.arange(1, 51) ** -1.05
    assert np.allclose(counts / 60_000, weight / weight.sum(), atol=0.01)
    assert codes.max(axis=0).tolist() == [49, 6]
    assert codes.min() == 0


def test_labels_come_from_the_planted_model():
    data = synthetic([20, 30, 10], 50_000, seed=3)
    codes, labels, chance = data.block(0)
    z = scores(data.table.astype(np.float64), data.layout, data.layout.rows(codes))[:, 0]
    assert np.allclose(chance, 1 / (1 + np.exp(-z - data.intercept)), atol=1e-5)
    # Calibrated: in each tenth of the chances the labels' mean is the chances' mean.
    for part in np.array_split(np.argsort(chance), 10):
        assert labels[part].mean() == pytest.approx(chance[part].mean(), abs=0.03)
    assert 0.15 < labels.mean() < 0.4


def test_no_constant_beats_the_best_loss():
    data = synthetic([20, 30, 10], 40_000)
    _, labels = data.arrays()
    rate = labels.mean()
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert 0.3 < data.best_logloss() < constant - 0.02


def test_fields_differ_in_importance_as_planted():
    data = synthetic([30] * 6, 1000, seed=5)
    assert np.array_equal(
        np.argsort(importance(data.table, data.layout)), np.argsort(data.strength)
    )


def test_as_a_store(tmp_path):
    data = synthetic([5, 40, 3], 3000)
    store = data.to_store(tmp_path / "s")
    codes, labels = data.arrays()
    found = store.read(0, 3000)
    assert np.array_equal(found["codes"], codes)
    assert np.array_equal(found["target"][:, 0], labels)
    words = load_vocabulary(store)
    assert words.sizes == [5, 40, 3]
    assert np.array_equal(words.fields[0].counts(), np.bincount(codes[:, 0], minlength=5))
    with pytest.raises(SettingError, match="use to_store"):
        data.to_text(tmp_path / "t.txt")


@pytest.mark.parametrize(("shape", "label"), [("criteo", "label"), ("avazu", "click")])
def test_as_raw_text(tmp_path, shape, label):
    data = synthetic(shape, 400)
    path = data.to_text(tmp_path / "train")
    codes, labels = data.arrays()
    frame = pl.concat([c.frame for c in open_source(path, format=shape).chunks()])
    assert frame[label].cast(pl.Float32).to_list() == labels.tolist()
    store = encode(path, tmp_path / "s", format=shape, min_count=1)
    found = store.read(0, 400)["codes"]
    assert found.min() >= 1
    # The same partition of rows into categories, whatever the numbers.
    for j in range(len(data.sizes)):
        pairs = set(zip(codes[:, j].tolist(), found[:, j].tolist(), strict=True))
        assert len(pairs) == len(set(codes[:, j].tolist())) == len(set(found[:, j].tolist()))


@pytest.mark.parametrize(
    "arguments", [{"shape": "movielens"}, {"shape": []}, {"shape": [3, 0]}, {"n_rows": 0}]
)
def test_refusals(arguments):
    with pytest.raises(SettingError):
        synthetic(**arguments)
