"""Models as ONNX: what onnxruntime makes of raw rows is what the model makes of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import run
from fieldwise import (
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    Layout,
    MissingExtra,
    ModelError,
    Schema,
    SettingError,
    StoreError,
    Target,
    boosted,
    load_flights,
    maths,
)
from fieldwise.data.schema import Field
from fieldwise.data.values import as_text, field_keys
from fieldwise.data.vocabulary import ENTRIES, FieldVocabulary, Vocabulary
from fieldwise.export import export
from fieldwise.export.onnx import graph as graphs
from fieldwise.export.onnx.trees import tree_scores
from fieldwise.objective import Head, Objective

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

CLOSE = 1e-5  # of probabilities and scores, relative where they are large
pytestmark = pytest.mark.filterwarnings("ignore:values never seen in training")
QUICK: dict[str, Any] = {"rank": 3, "epochs": 2, "learning_rate": 0.3, "n_jobs": 1}


def feeds(session: Any, frame: pl.DataFrame) -> dict[str, np.ndarray]:
    """A table as the page on exporting says; lists are padded."""
    out = {}
    for wanted in session.get_inputs():
        column = frame[wanted.name]
        is_text = wanted.type == "tensor(string)"
        dtype, nothing = (pl.String, "") if is_text else (pl.Float64, np.nan)
        if column.dtype == pl.List:
            rows = [[] if v is None else list(v) for v in column.cast(pl.List(dtype))]
            width = max(1, *map(len, rows))
            out[wanted.name] = np.array([r + [nothing] * (width - len(r)) for r in rows], object)
        else:
            out[wanted.name] = column.cast(dtype).fill_null(nothing).to_numpy()[:, None]
        out[wanted.name] = out[wanted.name].astype(object if is_text else np.float64)
    return out


def opened(model: FieldwiseModel, folder: Path, **options: Any) -> Any:
    path = export(model, folder / "model.onnx", **options)
    onnx.checker.check_model(str(path), full_check=True)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), settings)


def answers(session: Any, frame: pl.DataFrame) -> dict[str, np.ndarray]:
    names = [made.name for made in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds(session, frame)), strict=True))


def check_same(model: FieldwiseModel, session: Any, frame: pl.DataFrame) -> dict[str, np.ndarray]:
    """Scores, what they stand for, and what every field adds to them."""
    found = answers(session, frame)
    z = model.decision_function(frame)
    np.testing.assert_allclose(found["score"], z, atol=CLOSE, rtol=CLOSE)
    assert found["score"].shape == z.shape
    meant = model.predictions(z)
    if not isinstance(meant, dict):
        kind = "probability" if model.objective.heads[0].is_class else "prediction"
        meant = {kind: meant}
    for name, values in meant.items():
        (key,) = (k for k in found if k == name or k.startswith(f"{name}_pr"))
        np.testing.assert_allclose(found[key], values, atol=CLOSE, rtol=CLOSE)
    if "contributions" in found:
        explained = model.explain(frame).credited()
        about = session.get_modelmeta().custom_metadata_map
        assert json.loads(about["fields"]) == explained.names
        np.testing.assert_allclose(json.loads(about["base"]), explained.base)
        np.testing.assert_allclose(
            found["contributions"], explained.shapley, atol=CLOSE, rtol=CLOSE
        )
        whole = np.array(json.loads(about["base"])) + found["contributions"].sum(axis=-1)
        np.testing.assert_allclose(whole, z, atol=CLOSE, rtol=CLOSE)
    return found


WORDS = ["a", "b", "B", " lead", "lead", "01", "1", "Straße", "😀 ü", "x" * 300, "NA", "true"]
NUMBERS = [0, 1, 7, -3, 1_000_000, 2**53 - 1]
SHARES = [0.0, 0.25, -1.5, 0.1, 1e-7, 1e20]
LONG = ["9007199254740993", "9007199254740992", "-18446744073709551617", "5"]
TIMES = ["2024-02-29T00:59:59", "2023-12-31 23:00:01", "2000-01-01T07:30", "1999-07-04T12:05:00Z"]
TAGS = ["a", "b", "c d", "é"]
KINDS = {
    "share": "category", "number": "category", "visits": "log2", "size": "linear",
    "tall": "linear", "when": "time", "tags": "list:|", "long": "category",
}  # fmt: skip
FIELDS = {"edged": {"edges": (-1.0, 0.0, 0.1, 2.5)}}


def drawn(random: np.random.Generator, n: int, values: list[Any], missing: float = 0.1) -> list:
    picked = random.integers(0, len(values), n)
    return [None if random.random() < missing else values[k] for k in picked]


def table(n: int, seed: int) -> pl.DataFrame:
    """A column of every kind."""
    random = np.random.default_rng(seed)
    numbers = partial(drawn, random, n)
    lists = [drawn(random, random.integers(1, 4), TAGS, 0) for _ in range(n)]
    return pl.DataFrame(
        {
            "word": drawn(random, n, WORDS),
            "number": pl.Series(drawn(random, n, NUMBERS), dtype=pl.Int64),
            "share": pl.Series(drawn(random, n, SHARES), dtype=pl.Float64),
            "flag": pl.Series(drawn(random, n, [True, False]), dtype=pl.Boolean),
            "price": numbers(np.round(random.gamma(2, 10, 200), 2).tolist()),
            "edged": numbers(random.normal(0, 1, 200).tolist()),
            "visits": numbers([-3.0, -1.0, 0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 55.0, 1000.0, 123456.0]),
            "size": numbers(random.normal(5, 3, 200).tolist()),
            "tall": random.normal(0, 1, n),
            "when": drawn(random, n, TIMES),
            "tags": [None if k % 9 == 0 else "|".join(v) for k, v in enumerate(lists)],
            "many": [None if k % 7 == 0 else v for k, v in enumerate(lists)],
            "ids": [None if k % 8 == 0 else [len(t) for t in v] for k, v in enumerate(lists)],
            "long": drawn(random, n, LONG),
        }
    )


def target(frame: pl.DataFrame, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    told = (frame["word"].fill_null("") < "c") ^ (frame["price"].fill_null(0) > 15)
    return np.where(random.random(len(frame)) < 0.1, 1, 0) ^ told.to_numpy()


def scrambled(model: FieldwiseModel, seed: int, scale: float = 0.4) -> FieldwiseModel:
    """With another table, drawn by chance: nothing is small or the same by itself."""
    random = np.random.default_rng(seed)
    rows = random.normal(0, scale, model.table.shape).astype(np.float32)
    means = maths.mean_rows(rows, model.layout, model.vocabulary.counts())
    return replace(model, rows=np.concatenate([rows, means]))


def classifier(frame: pl.DataFrame, **settings: Any) -> FieldwiseModel:
    settings = {"kinds": KINDS, "fields": FIELDS, **QUICK, **settings}
    settings["kinds"] = {k: v for k, v in settings["kinds"].items() if k in frame.columns}
    settings["fields"] = {k: v for k, v in settings["fields"].items() if k in frame.columns}
    return FieldwiseClassifier(**settings).fit(frame, target(frame, 0)).model_


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[FieldwiseModel, Any]:
    """A model with a field of every kind, and its session."""
    model = scrambled(classifier(table(600, 1)), 1)
    return model, opened(model, tmp_path_factory.mktemp("every"))


def test_every_kind_of_field_scores_as_in_the_model(everything) -> None:
    model, session = everything
    kinds = {f.binning or f.part or f.kind for f in model.schema.fields}
    assert kinds == {
        "category", "quantile", "edges", "log2", "linear", "date", "weekday", "hour", "list",
    }  # fmt: skip
    types = {wanted.name: wanted.type for wanted in session.get_inputs()}
    assert [*types] == model.schema.columns
    texts = {name for name, kind in types.items() if kind == "tensor(string)"}
    assert texts == {"word", "flag", "when", "tags", "many", "long"}
    assert {kind for name, kind in types.items() if name not in texts} == {"tensor(double)"}
    found = check_same(model, session, table(500, 2))
    assert set(found) == {"probability", "score", "contributions"}
    assert found["probability"].std() > 0.1
    for n in (1, 2):
        check_same(model, session, table(500, 3).head(n))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ANY = st.floats(allow_nan=False, width=64)
ODD: dict[str, st.SearchStrategy[Any]] = {
    "word": st.sampled_from(WORDS) | TEXT,
    "number": st.sampled_from(NUMBERS) | st.integers(-(2**53), 2**53),
    "share": st.sampled_from(SHARES) | ANY,
    "flag": st.booleans(),
    "price": ANY | st.floats(0, 40),
    "edged": ANY | st.sampled_from([-1.0, 0.0, -0.0, 0.1, 0.1 + 1e-16, 0.30000000000000004, 2.5]),
    "visits": st.integers(-10, 10_000) | st.floats(-5, 1e6),
    "size": st.floats(-100, 100),
    "tall": st.floats(-100, 100),
    "when": st.sampled_from(TIMES) | st.datetimes(allow_imaginary=False).map(lambda t: f"{t}"),
    "tags": st.lists(st.sampled_from([*TAGS, "new"]), min_size=1, max_size=5).map(" | ".join),
    "many": st.lists(st.sampled_from([*TAGS, "new"]), min_size=1, max_size=5),
    "ids": st.lists(st.integers(0, 4), min_size=1, max_size=5),
    "long": st.sampled_from(LONG) | st.integers().map(str),
}
DTYPES = table(20, 0).schema


@given(st.lists(st.fixed_dictionaries({k: st.none() | v for k, v in ODD.items()}), min_size=1))
def test_odd_values_score_as_in_the_model(everything, rows) -> None:
    """Unseen, missing, at and beside edges, of any letters; an empty text is missing."""
    model, session = everything
    frame = pl.DataFrame(rows, schema=DTYPES).with_columns(pl.col("word").replace("", None))
    check_same(model, session, frame)


@pytest.mark.parametrize("value", ["", " ", "tRuE", "1", "0.0", "FALSE"])
def test_truth_values_are_told_however_they_are_written(everything, value) -> None:
    model, session = everything
    frame = table(1, 5)
    as_text = frame.with_columns(flag=pl.lit(value))
    given = as_text if value.strip() else frame.with_columns(flag=pl.lit(None, pl.Boolean))
    found = answers(session, as_text if value != " " else given)
    np.testing.assert_allclose(found["score"], model.decision_function(given), atol=CLOSE)


def words_of(field: Field, frame: pl.DataFrame) -> FieldVocabulary:
    """Every other key of a column is known, with a code of its own."""
    keys = field_keys(field, as_text(frame[field.column])).unique().drop_nulls().sort()
    keys = keys.gather_every(2) if len(keys) > 10 else keys
    codes = np.arange(1, len(keys) + 1)
    entries = {"category": keys, "code": codes, "count": np.full(len(keys), 3)}
    return FieldVocabulary(field, pl.DataFrame(entries, schema=ENTRIES))


def by_hand(words: list[FieldVocabulary], rank: int = 2) -> FieldwiseModel:
    """A model of these categories with a table drawn by chance."""
    target = Target(column="y", classes=("no", "yes"))
    schema = Schema(fields=tuple(w.field for w in words), targets=(target,))
    vocabulary = Vocabulary(schema, words)
    layout = Layout.of(vocabulary.sizes, rank=rank)
    rows = np.random.default_rng(0).normal(0, 0.5, (layout.n_rows, layout.width))
    rows = np.concatenate([rows, maths.mean_rows(rows, layout, vocabulary.counts())])
    return FieldwiseModel(
        vocabulary, layout, rows.astype(np.float32), Objective(), np.array([-0.3])
    )


@pytest.mark.parametrize("part", ["date", "year", "month", "day", "weekday", "hour", "minute"])
def test_calendar_parts(part, tmp_path) -> None:
    """Hours of five years, one of them with a leap day, and times before and after."""
    hours = pl.datetime_range(pl.datetime(2019, 1, 1), pl.datetime(2023, 12, 31), "7h", eager=True)
    times = hours.dt.offset_by("13m").dt.to_string("%Y-%m-%dT%H:%M:%S")
    known = pl.DataFrame({"t": times, "o": [f"{k % 3}" for k in range(len(times))]})
    dtype = "string" if part == "date" else "integer"
    fields = Field(name="f", column="t", part=part, dtype=dtype), Field(name="o")
    model = by_hand([words_of(field, known) for field in fields])
    odd = ["1970-01-01T00:00:00", "2100-12-31 23:59", "2020-02-29T05:00:00.123456", None]
    odd += [] if part in ("hour", "minute") else ["2021-03-01", "2021-12-31", "0001-01-01"]
    new = pl.DataFrame({"t": [*times.sample(500, seed=0), *odd]}).with_columns(o=pl.lit("1"))
    check_same(model, opened(model, tmp_path), new)


def planted(n: int, seed: int) -> pl.DataFrame:
    """Every user likes half of the items, with no pattern: only the two together tell."""
    liking = np.random.default_rng(0).integers(0, 2, (12, 10))
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 12, n), random.integers(0, 10, n)
    told = np.where(random.random(n) < 0.95, liking[user, item], 1 - liking[user, item])
    return pl.DataFrame(
        {
            "user": [f"once{seed}-{k}" if k % 50 == 0 else f"u{u}" for k, u in enumerate(user)],
            "item": [None if k == 0 else f"i{k}" for k in item],
            "price": [None if p < 3 else round(p, 2) for p in random.gamma(2, 10, n)],
            "visits": random.integers(0, 60, n),
            "size": random.normal(0, 1, n),
            "tags": [["p", "q"][: 1 + k % 2] for k in range(n)],
            "liked": told,
        }
    )


@pytest.mark.parametrize("preset", ["glass", "best"])
def test_presets_with_crosses(preset, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(boosted, "MOST_TREES", 60)
    frame = planted(1500, 1)
    kinds = {"size": "linear"}
    made = FieldwiseClassifier(
        preset=preset, kinds=kinds, n_jobs=1, rank=4, epochs=2, learning_rate=0.1
    )
    model = made.fit(frame.drop("liked"), frame["liked"]).model_
    assert model.vocabulary.evidence is not None
    assert (model.boosted is not None) == (preset == "best")
    session = opened(model, tmp_path)
    new = planted(700, 2).drop("liked")
    found = check_same(model, session, new)
    assert ("contributions" in found) == (preset == "glass")
    assert found["probability"].std() > 0.2
    check_same(model, session, new.head(1))


def test_boosted_trees_of_classes_and_of_missing_numbers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(boosted, "MOST_TREES", 30)
    frame = planted(1200, 3)
    random = np.random.default_rng(0)
    y = np.where(random.random(1200) < 0.2, 2, frame["liked"].to_numpy())
    made = FieldwiseClassifier(preset="best", n_jobs=1, rank=2, epochs=1, learning_rate=0.1)
    model = made.fit(frame.drop("liked", "tags"), y).model_
    found = check_same(model, opened(model, tmp_path), planted(300, 4).drop("liked", "tags"))
    assert found["probability"].shape == (300, 3)


@pytest.mark.parametrize("missing", [True, False])
def test_trees_alone_decide_as_lightgbm_does(missing, tmp_path) -> None:
    """At thresholds, beside them, and of NaN, whether the trees have met it or not."""
    random = np.random.default_rng(0)
    X = random.normal(0, 1, (800, 4)).astype(np.float32)
    X[random.random(X.shape) < 0.2 * missing] = np.nan
    y = (np.nan_to_num(X[:, 0]) * X[:, 1] > 0) + 2 * np.isnan(X[:, 2])
    head = Head("softmax", 4) if missing else Head()
    examples = boosted.Examples(X, y if missing else y > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted, "UNJUDGED", 25)
        trees = boosted.fit_boosted(examples, None, head, n_jobs=1, shift=0.25)
    graph = graphs.Graph(["x"])
    graph.input("x", np.float32, ["N", 4], "")
    graph.output(tree_scores(graph, "x", trees), ["N", head.size], "")
    session = runtime.InferenceSession(graph.finished("", {}))
    edges = [float(t) for text in trees.members for line in text.splitlines()
             if line.startswith("threshold=") for t in line[10:].split()]  # fmt: skip
    at = np.array(edges[:400], np.float32)
    at = at[np.abs(at) > 1e-30]  # nearer to zero than 1e-35 is zero to LightGBM
    odd = np.concatenate([at, np.nextafter(at, np.float32(9)), [np.nan, 0, np.inf, -np.inf]])
    new = random.choice(odd, (3000, 4)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": new})[0], trees.scores(new), atol=1e-6)


def test_trees_that_are_damaged(tmp_path) -> None:
    graph = graphs.Graph(["x"])
    text = "tree\n\nTree=0\nnum_leaves=2\nsplit_feature=0\nthreshold=rubbish\nleaf_value=1 2\n"
    with pytest.raises(ModelError, match="damaged"):
        tree_scores(graph, "x", boosted.Boosted([text]))
    text = "tree\n\nTree=0\nsplit_feature=0\nthreshold=1\ndecision_type=1\nleft_child=-1\n"
    with pytest.raises(ModelError, match="ONNX cannot carry: categories"):
        tree_scores(graph, "x", boosted.Boosted([text + "right_child=-2\nleaf_value=1 2\n"]))


def pairs(n: int, seed: int) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 3, n), random.integers(0, 6, n)
    frame = pl.DataFrame({"a": [f"a{k}" for k in a], "b": b, "c": random.normal(0, 1, n)})
    return frame, a, b


TASKS: dict[str, Callable[[pl.DataFrame, np.ndarray, np.ndarray], Any]] = {
    "classes": lambda X, a, b: FieldwiseClassifier(**QUICK).fit(X, (a + b) % 3),
    "several": lambda X, a, b: FieldwiseClassifier(**QUICK).fit(
        X, np.stack([a == 0, b > 2], 1) * 1
    ),
    "numbers": lambda X, a, b: FieldwiseRegressor(**QUICK).fit(
        X, 5000 + 300.0 * np.sign(a - b % 3)
    ),
    "two numbers": lambda X, a, b: FieldwiseRegressor(**QUICK).fit(X, np.stack([1.0 * a, -b], 1)),
    "huber": lambda X, a, b: FieldwiseRegressor(loss="huber", **QUICK).fit(X, 1.0 * a - b),
    "counts": lambda X, a, b: FieldwiseRegressor(loss="poisson", **QUICK).fit(X, (a == b % 3) + a),
    "members": lambda X, a, b: FieldwiseClassifier(n_members=2, **QUICK).fit(X, a == b % 3),
    "weighted": lambda X, a, b: FieldwiseClassifier(combine="weighted", **QUICK).fit(X, a == b % 3),
    "sampled": lambda X, a, b: FieldwiseClassifier(sampling_rate=0.1, **QUICK).fit(X, a == b % 3),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task(task, tmp_path) -> None:
    made = TASKS[task](*pairs(800, 0)).model_
    found = check_same(made, opened(made, tmp_path), pairs(300, 1)[0])
    names = {
        "several": {"y1_probability", "y2_probability"},
        "two numbers": {"y1_prediction", "y2_prediction"},
    }
    usual = {"prediction" if task in ("numbers", "huber", "counts") else "probability"}
    known = [t.column for t in made.schema.targets]
    assert len(known) == 1 + (task in names)
    if task in names:
        kind = "probability" if task == "several" else "prediction"
        usual = {f"{name}_{kind}" for name in known}
    assert set(found) == usual | {"score", "contributions"}


@pytest.mark.parametrize("rank", [0, 1])
def test_few_ranks(rank, tmp_path) -> None:
    frame = table(200, 1).select("word", "price", "size")
    model = scrambled(classifier(frame, rank=rank), 2)
    check_same(model, opened(model, tmp_path), table(50, 2).select("word", "price", "size"))


def test_the_flights(tmp_path) -> None:
    flights = load_flights().sample(6000, seed=0)
    made = FieldwiseClassifier(epochs=2, learning_rate=0.15)
    model = made.fit(flights.head(5000).drop("late"), flights["late"].head(5000)).model_
    check_same(model, opened(model, tmp_path), flights.tail(1000).drop("late"))


@pytest.mark.parametrize("unseen", ["mean", "rare", "error"])
def test_what_becomes_of_values_never_seen(unseen, tmp_path) -> None:
    frame = table(300, 1).select("word", "price", "many").drop_nulls()
    model = scrambled(classifier(frame, unseen=unseen), 3)
    session = opened(model, tmp_path)
    new = frame.head(4).with_columns(word=pl.Series(["a", "never", "b", "a"]))
    new = new.with_columns(price=pl.Series([1.0, 1.0, None, 2.0]))
    if unseen != "error":
        check_same(model, session, new)
        return
    found = answers(session, new)
    assert np.isnan(found["probability"]).tolist() == [False, True, True, False]
    seen = new.filter(pl.col("word") == "a")
    np.testing.assert_allclose(found["score"][[0, 3]], model.decision_function(seen), atol=CLOSE)


def test_lists_longer_than_any_in_training_are_refused_where_the_model_does(tmp_path) -> None:
    frame = table(300, 1).select("word", "price", "many", "tags", "ids").drop_nulls()
    model = scrambled(classifier(frame, unseen="error"), 3)
    assert [model.schema[name].n_slots for name in ("many", "tags", "ids")] == [3, 3, 3]
    new = pl.concat([frame.head(1)] * 5).with_columns(
        many=pl.Series([["a", "b", "a"], ["a", "b", "a", "b"], ["a"], ["b"], ["a"] * 5]),
        tags=pl.Series(["a|b|a", "a", "a|b|a|b", "b", "b"]),
        ids=pl.Series([[1, 3, 1], [1], [3], [1, 3, 1, 3, 1, 1], [1]]),
    )
    found = answers(opened(model, tmp_path), new)
    assert np.isnan(found["probability"]).tolist() == [False, True, True, True, True]
    z = model.decision_function(new.head(1))
    np.testing.assert_allclose(found["score"][:1], z, atol=CLOSE)


def test_boosted_trees_refuse_what_the_model_refuses(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(boosted, "MOST_TREES", 20)
    frame = planted(600, 1).drop("tags", "size")
    made = FieldwiseClassifier(
        preset="best", unseen="error", n_jobs=1, rank=2, epochs=1, learning_rate=0.1
    )
    model = made.fit(frame.drop("liked"), frame["liked"]).model_
    new = frame.drop("liked").head(2).with_columns(item=pl.Series(["i1", "never"]))
    found = answers(opened(model, tmp_path), new)
    assert np.isnan(found["probability"]).tolist() == [False, True]


def test_four_hundred_thousand_categories(tmp_path) -> None:
    n = 400_000
    names = pl.Series([f"category {k:x}" for k in range(n)])
    entries = {"category": names, "code": np.arange(1, n + 1), "count": np.full(n, 2)}
    large = FieldVocabulary(Field(name="large"), pl.DataFrame(entries, schema=ENTRIES))
    small = words_of(Field(name="small"), pl.DataFrame({"small": ["x", "y"]}))
    model = by_hand([large, small])
    session = opened(model, tmp_path)
    new = pl.DataFrame({"large": [*names.sample(500, seed=0), "never"]})
    check_same(model, session, new.with_columns(small=pl.lit("y")))


def test_columns_may_be_called_anything(tmp_path) -> None:
    names = ["score", "probability", "add", "a b/c", "table", "contributions", "ü"]
    random = np.random.default_rng(0)
    frame = pl.DataFrame({name: random.integers(0, 4, 300).astype(str) for name in names})
    made = FieldwiseClassifier(kinds=dict.fromkeys(names, "category"), **QUICK)
    model = scrambled(made.fit(frame, random.integers(0, 2, 300)).model_, 0)
    session = opened(model, tmp_path)
    assert [wanted.name for wanted in session.get_inputs()] == names
    found = answers(session, frame)
    assert len(found) == 3
    assert not set(found) & set(names)
    np.testing.assert_allclose(found["probability_1"], model.predict_proba(frame), atol=CLOSE)


def test_an_empty_text_that_is_a_category(tmp_path) -> None:
    """It is that category, unless values are missing too; then another text is asked for."""
    other = ["x", "y", "z"] * 40
    model = classifier(pl.DataFrame({"a": ["", "b", "c"] * 40, "word": other, "price": 1.5}))
    check_same(
        model,
        opened(model, tmp_path),
        pl.DataFrame({"a": ["", "b"], "word": ["x", "y"], "price": 1.5}),
    )
    frame = pl.DataFrame({"a": ["", "b", None] * 40, "word": other, "price": 1.5})
    model = classifier(frame)
    with pytest.raises(ModelError, match="field 'a' knows both the category ''"):
        export(model, tmp_path / "m.onnx")
    session = opened(model, tmp_path, missing="(missing)")
    found = answers(session, frame.fill_null("(missing)"))
    np.testing.assert_allclose(found["probability"], model.predict_proba(frame), atol=CLOSE)


def refusals() -> dict[str, tuple[Callable[[], FieldwiseModel], dict[str, Any], str]]:
    def votes() -> FieldwiseModel:
        return classifier(table(200, 1).select("word", "price"), combine="vote")

    def machines() -> FieldwiseModel:
        return classifier(table(200, 1).select("word", "price"), component="fm", epochs=1)

    def list_of_nothing() -> FieldwiseModel:
        frame = pl.DataFrame({"many": [["", "a"], ["b"]] * 50, "word": ["x", "y"] * 50})
        return classifier(frame.with_columns(price=pl.lit(1.0)))

    def uncounted() -> FieldwiseModel:
        words = words_of(Field(name="o"), pl.DataFrame({"o": ["x", "y"]}))
        return by_hand([replace(words, entries=words.entries.with_columns(count=pl.lit(0)))])

    def two_minds() -> FieldwiseModel:
        """A column that is a number, and whole numbers that no float64 holds."""
        number = Field(name="n", column="x", kind="numeric", edges=(1.0, 2.0))
        labels = {"category": ["< 1", "[1, 2)", ">= 2"], "code": [1, 2, 3], "count": [1, 2, 3]}
        words = FieldVocabulary(number, pl.DataFrame(labels, schema=ENTRIES))
        value = Field(name="v", column="x", dtype="integer")
        return by_hand([words, words_of(value, pl.DataFrame({"x": LONG}))])

    return {
        "minds": (two_minds, {}, "column 'x' is a number to the field 'n' and a text to 'v'"),
        "votes": (votes, {}, "the model's fields vote"),
        "machines": (machines, {}, "component is 'fm'"),
        "lists": (list_of_nothing, {}, "knows '' as a value of a list"),
        "counts": (uncounted, {"contributions": True}, "how often its categories were seen"),
    }


@pytest.mark.parametrize("what", refusals())
def test_what_cannot_be_carried_is_refused_by_name(what, tmp_path) -> None:
    make, options, words = refusals()[what]
    with pytest.raises(ModelError, match=words):
        export(make(), tmp_path / "m.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_counts_goes_without_contributions(tmp_path) -> None:
    model = refusals()["counts"][0]()
    session = opened(model, tmp_path)
    assert [made.name for made in session.get_outputs()] == ["probability", "score"]
    check_same(model, session, pl.DataFrame({"o": ["x", "y", "z", None]}))


def test_contributions_may_be_left_out(everything, tmp_path) -> None:
    model, _ = everything
    found = check_same(model, opened(model, tmp_path, contributions=False), table(50, 2))
    assert set(found) == {"probability", "score"}


def test_settings_that_are_wrong(everything, tmp_path) -> None:
    model, _ = everything
    with pytest.raises(SettingError, match="to='pmml' is not one of onnx, sql, python"):
        export(model, tmp_path / "m", to="pmml")
    with pytest.raises(SettingError, match="'dialect' is not an option of onnx"):
        export(model, tmp_path / "m", dialect="duckdb")
    with pytest.raises(ModelError, match="is not a model"):
        export(tmp_path, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(everything, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match="onnx is not installed"):
        export(everything[0], tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_beyond_what_a_file_holds(everything, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 100_000)
    with pytest.raises(ModelError, match="compress it first"):
        export(everything[0], tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(everything, tmp_path, monkeypatch) -> None:
    model, _ = everything
    (tmp_path / "m.onnx").write_text("before")
    (tmp_path / "folder").mkdir()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="cannot write to"):
        export(model, tmp_path / "folder")
    with pytest.raises(StoreError, match="cannot write to"):
        export(model, tmp_path / "none" / "m.onnx")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        export(model, tmp_path / "m.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "folder"}
    assert (tmp_path / "m.onnx").read_text() == "before"


def test_from_a_table_to_onnx_by_commands(tmp_path) -> None:
    frame = table(500, 1).drop("many", "ids").with_columns(y=pl.Series(target(table(500, 1), 0)))
    frame.write_csv(tmp_path / "t.csv")
    kinds = [x for k, v in KINDS.items() for x in ("--kind", f"{k}={v}")]
    quick = ("--rank", 2, "--epochs", 1, "--learning-rate", 0.2, "--quiet")
    run("train", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m", *kinds, *quick)
    run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.parquet")
    out, _ = run("export", tmp_path / "m", "--to", "onnx", "--out", tmp_path / "m.onnx")
    assert "MB of onnx" in out
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    found = answers(session, frame.with_columns(pl.col("word").replace("NA", None)))
    wanted = pl.read_parquet(tmp_path / "p.parquet")["probability"]
    np.testing.assert_allclose(found["probability"], wanted, atol=CLOSE)
    assert "contributions" in found
    options = ("--to", "onnx", "--no-contributions", "--missing", "?")
    run("export", tmp_path / "m", *options, "--out", tmp_path / "n.onnx")
    session = runtime.InferenceSession(str(tmp_path / "n.onnx"))
    assert len(session.get_outputs()) == 2
    assert session.get_modelmeta().custom_metadata_map["missing"] == "?"
    before = {p.name for p in tmp_path.iterdir()}
    for wrong in (
        ("export", tmp_path / "none", "--to", "onnx", "--out", tmp_path / "x"),
        ("export", tmp_path / "m", "--to", "pmml", "--out", tmp_path / "x"),
        ("export", tmp_path / "m", "--to", "onnx", "--out", tmp_path / "no" / "x"),
        ("export", tmp_path / "m", "--to", "onnx", "--dialect", "duckdb", "--out", tmp_path / "x"),
    ):
        _, errors = run(*wrong, expect=2)
        assert errors.startswith("error: ")
        assert "Traceback" not in errors
    assert {p.name for p in tmp_path.iterdir()} == before
