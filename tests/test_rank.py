"""Ranking: every category of a field, as if each had been put into the row and scored."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import (
    DataError,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    SchemaError,
    SettingError,
    ranking,
)

KINDS = {"age": "linear", "tags": "list:|"}
CLOSE = 2e-5  # scores are float32 sums, in another order


def table(n=1500, seed=0):
    """Texts with missing ones, whole numbers, truths, bins, a linear number, a list, a date."""
    random = np.random.default_rng(seed)
    ad, site = random.integers(0, 40, n), random.integers(0, 4, n)
    frame = pl.DataFrame(
        {
            "ad": [None if k == 3 else f"ad{k}" for k in ad],
            "site": random.permutation(["a", "b", "c", "d"])[site],
            "hour": random.integers(0, 24, n),
            "mobile": random.random(n) < 0.5,
            "price": random.gamma(2, 10, n),
            "age": random.normal(40, 9, n),
            "tags": ["|".join(random.permutation(["x", "y", "z"])[: 1 + k % 3]) for k in ad],
            "when": [dt.datetime(2024, 1, 1 + int(d), int(d)) for d in random.integers(0, 9, n)],
        }
    )
    z = np.random.default_rng(9).normal(size=(40, 4))[ad, site] + 0.05 * (frame["age"] - 40)
    return frame, z.to_numpy(), random


def fit(kind: str) -> FieldwiseModel:
    X, z, random = table()
    y = (random.random(len(X)) < 1 / (1 + np.exp(-2 * z))).astype(int)
    quick = {"kinds": KINDS, "epochs": 2, "rank": 3, "learning_rate": 0.1}
    if kind == "classes":
        return FieldwiseClassifier(**quick).fit(X, np.array(["p", "q", "r"])[y + (z > 1)]).model_
    if kind == "number":
        return FieldwiseRegressor(**quick).fit(X, 100 + 5 * z).model_
    if kind == "rates":
        return FieldwiseRegressor(**quick, loss="poisson").fit(X, random.poisson(np.exp(z))).model_
    if kind == "targets":
        return FieldwiseClassifier(**quick).fit(X, np.stack([y, 1 - y], axis=1)).model_
    if kind in ("glass", "best"):
        crosses = {"crosses": [("ad", "site")], "preset": kind}
        return FieldwiseClassifier(**quick, **crosses).fit(X, y).model_
    more = {
        "plain": {},
        "members": {"n_members": 2},
        "vote": {"combine": "vote"},
        "weighted": {"combine": "weighted"},
        "fm": {"component": "fm"},
        "error": {"unseen": "error"},
    }
    return FieldwiseClassifier(**quick, **more[kind]).fit(X, y).model_


KINDS_OF_MODELS = (
    *("plain", "members", "vote", "weighted", "fm", "classes", "number", "rates", "targets"),
    *("glass", "best"),
)
_FITTED: dict[str, FieldwiseModel] = {}


def fitted(kind: str) -> FieldwiseModel:
    if kind not in _FITTED:
        _FITTED[kind] = fit(kind)
    return _FITTED[kind]


def context(seed=1) -> dict[str, object]:
    return table(5, seed)[0].row(0, named=True)


def one_by_one(model: FieldwiseModel, row: dict[str, object], over: str) -> pl.DataFrame:
    """Every category of a field put into the row as it stands in a table, and scored."""
    known = model.base_vocabulary[over].own
    values = model.base_vocabulary[over].decode(known["code"].to_numpy(), None).to_list()
    scores, chances = [], []
    for value in values:
        z = model.decision_function({**row, over: value})
        scores.append(np.ravel(z)[-1])
        found = model.predictions(z)
        last = list(found.values())[-1] if isinstance(found, dict) else found
        chances.append(np.ravel(last)[-1])
    frame = pl.DataFrame(
        {"category": known["category"], "score": scores, "prediction": chances},
        schema_overrides={"score": pl.Float64, "prediction": pl.Float64},
    )
    return frame.with_columns(code=known["code"])


@pytest.mark.parametrize("kind", KINDS_OF_MODELS)
@pytest.mark.parametrize("over", ["ad", "hour", "mobile"])
def test_as_if_every_category_had_been_put_into_the_row(kind, over):
    model, row = fitted(kind), context()
    truth = one_by_one(model, row, over)
    assert truth["category"].null_count() == (over == "ad")  # missing is a candidate
    found = model.rank(row, over=over, k=10_000)
    assert found.columns == ["category", "score", "prediction"]
    assert found.dtypes == [pl.String, pl.Float64, pl.Float64]
    both = found.join(truth, on="category", nulls_equal=True, suffix="_true")
    assert len(both) == len(found) == len(truth)
    scale = 1 + np.abs(truth["score"].to_numpy()).max()
    assert np.abs(both["score"] - both["score_true"]).max() < CLOSE * scale
    assert np.abs(both["prediction"] - both["prediction_true"]).max() < CLOSE * scale
    order = "prediction" if kind == "classes" else "score"
    assert (np.diff(found[order].to_numpy()) <= 1e-12).all()


def test_bins_are_ranked():
    truth = one_by_one(fitted("plain"), context(), "price")
    found = fitted("plain").rank(context(), over="price", k=100)
    both = found.join(truth, on="category", suffix="_true")
    assert len(both) == len(found) == len(truth) == 32
    assert np.abs(both["score"] - both["score_true"]).max() < CLOSE
    labels = fitted("plain").vocabulary["price"].labels()[1:]  # as a report shows them
    assert sorted(found["category"]) == sorted(labels)


def test_finer_bins_of_the_same_column_stay_as_they_are():
    """With crosses a number is cut twice; the other cut is read from the context."""
    model, row = fitted("glass"), context()
    found = model.rank(row, over="price", k=100)
    words = model.vocabulary
    codes, _ = model.base_coder(row)
    code = int(codes[0, words.base.schema.names.index("price")])
    (score,) = found.filter(category=words.base["price"].labels()[code])["score"]
    assert score == pytest.approx(float(model.decision_function(row)[0]), abs=1e-4)
    del row["price"]
    with pytest.raises(SchemaError, match="no value for column 'price'"):
        model.rank(row, over="price")


def test_calendar_parts_are_ranked_with_the_rest_of_the_date_as_it_is():
    model = fitted("plain")
    name = next(f.name for f in model.schema.fields if f.part == "hour")
    found = model.rank(context(), over=name, k=100)
    midnight = {**context(), "when": context()["when"].replace(hour=0)}
    (score,) = found.filter(category="0")["score"]
    assert score == pytest.approx(model.decision_function(midnight)[0], abs=1e-4)
    with pytest.raises(SchemaError, match="no value for column 'when'"):
        model.rank({k: v for k, v in context().items() if k != "when"}, over=name)


@pytest.mark.parametrize("kind", ["plain", "error", "glass"])
def test_what_the_context_has_in_the_field_does_not_matter(kind):
    model, row = fitted(kind), context()
    absent = {k: v for k, v in row.items() if k != "ad"}
    found = model.rank(absent, over="ad")
    for value in ("ad7", "never seen", None, 12.5):
        assert model.rank({**row, "ad": value}, over="ad").equals(found)
    assert len(found) == 20


@pytest.mark.parametrize("kind", ["plain", "glass"])
def test_the_rare_row_is_no_candidate(kind):
    X, z, _ = table()
    X = X.with_columns(ad=pl.when(pl.int_range(len(X)) == 7).then(pl.lit("once")).otherwise("ad"))
    crosses = {"preset": "glass", "crosses": [("ad", "site")]} if kind == "glass" else {}
    options = {"kinds": KINDS, "epochs": 1, "rank": 2, "learning_rate": 0.1, **crosses}
    model = FieldwiseClassifier(**options).fit(X, (z > 0).astype(int)).model_
    found = model.rank(context(), over="ad", k=100)["category"].to_list()
    assert "(rare)" not in found
    # Evidence knows it apart from other rare ones; without there is nothing but the rare row.
    assert ("once" in found) == (kind == "glass")
    assert len(found) == 40 + (kind == "glass")


def test_equal_scores_keep_the_order_of_codes():
    model = fitted("plain")
    rows, own = np.array(model.rows), model.layout.own(0)
    rows[own] = rows[own.start]
    found = replace(model, rows=rows).rank(context(), over="ad", k=100)
    assert found["score"].n_unique() == 1
    assert found["category"].to_list() == model.vocabulary["ad"].own["category"].to_list()
    few = replace(model, rows=rows).rank(context(), over="ad", k=7)
    assert few.equals(found.head(7))


@given(st.integers(1, 60), st.integers(0, 2**31), st.booleans())
def test_the_best_are_those_of_a_stable_sort(k, seed, tied):
    random = np.random.default_rng(seed)
    z = random.normal(size=random.integers(0, 50)).astype(np.float32)
    z = np.round(z) if tied else z
    assert ranking._best(z, k).tolist() == np.argsort(-z, kind="stable")[:k].tolist()


values = st.one_of(st.none(), st.sampled_from(["a", "b", "zz", ""]), st.integers(-3, 30))


@given(values, values, st.floats(-1e3, 1e3), st.integers(1, 45))
def test_the_first_k_of_any_context(site, hour, age, k):
    model = fitted("plain")
    row = {**context(), "site": site, "hour": hour, "age": age}
    whole = model.rank(row, over="ad", k=1000)
    assert model.rank(row, over="ad", k=k).equals(whole.head(k))
    best = whole.row(0, named=True)
    z = float(model.decision_function({**row, "ad": best["category"]})[0])
    assert best["score"] == pytest.approx(z, abs=CLOSE * (1 + abs(z)) * 10)
    assert best["prediction"] == pytest.approx(1 / (1 + np.exp(-best["score"])), abs=1e-9)


def test_a_class_may_be_named():
    model, row = fitted("classes"), context()
    names = model.classes
    assert model.rank(row, over="ad").equals(model.rank(row, over="ad", output=names[-1]))
    total = sum(
        model.rank(row, over="ad", k=99, output=name).sort("category")["prediction"]
        for name in names
    )
    assert np.allclose(total, 1)
    with pytest.raises(SettingError, match="output 'x' is not one of p, q, r"):
        model.rank(row, over="ad", output="x")


def test_blocks_do_not_show(monkeypatch):
    model, row = fitted("best"), context()
    whole = model.rank(row, over="ad", k=99)
    monkeypatch.setattr(ranking, "BLOCK", 7)
    assert model.rank(row, over="ad", k=99).equals(whole)


def test_a_loaded_model_in_many_threads(tmp_path):
    model = FieldwiseModel.load(fitted("plain").save(tmp_path / "m"))
    expected = fitted("plain").rank(context(), over="ad", k=99)
    found: list[pl.DataFrame] = []
    threads = [
        threading.Thread(target=lambda: found.append(model.rank(context(), over="ad", k=99)))
        for _ in range(6)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6
    assert all(f.equals(expected) for f in found)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"over": "age"}, SchemaError, "'age' is linear"),
        ({"over": "tags"}, SchemaError, "'tags' is a list"),
        ({"over": "add"}, SchemaError, "Did you mean 'ad'"),
        ({"over": "ad", "k": 0}, SettingError, "k=0 must be"),
        ({"over": "ad", "k": 2.5}, SettingError, "k=2.5 must be"),
        ({"over": "ad", "k": True}, SettingError, "k=True must be"),
    ],
)
def test_refusals(changes, error, message):
    with pytest.raises(error, match=message):
        fitted("plain").rank(context(), **changes)


def test_more_refusals():
    model, row = fitted("plain"), context()
    with pytest.raises(DataError, match="the context is list"):
        model.rank([row], over="ad")
    with pytest.raises(DataError, match="no finite scores"):
        model.rank({**row, "age": 1e100}, over="ad")
    del row["site"]
    with pytest.raises(SchemaError, match="no value for column 'site'"):
        model.rank(row, over="ad")
    crossed = fitted("glass")
    evidence = next(f.name for f in crossed.schema.fields if f.cross)
    with pytest.raises(SchemaError, match="is evidence of"):
        crossed.rank(context(), over=evidence)
