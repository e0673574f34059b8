"""One category learned alone: a generic optimiser as truth, planted ones; nothing else moves."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from fieldwise import (
    DataError,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    ModelError,
    SchemaError,
    SettingError,
    maths,
    synthetic,
)
from fieldwise.losses import LOSSES
from fieldwise.one_category import _coded, _learned_row

QUICK = {"epochs": 3, "rank": 3, "learning_rate": 0.1}


def shop(n: int, seed: int) -> pl.DataFrame:
    """Site and hour together tell most; some sites are there once, a column is a list, one a
    number kept as it is."""
    random = np.random.default_rng(seed)
    site, hour = random.integers(0, 6, n), random.integers(0, 8, n)
    tags = [sorted(set(random.choice(["x", "y", "z"], random.integers(1, 4)))) for _ in range(n)]
    size = random.normal(0, 1, n)
    score = np.where((site + hour) % 2 == 0, 1.2, -1.2) + 0.8 * size
    score += np.array([0.7 if "x" in t else -0.7 for t in tags])
    return pl.DataFrame(
        {
            "site": [f"once{k}" if k % 60 == 0 else f"s{s}" for k, s in enumerate(site)],
            "hour": [None if h == 7 else f"h{h}" for h in hour],
            "tags": tags,
            "size": size,
            "score": score,
            "chance": random.random(n),
            "noise": random.normal(0, 0.5, n),
        }
    )


FIELDS = ["site", "hour", "tags", "size"]


def target(rows: pl.DataFrame, task: str) -> np.ndarray:
    z = rows["score"].to_numpy()
    if task == "logistic":
        return (rows["chance"].to_numpy() < 1 / (1 + np.exp(-z))).astype(int)
    if task == "softmax":
        return np.digitize(z + 2 * rows["noise"].to_numpy(), [-1.0, 1.0])
    if task == "poisson":
        return np.random.default_rng(0).poisson(np.exp(z / 2))
    return 100 + 30 * (z + rows["noise"].to_numpy())


def fitted(task: str, **settings) -> FieldwiseModel:
    rows = shop(1500, 0)
    settings = {**QUICK, "kinds": {"size": "linear"}, **settings}
    if task in ("logistic", "softmax"):
        estimator = FieldwiseClassifier(**settings)
    else:
        estimator = FieldwiseRegressor(loss=task, delta=20.0, **settings)
    return estimator.fit(rows.select(FIELDS), target(rows, task)).model_


def new_rows(task: str, n: int = 120, seed: int = 1) -> pl.DataFrame:
    rows = shop(n, seed).with_columns(site=pl.lit("new"))
    return rows.with_columns(y=pl.Series(target(rows, task))).select(*FIELDS, "y")


def slowly(model: FieldwiseModel, j: int, rows: pl.DataFrame) -> np.ndarray:
    """The row that a generic optimiser finds, scored by the definition from a table that has it."""
    layout, head = model.layout, model.objective.heads[0]
    learned = model.learn_category("site", "new", rows)
    codes, values = map(np.concatenate, zip(*learned._coded(rows.drop("y")), strict=True))
    assert (codes[:, 0] == layout.sizes[0]).all()
    wide = learned._wide(codes, values)
    at = learned.layout.rows(codes)
    at = np.where(codes < 0, learned.layout.n_rows + learned.layout.slot_owner, at)
    own = model.table[layout.own(j)].astype(np.float64)
    share = maths.category_shares(layout, model.vocabulary.counts())[layout.own(j)]
    mean = share @ own
    spread = np.sqrt(share @ (own - mean) ** 2)
    y = rows["y"].to_numpy().astype(float)
    noise = model.metrics["rmse"] ** 2 if head.loss in ("squared", "huber") else 1.0

    def value(row: np.ndarray) -> float:
        table = learned.rows.astype(np.float64)
        table[layout.offsets[j + 1]] = row
        z = maths.scores(table, learned.layout, at, wide) + model.offsets
        loss = LOSSES[head.loss].value(z if head.size > 1 else z[:, 0], y, head.delta)
        return float(loss.sum() / noise + (((row - mean) / spread) ** 2).sum() / 2)

    found = minimize(value, mean, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    again = minimize(value, found.x, method="Powell", options={"xtol": 1e-8, "ftol": 1e-14})
    return found.x if found.fun <= again.fun else again.x


@pytest.mark.parametrize("task", ["logistic", "softmax", "squared", "huber", "poisson"])
def test_it_is_what_a_generic_optimiser_finds(task):
    model, rows = fitted(task, epochs=2, rank=2), new_rows(task, 60)
    words = getattr(model.vocabulary, "opened", model.vocabulary)
    row = _learned_row(model, 0, _coded(model, words, 0, "new", "new", rows))
    truth = slowly(model, 0, rows)
    scale = np.abs(truth).max()
    assert np.abs(row - truth).max() < 1e-5 * max(scale, 1)
    stored = model.learn_category("site", "new", rows).table[model.layout.offsets[1]]
    assert np.array_equal(stored, row.astype(np.float32))


@pytest.mark.parametrize("task", ["logistic", "softmax", "squared", "poisson"])
def test_a_planted_category_is_recovered(task):
    """Rows of a site under another name: learned from those alone it scores as the site does."""
    model = fitted(task, epochs=8)
    rows = shop(4000, 3).filter(pl.col("site") == "s1")
    rows = rows.with_columns(y=pl.Series(target(rows, task))).select(*FIELDS, "y")
    learned = model.learn_category("site", "s1 again", rows.drop("site"))
    test = shop(600, 4).select(FIELDS)
    unknown = model.decision_function(test.with_columns(site=pl.lit("s2"))).reshape(600, -1)
    known = model.decision_function(test.with_columns(site=pl.lit("s1"))).reshape(600, -1)
    found = learned.decision_function(test.with_columns(site=pl.lit("s1 again"))).reshape(600, -1)
    assert np.abs(found - known).mean() < 0.25 * np.abs(unknown - known).mean()


@pytest.mark.filterwarnings("ignore:values never seen")
def test_nothing_else_moves(tmp_path):
    model = fitted("logistic", min_count=2)
    learned = model.learn_category("site", "new", new_rows("logistic"))
    test = shop(800, 5).select(FIELDS)
    odd = test.with_columns(
        site=pl.Series(["never", "once0", None, "s1"] * 200),
        hour=pl.Series([None, "h1", "never"] * 266 + ["h2", "h3"]),
    )
    for rows in (test, odd):
        before = model.decision_function(rows)
        assert np.array_equal(before, learned.decision_function(rows))
        assert np.array_equal(before, model.decision_function(rows))
    one = {**test.row(0, named=True), "site": "new"}
    learned.save(tmp_path / "m")
    again = FieldwiseModel.load(tmp_path / "m")
    assert again.decision_function(one) == learned.decision_function(one)
    assert again.decision_function(one) != model.decision_function(one)
    assert again.vocabulary["site"].counts()[-1] == 120
    assert again.explain_category("site", "new").count == 120
    for name, words in zip(model.schema.names, model.vocabulary.fields, strict=True):
        both = words.entries.join(learned.vocabulary[name].entries, on=["category", "code"])
        assert both.height == words.entries.drop_nulls("category").height


def test_the_fewer_the_rows_the_nearer_the_mean():
    model = fitted("logistic")
    mean = model.rows[model.layout.n_rows]
    away = []
    for n in (1, 10, 100, 1000):
        learned = model.learn_category("site", "new", new_rows("logistic", n, seed=7))
        away.append(np.linalg.norm(learned.table[model.layout.offsets[1]] - mean))
    assert away == sorted(away)
    assert away[0] < 0.5 * away[-1]


def test_rare_categories_missing_and_lists():
    model = fitted("logistic")
    rows = new_rows("logistic").with_columns(site=pl.lit("once0"))
    learned = model.learn_category("site", "once0", rows)  # among the rare ones so far
    assert learned.vocabulary["site"].entries.filter(category="once0").row(0) == (
        *("once0", model.layout.sizes[0]),
        121,
    )
    missing = rows.with_columns(site=pl.lit(None, pl.String))
    learned = learned.learn_category("site", None, missing)
    assert learned.layout.sizes[0] == model.layout.sizes[0] + 2
    tagged = rows.with_columns(tags=pl.Series([["x", "new"], ["new"]] * 60), site=pl.lit("s1"))
    learned = learned.learn_category("tags", "new", tagged)
    assert learned.moments.shape == (learned.layout.n_rows, 2)
    one = {**tagged.row(0, named=True), "tags": ["new", "x"]}
    assert learned.decision_function(one) != model.decision_function(one)


def test_a_number_whose_column_is_left_out():
    """It is the value that stands in the column, and not the category that it falls into."""
    rows = shop(1500, 0).with_columns(visits=pl.Series(np.arange(1500) % 50))
    names = [*FIELDS, "visits"]
    estimator = FieldwiseClassifier(**QUICK, kinds={"size": "linear", "visits": "log2"})
    model = estimator.fit(rows.select(names), target(rows, "logistic")).model_
    more = new_rows("logistic").with_columns(site=pl.lit("s1"))
    learned = model.learn_category("visits", 5000, more)
    given = model.learn_category("visits", 5000, more.with_columns(visits=pl.lit(5000)))
    assert learned.layout.sizes[-1] == model.layout.sizes[-1] + 1
    assert np.array_equal(learned.rows, given.rows)


@pytest.mark.filterwarnings("ignore:values never seen")
def test_with_the_evidence_of_crosses():
    rows = shop(1500, 0)
    glass = FieldwiseClassifier(
        crosses=[("site", "hour")], **QUICK, kinds={"size": "linear"}, min_count=2
    )
    model = glass.fit(rows.select(FIELDS), target(rows, "logistic")).model_
    learned = model.learn_category("site", "new", new_rows("logistic"))
    test = shop(400, 5).select(FIELDS)
    test = pl.concat([test, test.head(50).with_columns(site=pl.lit("never"))])
    assert np.array_equal(model.decision_function(test), learned.decision_function(test))
    j = model.layout.sizes[0]
    assert learned.vocabulary["site"].entries.filter(category="new")["code"].item() == j
    old = model.vocabulary["site"].entries.filter(pl.col("code") > 0)
    new = learned.vocabulary["site"].entries
    assert old.join(new, on=["category", "code"], nulls_equal=True).height == old.height


def test_policies_for_what_was_never_seen():
    for policy in ("mean", "rare", "error"):
        model = fitted("logistic", unseen=policy)
        learned = model.learn_category("site", "new", new_rows("logistic"))
        assert learned.layout.sizes[0] == model.layout.sizes[0] + 1
        with pytest.raises(DataError, match="holds 's1', not 'new'"):
            model.learn_category(
                "site", "new", new_rows("logistic").with_columns(site=pl.lit("s1"))
            )


def test_refusals():
    model, rows = fitted("logistic"), new_rows("logistic")
    with pytest.raises(SettingError, match=r"'s1' of 'site' has a model of its own, .* rows"):
        model.learn_category("site", "s1", rows)
    with pytest.raises(SchemaError, match="'sight'"):
        model.learn_category("sight", "new", rows)
    with pytest.raises(SettingError, match="'size' has no categories"):
        model.learn_category("size", 3, rows)
    with pytest.raises(SchemaError, match="'hour' is not in the table"):
        model.learn_category("site", "new", rows.drop("hour"))
    with pytest.raises(SchemaError, match="'y' is not in the table"):
        model.learn_category("site", "new", rows.drop("y"))
    with pytest.raises(DataError, match="no rows"):
        model.learn_category("site", "new", rows.head(0))
    vote = fitted("logistic", combine="vote")
    with pytest.raises(ModelError, match="votes decide"):
        vote.learn_category("site", "new", rows)
    with pytest.raises(ModelError, match="absolute"):
        fitted("absolute").learn_category("site", "new", new_rows("squared"))


def test_several_targets_and_small_machines():
    rows = shop(1500, 0)
    both = np.stack([target(rows, "squared"), target(rows, "squared") ** 2 / 100], axis=1)
    model = FieldwiseRegressor(**QUICK).fit(rows.select(FIELDS), both).model_
    more = shop(200, 1).with_columns(site=pl.lit("new"))
    y = target(more, "squared")
    more = more.select(*FIELDS, pl.Series("y_1", y), pl.Series("y_2", y**2 / 100))
    learned = model.learn_category("site", "new", more)
    for name in ("y_1", "y_2"):
        truth = more[name].to_numpy()
        with pytest.warns(UserWarning, match="never seen"):
            before = model.predict(more.drop("y_1", "y_2"))[name]
        model._told.clear()
        after = learned.predict(more.drop("y_1", "y_2"))[name]
        assert np.mean((after - truth) ** 2) < np.mean((before - truth) ** 2)
    fm = fitted("logistic", component="fm")
    learned = fm.learn_category("site", "new", new_rows("logistic"))
    assert learned.layout.sizes[0] == fm.layout.sizes[0] + 1


def test_it_takes_milliseconds():
    """1,000 rows of 22 fields, rank 8; of the processor's time, which others do not take."""
    codes, y = synthetic([200] * 22, 20_000, seed=0).arrays()
    table = {f"f{j}": pl.Series(codes[:, j]).cast(pl.String) for j in range(22)}
    frame = pl.DataFrame(table)
    model = (
        FieldwiseClassifier(rank=8, epochs=1, learning_rate=0.1).fit(frame, y.astype(int)).model_
    )
    rows = frame.head(1000).with_columns(f3=pl.lit("new"), y=pl.Series(y[:1000].astype(int)))
    seconds = []
    for _ in range(9):
        begun = time.process_time()
        model.learn_category("f3", "new", rows)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.05
