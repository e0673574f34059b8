"""Reliability, calibration of categories and the slices where the loss is highest."""

from __future__ import annotations

import numpy as np
import pytest

from fieldwise import DataError
from fieldwise.explain.calibration import Judge, reliability
from fieldwise.layout import Layout
from fieldwise.metrics import calibration_error


def label(i, code):
    return f"{'ab'[i]}{code}"


def rows(n=20_000, seed=0):
    """b says nothing; what is predicted of a1 is too high, and a2 cannot be predicted."""
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, 3, n), random.integers(0, 4, n)], axis=1)
    p = np.array([0.1, 0.3, 0.5])[codes[:, 0]]
    y = (random.random(n) < np.array([0.1, 0.1, 0.5])[codes[:, 0]]).astype(float)
    loss = -np.where(y == 1, np.log(p), np.log1p(-p))
    return codes, p, y, np.ones(n), loss


def judged(parts=1, **options):
    codes, p, y, w, loss = rows()
    judge = Judge(Layout.of((3, 4), rank=1))
    for part in np.array_split(np.arange(len(y)), parts):
        judge.add(codes[part], None, p[part], y[part], w[part], loss[part])
    return judge.found(["a", "b"], label, **options)


def test_the_planted_faults_come_out():
    codes, p, y, _, loss = rows()
    found = judged(largest=3)
    assert found.rows == len(y)
    assert found.loss == pytest.approx(loss.mean())
    by_name = {row["category"]: row for row in found.fields}
    assert set(by_name) >= {"a0", "a1", "a2"}
    for k in range(3):
        mine = codes[:, 0] == k
        row = by_name[f"a{k}"]
        assert row["count"] == mine.sum()
        assert row["predicted"] == pytest.approx(p[mine].mean())
        assert row["observed"] == pytest.approx(y[mine].mean())
        assert row["error"] == pytest.approx(abs(p[mine].mean() - y[mine].mean()))
    assert max(found.fields, key=lambda row: row["error"])["category"] == "a1"
    assert [s["category"] for s in found.slices] == ["a2"]
    worst = found.slices[0]
    assert worst["loss"] == pytest.approx(np.log(2))
    assert worst["excess"] == pytest.approx(np.log(2) - loss.mean())


def test_chunks_add_up():
    whole, parts = judged(), judged(parts=7)
    assert whole.rows == parts.rows
    assert whole.error == pytest.approx(parts.error)
    assert [s["category"] for s in whole.slices] == [s["category"] for s in parts.slices]
    for a, b in zip(whole.fields, parts.fields, strict=True):
        assert a == pytest.approx(b)


def test_the_error_is_the_metric_of_that_name():
    random = np.random.default_rng(1)
    z = random.normal(size=5000)
    y = (random.random(5000) < 0.4).astype(float)
    w = random.random(5000)
    p = 1 / (1 + np.exp(-z))
    bins = reliability(p, y, w, 20)
    error = sum(b["share"] * abs(b["predicted"] - b["observed"]) for b in bins)
    assert error == pytest.approx(calibration_error(z, y, w))
    assert sum(b["count"] for b in bins) == 5000
    assert all(b["low"] < b["observed"] < b["high"] for b in bins)
    means = [b["predicted"] for b in bins]
    assert means == sorted(means)


def test_intervals_hold_what_is_true_most_of_the_time():
    random = np.random.default_rng(2)
    p = random.random(40_000)
    y = (random.random(40_000) < p).astype(float)
    inside = [
        b["low"] <= b["predicted"] <= b["high"] for b in reliability(p, y, np.ones(40_000), 100)
    ]
    assert 0.88 <= np.mean(inside) <= 1


def test_unseen_values_and_lists():
    layout = Layout.of((2, 3), rank=1, slots=(1, 2))
    codes = np.array([[-1, 0, 1], [0, 2, 0]] * 40)
    wide = np.array([[1.0, 0.5, 0.5], [1.0, 1.0, 0.0]] * 40)
    p = np.array([0.2, 0.6] * 40)
    judge = Judge(layout)
    judge.add(codes, wide, p, np.zeros(80), np.ones(80), p)
    found = judge.found(["a", "b"], label)
    counts = {(row["field"], row["category"]): row["count"] for row in found.fields}
    # The empty slot of a list is no category.
    assert counts == {("a", "(unseen)"): 40, ("a", "a0"): 40, ("b", "b0"): 40, ("b", "b1"): 40,
                      ("b", "b2"): 40}  # fmt: skip
    means = {row["category"]: row["predicted"] for row in found.fields}
    assert means["(unseen)"] == pytest.approx(0.2)
    assert means["b2"] == pytest.approx(0.6)


def test_no_rows_are_refused():
    with pytest.raises(DataError, match="no rows to evaluate on"):
        Judge(Layout.of((2, 2), rank=1)).found(["a", "b"], label)
    judge = Judge(Layout.of((2, 2), rank=1))
    judge.add(np.zeros((1, 2), int), None, np.ones(1), np.ones(1), np.zeros(1), np.ones(1))
    with pytest.raises(DataError, match="have no weight"):
        judge.found(["a", "b"], label)


def test_rows_without_weight_do_not_count():
    p = np.array([0.1, 0.2, 0.3, 0.6, 0.7, 0.8])
    y = np.array([0.0, 0.3, 0.2, 0.5, 0.9, 1.0])
    w = np.array([0.0, 10.0, 5.0, 20.0, 3.0, 0.0])
    bins = reliability(p, y, w, 20)
    assert sum(b["count"] for b in bins) == 4
    error = sum(b["share"] * abs(b["predicted"] - b["observed"]) for b in bins)
    z = np.log(p / (1 - p))
    assert error == pytest.approx(calibration_error(z, y, w))


def test_intervals_know_weights():
    """Few heavy rows tell less than their number."""
    random = np.random.default_rng(3)
    inside = []
    for _ in range(100):
        p = np.full(400, 0.3)
        y = (random.random(400) < p).astype(float)
        (found,) = reliability(p, y, random.pareto(1.2, 400) + 0.01, 1)
        inside.append(found["low"] <= 0.3 <= found["high"])
    assert np.mean(inside) > 0.85


def test_a_perfect_model_of_many_categories_has_no_worst_slice():
    random = np.random.default_rng(4)
    n, size = 60_000, 1000
    codes = random.integers(0, size, (n, 1))
    p = random.random(n)
    y = (random.random(n) < p).astype(float)
    loss = -np.where(y == 1, np.log(p), np.log1p(-p))
    judge = Judge(Layout.of((size,), rank=1))
    judge.add(codes, None, p, y, np.ones(n), loss)
    assert len(judge.found(["a"], label, worst=1000).slices) <= 2
