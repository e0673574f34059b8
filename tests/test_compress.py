"""Compressing: the same scores in other coordinates, what is left out, and the bound on changes."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import run
from fieldwise import (
    DataError,
    Field,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    Layout,
    ModelError,
    Schema,
    SchemaError,
    SettingError,
    Target,
    boosted,
    maths,
    update,
)
from fieldwise.compress import compress
from fieldwise.compress.certificate import LINEAR_WITHIN, largest_change
from fieldwise.compress.choice import Choice, Prices
from fieldwise.compress.factors import Factors
from fieldwise.compress.plan import BISECTIONS, _Search, folder_bytes
from fieldwise.compress.smaller import Coded, smaller
from fieldwise.data.shuffle import wide_values
from fieldwise.data.vocabulary import integer_vocabulary
from fieldwise.engines.cpu import score
from fieldwise.objective import Head, Objective
from fieldwise.packed import STORAGE, Packed, pack

# Packed tables.


@given(st.sampled_from(list(STORAGE)), st.integers(0, 2**31), st.integers(0, 40), st.integers(1, 9))
def test_every_entry_is_the_nearest(kind, seed, n_columns, n):
    random = np.random.default_rng(seed)
    table = random.normal(size=(n, n_columns + 2)) * 10.0 ** random.integers(-6, 6, (n, 1))
    table[random.random(n) < 0.3, :n_columns] = 0
    packed = pack(table, n_columns, kind)
    found = packed.decoded()
    assert found.shape == packed.shape == table.shape
    assert np.array_equal(found[:, n_columns:], table[:, n_columns:].astype(np.float32))
    largest = np.abs(table[:, :n_columns]).max(axis=1, initial=0)[:, None]
    most = {"int8": 0.5 / 127, "float16": 2.0**-11}[kind] * largest
    assert (np.abs(found - table)[:, :n_columns] <= most * 1.001).all()
    assert np.array_equal(packed.decoded(slice(1, 3)), found[1:3])


@pytest.mark.parametrize("kind", STORAGE)
@pytest.mark.parametrize("by_field", [False, True])
@pytest.mark.parametrize(
    ("sizes", "ranks", "slots", "n_outputs"),
    [
        ((7, 5, 3), (4, 2, 3), (), 1),
        ((40, 1, 9), (33, 0, 17), (), 3),
        ((6, 8), (5, 3), (3, 1), 2),
        ((5, 4), (0, 0), (), 1),
        ((9,), (20,), (4,), 1),
    ],
)
@pytest.mark.parametrize("n", [1, 300])
def test_scores_are_those_of_the_decoded_table(kind, by_field, sizes, ranks, slots, n_outputs, n):
    layout = Layout(sizes, ranks, n_outputs, slots)
    random = np.random.default_rng(n)
    table = random.normal(size=(layout.n_rows + layout.n_fields, layout.width))
    packed = pack(table, layout.n_columns, kind)
    codes = np.stack([random.integers(-1, sizes[i], n) for i in layout.slot_owner], axis=1)
    offsets = random.normal(size=n_outputs)
    several = layout.n_slots > layout.n_fields
    for values in (random.normal(size=codes.shape), *(() if several else (None,))):
        rows = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
        f = maths.field_scores(packed.decoded().astype(np.float64), layout, rows, values)
        expected = f if by_field else f.sum(axis=2) + offsets
        found = score(packed, layout, codes.astype(np.int32), values, offsets, by_field=by_field)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(f).max())


# Coordinates.


def drawn(
    sizes=(5, 4, 6), ranks=(3, 2, 4), *, classes=1, seed=0, counts: Any = None
) -> FieldwiseModel:
    """A model of drawn weights, of the numbers as categories."""
    random = np.random.default_rng(seed)
    layout = Layout(sizes, ranks, classes)
    fields = tuple(Field(name=f"f{i}") for i in range(layout.n_fields))
    labels = tuple("abcdef"[: max(classes, 2)])
    schema = Schema(fields=fields, targets=(Target(column="y", classes=labels),))
    counts = counts or [random.integers(1, 50, d) for d in sizes]
    table = random.normal(size=(layout.n_rows, layout.width)).astype(np.float32)
    means = maths.mean_rows(table, layout, np.concatenate(counts))
    head = Head("softmax", classes) if classes > 1 else Head()
    return FieldwiseModel(
        integer_vocabulary(schema, counts),
        layout,
        np.concatenate([table, means]),
        Objective((head,)),
        random.normal(size=classes),
    )


def every_row(layout: Layout, lowest: int = 0) -> np.ndarray:
    """All combinations of codes, -1 among them where it is the lowest."""
    return np.array(list(itertools.product(*(range(lowest, d) for d in layout.sizes))), np.int32)


def truth(model: FieldwiseModel, codes: np.ndarray) -> np.ndarray:
    """(n, K) in float64, by the definition"""
    layout = model.layout
    rows = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
    return maths.scores(model.rows.astype(np.float64), layout, rows) + model.offsets


@pytest.mark.parametrize("classes", [1, 3])
def test_the_coordinates_leave_scores_and_means_as_they_are(classes):
    model = drawn(classes=classes)
    factors = Factors(model)
    turned = replace(model, rows=factors.table, offsets=factors.offsets)
    codes = every_row(model.layout, -1)
    np.testing.assert_allclose(truth(turned, codes), truth(model, codes), atol=2e-5)
    counts, R = model.vocabulary.counts(), model.layout.n_columns
    means = maths.mean_rows(factors.table[: model.layout.n_rows], model.layout, counts)
    np.testing.assert_allclose(means[:, :R], 0, atol=1e-5)
    np.testing.assert_allclose(means, factors.table[model.layout.n_rows :], atol=1e-5)


def weighted_block(model: FieldwiseModel, factors: Factors, i: int) -> np.ndarray:
    """W of a field after the means have left, with the roots of shares: formed, for once."""
    layout, columns = model.layout, model.layout.block(0, i)
    table = model.table.astype(np.float64)
    means = maths.mean_rows(table, layout, model.vocabulary.counts())
    owner = np.repeat(np.arange(layout.n_fields), layout.sizes)
    away = (table - means[owner])[:, columns] * np.sqrt(factors.shares)[:, None]
    return away[owner == i] @ away[owner != i].T


def test_the_worth_of_a_column_is_a_singular_value_and_no_truncation_is_better():
    model = drawn(ranks=(3, 4, 5))
    factors, layout = Factors(model), model.layout
    owner = np.repeat(np.arange(layout.n_fields), layout.sizes)
    root = np.sqrt(factors.shares)[:, None]
    for i in range(layout.n_fields):
        W, columns = weighted_block(model, factors, i), layout.block(0, i)
        singular = np.linalg.svd(W, compute_uv=False)
        np.testing.assert_allclose(factors.worth[columns], singular[: layout.ranks[i]], atol=1e-6)
        for k in range(layout.ranks[i] + 1):
            part = factors.table[: layout.n_rows, columns][:, :k] * root
            left = W - part[owner == i] @ part[owner != i].T
            assert np.linalg.norm(left) == pytest.approx(np.linalg.norm(singular[k:]), abs=1e-5)


def test_what_a_row_adds_is_its_mean_square_over_all_contexts():
    model = drawn(counts=[np.full(5, 9), np.full(4, 9), np.full(6, 9)])  # all met as often
    factors, layout = Factors(model), model.layout
    found = factors.row_effects(np.ones(layout.n_columns, bool))
    z = truth(model, every_row(layout)).reshape(layout.sizes)
    for i, size in enumerate(layout.sizes):
        away = np.moveaxis(z - z.mean(axis=i, keepdims=True), i, 0).reshape(size, -1)
        expected = (away**2).mean(axis=1) / size
        np.testing.assert_allclose(found[layout.own(i)], expected, rtol=1e-4)


def test_ranks_that_do_nothing_are_worth_nothing():
    model = drawn(ranks=(3, 2, 4))
    rows = np.array(model.rows)
    block = model.layout.block(0, 2)
    rows[:, block.start + 2] = 2 * rows[:, block.start]  # twice the same direction in U and V
    factors = Factors(replace(model, rows=rows))
    assert factors.worth[block][-1] == 0
    turned = replace(model, rows=factors.table, offsets=factors.offsets)
    codes = every_row(model.layout)
    expected = truth(replace(model, rows=rows), codes)
    np.testing.assert_allclose(truth(turned, codes), expected, atol=3e-5)


# What is left of a model.


def whole(model: FieldwiseModel, kind: str = "float16") -> tuple[Factors, Choice]:
    factors = Factors(model)
    return factors, Prices(model, factors).whole(kind)


CLOSE = 0.02  # what halves lose of scores of some size


def test_a_field_that_is_gone_brings_its_mean():
    model = drawn()
    factors, choice = whole(model)
    less = smaller(model, factors, replace(choice, fields=(True, False, True)))
    assert less.layout.sizes == (5, 6)
    assert less.schema.names == ["f0", "f2"]
    assert less.schema.dropped == ("f1",)
    counts = model.vocabulary["f1"].counts()
    z = truth(model, every_row(model.layout)).reshape(5, 4, 6)
    expected = np.average(z, axis=1, weights=counts).reshape(-1)
    np.testing.assert_allclose(truth(less, every_row(less.layout))[:, 0], expected, atol=CLOSE)


def test_rows_that_are_merged_share_their_mean():
    model = drawn()
    factors, choice = whole(model)
    codes = (np.array([0, 1, 0, 2, 0]), *choice.rows[1:])
    less = smaller(model, factors, replace(choice, rows=codes))
    assert less.layout.sizes == (3, 4, 6)
    assert less.vocabulary["f0"].entries["code"].to_list() == [0, 1, 0, 2, 0]
    counts = model.vocabulary["f0"].counts()
    assert less.vocabulary["f0"].counts().tolist() == [counts[[0, 2, 4]].sum(), *counts[[1, 3]]]
    z = truth(model, every_row(model.layout)).reshape(5, 4, 6)
    merged = np.average(z[[0, 2, 4]], axis=0, weights=counts[[0, 2, 4]])
    expected = np.stack([merged, z[1], z[3]]).reshape(-1)
    np.testing.assert_allclose(truth(less, every_row(less.layout))[:, 0], expected, atol=CLOSE)
    # What was never seen is the mean of the rows still, weighted by counts.
    layout = less.layout
    means = maths.mean_rows(less.table, layout, less.vocabulary.counts())
    np.testing.assert_allclose(less.rows[layout.n_rows :], means, atol=CLOSE)
    coded = Coded(np.array([[4, -1, 2], [3, 0, 5]]), np.zeros((2, 0)))
    found = coded.seen_by(less, model.schema, replace(choice, rows=codes))[0]
    assert found.tolist() == [[0, -1, 2], [2, 0, 5]]


def test_updates_before_are_remembered():
    model = replace(drawn(), lineage=[{"rows": 5}])
    assert smaller(model, *whole(model)).lineage == [{"rows": 5}]


def test_the_price_of_everything_leaves_one_field_and_nothing_of_it():
    model = drawn()
    factors = Factors(model)
    prices = Prices(model, factors)
    low, high = prices.limits("int8")
    none, every = prices.chosen(high, "int8"), prices.chosen(low, "int8")
    assert sum(none.fields) == 1
    assert set(none.ranks) == {0}
    assert every.ranks == model.layout.ranks
    assert all(every.fields)
    assert [len(set(codes)) for codes in every.rows] == list(model.layout.sizes)
    z = truth(smaller(model, factors, none), np.array([[0]]))
    expected = np.average(
        truth(model, every_row(model.layout))[:, 0],
        weights=np.prod(
            np.stack(
                [
                    model.vocabulary.fields[j].counts()[every_row(model.layout)[:, j]]
                    for j in range(3)
                ]
            ).astype(float),
            axis=0,
        ),
    )
    assert z[0, 0] == pytest.approx(expected, abs=1e-4)


def test_nothing_is_looked_for_once_the_highest_price_is_allowed(monkeypatch):
    model = drawn()
    factors = Factors(model)
    prices = Prices(model, factors)
    allowed = iter([True, True, True, False, *[True] * BISECTIONS])
    monkeypatch.setattr(_Search, "_allowed", lambda *_: next(allowed))
    nobody: Any = None
    found = _Search(model, factors, prices, nobody, 1.0, nobody).best()
    assert found is not None
    assert sum(found.fields) == 1
    assert set(found.ranks) == {0}


# The bound.


@given(st.integers(0, 2**31), st.sampled_from(list(STORAGE)), st.floats(-6, 1), st.booleans())
def test_no_row_changes_more_than_the_bound(seed, kind, exponent, several):
    model = drawn((4, 5, 3), (2, 3, 3), classes=3 if several else 1, seed=seed)
    factors = Factors(model)
    choice = Prices(model, factors).chosen(10.0**exponent, kind)
    less = smaller(model, factors, choice)
    codes = every_row(model.layout, -1)
    after = Coded(codes, np.zeros((len(codes), 0))).seen_by(less, model.schema, choice)[0]
    change = np.abs(truth(less, after) - truth(model, codes)).max(axis=0)
    bounds = [largest_change(model, factors, choice, less, every=e) for e in (True, False)]
    assert (change <= bounds[0] + 1e-5).all()
    assert (bounds[0] <= bounds[1] + 1e-9).all()
    # It is no empty promise: with three fields at most a few times what does happen.
    assert (bounds[0] <= 4 * change + 1e-5).all()


def valued(seed: int) -> FieldwiseModel:
    """A category, a number and a list of two whose values are summed."""
    random = np.random.default_rng(seed)
    fields = (
        Field(name="f"),
        Field(name="x", kind="numeric", binning="linear", dtype="float"),
        Field(name="l", kind="list", pooling="sum", n_slots=2),
    )
    schema = Schema(fields=fields, targets=(Target(column="y", classes=("a", "b")),))
    layout = Layout((4, 2, 3), (2, 2, 3), 1, schema.slots)
    weight = random.normal(0, 0.5, layout.n_rows)
    return FieldwiseModel(
        integer_vocabulary(schema, [random.integers(1, 50, d) for d in layout.sizes]),
        layout,
        random.normal(size=(layout.n_rows + 3, layout.width)).astype(np.float32),
        Objective((Head(),)),
        random.normal(size=1),
        moments=np.stack([weight, weight**2 + random.random(layout.n_rows)], axis=1),
    )


def every_valued_row() -> Coded:
    """All that rows of `valued` can be at the ends of what values may be."""
    numbers = [(0, -LINEAR_WITHIN), (0, LINEAR_WITHIN), (1, 1.0)]
    items = [(code, value) for code in range(-1, 3) for value in (-1.0, 0.0, 1.0)]
    rows = np.array(
        [(f, *x, *a, *b) for f, x, a, b in itertools.product(range(-1, 4), numbers, items, items)]
    )
    return Coded(rows[:, [0, 1, 3, 5]].astype(np.int32), rows[:, [2, 4, 6]])


@given(st.integers(0, 2**31), st.floats(-6, 1), st.sampled_from([1, 2, 3, 4, 5, 6, 7]))
def test_the_bound_holds_where_fields_with_values_go(seed, exponent, kept):
    model = valued(seed)
    factors = Factors(model)
    choice = Prices(model, factors).chosen(10.0**exponent, "int8")
    choice = replace(choice, fields=tuple(bool(kept & bit) for bit in (1, 2, 4)))
    less = smaller(model, factors, choice)
    rows = every_valued_row()

    def scores(of: FieldwiseModel, codes: np.ndarray, values: np.ndarray) -> np.ndarray:
        layout, wide = of.layout, wide_values(codes, values, of.schema.valued)
        at = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
        return maths.scores(of.rows.astype(np.float64), layout, at, wide) + of.offsets

    after = scores(less, *rows.seen_by(less, model.schema, choice))
    change = np.abs(after - scores(model, rows.codes, rows.values)).max()
    for every in (True, False):
        bound = largest_change(model, factors, choice, less, every=every)[0]
        assert change <= bound * (1 + 1e-5) + 1e-4


def climbed(change: Any, n_values: list[int], random: np.random.Generator) -> float:
    """The largest change that going from value to better value finds."""
    row = np.array([random.integers(0, n) for n in n_values])
    best = -1.0
    for _ in range(3):
        for j, n in enumerate(n_values):
            rows = np.repeat(row[None], n, axis=0)
            rows[:, j] = np.arange(n)
            found = change(rows)
            row = rows[int(np.argmax(found))]
            best = max(best, float(found.max()))
    return best


def test_an_adversary_does_not_get_beyond_the_bound():
    sizes = (60, 40, 30, 50, 20)
    model = drawn(sizes, (8,) * 5)
    factors = Factors(model)
    choice = Prices(model, factors).chosen(1e-2, "int8")
    less = smaller(model, factors, choice)
    bounds = [largest_change(model, factors, choice, less, every=e)[0] for e in (True, False)]

    def change(rows: np.ndarray) -> np.ndarray:
        after = Coded(rows, np.zeros((len(rows), 0))).seen_by(less, model.schema, choice)[0]
        return np.abs(truth(less, after) - truth(model, rows))[:, 0]

    random = np.random.default_rng(0)
    worst = max(climbed(change, list(sizes), random) for _ in range(20))
    drawn_rows = np.stack([random.integers(0, d, 2000) for d in sizes], axis=1)
    assert change(drawn_rows).max() < worst <= bounds[0] + 1e-4
    assert bounds[0] < bounds[1]
    assert bounds[0] < 3 * worst


# Whole models.

KINDS = {"age": "linear", "tags": "list:|"}


def clicks(n=4000, seed=0) -> pl.DataFrame:
    """Two fields that tell, some rare categories, a field of noise, a number and a list."""
    random = np.random.default_rng(seed)
    ad, site = random.integers(0, 30, n), random.integers(0, 6, n)
    taste = np.random.default_rng(7).normal(size=(30, 6))
    age = random.normal(40, 9, n)
    z = 2 * taste[ad, site] + 0.05 * (age - 40)
    return pl.DataFrame(
        {
            "ad": [None if a == 3 else f"ad{a}" for a in ad],
            "site": [f"s{s}" for s in site],
            "user": [f"u{k}" for k in random.zipf(1.5, n) % 900],
            "noise": [f"n{k}" for k in random.integers(0, 40, n)],
            "age": age,
            "tags": ["|".join(random.permutation(["x", "y", "z"])[: 1 + k % 3]) for k in ad],
            "y": (random.random(n) < 1 / (1 + np.exp(-z))).astype(int),
        }
    )


def fit(**options: Any) -> FieldwiseModel:
    frame = clicks()
    quick = {"kinds": KINDS, "epochs": 3, "rank": 8, "learning_rate": 0.1, **options}
    return FieldwiseClassifier(**quick).fit(frame.drop("y"), frame["y"]).model_


@pytest.fixture(scope="module")
def model() -> FieldwiseModel:
    return fit()


@pytest.fixture(scope="module")
def made(model: FieldwiseModel) -> Any:
    return compress(model, clicks(seed=1), max_loss=0.003)


@pytest.mark.filterwarnings("ignore:values never seen")
def test_much_smaller_for_little_loss(model, made, tmp_path):
    steps = made.steps
    assert [s.name for s in steps][:3] == ["as it is", "int8", "ranks"]
    assert made.times_smaller > 4
    assert [s.n_bytes for s in steps] == sorted((s.n_bytes for s in steps), reverse=True)
    assert made.loss_added <= 0.003
    saved = made.model.save(tmp_path / "m")
    assert sum(f.stat().st_size for f in saved.iterdir()) == pytest.approx(
        steps[-1].n_bytes,
        abs=3000,  # the steps and the certificate came later
    )
    loaded = FieldwiseModel.load(saved)
    new = clicks(seed=2)
    z = loaded.decision_function(new)
    assert np.array_equal(z, made.model.decision_function(new))
    assert isinstance(loaded.stored, Packed)
    assert isinstance(loaded.stored.entries.base, np.memmap)
    assert loaded.compression == made.model.compression
    assert "decoded" not in loaded.__dict__  # no float32 table was made to predict
    y = new["y"].to_numpy()
    losses = [np.mean(np.logaddexp(0, -z * (2 * y - 1))) for z in (model.decision_function(new), z)]
    assert losses[1] - losses[0] < 0.006
    one = [float(loaded.decision_function(row)[0]) for row in new.head(50).iter_rows(named=True)]
    np.testing.assert_allclose(one, z[:50], atol=1e-5)


@pytest.mark.filterwarnings("ignore:values never seen")
def test_the_steps_are_those_of_the_model(model, made):
    """What the report says of loss and size is what the model has, encoded anew."""
    found = made.model.decision_function(clicks(seed=1)).astype(np.float64)
    y = clicks(seed=1)["y"].to_numpy()
    loss = np.mean(np.logaddexp(0, -found * (2 * y - 1)))
    assert made.steps[-1].loss == pytest.approx(loss, abs=1e-9)
    plain = made.model.compression["steps"]
    assert plain[0] == {
        "step": "as it is",
        "bytes": folder_bytes(model),
        "loss": made.steps[0].loss,
    }
    assert made.model.compression["max_loss"] == 0.003


@pytest.mark.filterwarnings("ignore:values never seen")
def test_rows_of_the_table_keep_to_the_certificate(model, made):
    """Random rows and, from each, value by value towards the largest change."""
    bound = made.certificate["largest_change"]
    assert made.certificate["linear_within"] == 10
    new = clicks(seed=3)
    away = np.abs(made.model.decision_function(new) - model.decision_function(new))
    assert away.max() <= bound
    assert made.certificate["largest_on_validation"] <= bound
    known = {
        "ad": [*(f"ad{k}" for k in range(30)), None, "?"],
        "site": [*(f"s{k}" for k in range(6)), "?"],
        "user": [*clicks()["user"].unique().sort()[:200], "?"],
        "noise": [f"n{k}" for k in range(40)],
        "age": [40 - 89.0, 40 + 89.0, None],
        "tags": ["x", "y", "z", "x|y", "x|y|z", None],
    }
    names = list(known)

    def change(rows: np.ndarray) -> np.ndarray:
        columns = {
            name: pl.Series(name, [known[name][k] for k in rows[:, j]])
            for j, name in enumerate(names)
        }
        frame = pl.DataFrame(columns)
        return np.abs(made.model.decision_function(frame) - model.decision_function(frame))

    random = np.random.default_rng(0)
    worst = max(climbed(change, [len(v) for v in known.values()], random) for _ in range(4))
    assert away.max() < worst <= bound


def test_the_same_again_gives_the_same_bytes(model, made, tmp_path):
    again = compress(model, clicks(seed=1), max_loss=0.003)
    for name, found in (("a", made), ("b", again)):
        found.model.save(tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


@pytest.mark.filterwarnings("ignore:values never seen")
def test_no_loss_allowed_is_the_identity(model, tmp_path):
    found = compress(model, clicks(seed=1), max_loss=0)
    assert found.model is model
    assert found.times_smaller == 1
    assert found.certificate["largest_change"] == 0
    tiny = compress(model, clicks(seed=1), max_loss=1e-12)
    assert tiny.model is model


@pytest.mark.filterwarnings("ignore:values never seen")
def test_halves_where_bytes_lose_too_much(model, tmp_path):
    found = compress(model, clicks(seed=5), max_loss=1e-5)
    assert [s.name for s in found.steps][:2] == ["as it is", "float16"]
    assert found.steps[1].n_bytes < 0.7 * found.steps[0].n_bytes
    assert found.loss_added <= 1e-5
    new = clicks(seed=2)
    z = found.model.decision_function(new)
    away = np.abs(z - model.decision_function(new))
    assert 0 < away.max() <= found.certificate["largest_change"]
    loaded = FieldwiseModel.load(found.model.save(tmp_path / "m"))
    assert loaded.stored.kind == "float16"
    assert np.array_equal(loaded.decision_function(new), z)


@pytest.mark.filterwarnings("ignore:values never seen")
def test_everything_else_works_on_a_compressed_model(model, made):
    new, small = clicks(60, seed=2), made.model
    kept = set(small.schema.columns)
    explained = small.explain(new)
    z = small.decision_function(new)
    np.testing.assert_allclose(explained.base + explained.shapley.sum(axis=1), z, atol=1e-4)
    row = new.row(0, named=True)
    ranked = small.rank(row, over="site", k=99)
    for category, found, _ in ranked.iter_rows():
        expected = float(small.decision_function({**row, "site": category})[0])
        assert found == pytest.approx(expected, abs=1e-4)
    assert set(small.importance()) == set(small.schema.names)
    assert small.explain_category("site", "s1").count > 0
    assert "noise" not in kept or small.layout.ranks[small.schema.names.index("noise")] < 8
    assert small.rows.shape == (small.layout.n_rows + small.layout.n_fields, small.layout.width)
    without = replace(small, settings={})  # decodes: what is changed is no longer what was proved
    assert not without.compression
    np.testing.assert_allclose(without.decision_function(new), z, atol=1e-5)


def with_merged_ads(model: FieldwiseModel) -> FieldwiseModel:
    """Every second ad has joined the rare ones."""
    factors, choice = whole(model)
    j = model.schema.names.index("ad")
    code = np.arange(model.layout.sizes[j])
    rows = [*choice.rows]
    rows[j] = np.where(code % 2 == 0, 0, (code + 1) // 2)
    return smaller(model, factors, replace(choice, rows=tuple(rows)))


def test_categories_that_were_merged_are_ranked(model):
    small, row = with_merged_ads(model), clicks(1, seed=2).row(0, named=True)
    ranked = small.rank(row, over="ad", k=99)
    assert set(ranked["category"]) == set(model.rank(row, over="ad", k=99)["category"])
    assert ranked["score"].n_unique() < ranked.height
    for category, found, _ in ranked.iter_rows():
        expected = float(small.decision_function({**row, "ad": category})[0])
        assert found == pytest.approx(expected, abs=1e-4)


def test_categories_that_were_merged_get_a_row_when_they_are_met_again(model):
    small = with_merged_ads(model)
    merged = set(small.vocabulary["ad"].entries.filter(code=0)["category"])
    new = clicks(400, seed=6).filter(pl.col("ad").is_in(["ad1", "ad2", "ad4", "ad5"]))
    met = merged & set(new["ad"])
    assert 0 < len(met) < len(merged)
    after = update(small, new).vocabulary["ad"].entries
    fresh = after.filter(pl.col("code") >= small.layout.sizes[small.schema.names.index("ad")])
    assert set(fresh["category"]) == met


@pytest.mark.filterwarnings("ignore:values never seen")
def test_a_field_of_noise_goes_and_its_column_is_asked_for_no_longer():
    frame = clicks(8000)
    options = {"kinds": KINDS, "epochs": 2, "rank": 4, "learning_rate": 0.1, "weight_decay": 0.01}
    model = FieldwiseClassifier(**options).fit(frame.drop("y"), frame["y"]).model_
    found = compress(model, clicks(seed=1), max_loss=0.01).model
    assert "noise" not in found.schema.names
    assert "noise" in found.schema.dropped
    new = clicks(50, seed=2)
    z = found.decision_function(new)  # no warning of a column that is not known
    assert np.array_equal(found.decision_function(new.drop("noise")), z)
    assert {"ad", "site"} <= set(found.schema.names)


@pytest.mark.filterwarnings("ignore:values never seen")
@pytest.mark.parametrize("kind", ["classes", "number", "targets"])
def test_other_targets(kind, tmp_path):
    def table(seed: int) -> pl.DataFrame:
        frame = clicks(2500, seed)
        if kind == "classes":
            label = pl.when(pl.col("age") > 45).then(2).otherwise("y")
            return frame.with_columns(y=label)
        return (
            frame.with_columns(y=pl.col("y") * 100 + pl.col("age")) if kind == "number" else frame
        )

    quick = {"kinds": KINDS, "epochs": 2, "rank": 4, "learning_rate": 0.1}
    frame = table(0)
    if kind == "number":
        model = FieldwiseRegressor(**quick).fit(frame.drop("y"), frame["y"]).model_
        allowed = 5.0  # of half the squared error
    elif kind == "targets":
        both = frame.select("y", other=1 - pl.col("y"))
        model = FieldwiseClassifier(**quick).fit(frame.drop("y"), both).model_
        allowed = 0.005
    else:
        model = FieldwiseClassifier(**quick).fit(frame.drop("y"), frame["y"]).model_
        allowed = 0.005
    judge = table(1)
    if kind == "targets":
        names = [t.column for t in model.schema.targets]
        both = {names[0]: pl.col("y"), names[1]: 1 - pl.col("y")}
        judge = judge.with_columns(**both).drop([] if "y" in names else "y")
    found = compress(model, judge, max_loss=allowed)
    assert found.times_smaller > 3
    assert found.loss_added <= allowed
    loaded = FieldwiseModel.load(found.model.save(tmp_path / "m"))
    new = table(2).drop("y")
    away = np.abs(loaded.decision_function(new) - model.decision_function(new))
    assert away.max() <= found.certificate["largest_change"] + 1e-3


@pytest.mark.filterwarnings("ignore:values never seen")
def test_crosses_lose_what_says_nothing(tmp_path):
    model = fit(preset="glass", crosses=[("ad", "site"), ("user", "noise")])
    found = compress(model, clicks(seed=1), max_loss=0.01)
    assert "crosses" in [s.name for s in found.steps]
    before, after = (folder.save(tmp_path / name) for folder, name in
                     ((model, "a"), (found.model, "b")))  # fmt: skip
    sizes = [(f / "crosses.parquet").stat().st_size for f in (before, after)]
    assert sizes[1] < sizes[0] / 2
    loaded = FieldwiseModel.load(after)
    new = clicks(seed=2)
    z = loaded.decision_function(new)
    assert np.array_equal(z, found.model.decision_function(new))
    away = np.abs(z - model.decision_function(new))
    assert 0 < away.max() <= found.certificate["largest_change"]
    assert loaded.schema.names == model.schema.names  # crosses are made of them


def test_a_cross_of_which_nothing_is_left(tmp_path):
    model = fit(preset="glass", crosses=[("user", "noise")])
    words: Any = model.vocabulary
    masks = [np.zeros(len(count), bool) for count in words.evidence.counts]
    less = replace(model, vocabulary=words.with_evidence(words.evidence.kept(masks)))
    loaded = FieldwiseModel.load(less.save(tmp_path / "m"))
    row = clicks(1, seed=2).row(0, named=True)
    assert np.array_equal(loaded.decision_function(row), less.decision_function(row))
    codes, _ = words.base.encode(next(model.coded_chunks(clicks(9, seed=2)))[0])
    assert not loaded.vocabulary.evidence.of(codes).evidence.any()


@pytest.mark.filterwarnings("ignore:values never seen")
def test_trees_stay_and_the_bound_is_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(boosted, "MEMBERS", 2)
    monkeypatch.setattr(boosted, "MOST_TREES", 30)
    model = fit(preset="best", crosses=[("ad", "site")])
    found = compress(model, clicks(seed=1), max_loss=0.02)
    assert found.model.boosted is model.boosted
    assert len(found.steps) > 1
    assert "crosses" not in [s.name for s in found.steps]
    proof = found.certificate
    assert proof["of_the_score_trees_read"] > 0
    new = clicks(3000, seed=2)
    z = [m.decision_function(new) for m in (model, found.model)]
    assert 0 < np.abs(z[1] - z[0]).max() <= proof["largest_change"]
    assert np.ptp(z[0]) <= proof["largest_change"] == model.boosted.span()


# Refusals and the command.


def test_refusals(model, made):
    table = clicks(100, seed=1)
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(SettingError, match="max_loss="):
            compress(model, table, max_loss=bad)
    with pytest.raises(SchemaError, match="target 'y' is not in the table"):
        compress(model, table.drop("y"))
    with pytest.raises(SchemaError, match="'site' is not in the table"):
        compress(model, table.drop("site"))
    with pytest.raises(DataError, match="no rows"):
        compress(model, table.clear())
    with pytest.raises(ModelError, match="compressed already"):
        compress(made.model, table)
    with pytest.raises(ModelError, match="'fm' has products of three"):
        compress(fit(component="fm", epochs=1, rank=2), table)
    with pytest.raises(ModelError, match="a vote are not added up"):
        compress(fit(combine="vote", epochs=1), table)


@pytest.mark.filterwarnings("ignore:values never seen")
def test_the_command(model, made, tmp_path):
    model.save(tmp_path / "m")
    clicks(seed=1).write_parquet(tmp_path / "v.parquet")
    asked = ("compress", tmp_path / "m", "--validation", tmp_path / "v.parquet")
    out, _ = run(*asked, "--max-loss", 0.003, "--out", tmp_path / "small")
    assert "as it is" in out
    assert "times smaller" in out
    assert "within 10 standard deviations" in out
    for file in made.model.save(tmp_path / "expected").iterdir():
        assert (tmp_path / "small" / file.name).read_bytes() == file.read_bytes(), file.name
    assert "compressed: no score" in run("info", tmp_path / "small")[0]
    assert "logloss" in run("evaluate", tmp_path / "small", tmp_path / "v.parquet")[0]
    _, errors = run(*asked, "--out", tmp_path / "small", expect=2)
    assert "is there already" in errors
    # Nothing allowed: the same bytes.
    out, _ = run(*asked, "--max-loss", 0, "--out", tmp_path / "same")
    assert "as it was" in out
    for file in (tmp_path / "m").iterdir():
        assert (tmp_path / "same" / file.name).read_bytes() == file.read_bytes(), file.name
    out, _ = run(*asked, "--out", tmp_path / "small", "--overwrite", "--json")
    found = json.loads(out)
    assert found["steps"][0]["step"] == "as it is"
    assert found["certificate"]["largest_change"] > 0
    clicks(50, seed=1).drop("y").write_parquet(tmp_path / "n.parquet")
    asked = ("compress", tmp_path / "m", "--validation", tmp_path / "n.parquet")
    _, errors = run(*asked, "--out", tmp_path / "x", expect=2)
    assert "target 'y' is not in the table" in errors
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("harm", ["cut", "altered", "kind"])
def test_a_damaged_packed_table_is_refused(made, tmp_path, harm):
    made.model.save(tmp_path / "m")
    file = tmp_path / "m" / ("model.json" if harm == "kind" else "table.safetensors")
    content = bytearray(file.read_bytes())
    if harm == "kind":
        content = content.replace(b'"kind": "int8"', b'"kind": "int4"')
    elif harm == "cut":
        del content[-9:]
    else:
        content[-1] ^= 4
    file.write_bytes(content)
    with pytest.raises(ModelError, match=file.name):
        FieldwiseModel.load(tmp_path / "m")
