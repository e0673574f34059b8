"""The bound of the paper: its numbers against explicit models, and its trend over ranks."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import SchemaError, SettingError, encode, maths, trend
from fieldwise.compare import figures, paper, reproduce
from fieldwise.compare.parts import parted
from fieldwise.data.planted import CRITEO_SIZES
from fieldwise.data.shuffle import Batches, Rows, gathered
from fieldwise.data.store import Store
from fieldwise.data.words import StoredWords
from fieldwise.engines import StepSettings, make_engine
from fieldwise.explain import Marginals, bound_of, gap_by_field
from fieldwise.explain.bound import Sample
from fieldwise.fitting import objective_of, problem_of
from fieldwise.held_out import held_out_rows
from fieldwise.layout import Layout
from fieldwise.losses import LOSSES
from fieldwise.objective import Objective
from fieldwise.problem import evaluate
from fieldwise.targets import scale_of
from fieldwise.train import Running, TrainSettings, Watch, fitted_engine, initialise, train
from fieldwise.trend import bound_table
from test_cli import run
from test_compare import raw_criteo, table
from test_explain import table as mixed
from test_layout_maths import SHAPES, dense_model, random_case
from test_train import run as trained_with


def mixed_rows():
    """Every row of a table whose fields, and the categories of its list, are independent: values
    (n, d) of a category of 3, of a linear number with a missing row, and of a list of 3."""
    categories = np.eye(3)
    numbers = np.array([[-1.5, 0.0], [0.5, 0.0], [2.0, 0.0], [0.0, 1.0]])
    lists = 0.7 * np.array(list(product((0.0, 1.0), repeat=3)))
    every = product(categories, numbers, lists)
    return Layout((3, 2, 3), (2, 0, 2), slots=(1, 1, 3)), np.array([np.hstack(r) for r in every])


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_the_bound_is_that_of_the_explicit_models(sizes, ranks):
    layout, table, _ = random_case(sizes, ranks)
    names = [f"f{i}" for i in range(len(sizes))]
    n, delta, lipschitz, most = 70, 0.1, 1.5, 3.0
    found = bound_of(
        table.astype(np.float32), layout, names, n,
        train_loss=0.4, delta=delta, lipschitz=lipschitz, loss_bound=most,
    ).to_dict()  # fmt: skip
    total = 0.0
    for i, field in enumerate(found["fields"]):
        W = dense_model(layout, table, i)
        mean = W.mean(axis=1, keepdims=True)
        n1, n2 = np.linalg.norm(W - mean), np.linalg.norm(mean)
        assert field["name"] == f"f{i}"
        assert field["n1"] == pytest.approx(n1, abs=1e-5)
        assert field["n2"] == pytest.approx(n2, rel=1e-5)
        assert field["term"] == pytest.approx(math.sqrt(len(sizes) / n) * (n1 + n2), rel=1e-5)
        total += n1 + n2
    assert found["sum"] == pytest.approx(total, rel=1e-5)
    assert found["rademacher"] == pytest.approx(math.sqrt(len(sizes) / n) * total, rel=1e-5)
    assert found["rademacher"] == pytest.approx(maths.bound(table, layout, n), rel=1e-5)
    rest = 3 * most * math.sqrt(math.log(2 / delta) / (2 * n))
    assert found["total"] == pytest.approx(
        0.4 + 2 * lipschitz * found["rademacher"] + rest, rel=1e-6
    )
    assert set(found) == {
        "n_rows", "delta", "lipschitz", "loss_bound", "train_loss", "rademacher", "total", "sum",
        "fields",
    }  # fmt: skip


def test_the_size_of_rows_is_that_of_nested_loops():
    layout, x = mixed_rows()
    rows, sums = maths.reach(layout, x.mean(axis=0), (x**2).mean(axis=0))
    for i in range(layout.n_fields):
        by_rows, by_sums = 0.0, 0.0
        for row in x:
            others = 1.0 + sum(
                value**2 for j in range(layout.n_fields) for value in row[layout.own(j)] if j != i
            )
            by_rows += sum(v**2 for v in row[layout.own(i)]) * others / len(x)
            by_sums += sum(row[layout.own(i)]) ** 2 * others / len(x)
        assert rows[i] == pytest.approx(by_rows, rel=1e-12)
        assert sums[i] == pytest.approx(by_sums, rel=1e-12)
    assert sums[2] > 1.5 * rows[2]  # several values at once
    plain = Layout((3, 4, 2), (1, 1, 1))
    share = maths.category_shares(plain, np.arange(9))
    np.testing.assert_allclose(maths.reach(plain, share, share), 3.0)


def complexity(layout, x, n1, n2, n_draws=400):
    """The empirical Rademacher complexity of all models whose norms are n1 and n2, by chance: with
    M = sum_j sigma_j (x_-i, 1) x_i^T the best one has n1 ||M - mean|| + n2 ||M 1|| / n."""
    random, total = np.random.default_rng(0), np.zeros(layout.n_fields)
    for _ in range(n_draws):
        sigma = random.choice([-1.0, 1.0], len(x))
        for i in range(layout.n_fields):
            own = np.isin(np.arange(layout.n_rows), np.arange(*layout.offsets[i : i + 2]))
            others = np.hstack([x[:, ~own], np.ones((len(x), 1))])
            M = (others * sigma[:, None]).T @ x[:, own]
            away = M - M.mean(axis=1, keepdims=True)
            total[i] += n1[i] * np.linalg.norm(away) + n2[i] * np.linalg.norm(M.sum(axis=1))
    return total / len(x) / n_draws


def test_the_complexity_of_rows_with_values_is_within_the_bound_and_near_it():
    layout, x = mixed_rows()
    marginals = Marginals(x.mean(axis=0), (x**2).mean(axis=0))
    table = np.random.default_rng(3).normal(size=(layout.n_rows, layout.width))
    found = bound_of(table, layout, "abc", len(x), train_loss=0.0, marginals=marginals)
    true = complexity(layout, x, found.n1, found.n2)
    assert (true <= found.terms).all()
    assert (true >= 0.6 * found.terms).all()
    means = np.zeros(3), np.ones(3)  # alone: with ||x_i||^2 in place of the sums it is no bound
    within, short = (
        maths.bound_terms(*means, found.rows, sizes, len(x))[2]
        for sizes in (found.sums, found.rows)
    )
    assert short < complexity(layout, x, *means)[2] <= within


@given(st.permutations(range(4)), st.floats(0.1, 10), st.integers(1, 10**6))
def test_laws(order, factor, n):
    sizes, ranks = (2, 7, 3, 1), (1, 4, 3, 1)
    layout, table, _ = random_case(sizes, ranks)
    first = bound_of(table, layout, "abcd", n, train_loss=0.0)
    moved = Layout([sizes[i] for i in order], [ranks[i] for i in order])
    at = np.concatenate([np.arange(*layout.offsets[i : i + 2]) for i in order])
    columns = np.concatenate([np.arange(*layout.starts[i : i + 2]) for i in order])
    names = ["abcd"[i] for i in order]
    other = bound_of(table[at][:, [*columns, -1]], moved, names, n, train_loss=0.0)
    np.testing.assert_allclose(other.terms, first.terms[list(order)], rtol=1e-9, atol=1e-12)
    # Scores that are larger by a factor have norms that are; four times the rows halve the bound.
    grown = maths.fold(table, layout, np.full((1, 4), factor))
    more = bound_of(grown, layout, "abcd", 4 * n, train_loss=0.0)
    np.testing.assert_allclose(more.terms, first.terms * factor / 2, rtol=1e-9, atol=1e-12)
    assert more.sum == pytest.approx(first.sum * factor)
    wider = bound_of(table, layout, "abcd", n, train_loss=0.25)
    assert wider.total == pytest.approx(first.total + 0.25)


def test_norms_some_rows_at_a_time_are_those_of_all_at_once(monkeypatch):
    layout, table, _ = random_case((40, 3, 25), (5, 3, 6))
    table += 3.0  # means far from zero: what is subtracted too late is lost
    whole = maths.penalty(table, layout)
    monkeypatch.setattr(maths, "PIECE", 7)
    np.testing.assert_allclose(maths.penalty(table, layout), whole, rtol=1e-12)
    for i in range(3):
        W = dense_model(layout, table, i)
        away = W - W.mean(axis=1, keepdims=True)
        assert whole[0][i] == pytest.approx((away**2).sum(), rel=1e-10)


def test_a_large_table_is_never_whole_in_float64():
    import tracemalloc

    layout = Layout.of([max(1, d // 8) for d in CRITEO_SIZES], rank_base=1.6)
    table = np.ones((layout.n_rows, layout.width), np.float32)
    tracemalloc.start()
    bound_of(table, layout, [""] * 39, 10, train_loss=0.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < table.nbytes


def test_what_the_bound_refuses():
    layout, table, _ = random_case((3, 4), (2, 2))
    options = {"train_loss": 0.1}
    with pytest.raises(SettingError, match="the prediction of a vote is not a sum"):
        bound_of(table, layout, "ab", 9, objective=Objective(combine="vote"), **options)
    fm = Layout((3, 4), (2, 2), component="fm")
    with pytest.raises(SettingError, match="the component 'fm' has more in it"):
        bound_of(np.zeros((7, fm.width)), fm, "ab", 9, **options)
    two = Layout((3, 4), (2, 2), 2)
    with pytest.raises(SettingError, match="covers one score per row, and the model has 2"):
        bound_of(np.zeros((7, two.width)), two, "ab", 9, **options)
    lists = Layout((3, 4), (2, 2), slots=(1, 2))
    with pytest.raises(SettingError, match="need `marginals`"):
        bound_of(table, lists, "ab", 9, **options)
    with pytest.raises(SettingError, match="delta=1"):
        bound_of(table, layout, "ab", 9, delta=1, **options)
    with pytest.raises(SettingError, match="n_rows=0"):
        bound_of(table, layout, "ab", 0, **options)
    with pytest.raises(SettingError, match="loss_bound=0"):
        bound_of(table, layout, "ab", 9, loss_bound=0, **options)


def test_the_gap_is_the_rise_without_a_field_on_both_kinds_of_rows():
    layout, x = Layout((3, 2, 4), (2, 2, 2), slots=(1, 1, 2)), np.random.default_rng(0)
    table = x.normal(size=(layout.n_rows, layout.width))
    counts = x.integers(1, 9, layout.n_rows)
    rows = np.concatenate([table, maths.mean_rows(table, layout, counts)])

    def losses(codes, values, y):
        at = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
        return LOSSES["logistic"].value(maths.scores(rows, layout, at, values)[:, 0], y, 0.0)

    def sample(n):
        codes = np.stack([x.integers(0, layout.sizes[i], n) for i in layout.slot_owner], axis=1)
        values = np.where(layout.slot_owner == 2, x.random((n, 4)), 1.0)
        return Sample(codes, values, x.integers(0, 2, n).astype(float), x.random(n))

    trained, held_out = sample(30), sample(20)
    found = {f["name"]: f for f in gap_by_field(losses, layout, "abc", trained, held_out)}
    means = [rows[layout.n_rows + i] for i in range(3)]
    means[2] = means[2] * trained.values[:, 2:].mean(axis=0).sum()
    for i, name in enumerate("abc"):
        for part, key in ((trained, "training"), (held_out, "held_out")):
            rise = 0.0
            for s in range(len(part.y)):
                brought = [
                    sum(
                        part.values[s, k] * table[layout.rows(part.codes)[s, k]]
                        for k in range(4)
                        if layout.slot_owner[k] == j
                    )
                    for j in range(3)
                ]
                pair = []
                for rest in (brought, [means[j] if j == i else brought[j] for j in range(3)]):
                    z = sum(r[-1] for r in rest)
                    for t in range(layout.n_columns):
                        own = layout.owner[t]
                        z += rest[own][t] * sum(rest[j][t] for j in range(3) if j != own)
                    pair.append(math.log1p(math.exp(z)) - part.y[s] * z)
                rise += part.w[s] * (pair[1] - pair[0]) / part.w.sum()
            assert found[name][key] == pytest.approx(rise, abs=1e-10)
        assert found[name]["gap"] == found[name]["training"] - found[name]["held_out"]
    gaps = [f["gap"] for f in found.values()]
    assert gaps == sorted(gaps, reverse=True)


READING = {"target": "y", "kinds": {"day": "category"}}
FEW = {"ranks": (1, 3), "settings": TrainSettings(learning_rate=0.03, epochs=8, batch_size=32)}


def rows_of(body):
    return {row["rank"]: row for row in body["ranks"]}


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    out = tmp_path_factory.mktemp("bound") / "out"
    said: list[str] = []
    return bound_table(table(), out, reading=READING, say=said.append, **FEW), out, said


def test_every_rank_stops_at_the_first_look_below_the_threshold(followed):
    body, out, said = followed
    assert body == json.loads((out / "bound.json").read_text())
    assert "the training loss of rank 1 at its best validation loss" in body["chosen"]
    assert said[0].startswith(f"threshold {body['threshold']}: ")
    for rank, row in rows_of(body).items():
        layout = Layout.of((7, 7, 29, 61), rank=rank)  # a rare row a field
        assert row["parameters"] == layout.n_parameters
        assert row["status"] == "ok"
        assert row["train_loss"] < body["threshold"]
        assert row["validation_loss"] > row["train_loss"] - 0.1
        assert row["bound"]["train_loss"] == row["train_loss"]
        assert row["bound"]["n_rows"] == body["rows"]["training"]
        assert [f["name"] for f in row["bound"]["fields"]] == ["a", "b", "day", "user"]
    best = min(body["ranks"], key=lambda row: row["validation_loss"])
    assert body["best"] == best["rank"]


def by_hand(folder, rank):
    """The problem of a rank, its training rows, and its scale."""
    store = encode(table(), folder / "s", **READING)
    words = StoredWords(store)
    held_out = held_out_rows(store, words, "random", 0.1, 0)
    about = {"objective": objective_of(store.schema), "held_out": held_out, "rank": rank}
    problem = problem_of(store, words, **about)
    rows = Rows(**gathered(store, ~held_out))
    return problem, rows, scale_of(store, ~held_out, problem.objective)


def test_the_threshold_is_what_the_smallest_rank_comes_to(followed, tmp_path):
    problem, rows, scale = by_hand(tmp_path, 1)
    fit = train(problem, replace(FEW["settings"], averages=1, weight_decay=1e-5))
    loss = evaluate(fitted_engine(problem, fit), problem, rows, None, scale)["loss"]
    assert followed[0]["threshold"] == math.ceil(1000 * loss) / 1000


def test_a_trend_is_what_training_step_by_step_gives(followed, tmp_path):
    """The loop of the library with a watch, against an engine that is run a step at a time."""
    body, _, _ = followed
    problem, trained, scale = by_hand(tmp_path, 3)
    step = StepSettings(
        learning_rate=0.03, weight_decay=1e-5, penalty=1e-5, batch_size=32,
        reg_every=-(-trained.n_rows // 32),
    )  # fmt: skip
    engine = make_engine("cpu", problem.layout, step, offsets=scale.offsets)
    initialise(engine.table, 0, 0.02)
    engine.state[:] = 1e-6
    batches = Batches(problem.rows, 32, only=problem.only)
    row, ends = rows_of(body)[3], []
    assert row["steps"] > 2 * len(batches)
    while engine.n_steps < row["steps"]:
        for batch in batches:
            engine.run(batch["codes"], None, batch["target"], None)
            if engine.n_steps == row["steps"]:
                break
        ends.append(evaluate(engine, problem, trained, None, scale)["loss"])
    assert min(ends[:-1]) >= body["threshold"]  # it went on while it had to
    assert ends[-1] == pytest.approx(row["train_loss"], abs=1e-6)
    n1, n2 = maths.norms(engine.table, problem.layout)
    assert row["bound"]["sum"] == pytest.approx(n1.sum() + n2.sum(), rel=1e-5)
    engine.set_means(problem.counts)
    kept = gathered(problem.rows, problem.held_out)
    for j, name in enumerate(("a", "b", "day", "user")):
        rises = []
        for codes, y in ((trained.read(0, 9999)["codes"], trained.read(0, 9999)["target"]),
                         (kept["codes"], kept["target"])):  # fmt: skip
            without = codes.copy()
            without[:, j] = -1
            pair = [
                LOSSES["logistic"].value(engine.scores(c, None)[:, 0], y[:, 0], 0).mean()
                for c in (codes, without)
            ]
            rises.append(pair[1] - pair[0])
        found = {f["name"]: f for f in row["gap"]}[name]
        assert [found["training"], found["held_out"]] == pytest.approx(rises, abs=1e-5)


def test_a_rank_that_stays_above_the_threshold_says_so(tmp_path):
    body = bound_table(table(), tmp_path, threshold=0.01, reading=READING, **FEW)
    assert [row["status"] for row in body["ranks"]] == ["not reached"] * 2
    assert {row["steps"] for row in body["ranks"]} == {8 * -(-body["rows"]["training"] // 32)}
    assert body["best"] is None
    text = (tmp_path / "bound.md").read_text()
    assert text.count("(not reached)") == 2
    assert "Which fields" not in text
    assert (tmp_path / "bound.png").read_bytes().startswith(b"\x89PNG")


def test_a_rank_that_fails_has_a_row_and_is_tried_again(tmp_path, monkeypatch):
    real = trend.train

    def fails(problem, *given):
        if max(problem.layout.ranks) == 3:
            raise SettingError("the model needs more | memory")
        return real(problem, *given)

    monkeypatch.setattr(trend, "train", fails)
    options = {"threshold": 0.6, "reading": READING, **FEW}
    body = bound_table(table(), tmp_path, **options)
    assert [row["status"] for row in body["ranks"]] == ["ok", "failed"]
    assert "failed: the model needs more \\| memory" in (tmp_path / "bound.md").read_text()
    monkeypatch.setattr(trend, "train", real)
    assert rows_of(bound_table(table(), tmp_path, **options))[3]["status"] == "ok"


def test_ctrl_c_keeps_finished_ranks_and_the_rest_ends_alike(followed, tmp_path, monkeypatch):
    body, _, _ = followed
    trained = []
    real = trend.train

    def counted(problem, *given):
        trained.append(max(problem.layout.ranks))
        return real(problem, *given)

    def stop(record):
        if trained[-1] == 3 and record["epoch"] == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(trend, "train", counted)
    options = {"threshold": body["threshold"], "reading": READING, **FEW}
    with pytest.raises(KeyboardInterrupt):
        bound_table(table(), tmp_path, running=Running(callbacks=[stop]), **options)
    assert trained == [1, 3]
    again = bound_table(table(), tmp_path, **options)
    assert trained == [1, 3, 3]  # rank 1 is not made again
    assert again["ranks"] == body["ranks"]
    assert not list((tmp_path / ".bound" / "checkpoint").iterdir())
    bound_table(table(), tmp_path, **{**options, "ranks": (1, 2, 3)})
    assert trained == [1, 3, 3, 2]
    with pytest.raises(SettingError, match="the trend of a bound on another table"):
        bound_table(table(seed=3), tmp_path, **options)


def test_values_weights_and_weighted_sums(tmp_path):
    X, y = mixed(1200)
    frame = X.with_columns(y=pl.Series(y), w=np.random.default_rng(0).integers(1, 4, 1200))
    reading = {"target": "y", "kinds": {"x": "linear"}, "weight": "w"}
    body = bound_table(
        frame, tmp_path, threshold=0.6, reading=reading, combine="weighted", ranks=(2,),
        settings=TrainSettings(epochs=9),
    )  # fmt: skip
    (row,) = body["ranks"]
    assert row["status"] == "ok"
    fields = {f["name"]: f for f in row["bound"]["fields"]}
    plain = math.sqrt(5 / body["rows"]["training"])
    for name in "xab":  # a list and a number beside them make rows shorter than m
        assert fields[name]["term"] != pytest.approx(
            plain * (fields[name]["n1"] + fields[name]["n2"]), rel=0.01
        )
    assert {f["name"] for f in row["gap"]} == {"a", "b", "x", "z", "tags"}
    helps = {f["name"]: f["held_out"] for f in row["gap"]}
    assert helps["x"] > 0.02  # what is in the number is lost with it


def test_watching_changes_nothing_and_ends_a_run():
    settings = TrainSettings(epochs=2, batch_size=256, learning_rate=0.1, averages=1)
    plain = trained_with(settings, judged=False)
    seen = []
    watch = Watch(lambda engine: seen.append(engine.n_steps) or False, 20)
    watched = trained_with(settings, judged=False, watch=watch)
    assert watched.table.tobytes() == plain.table.tobytes()
    assert seen[:4] == [20, 40, 60, 63]  # the last of an epoch
    assert max(b - a for a, b in pairwise(seen)) <= 20
    assert not watched.was_stopped
    tables = []

    def late(engine):
        tables.append(np.array(engine.table))
        return engine.n_steps >= 80

    ended = trained_with(replace(settings, averages=4), watch=Watch(late, 20))
    assert ended.was_stopped
    assert len(ended.history) == 1
    assert ended.metrics == {}
    assert np.array_equal(ended.table, tables[-1])  # no mean of several, nor the best so far


@pytest.fixture
def file(tmp_path):
    table(4000).write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


def test_the_bound_on_the_command_line(file, tmp_path):
    out = tmp_path / "out"
    options = ["bound", file, "--target", "y", "--kind", "day=category", "--out", out]
    options += ["--epochs", 4, "--threads", 1, "--learning-rate", 0.1]
    done = run(*options, "--ranks", "2,1", "--threshold", 0.5)
    assert "2 of 2 ranks" in done.stderr
    assert "bound.json, bound.md, bound.png" in done.stdout
    body = json.loads((out / "bound.json").read_text())
    assert list(rows_of(body)) == [1, 2]
    for row in body["ranks"]:
        assert f"{row['bound']['sum']:.2f}" in done.stdout
    text = (out / "bound.md").read_text()
    assert "below 0.5 (as given)" in text
    assert "Which fields carry the gap of rank" in text
    never = run(*options, "--ranks", "1", "--threshold", 0.001, "--epochs", 1).stdout
    assert "(not reached)" in never
    assert run(*options, "--ranks", "2,1", "--threshold", 0.5, "--quiet").stderr == ""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_goes_on(file, tmp_path, end):
    out = tmp_path / "out"
    options = ["bound", file, "--target", "y", "--kind", "day=category", "--out", out, "--ranks",
               "1,2,3", "--threshold", "0.3", "--threads", "1"]  # fmt: skip
    command = [sys.executable, "-m", "fieldwise", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "1 of 3 ranks" in line:
            break
    process.send_signal(end)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == (130 if end == signal.SIGINT else -signal.SIGKILL), rest
    assert ("continues where it stopped" in rest) == (end == signal.SIGINT)
    kept = {p: p.stat().st_mtime_ns for p in (out / ".bound" / "ranks").glob("*.json")}
    assert kept
    assert not (out / "bound.json").exists()
    run(*options)
    assert len(json.loads((out / "bound.json").read_text())["ranks"]) == 3
    for path, when in kept.items():
        assert path.stat().st_mtime_ns == when


def test_mistakes(file, tmp_path):
    out = tmp_path / "out"
    options = ["bound", file, "--kind", "day=category", "--out", out]
    assert "'z'" in run(*options, "--target", "z", expect=2).stderr
    good = [*options, "--target", "y"]
    assert (
        "--ranks '0,2' must be numbers of at least 1"
        in run(*good, "--ranks", "0,2", expect=2).stderr
    )
    assert "--ranks 'a' is not numbers" in run(*good, "--ranks", "a", expect=2).stderr
    assert "--threshold -1.0 must be more than 0" in run(*good, "--threshold", -1, expect=2).stderr
    vote = run(*good, "--combine", "vote", expect=2).stderr
    assert "the prediction of a vote is not a sum" in vote
    assert not out.exists()
    frame = table(300).with_columns(price=np.random.default_rng(0).random(300))
    with pytest.raises(SettingError, match="covers logloss, whose slope is at most 1"):
        bound_table(frame, out, reading={"target": "price"})
    with pytest.raises(SettingError, match="covers one score per row, and the model has 3"):
        bound_table(table(300, classes=("p", "q", "r")), out, reading=READING)
    assert not out.exists()


def test_the_papers_figures_from_synthetic_raw_files(tmp_path, monkeypatch):
    path = raw_criteo(tmp_path / "train.txt", 2500)
    monkeypatch.setattr(figures, "RANKS", (1, 2))
    quick = replace(paper.TRAINING, epochs=3)
    monkeypatch.setattr(paper, "TRAINING", quick)
    out = tmp_path / "out"
    options = {"methods": ["fieldwise"], "repeats": 1, "say": (said := []).append}

    def stop(record):
        if any("figure 1b: rank 1" in line for line in said):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # rank 1 is kept, rank 2 is not there yet
        reproduce("criteo", path, out, running=Running(callbacks=[stop]), **options)
    assert (out / "results.json").exists()
    assert (out / "figure1a.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "figure1b.json").exists()
    (kept,) = (out / ".work" / "figure1b" / "ranks").glob("*.json")
    when = kept.stat().st_mtime_ns
    body = reproduce("criteo", path, out, **options)
    assert kept.stat().st_mtime_ns == when
    first = json.loads((out / "figure1a.json").read_text())
    assert [f["name"] for f in first["fields"]] == [
        *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))
    ]  # fmt: skip
    assert first["settings"] == body["methods"][0]["settings"]
    assert min(f["importance"] for f in first["fields"]) > 0
    second = json.loads((out / "figure1b.json").read_text())
    assert (second["threshold"], second["chosen"]) == (0.42, "")
    assert second["settings"]["penalty"] == 1e-3
    assert second["settings"]["learning_rate"] == 0.01
    assert list(rows_of(second)) == [1, 2]
    assert (out / "figure1b.png").read_bytes().startswith(b"\x89PNG")


def test_importance_of_the_figure_is_that_of_the_model(tmp_path):
    """One seed at the published setting, trained by hand on the same rows."""
    path = raw_criteo(tmp_path / "train.txt", 1500)
    reproduce("criteo", path, tmp_path / "out", methods=["ours"], repeats=1, figures=False)
    assert not list((tmp_path / "out").glob("figure1*"))
    store = Store(tmp_path / "out" / ".work" / "store")
    parts = parted(store, [], "random", 0.1, 0.1, 0)
    problem = replace(parts.problem, layout=Layout.of(parts.problem.layout.sizes, rank_base=1.6))
    fit = train(
        problem,
        TrainSettings(
            learning_rate=0.01, weight_decay=1e-6, penalty=1e-3, batch_size=2048, reg_every=1000,
            averages=1, epochs=40,
        ),
    )  # fmt: skip
    (file,) = (tmp_path / "out" / ".work" / "fits").glob("*.json")
    found = json.loads(file.read_text())["importance"]
    np.testing.assert_allclose(found, maths.importance(fit.table, problem.layout), rtol=1e-5)


def test_figures_without_our_model_and_of_avazu_on_the_command_line(tmp_path):
    random = np.random.default_rng(0)
    names = ["id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category",
             "app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model",
             "device_type", "device_conn_type", *(f"C{k}" for k in range(14, 22))]  # fmt: skip
    rows = random.integers(0, 6, (800, len(names)))
    rows[:, 0] = np.arange(800)
    rows[:, 1] = random.random(800) < np.where(rows[:, 5] == rows[:, 6], 0.7, 0.2)
    rows[:, 2] = 14102100 + rows[:, 2]
    path = tmp_path / "train.csv"
    path.write_text("\n".join([",".join(names), *(",".join(map(str, r)) for r in rows)]) + "\n")
    options = ["reproduce", "avazu", "--data", path, "--repeats", 1, "--threads", 1, "--out"]
    done = run(*options, tmp_path / "a", "--methods", "LR")
    assert "figure 1 is of our model" in done.stderr
    assert not list((tmp_path / "a").glob("figure1*"))
    done = run(*options, tmp_path / "b", "--methods", "ours")
    assert "figure1a.json, figure1a.png, figure1b.json, figure1b.md, figure1b.png" in done.stdout
    body = json.loads((tmp_path / "b" / "figure1b.json").read_text())
    assert "the training loss of rank 4" in body["chosen"]  # no threshold is published
    assert list(rows_of(body)) == [4, 8, 12, 16, 20, 24, 28]
    assert rows_of(body)[4]["status"] == "ok"
    run(*options, tmp_path / "c", "--methods", "ours", "--no-figures")
    assert not list((tmp_path / "c").glob("figure1*"))


def test_the_pages_figures_are_the_results():
    root = Path(__file__).parents[1]
    text = " ".join((root / "docs" / "bound.md").read_text().split())
    found = json.loads((root / "benchmarks" / "results" / "bound.json").read_text())
    first = found["flights"][0]
    figures = [f"{first['seconds']:.0f} s on two cores"]
    for row in first["ranks"]:
        losses = f"{row['train_loss']:.4f} | {row['validation_loss']:.4f}"
        figures.append(f"{row['parameters']:,} | {losses} | {row['sum']:.1f} | {row['total']:.2f}")
    for field in first["gap"][:4]:
        numbers = " | ".join(f"{field[k]:+.4f}" for k in ("training", "held_out", "gap"))
        figures.append(f"| {field['name']} | {numbers} |")
    for shape in found["speed"].values():
        figures.append(f"{shape['importance_seconds']:.1f} and {shape['bound_seconds']:.1f} s")
    assert [f for f in figures if f not in text] == []
    for seed in found["flights"]:  # what the words say
        sums = {row["rank"]: row["sum"] for row in seed["ranks"]}
        least = min(sums, key=sums.get)
        assert max(sums, key=sums.get) == 1
        assert least in (8, 16)
        assert sums[least] < sums[32] < 1.05 * sums[least]


def test_a_comparison_in_the_same_folder_is_left_alone(tmp_path):
    kept = tmp_path / "out" / ".work" / "fits" / "precious.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    frame = pl.DataFrame(
        {"a": ["x", "y"] * 200, "b": ["u", "v", "w", "z"] * 100, "y": [0, 1] * 200}
    )
    with pytest.raises(SchemaError, match="typo"):
        bound_table(frame, tmp_path / "out", reading={"target": "typo"})
    assert kept.exists()
    steps = TrainSettings(epochs=1)
    bound_table(frame, tmp_path / "out", ranks=(1,), settings=steps, reading={"target": "y"})
    assert kept.exists()
    with pytest.raises(SettingError, match="on another table"):
        bound_table(frame.head(300), tmp_path / "out", ranks=(1,), reading={"target": "y"})
    assert (tmp_path / "out" / ".bound" / "about.json").exists()
