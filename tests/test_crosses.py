"""Crosses: evidence against its definition, the search, models with them, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise import (
    DataError,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    ModelError,
    SchemaError,
    SettingError,
    maths,
)
from fieldwise.crosses import Evidence, draw_folds, find_crosses
from fieldwise.crosses.evidence import Observed


def drawn(n: int = 60, seed: int = 0, n_targets: int = 1) -> tuple[Observed, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(-1, 3, n), rng.integers(0, 4, n), rng.integers(0, 2, n)], axis=1)
    y = rng.integers(0, 2, (n, n_targets)).astype(float)
    return Observed.of(codes, y, rng.integers(1, 4, n)), rng.integers(0, 4, n)


def crossed(codes: np.ndarray, cross: tuple[int, ...]) -> np.ndarray:
    """One number a crossed category."""
    return np.unique(codes[:, list(cross)], axis=0, return_inverse=True)[1].reshape(-1)


@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("cross", [(1,), (0, 2), (0, 1, 2)])
def test_evidence_is_what_its_definition_says(cross: tuple[int, ...], n_targets: int) -> None:
    rows, fold = drawn(n_targets=n_targets)
    evidence, (fitted,) = Evidence.learn(rows, [cross], [fold], n_folds=4)
    category = crossed(rows.codes, cross)
    new = evidence.of(rows.codes)
    for i in range(len(rows.y)):
        others, mates = fold != fold[i], category == category[i]
        assert fitted.seen[i, 0] == rows.w[others & mates].sum()
        assert new.seen[i, 0] == rows.w[mates].sum()
        for t in range(n_targets):
            known = rows.y[others, t], rows.w[others], category[others]
            expected = maths.evidence(*known, category[i])
            assert fitted.evidence[i, 0, t] == pytest.approx(expected, abs=1e-6)
            whole = maths.evidence(rows.y[:, t], rows.w, category, category[i])
            assert new.evidence[i, 0, t] == pytest.approx(whole, abs=1e-6)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_label_never_reaches_its_own_evidence(seed: int) -> None:
    rows, fold = drawn(seed=seed)
    at = seed % len(rows.y)
    y = rows.y.copy()
    y[at] = 1 - y[at]
    crosses = [(0,), (0, 1), (0, 1, 2)]
    _, (before,) = Evidence.learn(rows, crosses, [fold], n_folds=4)
    _, (after,) = Evidence.learn(Observed.of(rows.codes, y, rows.w), crosses, [fold], n_folds=4)
    assert np.array_equal(before.evidence[at], after.evidence[at])
    assert not np.array_equal(before.evidence, after.evidence)


def test_what_was_never_seen_has_no_evidence() -> None:
    rows, _ = drawn()
    evidence, _ = Evidence.learn(rows, [(0, 1)])
    found = evidence.of(np.array([[7, 7, 0]], np.int32))
    assert found.evidence.tolist() == [[[0.0]]]
    assert found.seen.tolist() == [[0.0]]


def test_evidence_survives_being_written_down() -> None:
    rows, _ = drawn(n_targets=2)
    evidence, _ = Evidence.learn(rows, [(0,), (0, 1, 2)])
    again = Evidence.from_bytes(evidence.crosses, evidence.shrink, evidence.to_bytes())
    assert np.array_equal(again.of(rows.codes).evidence, evidence.of(rows.codes).evidence)
    with pytest.raises(ModelError, match="damaged"):
        Evidence.from_bytes(evidence.crosses, evidence.shrink, evidence.to_bytes()[:50])


def test_threads_do_not_change_evidence() -> None:
    rows, fold = drawn(500)
    crosses = [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    one = Evidence.learn(rows, crosses, [fold], n_folds=4, n_jobs=1)[1][0]
    four = Evidence.learn(rows, crosses, [fold], n_folds=4, n_jobs=4)[1][0]
    assert np.array_equal(one.evidence, four.evidence)


def three_way(n: int, seed: int, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Labels that three of five fields decide together, and no two of them know anything of."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, size, (n, 5))
    said = (codes[:, 0] + codes[:, 1] + codes[:, 2]) % 2
    return codes, np.where(rng.random(n) < 0.9, said, 1 - said)


def as_table(codes: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({f"f{j}": [f"v{k}" for k in codes[:, j]] for j in range(codes.shape[1])})


def test_the_search_finds_what_two_fields_say_together_and_nothing_in_noise() -> None:
    codes, _ = three_way(20_000, 0)
    rng = np.random.default_rng(1)
    pair = ((codes[:, 1] + codes[:, 3]) % 2) * 0.6 + 0.2
    y = (rng.random(len(pair)) < pair).astype(float)
    found = find_crosses(Observed.of(codes, y), range(5))
    assert found[0] == (1, 3)
    noise = rng.integers(0, 2, len(y)).astype(float)
    assert find_crosses(Observed.of(codes, noise), range(5)) == []


def logloss(chance: np.ndarray, y: np.ndarray) -> float:
    chance = np.clip(chance, 1e-7, 1 - 1e-7)
    return float(-np.mean(np.log(np.where(y == 1, chance, 1 - chance))))


@pytest.mark.parametrize("preset", ["glass", "best"])
def test_a_three_way_interaction_that_only_crosses_can_learn(preset: str) -> None:
    codes, y = three_way(12_000, 0)
    X, (test, told) = as_table(codes), three_way(3_000, 1)
    known = [("f0", "f1", "f2")]
    plain = FieldwiseClassifier().fit(X, y)
    model = FieldwiseClassifier(preset=preset, crosses=known).fit(X, y)
    best = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert logloss(plain.predict_proba(as_table(test))[:, 1], told) > 0.65
    assert logloss(model.predict_proba(as_table(test))[:, 1], told) < best + 0.03


def test_noise_gets_no_cross_and_is_not_taken_for_knowledge() -> None:
    rng = np.random.default_rng(0)
    codes, y = rng.integers(0, 30, (6_000, 4)), rng.integers(0, 2, 6_000)
    X = as_table(codes)
    model = FieldwiseClassifier(preset="best").fit(X[:5_000], y[:5_000])
    assert [c for c in model.model_.vocabulary.evidence.crosses if len(c) > 1] == []
    assert logloss(model.predict_proba(X[5_000:])[:, 1], y[5_000:]) < np.log(2) + 0.005


@pytest.fixture(scope="module")
def table() -> tuple[pl.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 4_000
    frame = pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 60, n)],
            "item": [f"i{k}" for k in rng.integers(0, 40, n)],
            "place": rng.choice(["a", "b", None], n),
            "price": np.round(rng.gamma(2, 10, n), 2),
            "visits": rng.integers(0, 1500, n),
        }
    )
    liking = rng.normal(0, 2, (60, 40))
    users = frame["user"].str.slice(1).cast(pl.Int64).to_numpy()
    items = frame["item"].str.slice(1).cast(pl.Int64).to_numpy()
    z = liking[users, items] - frame["price"].to_numpy() / 20
    return frame, (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)


def fitted(table: Any, **given: Any) -> FieldwiseClassifier:
    X, y = table
    return FieldwiseClassifier(random_state=0, **given).fit(X, y)


@pytest.mark.parametrize("preset", ["glass", "best"])
def test_a_model_with_crosses_saves_loads_and_scores_single_rows(
    table: Any, tmp_path: Path, preset: str
) -> None:
    X, _ = table
    model = fitted(table, preset=preset, crosses=[("user", "item"), ("user", "place", "item")])
    chance = model.predict_proba(X)[:, 1]
    model.model_.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    assert np.array_equal(loaded.predict_proba(X), chance)
    for k in range(20):
        assert loaded.predict_proba(X.row(k, named=True))[0] == pytest.approx(chance[k], abs=1e-6)
    unseen = dict(X.row(0, named=True), user="nobody", item="nothing", visits=-5)
    with pytest.warns(UserWarning, match="never seen"):
        framed = loaded.predict_proba(pl.DataFrame([unseen]))
    assert loaded.predict_proba(unseen)[0] == pytest.approx(framed[0], abs=1e-6)


@pytest.mark.parametrize("name", ["crosses.parquet", "boosted.json"])
def test_altered_statistics_are_refused(table: Any, tmp_path: Path, name: str) -> None:
    fitted(table, preset="best", crosses=[("user", "item")]).model_.save(tmp_path / "m")
    content = (tmp_path / "m" / name).read_bytes()
    (tmp_path / "m" / name).write_bytes(content[:-10])
    with pytest.raises(ModelError, match=name):
        FieldwiseModel.load(tmp_path / "m")


def test_the_same_seed_gives_the_same_bits(table: Any) -> None:
    X, _ = table
    for preset in ("glass", "best"):
        # -1 is all cores, as in scikit-learn; more than there are is as many as there are
        one, *others = (fitted(table, preset=preset, n_jobs=k) for k in (1, 2, -1, 99))
        for other in others:
            assert np.array_equal(one.predict_proba(X), other.predict_proba(X)), preset


def test_explanations_of_a_glass_model_sum_to_its_scores(table: Any) -> None:
    X, _ = table
    model = fitted(table, preset="glass", crosses=[("user", "item")])
    found = model.explain(X[:200])
    z = model.decision_function(X[:200])
    assert np.abs(found.base + found.shapley.sum(axis=1) - z).max() < 1e-5
    assert "user x item" in found.names
    own = found.credited()
    numbers = ["price", "price.fine", "visits", "visits.fine", "visits.value"]
    assert list(own.names) == ["user", "item", "place", *numbers]
    assert np.abs(own.base + own.shapley.sum(axis=1) - z).max() < 1e-5
    together = [found.names.index(name) for name in found.crosses]
    both = [k for k in together if found.crosses[found.names[k]] == ("user", "item")]
    alone = [
        k for k, name in enumerate(found.names) if found.crosses.get(name, (name,)) == ("user",)
    ]
    expected = found.shapley[:, alone].sum(axis=1) + found.shapley[:, both].sum(axis=1) / 2
    np.testing.assert_allclose(own.shapley[:, 0], expected, atol=1e-9)


def test_explanations_of_boosted_trees_sum_to_their_scores(table: Any, tmp_path: Path) -> None:
    X, _ = table
    model = fitted(table, preset="best", crosses=[("user", "item")])
    found = model.explain(X[:100])
    z = model.decision_function(X[:100])
    assert np.abs(found.base + found.shapley.sum(axis=1) - z).max() < 1e-5
    assert list(found.names)[:3] == ["user", "item", "place"]
    strength = np.abs(found.shapley).mean(axis=0)
    assert strength[:2].min() > strength[2]  # the place says nothing
    with pytest.raises(ModelError, match="pairs"):
        _ = found.pairs
    model.model_.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m").explain(X[:100])
    np.testing.assert_allclose(loaded.shapley, found.shapley, atol=1e-9)


def test_numbers_and_many_classes_have_evidence_too(table: Any) -> None:
    X, y = table
    amount = y * 3.0 + X["price"].to_numpy() / 10
    model = FieldwiseRegressor(preset="best", random_state=0).fit(X, amount)
    assert model.score(X, amount) > 0.5
    three = np.where(X["price"].to_numpy() > 25, 2, y)
    many = FieldwiseClassifier(preset="glass", crosses=[("user", "item")]).fit(X, three)
    assert many.model_.vocabulary.evidence.n_targets == 3
    assert many.score(X, three) > 0.7


def test_weights_count_as_rows(table: Any) -> None:
    X, y = table
    twice = np.where(np.arange(len(y)) % 2, 2.0, 1.0)
    rows = Observed.of(np.zeros((len(y), 1), np.int32), y, twice)
    evidence, _ = Evidence.learn(rows, [(0,)])
    assert evidence.of(np.zeros((1, 1), np.int32)).seen[0, 0] == twice.sum()
    FieldwiseClassifier(preset="best").fit(X, y, sample_weight=twice)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"crosses": [("user", "nope")]}, SchemaError, "nope"),
        ({"crosses": [("user", "user")]}, SettingError, "two different fields"),
        ({"crosses": [("user",)]}, SettingError, "two different fields"),
        ({"crosses": "all"}, SettingError, "auto, none"),
        ({"preset": "slow"}, SettingError, "fast, glass, best"),
        ({"crosses": "auto", "combine": "vote"}, SettingError, "vote"),
        ({"crosses": "auto", "aggregate": True}, SettingError, "aggregate"),
        ({"preset": "glass", "warm_start": True}, SettingError, "warm_start"),
    ],
)
def test_bad_settings_say_what_to_do(table: Any, given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fitted(table, **given)


def test_fewer_rows_than_folds_and_one_class_in_a_fold(table: Any) -> None:
    X, y = table
    with pytest.raises(DataError, match="fewer than the 10 folds"):
        FieldwiseClassifier(preset="glass").fit(X[:6], [0, 1] * 3)
    few = np.zeros(400, int)
    few[:3] = 1  # most folds have one class alone
    FieldwiseClassifier(preset="best").fit(X[:400], few)
    with pytest.raises(SettingError, match="all rows at once"):
        FieldwiseClassifier(preset="glass").partial_fit(X, y)


def test_a_table_without_categories_says_so() -> None:
    X = pl.DataFrame({"x": np.linspace(0, 1, 500)})
    with pytest.raises(SettingError, match="preset='fast'"):
        FieldwiseClassifier(preset="best", kinds={"x": "linear"}).fit(X, [0, 1] * 250)


def test_folds_are_the_same_on_every_machine() -> None:
    assert draw_folds(12, 7).tolist() == draw_folds(20, 7)[:12].tolist()
    assert np.bincount(draw_folds(100_000, 1)).min() > 9_500
