"""Updates: what stays, what is added up, what is learned, what is refused; every kind of model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import run
from fieldwise import (
    DataError,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    SchemaError,
    SettingError,
    boosted,
    maths,
    update,
)
from fieldwise.compress import compress
from fieldwise.crosses.evidence import Evidence, Observed
from fieldwise.data.encoding import encode
from fieldwise.data.readers import open_source
from fieldwise.fitting import fit_store, train_table
from fieldwise.predicting import evaluate_table
from fieldwise.train import TrainSettings
from fieldwise.updating import _remembered
from fieldwise.updating.drift import find_drift
from fieldwise.updating.one_update import Update, UpdateSettings, grown_table

QUICK = {"epochs": 3, "rank": 3, "learning_rate": 0.1}


def visits(n: int, seed: int, fresh: str | None = None) -> pl.DataFrame:
    """Site and hour together tell; some sites are there once or twice, `fresh` is one more that is
    liked always."""
    random = np.random.default_rng(seed)
    site, hour = random.integers(0, 6, n), random.integers(0, 8, n)
    names = np.array([f"s{s}" for s in site], dtype=object)
    names[::40] = [f"rare{seed}-{k // 2}" for k in range(len(names[::40]))]
    if fresh:
        names[1::7] = fresh
    size = random.normal(0, 1, n)
    score = np.where((site + hour) % 2 == 0, 1.5, -1.5) + 0.7 * size
    score = np.where(names == fresh, 3.0, score)
    return pl.DataFrame(
        {
            "site": names.tolist(),
            "hour": [f"h{h}" for h in hour],
            "price": np.round(random.gamma(2, 10, n), 1),
            "size": size,
            "y": (random.random(n) < 1 / (1 + np.exp(-score))).astype(int),
        }
    )


def fit(rows: pl.DataFrame, **changes: Any) -> FieldwiseModel:
    estimator = FieldwiseClassifier(**{**QUICK, "kinds": {"size": "linear"}, **changes})
    return estimator.fit(rows.drop("y"), rows["y"]).model_


def logloss(model: FieldwiseModel, rows: pl.DataFrame) -> float:
    model._told.update(model.schema.names)  # what was never seen is told elsewhere
    return float(evaluate_table(model, rows)["loss"])


@pytest.fixture(scope="module")
def model() -> FieldwiseModel:
    return fit(visits(4000, 0))


# What stays


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_no_rows_change_nothing(model, tmp_path, kind):
    empty: Any = visits(10, 1).head(0)
    if kind != "frame":
        getattr(empty, f"write_{kind}")(tmp_path / f"e.{kind}")
        empty = tmp_path / f"e.{kind}"
    same = update(model, empty, forget=0.5)
    assert same.rows.tobytes() == model.rows.tobytes()
    assert same.lineage == []
    test = visits(100, 2).drop("y")
    model._told.update(model.schema.names)
    assert np.array_equal(same.decision_function(test), model.decision_function(test))


def test_no_rows_leave_a_compressed_model_compressed(model):
    packed = compress(model, visits(500, 1), max_loss=0.01).model
    assert packed.compression
    assert update(packed, visits(10, 1).head(0)) is packed


def test_no_rows_on_the_command_line(model, tmp_path):
    model.save(tmp_path / "m")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    visits(10, 1).head(0).write_csv(tmp_path / "e.csv")
    out, _ = run("update", tmp_path / "m", tmp_path / "e.csv")
    assert "no rows" in out
    assert "as it was" in out
    assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before
    assert json.loads(run("versions", tmp_path / "m", "--json")[0])[0]["version"] is None
    run("update", tmp_path / "m", tmp_path / "e.csv", "--out", tmp_path / "copy")
    copy = {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()}
    assert copy == before


def going(model: FieldwiseModel, rows: pl.DataFrame, folder: Path, **asked: Any) -> Update:
    """An update as it begins."""
    how = UpdateSettings(**asked)
    model = replace(model, vocabulary=getattr(model.vocabulary, "opened", model.vocabulary))
    store = encode(rows, folder / "store", start=_remembered(model, how, 1))
    from fieldwise.train import Running

    return Update(model, store, how, Running(), 1)


@given(st.integers(0, 10**6))
@settings(max_examples=15)
def test_before_any_step_it_scores_as_before(tmp_path_factory, seed):
    """New categories have rows, and every prediction is what it was, bit for bit; but that of
    categories now seen too seldom for a row, which are rare ones instead of unknown."""
    model = fit(visits(600, seed % 7), epochs=1)
    new = visits(200, seed, fresh="fresh")
    begun = going(model, new, tmp_path_factory.mktemp("g"))
    assert begun.layout.sizes[0] > model.layout.sizes[0]
    table = grown_table(begun.model, begun.words, begun.layout)
    rows = np.concatenate([table, model.rows[model.layout.n_rows :]])
    grown = replace(model, vocabulary=begun.words, layout=begun.layout, rows=rows)
    test = pl.concat([new, visits(200, seed + 1)]).drop("y")
    test = test.with_columns(site=pl.Series([None, "never", *test["site"][2:]]))
    now_rare = (
        begun.words["site"]
        .entries.filter(code=0)
        .join(model.vocabulary["site"].entries, on="category", how="anti")
    )
    test = test.filter(~pl.col("site").is_in(now_rare["category"].to_list()).fill_null(False))
    assert (test["site"] == "fresh").sum() > 20
    for one in (model, grown):
        one._told.update(model.schema.names)
    assert np.array_equal(grown.decision_function(test), model.decision_function(test))


def test_new_categories_start_at_the_weighted_mean(model, tmp_path):
    begun = going(model, visits(400, 9, fresh="fresh"), tmp_path)
    table = grown_table(begun.model, begun.words, begun.layout)
    code = begun.words["site"].entries.filter(category="fresh")["code"].item()
    counts = model.vocabulary["site"].counts()
    mean = counts @ model.table[model.layout.own(0)].astype(np.float64) / counts.sum()
    assert np.allclose(table[code], mean, atol=1e-6)


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_codes_stay_and_counts_add_up(seed):
    old, new = visits(500, seed), visits(300, seed + 1, fresh="fresh")
    model = fit(old, epochs=1)
    after = update(model, new)
    for words, grown in zip(model.vocabulary.fields, after.vocabulary.fields, strict=True):
        both = words.entries.join(grown.entries, on="category", nulls_equal=True)
        assert both.height == words.entries.height
        moved = both.filter((pl.col("code") != pl.col("code_right")) & (pl.col("code") > 0))
        assert moved.is_empty()
        assert (both["count"] <= both["count_right"]).all()
        total = grown.entries["count"].sum()
        assert total == words.entries["count"].sum() + new.height
    again = pl.concat([old, new])
    counted = dict(again["site"].value_counts().iter_rows())
    entries = after.vocabulary["site"].entries
    assert dict(zip(entries["category"], entries["count"], strict=True)) == counted
    own = {c for c, n in counted.items() if n >= 2}  # what is seen twice in all has a row
    assert set(entries.filter(pl.col("code") > 0)["category"]) == own


def test_min_count_of_new_categories(model):
    new = visits(400, 9, fresh="fresh")
    assert (new["site"] == "fresh").sum() == 57
    assert update(model, new, min_count=58).layout.sizes[0] == model.layout.sizes[0]
    assert update(model, new, min_count=57).layout.sizes[0] == model.layout.sizes[0] + 1


def test_the_same_update_gives_the_same_bits(model, tmp_path):
    for name in ("a", "b"):
        update(model, visits(700, 3, fresh="fresh"), forget=0.3).save(tmp_path / name)
    files = [{p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in "ab"]
    assert files[0] == files[1]


# What is learned


def test_it_learns_what_is_new(model):
    new, test = visits(2000, 5, fresh="fresh"), visits(1500, 6, fresh="fresh")
    after = update(model, new, epochs=8)
    assert logloss(after, test) < logloss(model, test) - 0.03
    mine = test.filter(pl.col("site") == "fresh")
    assert logloss(after, mine) < 0.5 * logloss(model, mine)
    others = test.filter(pl.col("site") != "fresh")
    assert logloss(after, others) < logloss(model, others) + 0.005
    (about,) = after.lineage
    assert about["rows"] == 2000
    assert about["new_categories"]["site"] >= 1
    assert about["table"] == "trained on"
    assert about["after"]["loss"] < about["before"]["loss"]
    assert after.metrics == about["after"]
    assert after.settings["rows"] == model.settings["rows"] + 2000


def test_what_is_no_better_is_not_taken(model):
    """Where training on is no better on the rows held out, the table is kept."""
    calm = update(model, visits(2000, 5), learning_rate=3.0)
    assert calm.lineage[0]["table"] == "kept"
    before, after = calm.lineage[0]["before"], calm.lineage[0]["after"]
    assert before == after
    test = visits(1000, 6).filter(pl.col("site").str.starts_with("s")).drop("y")
    assert np.array_equal(model.decision_function(test), calm.decision_function(test))
    assert calm.vocabulary.counts().sum() > model.vocabulary.counts().sum()


def test_many_small_updates_lead_somewhere(model):
    rows, test = visits(2000, 5, fresh="fresh"), visits(1500, 6, fresh="fresh")
    after = model
    for start in range(0, 2000, 100):
        after = update(after, rows[start : start + 100], allow_drift=True)
    assert len(after.lineage) == 20
    assert logloss(after, test) < logloss(model, test) - 0.03


def test_saved_and_loaded_between_updates(model, tmp_path):
    rows = visits(600, 5)
    model.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    a, b = update(model, rows), update(tmp_path / "m", rows)
    assert np.array_equal(a.rows, b.rows)
    assert np.array_equal(a.rows, update(loaded, rows).rows)
    b.save(tmp_path / "n")
    again = FieldwiseModel.load(tmp_path / "n")
    assert again.lineage == b.lineage
    assert np.array_equal(update(again, rows).rows, update(b, rows).rows)


def test_steps_are_as_small_as_trainings_last_ones(tmp_path):
    """The accumulators that an update begins with are about those training ended with."""
    rows = visits(20_000, 0)
    store = encode(rows, tmp_path / "s", target="y")
    from fieldwise.data.words import StoredWords
    from fieldwise.fitting import objective_of, problem_of
    from fieldwise.held_out import default_share, held_out_rows
    from fieldwise.train import train

    words = StoredWords(store)
    held_out = held_out_rows(store, words, "random", default_share(store))
    problem = problem_of(
        store, words, held_out=held_out, objective=objective_of(store.schema), rank=4
    )
    found = train(problem, TrainSettings(learning_rate=0.05, epochs=4))
    model = FieldwiseModel.of(words, problem, found, {"batch_size": 256, "seed": 0})
    begun = going(model, visits(20_000, 1), tmp_path)
    state = begun.start().state
    real = maths_grown(found.state, model, begun)
    known = np.flatnonzero(model.vocabulary.counts()[: model.layout.sizes[0]] > 500)
    assert len(known) >= 6
    ratio = np.sqrt(state[known] / real[known])
    assert 0.5 < np.median(ratio) < 2
    assert (np.abs(np.log(ratio)) < np.log(5)).mean() > 0.9


def maths_grown(state: np.ndarray, model: FieldwiseModel, begun: Update) -> np.ndarray:
    from fieldwise.train import grown

    return grown(np.ascontiguousarray(state), model.layout, begun.layout, None)


@pytest.mark.parametrize("component", ["linear", "fm"])
def test_squared_gradients_are_those_of_samples_alone(component):
    """`maths.gradient_squares` by one gradient a sample."""
    from fieldwise.layout import Layout

    random = np.random.default_rng(0)
    layout = Layout((3, 4, 5), (2, 1, 2), 2, (1, 2, 1), component)
    table = random.normal(size=(layout.n_rows, layout.width))
    rows = layout.rows(np.stack([random.integers(0, d, 9) for d in (3, 4, 4, 5)], axis=1))
    rows[:, 2] = rows[:, 1]  # a list of the same value twice counts once, with both values
    values = np.ones((9, 4))
    values[:, 2] = 0.0
    df = random.normal(size=(9, 2, 3))
    found = maths.gradient_squares(table, layout, rows, df, values)
    for i, place in enumerate([0, 1, 3]):
        squares = []
        for s in range(9):
            one = slice(s, s + 1)
            slope = maths.gradient(table, layout, rows[one], df[one], values[one])
            squares.append(slope[rows[s, place]] ** 2)
        assert np.allclose(found[i], np.mean(squares, axis=0))


@pytest.mark.parametrize("component", ["linear", "fm"])
def test_what_a_row_adds_given_the_others(component):
    """`maths.given_others` by scores of a table that has the row."""
    from fieldwise.layout import Layout

    random = np.random.default_rng(0)
    layout = Layout((3, 4, 5), (2, 1, 2), 2, (1, 2, 1), component)
    table = random.normal(size=(layout.n_rows, layout.width))
    rows = layout.rows(np.stack([random.integers(0, d, 9) for d in (3, 4, 4, 5)], axis=1))
    values = random.random((9, 4))
    for j, slots in ((0, [0]), (1, [1, 2]), (2, [3])):
        without = values.copy()
        without[:, slots[-1]] = 0.0
        base, slope = maths.given_others(table, layout, rows, j, without)
        row, x = table[rows[:, slots[-1]]], values[:, slots[-1]]
        z = maths.scores(table, layout, rows, values)
        for o in range(2):
            t = layout.output == o
            gain = (slope[:, t] * row[:, : layout.n_columns][:, t]).sum(axis=1)
            gain = x * (gain + row[:, layout.n_columns + o])
            assert np.allclose(base[:, o] + gain, z[:, o])


# Every kind of model


TASKS: dict[str, dict[str, Any]] = {
    "members": {"n_members": 3},
    "weighted": {"combine": "weighted"},
    "vote": {"combine": "vote"},
    "weighted_vote": {"combine": "weighted_vote"},
    "fm": {"component": "fm", "rank": 2},
    "bounds": {"max_variance": 5.0},
    "rare": {"unseen": "rare"},
    "error": {"unseen": "error"},
    "sampled": {"sampling_rate": 0.5},
}


@pytest.mark.parametrize("name", TASKS)
def test_classes_of_every_kind(name):
    model = fit(visits(3000, 0), **TASKS[name])
    new, test = visits(2000, 5, fresh="fresh"), visits(1000, 6, fresh="fresh")
    test = test.filter(~pl.col("site").str.starts_with("rare"))
    after = update(model, new)
    assert after.objective == model.objective
    assert after.layout.ranks == model.layout.ranks
    if name != "error":
        assert logloss(after, test) < logloss(model, test) - 0.01
    test = test.filter(pl.col("site") != "fresh")
    assert logloss(after, test) < logloss(model, test) + 0.01


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "poisson"])
def test_numbers(loss):
    def table(n: int, seed: int, fresh: str | None = None) -> pl.DataFrame:
        rows = visits(n, seed, fresh)
        random = np.random.default_rng(seed)
        level = np.where(rows["site"] == "fresh", 3.0, 0.0) + rows["size"].to_numpy()
        if loss == "poisson":
            return rows.with_columns(y=pl.Series(random.poisson(np.exp(level / 2))))
        return rows.with_columns(y=pl.Series(5000 + 800 * level + random.normal(0, 80, n)))

    rows = table(3000, 0)
    estimator = FieldwiseRegressor(**QUICK, kinds={"size": "linear"}, loss=loss, delta=500.0)
    model = estimator.fit(rows.drop("y"), rows["y"]).model_
    after = update(model, table(1500, 1, "fresh"))
    test = table(1000, 2, "fresh")
    assert logloss(after, test) < 0.85 * logloss(model, test)
    # A model made before the measure of its targets was kept.
    older = replace(model, settings={k: v for k, v in model.settings.items() if k != "spread"})
    assert logloss(update(older, table(1500, 1, "fresh")), test) < 0.85 * logloss(model, test)


def test_several_classes_weights_and_lists():
    random = np.random.default_rng(0)

    def table(n: int, longest: int) -> pl.DataFrame:
        tags = [
            random.choice(list("abcdef"), random.integers(1, longest)).tolist() for _ in range(n)
        ]
        y = [str(min(2, len({"a", "b"} & set(t)))) for t in tags]
        return pl.DataFrame(
            {
                "tags": tags,
                "hour": random.integers(0, 5, n).astype(str),
                "w": random.random(n) + 0.5,
                "kind": y,
            }
        )

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = encode(table(3000, 4), f"{folder}/s", target="kind", weight="w")
        model = fit_store(store, settings=TrainSettings(epochs=3, learning_rate=0.2), rank=3)
        after = update(model, table(2000, 6))  # and longer lists than before
    assert after.schema["tags"].n_slots == 5
    assert after.layout.slots[0] == 5
    assert after.moments is not None
    assert after.moments.shape == (after.layout.n_rows, 2)
    test = table(1000, 6)
    assert logloss(after, test) < logloss(model, test)
    total = after.vocabulary["hour"].entries["count"].sum()
    assert total == 5000


def test_clicks_of_impressions(tmp_path):
    def table(n: int, seed: int) -> pl.DataFrame:
        rows, random = visits(n, seed), np.random.default_rng(seed)
        shown = random.integers(1, 20, n)
        clicked = random.binomial(shown, 0.1 + 0.6 * (rows["hour"] < "h4").to_numpy())
        return rows.drop("y").with_columns(clicks=clicked, shown=shown)

    table(2000, 0).write_csv(tmp_path / "t.csv")
    table(1000, 1).write_csv(tmp_path / "new.csv")
    quick = ("--epochs", 2, "--learning-rate", 0.1, "--rank", 2, "--quiet")
    share = ("--clicks", "clicks", "--impressions", "shown")
    run("train", tmp_path / "t.csv", *share, *quick, "--out", tmp_path / "m")
    out, _ = run("update", tmp_path / "m", tmp_path / "new.csv", "--json")
    found = json.loads(out)
    assert found["version"] == "0001"
    assert found["after"]["loss"] <= found["before"]["loss"]


# Forgetting


def test_forgetting_multiplies_counts(model):
    rows = visits(100, 5)
    entries = model.vocabulary["hour"].entries
    seen = dict(rows["hour"].value_counts().iter_rows())
    for forget in (0.0, 0.25, 1.0):
        after = update(model, rows, forget=forget)
        both = entries.join(after.vocabulary["hour"].entries, on="category")
        for category, _, old, _, new in both.iter_rows():
            left = new - seen.get(category, 0)
            assert abs(left - (1 - forget) * old) < 1
        assert after.settings["rows"] == round((1 - forget) * model.settings["rows"]) + 100


def test_missing_values_that_are_forgotten_keep_their_row():
    def table(n: int, seed: int, gap: int) -> pl.DataFrame:
        missing = pl.int_range(pl.len()) < gap
        price = pl.when(missing).then(None).otherwise("price").alias("price")
        return visits(n, seed).with_columns(price)

    model = fit(table(1000, 0, 40))
    after = update(model, table(1000, 1, 0), forget=1.0)
    j = model.schema.names.index("price")
    assert after.layout.sizes[j] == model.layout.sizes[j]
    before, now = (m.vocabulary["price"] for m in (model, after))
    assert now.missing_code == before.missing_code > 0
    assert now.counts()[now.missing_code] == 0
    again = update(after, table(1000, 2, 40))
    assert again.vocabulary["price"].counts()[before.missing_code] == 40


def test_small_counts_fade_on_average(model):
    """Counts of one become 0 or 1 by chance, three quarters of them 1."""
    rows = pl.DataFrame(
        {"site": [f"x{k}" for k in range(4000)], "hour": ["h"] * 4000, "y": [0, 1] * 2000}
    )
    plain = fit(rows, epochs=1, kinds={}, min_count=1)
    left = update(plain, rows.head(2), forget=0.25).vocabulary["site"].entries["count"].sum() - 2
    assert 2850 < left < 3150


def test_what_is_forgotten_is_learned_faster(model):
    turned = visits(600, 5).with_columns(y=1 - pl.col("y"))
    test = visits(1000, 6).with_columns(y=1 - pl.col("y"))
    test = test.filter(pl.col("site").str.starts_with("s"))
    slow, fast = (update(model, turned, forget=f) for f in (0.0, 1.0))
    assert logloss(fast, test) < logloss(slow, test) < logloss(model, test)


# Crosses


def crossed(n: int, seed: int) -> pl.DataFrame:
    """Every user likes half of the items, with no pattern."""
    liking = np.random.default_rng(0).integers(0, 2, (14, 10))
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 12 if seed < 5 else 14, n), random.integers(0, 10, n)
    told = np.where(random.random(n) < 0.95, liking[user, item], 1 - liking[user, item])
    return pl.DataFrame(
        {
            "user": [f"once{seed}-{k}" if k % 50 == 0 else f"u{u}" for k, u in enumerate(user)],
            "item": [f"i{k}" for k in item],
            "size": random.normal(0, 1, n),
            "y": told,
        }
    )


def test_joined_sums_are_those_of_all_rows():
    random = np.random.default_rng(0)
    codes = random.integers(0, 5, (300, 3)).astype(np.int32)
    codes[200:] += 2  # some were never seen before
    y, w = random.random((300, 2)), 0.5 + random.random(300)
    crosses = [(0,), (0, 2), (0, 1, 2)]
    old, _ = Evidence.learn(Observed.of(codes[:200], y[:200], w[:200]), crosses)
    assert old.mean is not None
    joined = old.joined(Observed.of(codes[200:], y[200:], w[200:]), old.mean, keep=0.5)
    again = Evidence.from_bytes(joined.crosses, joined.shrink, joined.to_bytes(), joined.mean)
    weight = np.where(np.arange(300) < 200, 0.5, 1.0) * w
    for row in codes[::7]:
        for evidence in (joined, again):
            found = evidence.of(row[None])
            for k, cross in enumerate(crosses):
                same = (codes[:, cross] == row[list(cross)]).all(axis=1)
                count = weight[same].sum()
                total = (weight[same, None] * (y[same] - old.mean)).sum(axis=0)
                assert found.seen[0, k] == pytest.approx(count, rel=1e-5)
                assert found.evidence[0, k] == pytest.approx(
                    total / (count + old.shrink[k]), rel=1e-4
                )
    gone = old.joined(Observed.of(codes[200:], y[200:], w[200:]), old.mean, keep=0.0)
    fresh = Evidence.learn(Observed.of(codes[200:], y[200:], w[200:]), crosses)[0]
    assert [len(k.count) for k in gone._known] == [len(k.count) for k in fresh._known]


@pytest.fixture(scope="module")
def glass() -> FieldwiseModel:
    settings = {**QUICK, "crosses": [("user", "item")], "kinds": {"size": "linear"}}
    rows = crossed(1500, 1)
    return FieldwiseClassifier(**settings).fit(rows.drop("y"), rows["y"]).model_


@pytest.mark.parametrize("forget", [0.0, 0.9])
def test_a_model_with_crosses(glass, forget, tmp_path):
    new, test = crossed(2000, 5), crossed(1000, 6)  # two users are new
    after = update(glass, new, forget=forget)
    assert logloss(after, test) < logloss(glass, test) - 0.03
    after.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    loaded._told.update(loaded.schema.names)
    test = test.drop("y")
    assert np.array_equal(loaded.decision_function(test), after.decision_function(test))
    one = test.row(3, named=True)
    assert np.allclose(loaded.decision_function(one), after.decision_function(test)[3], atol=1e-5)
    for words, grown in zip(glass.vocabulary.fields, after.vocabulary.fields, strict=True):
        with_row = words.entries.filter(pl.col("code") > 0)
        both = with_row.join(grown.entries, on=["category", "code"], nulls_equal=True)
        assert both.height == with_row.height
    codes = dict(after.vocabulary["user"].entries.select("category", "code").iter_rows())
    size = glass.layout.sizes[0]
    assert sorted([codes["u12"], codes["u13"]]) == [size, size + 1]  # no rows for the rare ones
    assert after.layout.sizes[0] == size + 2
    again = update(loaded, crossed(500, 7))
    assert again.layout.sizes[0] >= size + 2
    assert logloss(again, crossed(1000, 6)) < logloss(glass, crossed(1000, 6)) - 0.03


def test_labels_of_new_rows_are_not_in_their_evidence(glass, tmp_path):
    """What a new row is trained with does not depend on any new label."""
    new = crossed(400, 5)
    turned = new.with_columns(y=1 - pl.col("y"))
    for name in "ab":
        (tmp_path / name).mkdir()
    a, b = (going(glass, rows, tmp_path / name) for rows, name in ((new, "a"), (turned, "b")))
    assert np.array_equal(a.crossed["values"], b.crossed["values"])
    assert np.array_equal(a.crossed["codes"], b.crossed["codes"])
    assert not np.array_equal(a.crossed["target"], b.crossed["target"])


def test_sums_of_crosses_take_in_all_new_rows(glass):
    new = crossed(400, 1)
    after = update(glass, new)
    seen = [words.vocabulary.evidence for words in (glass, after)]
    mine = new.row(1, named=True)
    codes = [m.vocabulary.base.encode(chunk_of(mine))[0] for m in (glass, after)]
    counts = [e.of(c).seen[0] for e, c in zip(seen, codes, strict=True)]
    same = new.filter(user=mine["user"])
    both = same.filter(item=mine["item"])
    assert counts[1][0] - counts[0][0] == same.height
    assert counts[1][-1] - counts[0][-1] == both.height


def chunk_of(row: dict[str, Any]) -> Any:
    from fieldwise.data.chunks import Chunk

    return Chunk(pl.DataFrame([row]))


def test_a_model_made_before_the_mean_was_kept(glass, tmp_path):
    glass.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    with_mean = update(loaded, crossed(300, 3))
    loaded.vocabulary.evidence.mean = None
    without = update(loaded, crossed(300, 3))
    totals = [m.vocabulary.evidence._known[0].total for m in (with_mean, without)]
    assert np.allclose(*totals, atol=1e-3)


def test_boosted_trees(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(boosted, "MEMBERS", 2)
    monkeypatch.setattr(boosted, "MOST_TREES", 60)
    crossed(1500, 1).write_csv(tmp_path / "t.csv")
    crossed(2500, 5).write_csv(tmp_path / "new.csv")
    crossed(1000, 6).write_csv(tmp_path / "test.csv")
    model = train_table(
        tmp_path / "t.csv",
        tmp_path / "m",
        reading={"target": "y"},
        preset="best",
        crosses=[("user", "item")],
        settings=TrainSettings(epochs=2, learning_rate=0.1),
        rank=2,
    )
    out, _ = run("update", tmp_path / "m", tmp_path / "new.csv")
    assert "trees: " in out
    after = FieldwiseModel.load(tmp_path / "m")
    about = after.lineage[0]
    assert about["after"]["loss"] <= about["before"]["loss"]
    assert logloss(after, tmp_path / "test.csv") < logloss(model, tmp_path / "test.csv") - 0.03
    few = update(after, crossed(100, 7))
    assert few.lineage[-1]["trees"] == "kept"
    with pytest.raises(SettingError, match="min_count is not for models with crosses"):
        update(after, crossed(100, 7), min_count=3)


def test_refitted_and_longer_trees():
    pytest.importorskip("lightgbm")
    from fieldwise.boosted import Examples, fit_boosted, refitted
    from fieldwise.objective import Head

    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 3)).astype(np.float32)
    y = (random.random(3000) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(float)
    old = fit_boosted(Examples(x[:1000], y[:1000]), Examples(x[1000:1300], y[1000:1300]), Head())
    same = refitted(old, Examples(x[2000:], y[2000:]), 1.0)
    assert np.allclose(same.scores(x), old.scores(x), atol=1e-6)
    turned = refitted(old, Examples(x[2000:], 1 - y[2000:]), 0.0)
    assert np.corrcoef(turned.scores(x)[:, 0], old.scores(x)[:, 0])[0, 1] < -0.8
    more = fit_boosted(
        Examples(x[2000:], y[2000:]), Examples(x[1300:2000], y[1300:2000]), Head(), start=old
    )
    assert len(more.members) == len(old.members)
    n_trees = [[t.num_trees() for t in trees._trees] for trees in (old, more)]
    assert all(a < b for a, b in zip(*n_trees, strict=True))
    for before, after in zip(old._trees, more._trees, strict=True):
        first = after.predict(x, raw_score=True, num_iteration=before.num_trees())
        assert np.allclose(first, before.predict(x, raw_score=True))


# Drift


def drifted(model: FieldwiseModel, rows: pl.DataFrame) -> dict[str, str]:
    findings = find_drift(model.vocabulary, open_source(rows, schema=model.schema))
    return {f.column: f.what for f in findings}


def test_rows_as_before_have_not_drifted(model):
    assert drifted(model, visits(3000, 8)) == {}
    assert drifted(model, visits(2, 8)) == {}


def test_what_has_drifted_is_said(model):
    rows = visits(1000, 8)
    found = drifted(model, rows.drop("hour", "y"))
    assert sorted(found) == ["hour", "y"]
    assert "is not in the table; it has site, price, size" in found["hour"]
    found = drifted(model, rows.with_columns(price=pl.lit("cheap"), size=pl.lit("large")))
    assert sorted(found) == ["price", "size"]
    assert "row 1: column 'price' is numeric but holds 'cheap'" in found["price"]
    new_names = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit("zz")).otherwise("hour")
    found = drifted(model, rows.with_columns(hour=new_names))
    assert list(found) == ["hour"]
    assert found["hour"].startswith(
        "500 of 1,000 rows (50.0%) hold values never seen, such as 'zz'"
    )
    found = drifted(model, rows.with_columns(hour=pl.lit(None, pl.String)))
    assert found["hour"] == "all 1,000 values are missing, and none was before"
    found = drifted(model, rows.with_columns(size=pl.lit(float("nan"))))
    assert found["size"] == "all 1,000 values are missing, and none was before"
    found = drifted(model, rows.with_columns(y=pl.lit("maybe")))
    assert "'maybe', which is not one of the classes ['0', '1']" in found["y"]


def test_many_new_values_are_usual_where_they_were_before():
    """A field of which half the values are new every day, and one where none is."""

    def day(k: int) -> pl.DataFrame:
        names = [f"{k}-{i}" if i % 2 else f"old{i % 50}" for i in range(2000)]
        return pl.DataFrame({"id": names, "site": ["a", "b"] * 1000, "y": [0, 1, 1, 0] * 500})

    model = fit(day(0), kinds={}, epochs=1)
    assert drifted(model, day(1)) == {}
    assert list(drifted(model, day(1).with_columns(site=pl.lit("c")))) == ["site"]


def test_drift_refuses_and_changes_nothing(model, tmp_path):
    model.save(tmp_path / "m")
    before = (tmp_path / "m" / "model.json").read_bytes()
    rows = visits(1000, 8).with_columns(hour=pl.lit("new"))
    rows.write_csv(tmp_path / "new.csv")
    _, errors = run("update", tmp_path / "m", tmp_path / "new.csv", expect=2)
    assert "has drifted" in errors
    assert "hour: 1,000 of 1,000 rows (100.0%)" in errors
    assert "--allow-drift" in errors
    assert (tmp_path / "m" / "model.json").read_bytes() == before
    run("update", tmp_path / "m", tmp_path / "new.csv", "--allow-drift")
    assert (tmp_path / "m" / "model.json").read_bytes() != before
    with pytest.raises(SchemaError, match=r"(?s)price: .*Nothing was changed; fix the table"):
        update(model, visits(50, 1).with_columns(price=pl.lit("x")), allow_drift=True)
    with pytest.raises(SchemaError, match="all 50 values are missing"):
        update(model, visits(50, 1).with_columns(hour=pl.lit(None, pl.String)))


def test_dates_are_new_by_themselves():
    days = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 3, 1), "1h", eager=True)
    frame = pl.DataFrame(
        {"when": days, "a": ["x", "y", "z"] * (len(days) // 3) + ["x"] * (len(days) % 3)}
    )
    frame = frame.with_columns(y=pl.Series(np.arange(len(frame)) % 2))
    model = fit(frame, kinds={}, epochs=1)
    later = frame.with_columns(pl.col("when") + pl.duration(days=61))
    assert "date" in {f.part for f in model.schema.fields}
    assert drifted(model, later) == {}


# Settings


def test_settings_out_of_range(model, tmp_path):
    rows = visits(200, 1)
    for changes in ({"forget": 1.5}, {"validation": 1.0}, {"min_count": 0}, {"epochs": 0}):
        with pytest.raises(SettingError, match=next(iter(changes))):
            update(model, rows, **changes)
    model.save(tmp_path / "m")
    rows.write_csv(tmp_path / "r.csv")
    both = ("--validation", 0.2, "--no-validation")
    _, errors = run("update", tmp_path / "m", tmp_path / "r.csv", *both, expect=2)
    assert "choose one" in errors
    run("update", tmp_path / "m", tmp_path / "r.csv", "--no-validation", "--quiet")
    assert FieldwiseModel.load(tmp_path / "m").lineage[0]["before"] == {}
    with pytest.raises(DataError, match="no such file"):
        update(model, tmp_path / "nowhere.csv")
    _, errors = run("update", tmp_path / "m", tmp_path / "r.csv", "--out", tmp_path / "m", expect=2)
    assert "is there already" in errors


def test_all_rows_of_one_class(model):
    rows = visits(300, 5).filter(pl.col("y") == 1)
    after = update(model, rows)
    assert np.isfinite(after.rows).all()
