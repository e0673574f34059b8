"""Every method by its name, trees among them, and all of them as scikit-learn classifiers."""

from __future__ import annotations

import pickle
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from fieldwise.baselines import BaselineClassifier, methods
from fieldwise.baselines.methods import METHODS, PAPERS, chosen_methods
from fieldwise.baselines.trees import Features
from fieldwise.compare.paper import PRESETS, PUBLISHED, SIZES
from fieldwise.data.shuffle import Rows, Seen, gathered
from fieldwise.errors import MissingExtra, SettingError
from fieldwise.layout import Layout
from fieldwise.losses import softmax
from fieldwise.objective import Head, Objective
from fieldwise.problem import Problem
from fieldwise.train import Running, TrainSettings

TREES = ["GBDT", "CatBoost", "HistGradientBoosting"]
QUICK = {
    "RaFM": {"learning_rate": 0.05},
    "LLFM": {"learning_rate": 0.1},
    "DeepFM": {"learning_rate": 0.01},
    "IPNN": {"learning_rate": 0.01},
    "OPNN": {"learning_rate": 0.01},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def agreement(n=4000, seed=0, n_classes=2):
    """Two fields of a few categories, and noise; the class is the sum of their numbers."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 6, (n, 3)).astype(np.int32)
    y = (codes[:, 0] + codes[:, 1]) % n_classes
    return codes, np.where(random.random(n) < 0.05, (y + 1) % n_classes, y)


def problem(n_classes=2, **more):
    codes, y = agreement(n_classes=n_classes)
    head = Head() if n_classes == 2 else Head("softmax", n_classes)
    held_out = np.arange(len(y)) % 5 == 0
    return Problem(
        layout=Layout.of((6, 6, 6), n_outputs=head.size),
        rows=Rows(codes=codes, target=y.astype(float), **more),
        counts=np.bincount((codes + np.array([0, 6, 12])).ravel()),
        only=~held_out,
        held_out=held_out,
        objective=Objective((head,)),
    )


@pytest.mark.parametrize("name", [n for n in METHODS if n != "LR"])
def test_every_method_learns_what_two_fields_say_together(name):
    about = problem()
    told = []
    running = Running(device="cpu", n_jobs=1, callbacks=[lambda r: told.append(r["loss"])])
    settings = {**METHODS[name].start, **QUICK.get(name, {})}
    fitted = METHODS[name].fit(about, settings, TrainSettings(epochs=30, init_scale=0.1), running)
    codes, y = agreement(seed=1)
    z = fitted.scorer.scores(codes, None)
    assert z.shape == (4000, 1)
    assert ((z[:, 0] > 0) == (y == 1)).mean() > 0.93
    assert fitted.loss < 0.25
    assert fitted.size > 0
    if name != "HistGradientBoosting":  # which has no way to tell
        assert min(told) == pytest.approx(fitted.loss, abs=1e-3)
    unseen = fitted.scorer.scores(np.full((2, 3), -1, np.int32), None)
    assert np.isfinite(unseen).all()


@pytest.mark.parametrize("name", [*TREES, "fieldwise"])
def test_more_classes(name):
    about = problem(n_classes=3)
    settings = {**METHODS[name].start, "ranks": 8} if name == "fieldwise" else METHODS[name].start
    running = Running(device="cpu", n_jobs=1)
    fitted = METHODS[name].fit(about, settings, TrainSettings(epochs=20), running)
    codes, y = agreement(seed=1, n_classes=3)
    chance = softmax(fitted.scorer.scores(codes, None))
    assert chance.shape == (4000, 3)
    assert (chance.argmax(axis=1) == y).mean() > 0.9


@pytest.mark.parametrize("name", TREES)
def test_a_watcher_stops_trees(name):
    if name == "HistGradientBoosting":
        pytest.skip("scikit-learn's trees have no callbacks")
    running = Running(n_jobs=1, callbacks=[lambda r: r["epoch"] >= 3])
    fitted = METHODS[name].fit(problem(), METHODS[name].start, TrainSettings(), running)
    assert fitted.was_stopped
    assert fitted.size <= 4


@pytest.mark.parametrize("name", ["GBDT", "CatBoost"])
def test_trees_take_shares_and_weights(name):
    codes, y = agreement()
    share = np.where(y == 1, 0.9, 0.2)
    held_out = np.arange(len(y)) % 5 == 0
    about = Problem(
        layout=Layout.of((6, 6, 6)),
        rows=Rows(codes=codes, target=share, weight=np.full(len(y), 3.0)),
        counts=np.ones(18),
        only=~held_out,
        held_out=held_out,
    )
    fitted = METHODS[name].fit(about, METHODS[name].start, TrainSettings(), Running(n_jobs=1))
    chance = 1 / (1 + np.exp(-fitted.scorer.scores(codes, None)[:, 0]))
    clean = (codes[:, 0] + codes[:, 1]) % 2 == 1
    assert np.abs(chance - np.where(clean, 0.865, 0.235)).mean() < 0.03


def test_scikit_learns_trees_refuse_shares():
    about = problem()
    halves = Rows(codes=about.rows.read(0, 4000)["codes"], target=np.full(4000, 0.5))
    shared = Problem(layout=about.layout, rows=halves, counts=about.counts)
    with pytest.raises(SettingError, match="take classes, not shares"):
        METHODS["HistGradientBoosting"].fit(shared, {}, TrainSettings(), Running())


def test_features_of_trees():
    """Unseen is missing, a linear field is its number, rare categories may share one."""
    about = Problem(
        layout=Layout.of((4, 2, 4), rank=0),
        rows=Rows(codes=np.zeros((1, 3), np.int32), target=np.zeros(1)),
        counts=np.array([5, 1, 9, 2, 17, 1, 1, 1, 1, 1]),
        valued=(1,),
        ordered=(1, 2),
    )
    codes = np.array([[0, 0, 3], [1, 0, 2], [2, 0, 1], [3, 0, 0], [-1, 1, 3]], np.int32)
    values = np.array([[1, 0.5, 1], [1, 1.5, 1], [1, 2.5, 1], [1, 3.5, 1], [1, 4.5, 1]])
    whole, few = Features(about), Features(about, most=3)
    assert whole.categorical == [0]
    assert few(codes, values)[:, 2].tolist() == [3, 2, 1, 0, 3]
    np.testing.assert_array_equal(whole(codes, values)[:, 0], [0, 1, 2, 3, np.nan])
    np.testing.assert_array_equal(few(codes, values)[:, 0], [1, 2, 0, 2, np.nan])
    np.testing.assert_array_equal(few(codes, values)[:, 1], [*values[:4, 1], np.nan])


def test_categories_without_counts_are_unseen():
    layout = Layout.of((3, 2), rank=0, slots=(2, 1))
    codes = np.array([[0, 2, 1], [1, -1, 0]], np.int32)
    seen = Seen(Rows(codes=codes, target=np.zeros(2)), layout, np.array([1, 0, 4, 0, 2]))
    assert seen.read(0, 2)["codes"].tolist() == [[0, 2, 1], [-1, -1, -1]]
    assert seen.read(0, 2)["codes"].dtype == np.int32
    rare = Seen(Rows(codes=codes), layout, np.array([1, 0, 4, 0, 2]), rare=[0, 1])
    assert rare.read(0, 2)["codes"].tolist() == [[0, 2, 1], [0, 0, -1]]
    assert gathered(seen, np.array([False, True]))["codes"].tolist() == [[-1, -1, -1]]
    assert gathered(seen, np.array([False, False]))["codes"].shape == (0, 3)


def test_names_of_methods():
    assert [m.name for m in chosen_methods(["paper"])] == list(PAPERS)
    assert [m.name for m in chosen_methods(["all"])] == list(METHODS)
    assert [m.name for m in chosen_methods([" fm", "OURS", "lightgbm", "FM"])] == [
        *("FM", "fieldwise", "GBDT")
    ]
    with pytest.raises(SettingError, match="'DeepFN' is not one of LR, .* mean 'DeepFM'?"):
        chosen_methods(["DeepFN"])


def test_why_a_method_cannot_run(monkeypatch):
    assert "two classes, and the target has 5" in METHODS["FM"].why_not(4, 5)
    assert METHODS["GBDT"].why_not(1, 5) == ""
    assert METHODS["LR"].why_not(1, 2) == ""
    for name in ("FM", "FFM", "RaFM", "LLFM", "DeepFM", "IPNN", "OPNN"):
        assert "pairs of fields" in METHODS[name].why_not(1, 2)
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    assert 'pip install "fieldwise[baselines]"' in METHODS["GBDT"].why_not(4, 2)
    assert str(MissingExtra("torch", "baselines")) == METHODS["LR"].why_not(4, 2)


@pytest.mark.parametrize("table", ["criteo", "avazu"])
def test_parameters_are_as_many_as_published(table):
    """Where the paper's own counts are consistent with its settings."""
    layout = Layout.of(SIZES[table], rank=0)
    same = {"LR", "FFM", "LLFM", "IPNN"} | ({"FM"} if table == "criteo" else set())
    kinds = methods_by_name()
    for name in same:
        about = {k: v for k, v in PRESETS[table][name].items() if k not in methods.STEPS}
        with torch.device("meta"):
            found = kinds[name](layout, **about).n_parameters(layout)
        said = float(PUBLISHED[table][name]["parameters"].split()[0])
        assert found / 1e6 == pytest.approx(said, abs=0.011), name


def methods_by_name():
    from fieldwise.baselines import FFM, FM, IPNN, LLFM, LR

    return {"LR": LR, "FM": FM, "FFM": FFM, "LLFM": LLFM, "IPNN": IPNN}


def test_presets_are_settings_of_their_methods():
    for settings in PRESETS.values():
        assert list(settings) == list(PAPERS)
        for name, given in settings.items():
            assert set(given) == set(METHODS[name].grid), name


LOOSE = {
    "check_sample_weight_equivalence_on_dense_data": "mini-batches are made of rows, not of weight",
}


@parametrize_with_checks(
    [
        BaselineClassifier("FM", rank=4, epochs=20, learning_rate=0.1, device="cpu"),
        BaselineClassifier("DeepFM", rank=4, epochs=10, learning_rate=0.01, n_jobs=1),
        BaselineClassifier("GBDT", n_jobs=1),
    ],
    expected_failed_checks=lambda estimator: {} if estimator.kind == "GBDT" else LOOSE,
)
@pytest.mark.filterwarnings("ignore:.*X does not have valid feature names")
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def frame(seed=0, n_classes=2):
    codes, y = agreement(seed=seed, n_classes=n_classes)
    letters = np.array(list("uvwxyz"))
    return pl.DataFrame({f"c{j}": letters[codes[:, j]] for j in range(3)}), y


@pytest.mark.parametrize("kind", ["FFM", "RaFM", "GBDT", "CatBoost", "HistGradientBoosting"])
def test_classifiers_learn_predict_and_go_through_a_pickle(kind):
    X, y = frame()
    names = np.array(["no", "yes"])
    about = {"learning_rate": 0.05} if kind == "RaFM" else {}
    model = BaselineClassifier(kind, n_jobs=1, **about).fit(X, names[y])
    new, truth = frame(seed=1)
    assert (model.predict(new) == names[truth]).mean() > 0.9
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(new), model.predict_proba(new))
    assert model.n_parameters_ > 0
    strange = new.with_columns(c0=pl.lit("never seen"))
    assert np.isfinite(again.decision_function(strange)).all()


def test_trees_see_numbers_as_numbers():
    """Of a linear column, a binned one and a category; a missing number is missing."""
    random = np.random.default_rng(0)
    x = random.normal(size=3000)
    y = (np.abs(x) < 0.5).astype(int)
    X = pl.DataFrame({"x": pl.Series(x).set(pl.Series(x > 3), None), "c": ["u", "v"] * 1500})
    for kinds in ({"x": "linear"}, {"x": "quantile"}):
        for kind in TREES:
            model = BaselineClassifier(kind, kinds=kinds, n_jobs=1).fit(X, y)
            assert model._scorer.features.categorical == [1]
            assert (model.predict(X) == y).mean() > 0.9
            assert np.isfinite(model.decision_function(X.with_columns(x=None))).all()


def test_a_classifier_judges_by_the_rows_it_is_given():
    X, y = frame()
    model = BaselineClassifier("FM", rank=4).fit(X, y, eval_set=frame(seed=1))
    assert (model.predict(X) == y).mean() > 0.9
    assert clone(model).get_params() == model.get_params()


def test_scikit_learns_trees_are_cut_at_the_best():
    """Steps so large that the last trees are far from the best."""
    about = problem()
    held_out = gathered(about.rows, about.held_out)
    settings = {"learning_rate": 0.9, "max_leaf_nodes": 127}
    fitted = METHODS["HistGradientBoosting"].fit(
        about, settings, TrainSettings(), Running(n_jobs=1)
    )
    z = fitted.scorer.scores(held_out["codes"], None)[:, 0]
    loss = np.mean(np.logaddexp(0, z) - held_out["target"][:, 0] * z)
    assert loss == pytest.approx(fitted.loss, abs=1e-6)
    scores = -fitted.scorer.chances.model.validation_score_[1:]
    assert fitted.size == np.argmin(scores) + 1 < len(scores)
    assert fitted.loss == pytest.approx(scores.min(), abs=1e-5)


def test_what_classifiers_refuse():
    X, y = frame()
    for name, value in (("rank", -1), ("dropout", 1.0)):
        with pytest.raises(SettingError, match=f"{name}={value} must be at least"):
            BaselineClassifier("DeepFM", **{name: value}).fit(X, y)
    with pytest.raises(SettingError, match="dropout is not a setting of FM; it has learning_rate,"):
        BaselineClassifier("FM", dropout=0.1).fit(X, y)
    with pytest.raises(SettingError, match="Did you mean 'OPNN'?"):
        BaselineClassifier("OPN").fit(X, y)
    with pytest.raises(SettingError, match="is not a baseline; use FieldwiseClassifier"):
        BaselineClassifier("fieldwise").fit(X, y)
    with pytest.raises(SettingError, match="FM: learns two classes, and the target has 3"):
        BaselineClassifier("FM").fit(*frame(n_classes=3))
    with pytest.raises(SettingError, match="FM: learns from pairs of fields"):
        BaselineClassifier("FM").fit(X[["c0"]], y)
    with pytest.raises(SettingError, match="learns one target, and y has 2"):
        BaselineClassifier("FM").fit(X, np.stack([y, 1 - y], axis=1))


def test_no_gpu_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    X, y = frame()
    with pytest.raises(SettingError, match="torch finds no GPU"):
        BaselineClassifier("FM", device="cuda").fit(X, y)
    with pytest.raises(SettingError, match="device='tpu' is not one of"):
        BaselineClassifier("FM", device="tpu").fit(X, y)


def test_packages_of_the_methods_are_here():
    """Or the tests above would have skipped them in silence."""
    assert all(find_spec(m.package) for m in METHODS.values() if m.package)
