"""Classes, numbers, counts, labels, votes, members, shares and aggregates, as users meet them."""

from __future__ import annotations

import pickle
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss, r2_score

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
from fieldwise.data import encode
from fieldwise.fitting import fit_store, train_table
from fieldwise.layout import Layout
from fieldwise.objective import Head, Objective
from fieldwise.predicting import evaluate_table, write_predictions
from fieldwise.targets import aggregated, weights_of
from fieldwise.train import TrainSettings


def pairs(n=6000, seed=0):
    """A score of which most is in a pair of fields."""
    random = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "a": random.choice(["u", "v", "w"], n),
            "b": random.integers(0, 6, n).astype(str),
            "c": random.choice(["x", "y"], n),
        }
    )
    a, b = (frame[k].to_physical() if k != "b" else frame[k].cast(int) for k in ("a", "b"))
    codes = np.unique(a.to_numpy(), return_inverse=True)[1]
    return frame, codes, b.to_numpy(), random


def test_more_than_two_classes(tmp_path):
    X, a, b, _ = pairs()
    y = np.array(["red", "green", "blue"])[(a + b) % 3]
    model = FieldwiseClassifier().fit(X, y)
    new, a, b, _ = pairs(seed=1)
    truth = np.array(["red", "green", "blue"])[(a + b) % 3]
    assert list(model.classes_) == ["blue", "green", "red"]
    assert (model.predict(new) == truth).mean() > 0.99
    chance = model.predict_proba(new)
    assert chance.shape == (len(new), 3)
    assert np.allclose(chance.sum(axis=1), 1)
    assert model.decision_function(new).shape == (len(new), 3)
    assert {"logloss", "accuracy"} <= set(model.model_.metrics)
    model.model_.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    assert np.array_equal(loaded.predict_proba(new), model.model_.predict_proba(new))
    assert np.allclose(loaded.predict_proba(new), chance)
    assert (loaded.predict(new) == truth).mean() > 0.99
    row = new.row(0, named=True)
    assert np.allclose(loaded.predict_proba(row), chance[:1], atol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_numbers_in_their_own_measure(loss, tmp_path):
    def table(seed):
        X, a, b, random = pairs(seed=seed)
        return X, 5000 + 300 * np.sign((a - 1) * (b - 2.5)) + 20 * random.normal(size=len(a))

    X, y = table(0)
    model = FieldwiseRegressor(loss=loss, delta=50.0).fit(X, y)
    new, truth = table(1)
    assert r2_score(truth, model.predict(new)) > 0.98
    assert model.model_.metrics["rmse"] < 40
    assert np.allclose(model.model_.predict(new), model.predict(new), rtol=1e-5)
    model.model_.save(tmp_path / "m")
    assert np.allclose(FieldwiseModel.load(tmp_path / "m").predict(new), model.predict(new))
    with pytest.raises(Exception, match="numbers, not classes"):
        model.model_.predict_proba(new)


def test_counts():
    X, a, b, random = pairs(20_000)
    rate = np.exp(1.0 * (a == b % 3))
    model = FieldwiseRegressor(loss="poisson").fit(X, random.poisson(rate))
    found = model.predict(X)
    assert (found > 0).all()
    assert np.abs(found - rate).mean() < 0.1
    assert "deviance" in model.model_.metrics


def test_several_targets_at_once():
    X, a, b, random = pairs()
    Y = np.stack([a == b % 3, b > 2, a == 0], axis=1).astype(int)
    labels = FieldwiseClassifier().fit(X, Y)
    assert labels.predict_proba(X).shape == Y.shape
    assert (labels.predict(X) == Y).mean() > 0.99
    assert {"loss", "logloss_1", "logloss_3"} <= set(labels.model_.metrics)
    numbers = np.stack([10 * Y[:, 0], 1000.0 * Y[:, 1]], axis=1) + random.normal(size=(len(a), 2))
    found = FieldwiseRegressor().fit(X, numbers).predict(X)
    assert found.shape == numbers.shape
    assert r2_score(numbers, found) > 0.9


def test_weighted_fields_are_reported_and_folded_in():
    X, a, b, _ = pairs()
    y = (a == b % 3).astype(int)
    model = FieldwiseClassifier(combine="weighted").fit(X, y)
    weights = model.model_.settings["field_weights"]
    assert set(weights) == {"a", "b", "c"}
    assert min(weights.values()) >= 0
    assert max(weights.values()) != 1
    assert (model.predict(X) == y).mean() > 0.99
    f = model.field_scores(X)
    assert f.shape == (len(X), 3)
    z = f.sum(axis=1) + model.model_.offsets[0]
    assert np.allclose(z, model.decision_function(X), atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("members", [1, 2])
def test_votes(classes, members):
    X, a, b, _ = pairs()
    y = (a + b) % classes if classes == 3 else (a == b % 3).astype(int)
    settings = {"combine": "vote", "epochs": 6, "n_members": members, "learning_rate": 0.2}
    model = FieldwiseClassifier(**settings).fit(X, y)
    f = model.field_scores(X).reshape(len(X), members, -1, 3)  # a class more than two each
    f = f + model.model_.offsets.reshape(members, -1)[:, :, None]
    if classes == 2:
        by_field = 1 / (1 + np.exp(-f[:, :, 0]))
        assert np.allclose(by_field.mean(axis=(1, 2)), model.predict_proba(X)[:, 1], atol=1e-5)
        votes = (by_field > 0.5).reshape(len(X), -1).sum(axis=1)
        sure = votes != 3 * members / 2
        assert np.array_equal(model.predict(X)[sure], (votes > 3 * members / 2)[sure])
    else:
        chosen = f.argmax(axis=2).reshape(len(X), -1)
        votes = np.stack([(chosen == k).sum(axis=1) for k in range(3)], axis=1)
        best = votes.max(axis=1)
        assert np.array_equal(votes[np.arange(len(X)), model.predict(X)], best)
    assert (model.predict(X) == y).mean() > 0.6
    assert model.model_.layout.n_fields == 3


@pytest.mark.parametrize("classes", [2, 3])
def test_votes_can_be_weighted(classes, tmp_path):
    X, a, b, random = pairs(8000)
    y = (a + b) % classes if classes == 3 else (a == b % 3).astype(int)
    X = X.with_columns(noise=pl.Series(random.integers(0, 3, len(a)).astype(str)))
    train, test = slice(0, 6000), slice(6000, None)
    kept = {"epochs": 6, "learning_rate": 0.2}
    plain = FieldwiseClassifier(combine="vote", **kept).fit(X[train], y[train])
    model = FieldwiseClassifier(combine="weighted_vote", **kept).fit(X[train], y[train])
    np.testing.assert_array_equal(model.model_.table, plain.model_.table)
    weights = model.model_.settings["field_weights"]
    assert list(weights) == ["a", "b", "c", "noise"]
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights["a"], weights["b"]) > 4 * max(weights["c"], weights["noise"])
    found, equal = (log_loss(y[test], m.predict_proba(X[test])) for m in (model, plain))
    assert found < equal - 0.05
    f = model.field_scores(X[test]).reshape(2000, -1, 4) + model.model_.offsets[:, None]
    f = np.concatenate([-f / 2, f / 2], axis=1) if classes == 2 else f
    chances = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    u = np.array(list(weights.values()))
    np.testing.assert_allclose(chances @ u, model.predict_proba(X[test]), atol=1e-5)
    votes = np.stack([(f.argmax(axis=1) == k) @ u for k in range(classes)], axis=1)
    best = np.take_along_axis(votes, model.predict(X[test])[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(best, votes.max(axis=1))
    model.model_.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    assert loaded.predict(X[test]).tolist() == [str(k) for k in model.predict(X[test])]
    assert model.model_.metrics["loss"] < plain.model_.metrics["loss"]


def test_weights_of_voices_are_the_best_mixture():
    random = np.random.default_rng(0)
    z = random.normal(size=(500, 1, 3))
    y = (random.random(500) < 1 / (1 + np.exp(-z[:, 0, 1] * 2))).astype(float)
    w = random.random(500)
    objective = Objective((Head(),), 1, "weighted_vote").with_voices(z, y[:, None], w)

    def loss(u):
        p = (1 / (1 + np.exp(-z[:, 0]))) @ u
        return -np.sum(w * np.log(np.where(y == 1, p, 1 - p))) / w.sum()

    best = np.array(objective.voices)
    for _ in range(200):
        other = np.maximum(best + random.normal(0, 0.05, 3), 0)
        assert loss(other / other.sum()) >= loss(best) - 1e-6
    with pytest.raises(SettingError, match="'weighted_vote' is for classes"):
        Objective((Head("squared"),), 1, "weighted_vote")


def test_several_targets_of_a_table(tmp_path):
    X, a, b, random = pairs(8000)
    kind = np.array(["low", "mid", "high"])[(a + b) % 3]
    table = X.with_columns(
        yes=pl.Series(a == b % 3).cast(pl.Int8),
        kind=pl.Series(kind),
        size=pl.Series(a * 2.0 + b + random.normal(0, 0.1, len(a))),
    )
    names = ["yes", "kind", "size"]
    reading = {"target": names}
    path = tmp_path / "m"
    train_table(table[:6000], path, reading=reading, settings=TrainSettings(learning_rate=0.2))
    model = FieldwiseModel.load(path)
    assert [h.loss for h in model.objective.heads] == ["logistic", "softmax", "squared"]
    test = table[6000:]
    found = model.predict(test)
    assert list(found) == names
    assert (found["kind"] == test["kind"].to_numpy()).mean() > 0.95
    assert (found["yes"].astype(int) == test["yes"].to_numpy()).mean() > 0.95
    assert r2_score(test["size"], found["size"]) > 0.95
    row = model.predict(test.drop(names).to_dicts()[0])
    assert row["kind"][0] == found["kind"][0]
    measured = evaluate_table(model, test)
    assert measured["accuracy_kind"] > 0.95
    assert model.metrics["accuracy_kind"] > 0.95
    assert measured["loss"] == pytest.approx(sum(measured[f"loss_{n}"] for n in names))
    n_rows, _ = write_predictions(model, test, tmp_path / "p.csv")
    written = pl.read_csv(tmp_path / "p.csv")
    assert n_rows == written.height
    assert written.columns == [
        "yes_probability",
        *(f"kind_probability_{k}" for k in ("high", "low", "mid")),
        "size_prediction",
    ]
    with pytest.raises(ModelError, match="predicts numbers"):
        model.predict_proba(test)
    with pytest.raises(SchemaError, match="trials='size' goes with one target"):
        train_table(table, tmp_path / "n", reading={"target": ["yes", "kind"], "trials": "size"})


def test_members_are_better_than_one_and_end_as_one_table(tmp_path):
    X, a, b, random = pairs(8000)
    noisy = (random.random(len(a)) < 0.2 + 0.5 * (a == b % 3)).astype(int)
    X = X.with_columns(noise=pl.Series(random.integers(0, 400, len(a)).astype(str)))
    train, test = slice(0, 5000), slice(5000, None)
    losses = {}
    for n_members, bagging in ((1, False), (4, False), (4, True)):
        # Decay that leaves one model something to be averaged away.
        settings = {"n_members": n_members, "bagging": bagging, "weight_decay": 1e-5}
        model = FieldwiseClassifier(**settings, rank=8)
        model.fit(X[train], noisy[train])
        found = model.predict_proba(X[test])
        losses[n_members, bagging] = log_loss(noisy[test], found)
        layout = model.model_.layout
        assert (layout.n_outputs, layout.ranks[3]) == (1, 8 * n_members)
    assert losses[4, False] < losses[1, False]
    assert losses[4, True] == pytest.approx(losses[1, False], rel=0.02)
    z = maths.scores(model.model_.table, layout, layout.rows(model._encoder.codes(X)[0])) + (
        model.model_.offsets
    )
    assert np.allclose(z[:, 0], model.decision_function(X), atol=1e-4)


def test_bagged_members_draw_rows_with_replacement():
    codes = np.random.default_rng(0).integers(0, 1000, (20_000, 3)).astype(np.int32)
    objective = Objective((Head(), Head("squared")), n_members=3)
    batch = {"codes": codes, "weight": np.full((len(codes), 1), 2.0)}
    drawn = weights_of(batch, objective, bagging=True, seed=0) / 2
    assert drawn.shape == (len(codes), 6)
    assert np.array_equal(drawn[:, ::2], drawn[:, 1::2])  # a member's heads share their rows
    for k in (0, 2, 4):
        share = np.bincount(drawn[:, k].astype(int))[:4] / len(codes)
        assert np.allclose(share, [0.3679, 0.3679, 0.1839, 0.0613], atol=0.015)
    assert abs(np.corrcoef(drawn[:, ::2].T)[0, 1]) < 0.03
    order = np.random.default_rng(1).permutation(len(codes))
    moved = {"codes": codes[order], "weight": batch["weight"]}
    assert np.array_equal(weights_of(moved, objective, bagging=True, seed=0) / 2, drawn[order])
    assert weights_of(batch, objective, bagging=False, seed=0) is batch["weight"]


def test_clicks_of_impressions_are_their_rows():
    X, a, b, random = pairs(3000)
    shown = random.integers(0, 9, len(a))
    clicks = random.binomial(shown, 0.2 + 0.5 * (a == b % 3))
    model = FieldwiseClassifier(random_state=1).fit(X, clicks, n_trials=shown)
    rows = np.repeat(np.arange(len(a)), shown)
    first = np.concatenate([np.arange(s) for s in shown])
    y = (first < np.repeat(clicks, shown)).astype(int)
    longer = FieldwiseClassifier(random_state=1).fit(X[rows], y)
    chance = [m.predict_proba(X)[:, 1] for m in (model, longer)]
    assert np.abs(chance[0] - chance[1]).mean() < 0.03
    for bad, trials in (([3], [2]), ([-1], [2]), ([1], [np.nan])):
        with pytest.raises(DataError, match="trials"):
            FieldwiseClassifier().fit(X[:1], bad, n_trials=trials)
    with pytest.raises(SettingError, match="n_trials"):
        FieldwiseRegressor()._fit(X[:5], [1.0] * 5, None, None, [1] * 5)


def test_aggregated_rows_have_the_same_objective_and_gradient():
    random = np.random.default_rng(0)
    codes = random.integers(0, 3, (500, 3)).astype(np.int32)
    y, w = random.integers(0, 2, (500, 1)).astype(float), random.random((500, 1))
    few = aggregated({"codes": codes, "target": y, "weight": w}, (Head(),))
    assert len(few["codes"]) == 27
    layout = Layout((3, 3, 3), (2, 2, 2))
    table = random.normal(size=(9, layout.width))
    slopes, losses = [], []
    for c, t, v in ((codes, y, w), (few["codes"], few["target"], few["weight"])):
        f = maths.field_scores(table, layout, layout.rows(c))
        loss, df, _ = Objective().slopes(f, np.zeros(1), t, v, np.ones(3))
        slopes.append(maths.gradient(table, layout, layout.rows(c), df))
        losses.append(loss.sum() / v.sum())
    np.testing.assert_allclose(slopes[1], slopes[0], atol=1e-12)
    assert losses[1] == pytest.approx(losses[0], abs=1e-12)
    kept = aggregated({"codes": codes, "target": y}, (Head("squared"),))
    assert kept["weight"].sum() == 500
    assert len(kept["codes"]) == len(np.unique(np.concatenate([codes, y], axis=1), axis=0))


def test_training_on_aggregated_rows():
    X, a, b, random = pairs(30_000)
    y = (random.random(len(a)) < 0.2 + 0.5 * (a == b % 3)).astype(int)
    losses = [
        FieldwiseClassifier(aggregate=aggregate).fit(X, y).model_.metrics["logloss"]
        for aggregate in (False, True)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=5e-4)


def test_sampled_negatives_are_put_right():
    X, a, b, random = pairs(40_000)
    y = (random.random(len(a)) < 0.05 + 0.2 * (a == b % 3)).astype(int)
    kept = (y == 1) | (random.random(len(a)) < 0.25)
    model = FieldwiseClassifier(sampling_rate=0.25).fit(X.filter(pl.Series(kept)), y[kept])
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.01)
    plain = FieldwiseClassifier().fit(X.filter(pl.Series(kept)), y[kept])
    assert plain.predict_proba(X)[:, 1].mean() > 2 * y.mean()


def test_hard_constraints_hold():
    X, a, b, _ = pairs()
    model = FieldwiseClassifier(max_variance=0.5, max_mean=0.1, averages=1, epochs=3, penalty=0.0)
    model.fit(X, (a == b % 3).astype(int))
    variance, mean = maths.penalty(model.model_.table, model.model_.layout)
    assert (variance < 0.51).all()
    assert (mean < 0.11).all()


def test_warm_start_goes_on_with_every_task():
    X, a, b, _ = pairs()
    y = 1000 + 100.0 * (a == b % 3)
    model = FieldwiseRegressor(epochs=2, warm_start=True, n_members=2, learning_rate=0.1)
    first = model.fit(X, y).model_.metrics["rmse"]
    assert model.fit(X, y).model_.metrics["rmse"] < first
    more = FieldwiseClassifier(rank=2)
    for part in range(3):
        rows = slice(2000 * part, 2000 * (part + 1))
        more.partial_fit(X[rows], ((a + b) % 3)[rows], classes=[0, 1, 2])
    assert more.predict_proba(X).shape == (len(X), 3)


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (FieldwiseClassifier(), np.zeros(50), "1 class"),
        (FieldwiseClassifier(loss="squared"), np.arange(50) % 2, "loss='squared'"),
        (FieldwiseClassifier(sampling_rate=0.5), np.arange(50) % 3, "two classes"),
        (FieldwiseClassifier(sampling_rate=2), np.arange(50) % 2, "sampling_rate=2"),
        (FieldwiseClassifier(combine="max"), np.arange(50) % 2, "combine='max'"),
        (FieldwiseClassifier(n_members=0), np.arange(50) % 2, "n_members=0"),
        (FieldwiseClassifier(max_mean=-1), np.arange(50) % 2, "max_mean=-1"),
        (FieldwiseClassifier(), np.full((50, 2), 3), "0 and 1"),
        (FieldwiseRegressor(loss="poisson"), np.arange(50.0) - 3, "counts"),
        (FieldwiseRegressor(loss="logistic"), np.arange(50.0), "is for classes"),
        (FieldwiseRegressor(), np.full(50, np.inf), "infinity"),
        (FieldwiseRegressor(sampling_rate=0.5), np.arange(50.0), "sampling_rate"),
    ],
)
def test_refusals(estimator, y, message):
    X = pl.DataFrame({"a": [str(k % 4) for k in range(50)], "b": [str(k % 7) for k in range(50)]})
    with pytest.raises((DataError, SettingError), match=message):
        estimator.fit(X, y)


def test_a_class_seen_only_in_validation():
    X, a, _, _ = pairs(100)
    with pytest.raises(DataError, match="which is not one of"):
        FieldwiseClassifier().fit(X, a % 2, eval_set=(X, a))


def test_small_factorisation_machines_see_three_fields(tmp_path):
    """A product of three signs: no sum over pairs of fields holds anything of it."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 4, (6000, 3))
    sign = np.where(codes < 2, -1, 1).prod(axis=1)
    y = (sign > 0).astype(int)
    X = pl.DataFrame({name: codes[:, j].astype(str) for j, name in enumerate("abc")})
    settings = {"rank": 2, "learning_rate": 0.3, "epochs": 12, "patience": 12}
    linear = FieldwiseClassifier(**settings).fit(X, y)
    model = FieldwiseClassifier(component="fm", **settings).fit(X, y)
    assert log_loss(y, linear.predict_proba(X)) > 0.68
    assert log_loss(y, model.predict_proba(X)) < 0.1
    model.model_.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    assert loaded.layout.component == "fm"
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    two = FieldwiseClassifier(component="fm", n_members=2, **settings).fit(X, y)
    assert log_loss(y, two.predict_proba(X)) < 0.1
    assert two.model_.layout.ranks == (4, 4, 4)
    with pytest.raises(SettingError, match="component='deep' is not one of linear, fm"):
        FieldwiseClassifier(component="deep").fit(X, y)


def test_held_out_rows_may_be_missing_from_a_whole_block():
    """A table in the order of time, whose last rows are held out."""
    n = 70_000
    random = np.random.default_rng(0)
    day = np.repeat(np.arange(100), n // 100)
    X = pl.DataFrame({"day": day, "a": random.integers(0, 3, n), "b": random.integers(0, 3, n)})
    y = (X["a"] == X["b"]).cast(pl.Int8).alias("y")
    found = {}
    for combine in ("sum", "weighted_vote"):
        fit = {"settings": TrainSettings(learning_rate=0.2, epochs=1), "split": "time:day"}
        with TemporaryDirectory() as folder:
            model = train_table(
                X.with_columns(y), f"{folder}/m", reading={"target": "y"}, combine=combine, **fit
            )
        found[combine] = model.metrics["logloss"]
    assert found["sum"] < 0.1


def test_a_model_of_a_store_is_small_to_pickle(tmp_path):
    X, a, b, _ = pairs(5000)
    table = X.with_columns(y=pl.Series((a == b % 3).astype(int)))
    store = encode(table, tmp_path / "s", target="y")
    model = fit_store(store, settings=TrainSettings(learning_rate=0.2, epochs=1), rank=2)
    assert len(pickle.dumps(model)) < 20_000
    assert np.array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X)
    )


def test_a_class_named_as_another_target_has_a_column_of_its_own(tmp_path):
    random = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "x": random.choice(["u", "v"], 400),
            "a": random.choice(["b_prediction", "c", "d"], 400),
            "a_probability_b": random.normal(size=400),
        }
    )
    targets = ["a", "a_probability_b"]
    model = train_table(table, tmp_path / "m", reading={"target": targets}, rank=2)
    write_predictions(model, table, tmp_path / "p.csv")
    written = pl.read_csv(tmp_path / "p.csv")
    found = model.predictions(model.decision_function(table))
    assert written.width == 4
    assert written["a_probability_b_prediction"].to_numpy() == pytest.approx(found["a"][:, 0])
    assert written["a_probability_b_prediction_1"].to_numpy() == pytest.approx(found[targets[1]])
