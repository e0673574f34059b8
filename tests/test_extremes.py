"""Numbers at the ends of what there is: a model of them is finite and sensible all the way to its
exports, or the one who gave them is told which column it is and what to do."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from threadpoolctl import threadpool_limits

from fieldwise import (
    DataError,
    FieldEncoder,
    FieldwiseClassifier,
    FieldwiseError,
    FieldwiseModel,
    FieldwiseRegressor,
    Layout,
    boosted,
    maths,
)
from fieldwise.compress import compress
from fieldwise.crosses.evidence import Evidence, Observed
from fieldwise.engines.cpu import score
from fieldwise.explain.rows import Marginals, RowExplainer
from fieldwise.export import export

N = 400
QUICK = {"epochs": 2, "rank": 2, "learning_rate": 0.1, "device": "cpu"}


def table(seed: int = 0) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "a": random.choice(["x", "y", "z"], N),
            "b": random.choice(["p", "q"], N),
            "n": random.normal(size=N),
        }
    )


def labels(X: pl.DataFrame) -> np.ndarray:
    return (X["a"] == "x").cast(int).to_numpy()


def amounts(X: pl.DataFrame, seed: int = 1) -> np.ndarray:
    return labels(X) + np.random.default_rng(seed).normal(0, 0.1, len(X))


def journey(estimator: Any, X: pl.DataFrame, y: np.ndarray, folder: Path, **given: Any) -> Any:
    """Fit, explain, save, load, export and compress; the predictions of X."""
    estimator.fit(X, y, **given)
    model, few = estimator.model_, X.head(60)
    is_class = hasattr(estimator, "predict_proba")
    found = estimator.predict_proba(X) if is_class else estimator.predict(X)
    said = estimator.explain(few)
    for numbers in (
        model.table,
        found,
        said.fields,
        said.shapley,
        list(model.importance().values()),
    ):
        assert np.isfinite(numbers).all()
    loaded = FieldwiseModel.load(model.save(folder / "m"))
    z = loaded.decision_function(few)
    assert np.array_equal(z, model.decision_function(few))
    one = loaded.decision_function(few.row(0, named=True))
    np.testing.assert_allclose(one, z[:1], rtol=1e-5)
    for kind in ("onnx", "sql", "python"):
        assert export(loaded, folder / f"m.{kind}", to=kind).stat().st_size > 100
    judge = few.with_columns(pl.Series(model.schema.target.column, y[:60]))
    assert np.isfinite(compress(loaded, judge).model.decision_function(few)).all()
    return found


# Weights and targets ------------------------------------------------------------------------------


def test_weights_over_twelve_orders_of_magnitude(tmp_path: Path) -> None:
    X = table()
    for k, (low, high) in enumerate([(-6, 6), (-12, 0), (17, 29), (-40, -28)]):
        weight = 10.0 ** np.random.default_rng(2).uniform(low, high, N)
        (tmp_path / str(k)).mkdir()
        found = journey(
            FieldwiseClassifier(**QUICK), X, labels(X), tmp_path / str(k), sample_weight=weight
        )[:, 1]
        assert found[labels(X) == 1].min() > found[labels(X) == 0].max()


@pytest.mark.parametrize("preset", ["fast", "glass"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 1e32, 1e300, None, 1e-300])
def test_weights_that_are_none_are_refused(wrong: float | None, preset: str) -> None:
    X, weight = table(), np.ones(N)
    weight[3] = wrong or 0.0
    if wrong is None or wrong == 1e-300:
        weight[:] = wrong or 0.0
    with pytest.raises(DataError, match="weight"):
        FieldwiseClassifier(preset=preset, **QUICK).fit(X, labels(X), sample_weight=weight)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
@pytest.mark.parametrize("unit", [1e-30, 1e-10, 1e10, 1e30])
def test_the_unit_of_a_target_does_not_matter(unit: float, loss: str) -> None:
    X = table()
    y = amounts(X)
    settings = {**QUICK, "loss": loss}
    plain = FieldwiseRegressor(**settings).fit(X, y).predict(X)
    if loss == "huber":
        settings["delta"] = unit
    found = FieldwiseRegressor(**settings).fit(X, unit * y).predict(X)
    np.testing.assert_allclose(found / unit, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["fast", "glass", "best"])
@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e-35, 1e35, 1e60, 1e160, 1e300])
def test_targets_that_float32_cannot_hold_are_refused(unit: float, preset: str) -> None:
    X = table()
    with pytest.raises(DataError, match="numbers spread over .* learn the target times a number"):
        FieldwiseRegressor(preset=preset, **QUICK).fit(X, unit * amounts(X))


def test_targets_far_from_zero() -> None:
    X = table()
    y = amounts(X)
    found = FieldwiseRegressor(**QUICK).fit(X, y + 1e5).predict(X)
    assert np.corrcoef(found, y)[0, 1] > 0.9
    with pytest.raises(DataError, match=r"around 1e\+15 .* subtract 1e\+15"):
        FieldwiseRegressor(**QUICK).fit(X, y + 1e15)


@pytest.mark.parametrize("number", [0.0, 0.1, 3.0, -1e9, 1e30])
@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_targets_that_are_all_the_same(number: float, loss: str) -> None:
    X = table()
    found = FieldwiseRegressor(loss=loss, **QUICK).fit(X, np.full(N, number)).predict(X)
    np.testing.assert_allclose(found, number, rtol=1e-6, atol=0.1)


def test_counts(tmp_path: Path) -> None:
    X = table()
    y = np.floor(1e12 * labels(X))
    found = journey(FieldwiseRegressor(loss="poisson", **QUICK), X, y, tmp_path)
    assert found[y > 0].min() > 2 * found[y == 0].max()
    none = FieldwiseRegressor(loss="poisson", **QUICK).fit(X, np.zeros(N)).predict(X)
    assert 0 <= none.max() < 1e-9
    rare = FieldwiseRegressor(loss="poisson", **QUICK).fit(X, np.full(N, 1e-15)).predict(X)
    np.testing.assert_allclose(rare, 1e-15, rtol=0.1)
    with pytest.raises(DataError, match=r"at most 1e\+13"):
        FieldwiseRegressor(loss="poisson", **QUICK).fit(X, 1e4 * y)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_targets_that_are_no_numbers_are_refused(wrong: float) -> None:
    X = table()
    y = amounts(X)
    y[5] = wrong
    with pytest.raises(DataError, match="NaN or infinity"):
        FieldwiseRegressor(**QUICK).fit(X, y)


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("preset", ["fast", "glass", "best"])
def test_labels_of_one_class_are_refused(k: int, preset: str) -> None:
    with pytest.raises(DataError, match="1 class; a classifier needs two"):
        FieldwiseClassifier(preset=preset, **QUICK).fit(table(), np.full(N, k))


@pytest.mark.parametrize("preset", ["fast", "glass", "best"])
def test_one_class_among_the_rows_to_judge_by(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted, "MEMBERS", 1)
    monkeypatch.setattr(boosted, "MOST_TREES", 20)
    X, other = table(), table(9).filter(pl.col("a") == "x")
    given = FieldwiseClassifier(preset=preset, **QUICK)
    given.fit(X, labels(X), eval_set=(other, np.ones(len(other), int)))
    assert given.model_.metrics["loss"] < np.log(2)
    assert np.isnan(given.model_.metrics["auc"])


# Columns ------------------------------------------------------------------------------------------

ENDS = np.iinfo(np.int64)
COLUMNS = {
    "infinities": pl.Series([np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, 0.0, 1.0] * 50),
    "both zeros": pl.Series([0.0, -0.0, 1.0, -1.0] * 100),
    "every magnitude": pl.Series(10.0 ** np.linspace(-300, 300, N)),
    "whole numbers": pl.Series([ENDS.max, ENDS.max - 1, ENDS.min, 0] * 100),
    "large whole numbers": pl.Series([2**64 - 1, 2**64 - 2, 0, 1] * 100, dtype=pl.UInt64),
    "numbers as text": pl.Series(["0.0", "-0.0", "1e400", "-1e400"] * 100),
    "lengths of time": pl.Series([2**62, -(2**62), 0, 1] * 100).cast(pl.Duration("us")),
    "empty text": pl.Series(["", " ", "\t", "a"] * 100),
    "long text": pl.Series(["x" * 1_000_000, "x" * 999_999 + "y", "z", "z"] * 100),
    "odd text": pl.Series(
        ["é", "e\u0301", "\x00", "a\x00b", "\ufeffa", "\u202eabc", "👨\u200d👩", "\u2028", "\r\n",
         "'", '"', "--", "</script>", "${x}", "\\", "(rare)", "(missing)", "NaN", "null", "%s"] * 20
    ),
    "times": pl.Series(
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
         dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(2024, 2, 29)] * 100
    ),
    "dates": pl.Series([dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(2000, 2, 29)] * 100),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_with_extremes_goes_all_the_way(name: str, tmp_path: Path) -> None:
    X = table().with_columns(COLUMNS[name].alias("n"))
    kinds = {"n": "category"} if name.endswith("whole numbers") else {}
    journey(FieldwiseClassifier(kinds=kinds, **QUICK), X, labels(X), tmp_path)


def test_equal_looking_text_stays_apart_and_equal_numbers_do_not() -> None:
    """Composed and decomposed letters are two categories; 0.0 and -0.0 are one."""
    frame = pl.DataFrame({"t": ["é", "e\u0301"] * 50, "z": [0.0, -0.0] * 50})
    codes = FieldEncoder(kinds={"t": "category", "z": "category"}).fit_transform(frame)
    assert len(set(codes[:, 0].tolist())) == 2
    assert len(set(codes[:, 1].tolist())) == 1


def test_numbers_too_large_for_a_linear_field_are_refused_by_name() -> None:
    for number in (np.inf, 1e300):
        X = table().with_columns(n=pl.Series([number] + [1.0, 2.0, 3.0] * 133))
        with pytest.raises(DataError, match="row 1: column 'n' holds .*quantile"):
            FieldwiseClassifier(kinds={"n": "linear"}, **QUICK).fit(X, labels(X))


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([2**53, 0] * 200).cast(pl.Datetime("ms")),
        pl.Series([-(2**62), 0] * 200).cast(pl.Datetime("us")),
        pl.Series([253_402_300_800_000, 0] * 200).cast(pl.Datetime("ms")),  # 10000-01-01
        pl.Series([-62_135_596_800_001, 0] * 200).cast(pl.Datetime("ms")),  # the year 0
        pl.Series([2**31 - 1, 0] * 200, dtype=pl.Int32).cast(pl.Date),
        pl.Series([-(2**31), 0] * 200, dtype=pl.Int32).cast(pl.Date),
    ],
)
def test_times_that_no_year_of_four_digits_has_are_refused_by_name(column: pl.Series) -> None:
    X = table().with_columns(column.alias("when"))
    with pytest.raises(DataError, match="column 'when' holds a time outside the years 1 to 9999"):
        FieldwiseClassifier(**QUICK).fit(X, labels(X))


def test_half_characters_are_refused_by_name() -> None:
    """Text that Python can hold and UTF-8 cannot."""
    half, X = "\ud800", table()
    y = labels(X)
    for rows in ({"a": [half, "x"] * 200}, {"a": [half, 1] * 200}):
        with pytest.raises(DataError, match=r"column 'a' .* half a character, '\\ud800'"):
            FieldwiseClassifier(**QUICK).fit(rows, y)
    with pytest.raises(DataError, match="column 'y' .* half a character"):
        FieldwiseClassifier(**QUICK).fit(X, np.array([half, "x"] * 200))
    model = FieldwiseClassifier(**QUICK).fit(X, y).model_
    with pytest.raises(DataError, match="column 'n' .* half a character"):
        model.predict_proba({"a": "x", "b": "p", "n": half})
    with pytest.raises(DataError, match="never seen"):
        model.explain_category("a", half)


def test_a_column_without_a_value_is_refused_by_name() -> None:
    for dtype in (pl.String, pl.Float64, pl.Null):
        X = table().with_columns(pl.lit(None, dtype).alias("b"))
        with pytest.raises(FieldwiseError, match="column 'b' has no value in any row; drop it"):
            FieldwiseClassifier(**QUICK).fit(X, labels(X))


def test_the_smallest_tables(tmp_path: Path) -> None:
    X = table()
    one = journey(FieldwiseRegressor(**QUICK), X.head(1), amounts(X)[:1], tmp_path)
    assert one == pytest.approx(amounts(X)[:1], abs=0.5)  # a step is as large as its rate
    same = pl.DataFrame({"a": ["x"] * N, "b": ["y"] * N})
    chance = FieldwiseClassifier(**QUICK).fit(same, labels(X)).predict_proba(same)[:, 1]
    assert chance == pytest.approx(np.full(N, labels(X).mean()), abs=0.05)
    twice = pl.concat([X.head(3)] * 100)
    y = np.tile([0, 1, 1], 100)
    for preset in ("fast", "glass", "best"):
        found = FieldwiseClassifier(preset=preset, **QUICK).fit(twice, y).predict(twice)
        assert np.array_equal(found, y)
    for preset in ("glass", "best"):
        with pytest.raises(DataError, match="1 rows are fewer than the 10 folds"):
            FieldwiseRegressor(preset=preset, **QUICK).fit(X.head(1), amounts(X)[:1])


def test_two_thousand_fields(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    X = pl.DataFrame({f"c{j}": random.choice(["x", "y", "z"], N) for j in range(2000)})
    y = (X["c7"] == "x").cast(int).to_numpy()
    est = FieldwiseClassifier(**QUICK | {"epochs": 1}).fit(X, y)
    shares = est.model_.importance()
    assert len(shares) == 2000
    assert max(shares, key=shares.__getitem__) == "c7"
    loaded, few = FieldwiseModel.load(est.model_.save(tmp_path / "m")), X.head(3)
    z = loaded.decision_function(few)
    assert np.array_equal(z, est.decision_function(few))
    said = loaded.explain(few)
    np.testing.assert_allclose(said.shapley.sum(axis=1) + said.base, z, rtol=1e-5, atol=1e-4)


def test_a_million_categories_of_one_field(tmp_path: Path) -> None:
    n = 1_000_000
    b = np.random.default_rng(5).choice(["p", "q"], n)
    X = pl.DataFrame({"id": np.arange(n), "b": b})
    y = (b == "p").astype(int)
    est = FieldwiseClassifier(kinds={"id": "category"}, min_count=1, **QUICK | {"epochs": 1})
    model = est.fit(X, y).model_
    assert model.layout.sizes[0] >= n * 0.9
    loaded, few = FieldwiseModel.load(model.save(tmp_path / "m")), X.tail(1000)
    assert np.array_equal(loaded.decision_function(few), model.decision_function(few))
    assert ((loaded.decision_function(few) > 0) == y[-1000:]).all()
    unseen = few.with_columns(pl.col("id") + n)
    with pytest.warns(UserWarning, match="id 100.00% of rows"):
        z = loaded.decision_function(unseen)
    assert ((z > 0) == y[-1000:]).all()
    assert np.isfinite(loaded.explain(few.head(5)).shapley).all()


# float32 against the truth ------------------------------------------------------------------------

SPANS = [(-3, 0), (-18, 0), (-6, 6), (0, 9)]  # powers of ten of a table's entries
OF_SIZE = 2e-6  # how far off at most, of the sum of the sizes of all that is added up


def size_of(rows: np.ndarray, layout: Layout, codes: np.ndarray) -> np.ndarray:
    """(n,) what kernels add up, all of it positive: p is the sum of a column less q."""
    found = np.abs(rows[layout.rows(codes)].astype(np.float64))  # (n, m, R + 1)
    own = found[:, layout.owner, np.arange(layout.n_columns)]
    return (found[:, :, :-1].sum(axis=1) * own).sum(axis=1) + found[:, :, -1].sum(axis=1)


@pytest.mark.parametrize("span", SPANS)
def test_float32_is_as_near_the_truth_as_its_sums_allow(span: tuple[int, int]) -> None:
    layout, rows, codes, counts = extreme(span)
    table, size = rows[: layout.n_rows], size_of(rows, layout, codes)
    exact = table.astype(np.float64)
    truth = maths.scores(exact, layout, layout.rows(codes))[:, 0]
    z = score(rows, layout, codes, None, np.zeros(1))[:, 0]
    assert (np.abs(z - truth) / size).max() < OF_SIZE
    explainer = RowExplainer(rows, layout, Marginals.of_counts(layout, counts), np.zeros(1))
    _, shapley, _ = explainer(codes, None)
    told = shapley[:, 0].sum(axis=1) + explainer.base[0]
    assert (np.abs(told - truth) / size.max()).max() < OF_SIZE
    found, true = maths.importance(table, layout), maths.importance(exact, layout)
    np.testing.assert_allclose(found, true, rtol=1e-5)
    for one, other in zip(maths.penalty(table, layout), maths.penalty(exact, layout), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def extreme(span: tuple[int, int]) -> tuple[Layout, np.ndarray, np.ndarray, np.ndarray]:
    """A table whose entries span so many orders of magnitude, of both signs."""
    random = np.random.default_rng(3)
    layout = Layout((40, 7, 300), (3, 2, 5))
    size = (layout.n_rows + layout.n_fields, layout.width)
    rows = 10.0 ** random.uniform(*span, size) * random.choice([-1.0, 1.0], size)
    codes = np.stack([random.integers(0, d, 500) for d in layout.sizes], axis=1).astype(np.int32)
    counts = random.integers(1, 10**9, layout.n_rows)
    rows = rows.astype(np.float32)
    rows[layout.n_rows :] = maths.mean_rows(rows[: layout.n_rows], layout, counts)
    return layout, rows, codes, counts


# The number of BLAS's threads ---------------------------------------------------------------------


def test_sums_over_rows_forget_the_threads_of_blas() -> None:
    """A processor with more cores adds up in another order, were it left to BLAS."""
    random = np.random.default_rng(0)
    n = 40_000
    codes = random.integers(0, 9, (n, 2)).astype(np.int32)
    rows = Observed.of(codes, random.normal(size=(n, 1)), random.lognormal(0, 2, (n, 1)))
    layout = Layout((300_000, 3), (1, 1))
    table = random.normal(size=(layout.n_rows, layout.width)).astype(np.float32)
    counts, seen = random.integers(1, 99, layout.n_rows), set()
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            evidence, _ = Evidence.learn(rows, [(0, 1)])
            weight = counts / counts.sum()
            means = maths.field_means(table, layout, weight)
            seen.add((evidence.to_bytes(), evidence.shrink.tobytes(), means.tobytes()))
    assert len(seen) == 1
