"""Explanations of real models: they add up, whatever the table holds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fieldwise import (
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    MissingExtra,
    ModelError,
)
from fieldwise.data.vocabulary import Vocabulary


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


IN_THREADS = """
import sys, warnings
from concurrent.futures import ThreadPoolExecutor
import numpy as np, polars as pl
from fieldwise import FieldwiseModel
warnings.simplefilter("ignore")
model = FieldwiseModel.load(sys.argv[1])
frame = pl.read_parquet(sys.argv[2])
alone = model.explain(frame).shapley
few = model.explain(frame[:5]).shapley
assert np.array_equal(few, alone[:5])
for _ in range(30):
    with ThreadPoolExecutor(4) as pool:
        explained = [pool.submit(model.explain, frame) for _ in range(4)]
        scored = [pool.submit(model.decision_function, frame) for _ in range(4)]
    assert all(np.array_equal(one.result().shapley, alone) for one in explained)
    assert len({one.result().tobytes() for one in scored}) == 1
"""


def test_many_threads_explain_and_score_at_once(fitted, tmp_path):
    """In a process of its own, which two parallel kernels at the same time would end."""
    path, frame = fitted.model_.save(tmp_path / "m"), table(seed=1)[0]
    frame.write_parquet(tmp_path / "t")
    command = [sys.executable, "-c", IN_THREADS, str(path), str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


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
    with pytest.raises(ModelError, match="the prediction of a vote is not a sum"):
        vote.explain(X[["a", "b"]])


# Of matplotlib's, in that package.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_plots_of_shap_take_what_we_give(fitted):
    shap = pytest.importorskip("shap", reason="the package shap is not installed")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    X, _ = table(60, seed=3)
    found = fitted.explain(X)
    theirs = found.to_shap()
    assert isinstance(theirs, shap.Explanation)
    assert theirs.shape == (60, 5)
    assert list(theirs.feature_names) == ["a", "b", "x", "z", "tags"]
    assert theirs.data[0, 0] == X["a"][0]
    z = fitted.decision_function(X)
    np.testing.assert_allclose(theirs.base_values + theirs.values.sum(axis=1), z, atol=1e-5)
    for draw in (lambda: shap.plots.waterfall(theirs[0], show=False),
                 lambda: shap.plots.bar(theirs, show=False)):  # fmt: skip
        draw()
        assert pyplot.gcf().axes
        pyplot.close("all")
    y = np.stack([np.arange(60) % 3, np.arange(60) % 2], axis=1).astype(float)
    several = FieldwiseRegressor(rank=2, epochs=1, kinds=KINDS).fit(X, y).explain(X).to_shap()
    assert several.shape == (60, 5, 2)
    assert several.base_values.shape == (60, 2)


def test_without_the_package_it_says_what_to_install(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(MissingExtra, match=r'pip install "fieldwise\[shap\]"'):
        fitted.explain(table(5)[0]).to_shap()


def test_notebooks_show_escaped_tables(fitted):
    X, y = table(400)
    X = X.with_columns(a=pl.when(pl.col("a") == "a0").then(pl.lit("<b>&</b>")).otherwise("a"))
    model = FieldwiseClassifier(rank=2, epochs=1, kinds=KINDS).fit(X, y)
    bad = X.filter(pl.col("a") == "<b>&</b>").head(2)
    shown = [
        model.model_._repr_html_(),
        model.explain(bad)._repr_html_(),
        model.explain_category("a", "<b>&</b>")._repr_html_(),
        model.compare_categories("a", "<b>&</b>", "a1")._repr_html_(),
        model.explain_fields()._repr_html_(),
    ]
    for text in shown:
        assert "<table" in text
        assert "<b>&" not in text
    for text in shown[1:4]:
        assert "&lt;b&gt;&amp;&lt;/b&gt;" in text
    assert "tags" in shown[0]
    assert "tags" in shown[4]


def test_pictures_are_drawn(fitted):
    found = fitted.explain(table(20, seed=4)[0])
    fields = fitted.explain_fields()
    card = fitted.explain_category("a", "a1")
    drawn = [found.plot(2), fields.plot(), fields.plot_pairs(), card.plot()]
    drawn += [fitted.model_.plot_importance(), fitted.model_.plot_history()]
    for axes in drawn:
        assert len(axes.patches) + len(axes.images) + len(axes.lines) > 0
    names = [label.get_text() for label in drawn[1].get_yticklabels()]
    assert set(names) == {"a", "b", "x", "z", "tags"}
    assert names == [row["name"] for row in fields.to_dict()["fields"]]
    widths = {p.get_width() for p in drawn[1].patches}
    assert any(w == pytest.approx(float(fields.share.max())) for w in widths)


def test_a_model_without_counts_is_not_explained(fitted):
    model = fitted.model_
    fields = [
        replace(f, entries=f.entries.with_columns(count=pl.lit(0))) for f in model.vocabulary.fields
    ]
    empty = replace(model, vocabulary=Vocabulary(model.schema, fields))
    for ask in (lambda: empty.explain(table(3)[0]), lambda: empty.explain_category("a", "a1")):
        with pytest.raises(ModelError, match="does not know how often .* train it again"):
            ask()
    assert len(empty.predict_proba(table(3)[0])) == 3
