"""FieldwiseFeatures: scikit-learn's contract, cross-fitting, and what pipelines gain by it."""

from __future__ import annotations

import doctest
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import fieldwise.features
from fieldwise import (
    DataError,
    FieldEncoder,
    FieldwiseClassifier,
    FieldwiseFeatures,
    SchemaError,
    SettingError,
)
from fieldwise.crosses import Evidence
from fieldwise.crosses.evidence import Observed

CROSS_FITTED = "fit_transform is cross-fitted, as that of TargetEncoder is, and transform is not"
APART = {
    "check_transformer_general": CROSS_FITTED,
    "check_transformer_data_not_an_array": CROSS_FITTED,
    "check_sample_weight_equivalence_on_dense_data": "bins and mini-batches are made of rows, "
    "not of weight",
}


@parametrize_with_checks(
    [FieldwiseFeatures(epochs=3, rank=2), FieldwiseFeatures(crosses="none", scores=False)],
    expected_failed_checks=lambda _: APART,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def planted(n: int = 6_000, seed: int = 0) -> tuple[pl.DataFrame, np.ndarray]:
    """What a user makes of an item is a matter of both together; the place says a little."""
    rng = np.random.default_rng(seed)
    user, item, place = rng.integers(0, 40, n), rng.integers(0, 30, n), rng.integers(0, 3, n)
    liking = np.random.default_rng(99).normal(0, 3, (40, 30))
    z = liking[user, item] + place - 1
    frame = {
        "user": [f"u{k}" for k in user],
        "item": [f"i{k}" for k in item],
        "place": [("a", "b", None)[k] for k in place],
    }
    return pl.DataFrame(frame), (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)


PAIR = [("user", "item")]


@pytest.fixture(scope="module")
def table() -> tuple[pl.DataFrame, np.ndarray]:
    return planted(1_200)


def flipped(y: np.ndarray, at: int) -> np.ndarray:
    other = y.copy()
    other[at] = 1 - other[at]
    return other


@given(st.integers(0, 1_199), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_label_never_reaches_its_own_evidence(at: int, seed: int) -> None:
    X, y = planted(1_200)
    features = FieldwiseFeatures(crosses=PAIR, scores=False, random_state=seed)
    before, after = (features.fit_transform(X, target) for target in (y, flipped(y, at)))
    assert np.array_equal(before[at], after[at])
    assert not np.array_equal(before, after)


def test_a_label_never_reaches_its_own_score() -> None:
    X, y = planted(400)  # so few that no rows are held out, by which step and epochs are chosen
    for at in (0, 123, 399):
        features = FieldwiseFeatures(crosses=PAIR, epochs=2, rank=2)
        before, after = (features.fit_transform(X, target) for target in (y, flipped(y, at)))
        assert np.array_equal(before[at], after[at])
        assert not np.array_equal(before[:, 0], after[:, 0])


def test_noise_is_no_knowledge_of_the_rows_themselves() -> None:
    X, _ = planted(3_000)
    y = np.random.default_rng(5).integers(0, 2, 3_000)
    features = FieldwiseFeatures(crosses=PAIR, random_state=1)
    fitted, plain = features.fit_transform(X, y), features.fit(X, y).transform(X)
    at = features.get_feature_names_out().tolist().index("evidence user x item")
    for column in (0, at):  # the score, and the evidence of the pair
        assert abs(roc_auc_score(y, fitted[:, column]) - 0.5) < 0.05
    assert roc_auc_score(y, plain[:, at]) > 0.65


def test_columns_of_new_rows_are_evidence_of_all_rows(table: Any) -> None:
    X, y = table
    new, _ = planted(300, seed=3)
    features = FieldwiseFeatures(crosses=PAIR, epochs=3).fit(X, y)
    encoder = FieldEncoder(min_count=1, resolutions=True)
    codes, _ = encoder.fit_codes(X)
    evidence, _ = Evidence.learn(Observed.of(codes, y), [(0,), (1,), (2,), (0, 1)])
    found = evidence.of(encoder.codes(new)[0])
    columns = features.transform(new)
    assert columns.dtype == np.float32
    assert np.array_equal(columns[:, 1:5], found.evidence[:, :, 0])
    assert np.array_equal(columns[:, 5:], np.log1p(found.seen))
    assert features.crosses_ == [("user",), ("item",), ("place",), ("user", "item")]


def test_fit_transform_learns_what_fit_learns(table: Any) -> None:
    X, y = table
    one, two = (FieldwiseFeatures(crosses=PAIR, epochs=3) for _ in range(2))
    fitted, columns = one.fit_transform(X, y), two.fit(X, y).transform(X)
    assert fitted.shape == columns.shape
    assert not np.allclose(fitted, columns, atol=0.01)
    assert np.array_equal(one.transform(X), columns)


def test_scores_are_those_of_a_field_wise_model() -> None:
    X, y = planted()
    new, truth = planted(2_000, seed=1)
    features = FieldwiseFeatures(crosses="none", random_state=0)
    fitted = features.fit_transform(X, y)[:, 0]
    model = FieldwiseClassifier(random_state=0).fit(X, y)
    found = roc_auc_score(truth, features.transform(new)[:, 0])
    assert found > roc_auc_score(truth, model.decision_function(new)) - 0.02
    assert roc_auc_score(y, fitted) == pytest.approx(found, abs=0.03)


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize(
    ("model", "encoder"),
    [
        (LogisticRegression(max_iter=1000), OneHotEncoder(handle_unknown="ignore")),
        (
            HistGradientBoostingClassifier(max_iter=60, random_state=0),
            OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        ),
    ],
)
def test_pipelines_are_better_with_them(model: Any, encoder: Any, *, scores: bool) -> None:
    X, y = planted()
    new, truth = planted(3_000, seed=1)
    plain = make_pipeline(encoder, clone(model)).fit(X.to_pandas(), y)
    piped = make_pipeline(FieldwiseFeatures(scores=scores), clone(model)).fit(X, y)
    assert ("user", "item") in piped[0].crosses_
    before = log_loss(truth, plain.predict_proba(new.to_pandas())[:, 1])
    after = log_loss(truth, piped.predict_proba(new)[:, 1])
    assert after < before - 0.1


def test_names_of_two_classes_of_many_and_of_numbers(table: Any) -> None:
    X, y = table
    given = {"crosses": PAIR, "epochs": 2, "rank": 2}
    names = ["user", "item", "place", "user x item"]
    evidence, seen = [f"evidence {n}" for n in names], [f"seen {n}" for n in names]
    two = FieldwiseFeatures(**given).fit(X, y)
    assert two.get_feature_names_out().tolist() == ["score", *evidence, *seen]
    assert two.task_ == "classes"
    three = np.array(["c", "a", "b"])[np.where(np.arange(len(y)) % 5 == 0, 2, y)]
    many = FieldwiseFeatures(counts=False, **given).fit(X, three)
    each = [f"{n} ({c})" for n in ["score"] for c in "abc"]
    each += [f"evidence {n} ({c})" for n in names for c in "abc"]
    assert many.get_feature_names_out(["user", "item", "place"]).tolist() == each
    assert many.transform(X).shape == (len(y), len(each))
    assert many.classes_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="input_features"):
        many.get_feature_names_out(["user", "item", "other"])
    numbers = FieldwiseFeatures(**given).fit(X, y + 0.5)
    assert numbers.task_ == "numbers"
    assert numbers.get_feature_names_out().tolist() == two.get_feature_names_out().tolist()
    assert numbers.transform(X)[:, 1:5] == pytest.approx(two.transform(X)[:, 1:5], abs=1e-5)


def test_evidence_of_many_classes_is_of_each(table: Any) -> None:
    X, y = table
    three = np.where(np.arange(len(y)) % 5 == 0, 2, y)
    many = FieldwiseFeatures(crosses=PAIR, scores=False, counts=False).fit_transform(X, three)
    for k in range(3):
        one = FieldwiseFeatures(crosses=PAIR, scores=False, counts=False)
        assert np.array_equal(many[:, k::3], one.fit_transform(X, three == k))


def test_whole_numbers_are_numbers_when_told_so(table: Any) -> None:
    X, y = table
    counts = y * 3 + np.arange(len(y)) % 4
    features = FieldwiseFeatures(task="numbers", crosses=PAIR, epochs=3)
    model = make_pipeline(features, Ridge()).fit(X, counts)
    assert features.get_feature_names_out()[0] == "score"
    assert model.predict(X).shape == (len(y),)
    assert FieldwiseFeatures(scores=False).fit(X, counts).classes_.tolist() == list(range(7))


def test_a_field_named_as_a_cross_and_columns_that_are_no_fields(table: Any) -> None:
    X, y = table
    odd = X.with_columns(pl.col("place").alias("user x item"), number=np.linspace(0, 1, len(y)))
    features = FieldwiseFeatures(crosses=PAIR, scores=False, kinds={"number": "linear"})
    names = features.fit(odd, y).get_feature_names_out().tolist()
    assert "evidence user x item" in names
    assert "evidence user x item'" in names
    assert "evidence number" not in names
    features = FieldwiseFeatures(scores=False, kinds={"number": "linear"})
    with pytest.raises(DataError, match="linear or a list"):
        features.fit(odd.select("number"), y)
    assert features.set_params(scores=True, epochs=2).fit_transform(odd.select("number"), y).shape \
        == (len(y), 1)  # fmt: skip


def test_output_as_frames(table: Any) -> None:
    X, y = table
    frame = X.to_pandas().set_index(np.arange(len(y)) + 7)
    features = FieldwiseFeatures(crosses=PAIR, scores=False)
    plain = features.fit_transform(X, y)
    features.set_output(transform="pandas")
    fitted, columns = features.fit_transform(frame, y), features.transform(frame[:5])
    assert isinstance(fitted, pd.DataFrame)
    assert fitted.index.tolist() == frame.index.tolist()
    assert columns.columns.tolist() == features.get_feature_names_out().tolist()
    assert np.array_equal(fitted.to_numpy(), plain)
    found = features.set_output(transform="polars").transform(X)
    assert isinstance(found, pl.DataFrame)
    assert found.columns == features.get_feature_names_out().tolist()


def test_what_was_never_seen_says_nothing(table: Any) -> None:
    X, y = table
    features = FieldwiseFeatures(crosses=PAIR, epochs=3).fit(X, y)
    strange = pl.DataFrame({"user": ["nobody"], "item": ["i1"], "place": ["a"]})
    found = dict(zip(features.get_feature_names_out(), features.transform(strange)[0], strict=True))
    for name in ("user", "user x item"):
        assert found[f"evidence {name}"] == found[f"seen {name}"] == 0
    assert found["seen item"] == pytest.approx(np.log1p((X["item"] == "i1").sum()))
    assert np.isfinite(found["score"])
    with pytest.raises(ValueError, match="now missing:\n- user"):
        features.transform(strange.drop("user"))
    wary = FieldwiseFeatures(crosses=PAIR, scores=False, unseen="error").fit(X, y)
    with pytest.raises(DataError, match="nobody"):
        wary.transform(strange)


def test_weights_count_as_rows(table: Any) -> None:
    X, y = table
    weight = np.where(np.arange(len(y)) % 2, 3, 1)
    again = np.repeat(np.arange(len(y)), weight)
    one = FieldwiseFeatures(crosses=PAIR, scores=False).fit(X, y, sample_weight=weight)
    two = FieldwiseFeatures(crosses=PAIR, scores=False).fit(X[again], y[again])
    assert one.transform(X) == pytest.approx(two.transform(X), abs=1e-5)
    scored = FieldwiseFeatures(crosses=PAIR, epochs=2).fit_transform(X, y, sample_weight=weight)
    assert np.isfinite(scored).all()


def test_it_is_at_home_in_scikit_learn(table: Any) -> None:
    X, y = table
    features = FieldwiseFeatures(crosses=PAIR, epochs=2, rank=2)
    again = pickle.loads(pickle.dumps(features.fit(X, y)))
    assert np.array_equal(again.transform(X), features.transform(X))
    assert clone(features).get_params() == features.get_params()
    frame = X.to_pandas()
    parts = ColumnTransformer([("told", features, ["user", "item"])], remainder="drop")
    piped = make_pipeline(parts, LogisticRegression())
    assert cross_val_score(piped, frame, y, cv=3).shape == (3,)
    assert "told__evidence user x item" in parts.fit(frame, y).get_feature_names_out()


def test_the_same_seed_gives_the_same_bits(table: Any) -> None:
    X, y = table
    made = [
        FieldwiseFeatures(random_state=seed, n_jobs=jobs, epochs=2).fit_transform(X, y).tobytes()
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
    ]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"crosses": [("user", "nope")]}, SchemaError, "nope"),
        ({"crosses": [("user", "user")]}, SettingError, "two different fields"),
        ({"crosses": [("user",)]}, SettingError, "two different fields"),
        ({"crosses": "all"}, SettingError, "auto, none"),
        ({"task": "clicks"}, SettingError, "task='clicks' is not one of classes, numbers"),
        ({"epochs": 0}, SettingError, "epochs=0"),
    ],
)
def test_bad_settings_say_what_to_do(table: Any, given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        FieldwiseFeatures(**given).fit(*table)


def test_bad_targets_and_too_few_rows(table: Any) -> None:
    X, y = table
    features = FieldwiseFeatures(scores=False)
    with pytest.raises(DataError, match="2 columns"):
        features.fit(X, np.stack([y, y], axis=1))
    with pytest.raises(DataError, match="must be numbers"):
        clone(features).set_params(task="numbers").fit(X, np.where(y, "yes", "no"))
    with pytest.raises(DataError, match="1 class"):
        features.fit(X, np.zeros(len(y)))
    with pytest.raises(DataError, match="inconsistent"):
        features.fit(X, y[:-1])
    with pytest.raises(DataError, match="n_samples=6 is fewer than the 10 folds"):
        features.fit(X[:6], [0, 1] * 3)
    for seed in range(8):  # some of the folds of ten rows are empty
        few = FieldwiseFeatures(crosses="none", epochs=1, random_state=seed)
        assert np.isfinite(few.fit_transform(X[:10], [0, 1] * 5)).all()


def test_the_example_runs() -> None:
    found = doctest.testmod(fieldwise.features)
    assert found.attempted > 5
    assert found.failed == 0
