"""Explanations of real models: they add up, whatever the table holds."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fieldwise import FieldwiseClassifier, FieldwiseModel, FieldwiseRegressor, ModelError


def table(n=1500, seed=0):
    """Categories, a linear number, a binned one and a list."""
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 5, n), random.integers(0, 4, n)
    tags = [[f"t{k}" for k in random.permutation(6)[: random.integers(1, 4)]] for _ in range(n)]
    x = random.normal(size=n)
    frame = pl.DataFrame(
        {
            "a": [f"a{k}" for k in a],
            "b": [f"b{k}" for k in b],
            "x": x,
            "z": random.exponential(size=n),
            "tags": tags,
        }
    )
    score = (a == b) * 2.0 + x - 1 + np.array(["t0" in t for t in tags])
    return frame, (random.random(n) < 1 / (1 + np.exp(-score))).astype(int)


KINDS = {"x": "linear"}


@pytest.fixture(scope="module")
def fitted():
    X, y = table()
    return FieldwiseClassifier(rank=4, epochs=5, kinds=KINDS, learning_rate=0.1).fit(X, y)


def test_effects_and_shapley_values_add_up_to_the_score(fitted):
    X, _ = table(seed=1)
    X = X.with_columns(a=pl.when(pl.int_range(len(X)) < 5).then(pl.lit("new")).otherwise("a"))
    found = fitted.explain(X)
    z = fitted.decision_function(X)
    assert found.fields.shape == found.shapley.shape == (len(X), 5)
    pairs = found.pairs
    assert pairs.shape == (len(X), 5, 5)
    both = pairs.sum(axis=(1, 2)) / 2
    np.testing.assert_allclose(found.base + found.fields.sum(axis=1) + both, z, atol=1e-5)
    np.testing.assert_allclose(found.base + found.shapley.sum(axis=1), z, atol=1e-5)
    np.testing.assert_allclose(found.fields + pairs.sum(axis=2) / 2, found.shapley, atol=1e-5)
    assert np.abs(found.shapley[:5, 0]).max() < 1e-5  # never seen: it says nothing
    assert list(found.names) == ["a", "b", "x", "z", "tags"]


def test_over_training_rows_main_effects_have_no_mean(fitted):
    X, _ = table()
    found = fitted.explain(X)
    np.testing.assert_allclose(found.fields.mean(axis=0), 0, atol=1e-5)


def test_a_saved_model_explains_alike(fitted, tmp_path):
    X, _ = table(50, seed=2)
    model = FieldwiseModel.load(fitted.model_.save(tmp_path / "m"))
    assert np.array_equal(model.explain(X).shapley, fitted.explain(X).shapley)
    one = model.explain(X.row(3, named=True))
    np.testing.assert_allclose(one.shapley[0], fitted.explain(X).shapley[3], atol=1e-12)
    (tmp_path / "m" / "moments.safetensors").unlink()
    with pytest.raises(ModelError, match="moments.safetensors is missing"):
        FieldwiseModel.load(tmp_path / "m")


def test_several_outputs(fitted):
    X, _ = table()
    y = np.stack([np.arange(len(X)) % 3, np.arange(len(X)) % 2], axis=1).astype(float)
    model = FieldwiseRegressor(rank=3, epochs=2, kinds=KINDS).fit(X, y)
    found = model.explain(X)
    assert found.shapley.shape == (len(X), 2, 5)
    assert found.pairs.shape == (len(X), 2, 5, 5)
    z = model.model_.decision_function(X)
    np.testing.assert_allclose(found.base + found.shapley.sum(axis=2), z, atol=1e-5)


def test_what_is_not_taken_apart():
    X, y = table(300)
    vote = FieldwiseClassifier(rank=2, epochs=1, combine="vote").fit(X[["a", "b"]], y)
    with pytest.raises(ModelError, match="the prediction of a vote is no sum"):
        vote.explain(X[["a", "b"]])
