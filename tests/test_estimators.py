"""FieldwiseClassifier: scikit-learn's contract, and tables whose answer a reader can see."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from fieldwise import (
    BaselineClassifier,
    DataError,
    FieldwiseClassifier,
    FieldwiseFeatures,
    FieldwiseRegressor,
    SettingError,
    synthetic,
)

UNEQUAL = {
    "check_sample_weight_equivalence_on_dense_data": "mini-batches are made of rows, not of weight"
}


@parametrize_with_checks(
    [FieldwiseClassifier(epochs=20, rank=4), FieldwiseRegressor(epochs=20, rank=4)],
    expected_failed_checks=lambda _: UNEQUAL,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def crossed(n=4000, seed=0):
    """y is the agreement of two fields: no single field says anything."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": random.choice(["u", "v", None], n),
            "b": random.integers(0, 5, n),
            "noise": random.normal(size=n),
        }
    )
    agree = (frame["a"] == "u").to_numpy() ^ (frame["b"] % 2 == 0).to_numpy()
    return frame, np.where(agree, "yes", "no")


def test_it_learns_what_only_a_pair_of_fields_says():
    X, y = crossed()
    model = FieldwiseClassifier().fit(X, y)
    new, truth = crossed(seed=1)
    assert list(model.classes_) == ["no", "yes"]
    assert (model.predict(new) == truth).mean() > 0.98
    chance = model.predict_proba(new)
    assert np.allclose(chance.sum(axis=1), 1)
    assert np.allclose(1 / (1 + np.exp(-model.decision_function(new))), chance[:, 1])
    assert next(iter(model.model_.importance())) in ("a", "b")


def test_the_same_seed_gives_the_same_bits():
    X, y = crossed()
    made = [FieldwiseClassifier(random_state=s, n_jobs=j).fit(X, y) for s, j in ((1, 1), (1, 2))]
    assert made[0].model_.rows.tobytes() == made[1].model_.rows.tobytes()
    other = FieldwiseClassifier(random_state=2).fit(X, y)
    assert other.model_.rows.tobytes() != made[0].model_.rows.tobytes()


def test_planted_data_is_learned_to_the_best_loss():
    data = synthetic([40, 200, 12, 90], 150_000, seed=3)
    codes, y = data.arrays()
    train, test = slice(0, 120_000), slice(120_000, None)
    model = FieldwiseClassifier(kinds={f"x{j}": "category" for j in range(4)})
    model.fit(codes[train], y[train])
    _, labels, chance = data.block(data.n_blocks - 1)
    last = len(labels)
    found = log_loss(labels, model.predict_proba(codes[-last:])[:, 1])
    best = log_loss(labels, chance)
    assert found < 1.02 * best
    assert roc_auc_score(y[test], model.predict_proba(codes[test])[:, 1]) > 0.7


def test_eval_set_weights_and_history():
    X, y = crossed()
    valid = crossed(seed=2)
    model = FieldwiseClassifier(epochs=4, patience=9).fit(X, y, eval_set=valid)
    assert [h["epoch"] for h in model.history_] == [1, 2, 3, 4]
    assert {"train_loss", "logloss", "auc", "calibration_error", "seconds"} <= set(
        model.history_[0]
    )
    assert min(h["logloss"] for h in model.history_) == model.model_.metrics["logloss"]
    # All weight on the rows of one pattern: the others are not learned.
    weight = (X["b"] == 0).to_numpy().astype(float)
    some = FieldwiseClassifier(epochs=4).fit(X, y, sample_weight=weight)
    right = some.predict(X) == y
    assert right[weight > 0].mean() > right[weight == 0].mean()


def test_partial_fit_takes_new_categories():
    X, y = crossed()
    model = FieldwiseClassifier(min_count=1)
    for part in np.array_split(np.arange(len(y)), 8):
        model.partial_fit(X.iloc[part], y[part], classes=["no", "yes"])
    assert (model.predict(X) == y).mean() > 0.95
    before = model.model_.layout.n_rows
    scores = model.decision_function(X.head(20))
    new = X.head(400).assign(a="w")
    model.partial_fit(new, np.full(400, "yes"))
    assert model.model_.layout.n_rows == before + 1
    assert (model.predict(new) == "yes").mean() > 0.9
    assert not np.array_equal(model.decision_function(X.head(20)), scores)


def test_warm_start_goes_on():
    X, y = crossed()
    model = FieldwiseClassifier(epochs=1, warm_start=True).fit(X, y)
    first = model.model_.metrics["logloss"]
    for _ in range(3):
        model.fit(X, y)
    assert model.model_.metrics["logloss"] < first


def test_it_is_at_home_in_scikit_learn():
    X, y = crossed(1500)
    model = FieldwiseClassifier(epochs=5, rank=2)
    again = pickle.loads(pickle.dumps(model.fit(X, y)))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params()
    piped = make_pipeline(FunctionTransformer(), FieldwiseClassifier(epochs=5)).fit(X, y)
    assert piped.predict(X).shape == (1500,)
    search = GridSearchCV(FieldwiseClassifier(epochs=3), {"rank": [1, 4]}, cv=2).fit(X, y)
    assert search.best_params_["rank"] in (1, 4)
    calibrated = CalibratedClassifierCV(FieldwiseClassifier(epochs=3), cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (1500, 2)


def test_linear_fields_and_polars():
    random = np.random.default_rng(0)
    v = random.normal(size=3000)
    X = pl.DataFrame({"v": v, "c": random.choice(["a", "b"], 3000)})
    y = pl.Series((v + random.normal(size=3000) > 0).astype(int))
    model = FieldwiseClassifier(kinds={"v": "linear"}).fit(X, y)
    assert roc_auc_score(y, model.decision_function(X)) > 0.8
    assert model.model_.layout.ranks[0] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": -1}, "rank=-1"),
        ({"learning_rate": 0}, "learning_rate=0 must be a number of more than 0"),
        ({"penalty": -1}, "penalty=-1"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
        ({"rank_base": 1.0}, "rank base"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ],
)
def test_impossible_settings(settings, message):
    X, y = crossed(200)
    with pytest.raises(SettingError, match=message):
        FieldwiseClassifier(**settings).fit(X, y)


def test_bad_targets():
    X, y = crossed(200)
    with pytest.raises(DataError, match="1 class"):
        FieldwiseClassifier().fit(X, np.full(200, "no"))
    with pytest.raises(DataError, match="inconsistent"):
        FieldwiseClassifier().fit(X, y[:-1])
    model = FieldwiseClassifier().fit(X, y)
    with pytest.raises(DataError, match="'maybe', which is not one of"):
        model.partial_fit(X, np.full(200, "maybe"))
    with pytest.raises(ValueError, match="the weight is -1; a weight is a finite number"):
        FieldwiseClassifier().fit(X, y, sample_weight=np.full(200, -1.0))


SMALL = {"rank": 2, "epochs": 2, "learning_rate": 0.1}


def tables(frame, path):
    """Tables that have no shape, so that their rows are counted when they are read."""
    plain = pl.from_pandas(frame.drop(columns="noise"))
    plain.write_parquet(path)
    return {"dict": plain.to_dict(as_series=False), "query": plain.lazy(), "file": path}


@pytest.mark.parametrize("kind", ["dict", "query", "file"])
@pytest.mark.parametrize("n_targets", [200, 400])
def test_x_and_y_of_different_lengths_are_refused(tmp_path, kind, n_targets):
    frame, y = crossed(300)
    X = tables(frame, tmp_path / "t.parquet")[kind]
    y = np.resize(y, n_targets)
    wrong = f"X has 300 rows and y {n_targets}"
    models = [FieldwiseClassifier(**SMALL, preset=preset) for preset in ("fast", "glass")]
    for model in [*models, FieldwiseFeatures(epochs=1), BaselineClassifier("LR", epochs=1)]:
        with pytest.raises(DataError, match=wrong):
            model.fit(X, y)
    model = FieldwiseClassifier(**SMALL).fit(X, crossed(300)[1])
    with pytest.raises(DataError, match=wrong):
        model.fit(X, crossed(300)[1], eval_set=(X, y))
    with pytest.raises(DataError, match=wrong):
        model.partial_fit(X, y)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_learned_stays_as_it_was_after_an_error(method, error):
    X, y = crossed(500)
    model = FieldwiseClassifier(**SMALL).fit(X, y)
    before = model.predict_proba(X)

    def fails(record):
        raise error

    model.set_params(callbacks=[fails])
    other = X.assign(a=X["a"].fillna("w"), b=(X["b"] + 1) % 5, noise=X["noise"] * 3 + 1)
    labels = np.where(y == "yes", "no", "yes")
    with pytest.raises(error):
        getattr(model, method)(other[:150], labels[:150])
    with pytest.raises(DataError):
        getattr(model, method)(other, ["maybe", None] * 250)
    assert model.classes_.tolist() == ["no", "yes"]
    assert np.array_equal(model.predict_proba(X), before)


def test_the_number_of_labels_stays():
    X, y = crossed(300)
    two = np.stack([y == "yes", X["b"] > 2], axis=1).astype(int)
    model = FieldwiseClassifier(**SMALL, warm_start=True)
    for first, then in ((two, y == "yes"), (two, two[:, [0, 1, 1]]), (y == "yes", two)):
        model = clone(model).fit(X, first)
        for again in (model.fit, model.partial_fit):
            with pytest.raises(DataError, match=r"y has . columns, and had . before"):
                again(X, then)
        with pytest.raises(DataError, match=r"y has . columns, and had . before"):
            clone(model).fit(X, first, eval_set=(X, then))
    with pytest.raises(DataError, match="two classes"):
        clone(model).fit(X, two).fit(X, two[:, 0], n_trials=np.ones(300))
    assert clone(model).partial_fit(X, two).predict(X).shape == (300, 2)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([None, "a", "b"] * 100, "row 1 is missing"),
        (np.array([1, "a", "b"] * 100, object), "several kinds, int, str"),
        (np.ma.masked_array([0, 1, 1] * 100, mask=[0, 0, 1] * 100), "masked"),
    ],
)
def test_y_of_odd_values_is_refused(y, message):
    with pytest.raises(DataError, match=message):
        FieldwiseClassifier(**SMALL).fit(crossed(300)[0], y)


@pytest.mark.parametrize("eval_set", [5, ([[1]],), ([[1]], [1], [1]), [([[1]], [1])]])
def test_an_eval_set_is_a_pair(eval_set):
    X, y = crossed(300)
    with pytest.raises(SettingError, match=r"eval_set must be a pair \(X, y\)"):
        FieldwiseClassifier(**SMALL).fit(X, y, eval_set=eval_set)


def test_after_crosses_training_does_not_go_on():
    X, y = crossed(300)
    model = FieldwiseClassifier(**SMALL, preset="glass").fit(X, y)
    model.set_params(preset="fast", warm_start=True)
    for again in (model.fit, model.partial_fit):
        with pytest.raises(SettingError, match="the last fit learned crosses"):
            again(X, y)


@pytest.mark.parametrize("kind", ["structured", "series", "stream"])
def test_tables_with_names_that_scikit_learn_does_not_know(kind):
    X, y = crossed(300)
    X = X[["b"]].assign(c=X["b"] % 2)
    X = X[["b"]] if kind == "series" else X
    table = pl.from_pandas(X).to_arrow()
    given = {
        "structured": lambda: X.to_records(index=False),
        "series": lambda: X["b"],
        "stream": table.to_reader,
    }[kind]
    model = FieldwiseClassifier(**SMALL).fit(given(), y)
    plain = FieldwiseClassifier(**SMALL).fit(X, y)
    assert model.feature_names_in_.tolist() == X.columns.tolist()
    assert np.array_equal(model.predict_proba(given()), plain.predict_proba(X))
    if kind == "structured":
        with pytest.raises(ValueError, match="same order"):
            model.predict(X[["c", "b"]].to_records(index=False))


@pytest.mark.parametrize("values", [np.array([b"\xcc"] * 300), pd.Series([b"\xcc"] * 300)])
def test_bytes_that_are_no_text_are_refused_by_their_column(values):
    with pytest.raises(DataError, match=r"column 'shop' \(Binary\) .* decode the column first"):
        FieldwiseClassifier(**SMALL).fit({"shop": values}, crossed(300)[1])
