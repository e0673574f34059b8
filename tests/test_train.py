"""The training loop: what it learns, when it stops, and that it goes on as if nothing happened."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fieldwise import SettingError, StoreError, TrainingError, synthetic
from fieldwise import checkpoint as checkpoints
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.shuffle import Rows
from fieldwise.engines import make_engine
from fieldwise.fitting import fit_store
from fieldwise.held_out import held_out_rows
from fieldwise.layout import Layout
from fieldwise.problem import Problem
from fieldwise.train import (
    RATES,
    Fit,
    Running,
    TrainSettings,
    initialise,
    search,
    train,
)
from fieldwise.train.search import _behind


def planted(n=20_000, sizes=(30, 200, 8), seed=0):
    data = synthetic(list(sizes), n, seed=seed)
    codes, y = data.arrays()
    cut = int(0.8 * n)
    parts = [Rows(codes=codes[p], target=y[p]) for p in (slice(0, cut), slice(cut, None))]
    counts = np.concatenate([np.bincount(codes[:cut, j], minlength=d) for j, d in enumerate(sizes)])
    return data, Layout.of(sizes, rank=3), counts, *parts


def run(settings=None, *, judged=True, **running):
    _, layout, counts, rows, valid = planted()
    settings = settings or TrainSettings(epochs=4, batch_size=256, learning_rate=0.1)
    judge = {"validation": valid} if judged else {}
    problem = Problem(layout=layout, rows=rows, counts=counts, **judge)
    return train(problem, settings, Running(**running))


def test_it_learns_and_keeps_the_best():
    data, layout, counts, rows, valid = planted(60_000)
    problem = Problem(layout=layout, rows=rows, counts=counts, validation=valid)
    fit = train(problem, TrainSettings(learning_rate=0.1))
    assert fit.metrics["logloss"] < 1.03 * data.best_logloss()
    losses = [h["logloss"] for h in fit.history]
    assert fit.best_epoch == int(np.argmin(losses))
    assert len(losses) == min(30, fit.best_epoch + 1 + 2)  # patience
    assert fit.history[-1]["train_loss"] < fit.history[0]["train_loss"]


def test_the_engines_train_alike():
    fits = [run(engine=name) for name in ("cpu", "reference")]
    np.testing.assert_allclose(fits[0].table, fits[1].table, rtol=2e-2, atol=2e-3)
    assert fits[0].metrics["logloss"] == pytest.approx(fits[1].metrics["logloss"], rel=1e-4)


def test_rates_are_tried_upwards_while_they_help(tmp_path):
    seen = {}
    settings = TrainSettings(epochs=3, batch_size=256, weight_decay=1e-5)
    fit = run(
        settings,
        callbacks=[lambda r: seen.setdefault(r["learning_rate"], []).append(r["logloss"]) and None],
        checkpoint=tmp_path / "c",
    )
    best = [min(losses) for losses in seen.values()]
    assert list(seen) == list(RATES[: len(seen)])
    assert all(a > b for a, b in pairwise(best[:-1]))  # each better than the last, but for ...
    assert best[-1] >= min(best) or len(seen) == len(RATES)  # ... the one that ended it
    assert fit.metrics["logloss"] == min(best)
    # All runs are there to be taken up again, and end at once.
    again = run(settings, checkpoint=tmp_path / "c", resume=True)
    assert again.table.tobytes() == fit.table.tobytes()


def test_of_few_rows_a_stronger_shrinkage_is_kept_where_it_is_better():
    sizes, random = (30, 200, 8), np.random.default_rng(0)
    codes = np.stack([random.integers(0, d, 6_000) for d in sizes], axis=1)
    sharp = ((codes[:, 0] + codes[:, 2]) % 2).astype(float)
    noise = random.integers(0, 2, 6_000).astype(float)
    counts = np.concatenate([np.bincount(codes[:, j], minlength=d) for j, d in enumerate(sizes)])
    settings = TrainSettings(epochs=4, batch_size=256)
    for y, kept in ((sharp, 1.0), (noise, 10.0)):
        rows = [Rows(codes=codes[p], target=y[p]) for p in (slice(0, 5_000), slice(5_000, None))]
        layout = Layout.of(sizes, rank=3)
        problem = Problem(layout=layout, rows=rows[0], counts=counts, validation=rows[1])
        fit = train(problem, settings, Running(device="cpu"))
        assert fit.settings.shrinkage == kept


def test_shrinkage_is_an_l2_prior_whatever_the_batches():
    """Steps over batches, each pulling the rows it has, come to the minimum of
    mean loss + strength / (2 n) |T|^2, found by a solver that knows nothing of batches."""
    from scipy.optimize import minimize

    n, strength, random = 600, 20.0, np.random.default_rng(0)
    sizes = (40, 3)
    codes = np.stack([np.minimum(random.zipf(1.5, n) - 1, 39), random.integers(0, 3, n)], axis=1)
    y = (random.random(n) < 0.2 + 0.6 * (codes[:, 0] % 2)).astype(float)
    layout = Layout.of(sizes, rank=0)
    counts = np.concatenate([np.bincount(codes[:, j], minlength=d) for j, d in enumerate(sizes)])
    rows, problem = (
        layout.rows(codes),
        Problem(layout=layout, rows=Rows(codes=codes, target=y), counts=counts),
    )
    settings = TrainSettings(
        shrinkage=strength, learning_rate=0.3, batch_size=30, epochs=400, averages=8, penalty=0.0
    )
    fit = train(problem, settings, Running(device="cpu"))
    offset = float(fit.scale.offsets[0])

    def loss(b):
        z = b[rows].sum(axis=1) + offset
        return np.mean(np.logaddexp(0, z) - y * z) + strength / (2 * n) * b @ b

    best = minimize(loss, np.zeros(layout.n_rows), tol=1e-12).x
    plain = minimize(lambda b: loss(b) - strength / (2 * n) * b @ b * 0.9, 0 * best).x
    away = np.abs(fit.table[:, 0] - best).max()
    assert away < 0.03 < np.abs(plain - best).max()  # a tenth of the prior is another place


def test_weight_decay_alone_is_the_papers():
    assert TrainSettings(weight_decay=1e-3).settled(100).shrinkage == 0.0
    both = TrainSettings(weight_decay=1e-3, shrinkage=2.0).settled(100)
    assert (both.weight_decay, both.shrinkage) == (1e-3, 2.0)
    assert TrainSettings().settled(100).shrinkage == 1.0


def test_a_rate_that_is_behind_is_given_up():
    history = [{"loss": 0.5}, {"loss": 0.4}, {"loss": 0.3}]
    last = Fit(None, None, history, 2, {}, None, None, None, None)
    stops = _behind(last)
    assert [stops({"epoch": k, "loss": 0.45}) for k in (1, 2, 3)] == [False, True, False]
    assert not stops({"epoch": 2, "loss": 0.39})


def test_the_kept_table_is_the_mean_of_the_second_half_of_an_epoch(monkeypatch):
    import fieldwise.train.start as module

    engines = []

    def make(*arguments, **options):
        engine = make_engine(*arguments, **options)
        tables, steps = [], engine.run

        def run_and_look(*batch):
            found = steps(*batch)
            tables.append(engine.table.copy())
            return found

        engine.run = run_and_look
        engines.append((engine, tables))
        return engine

    monkeypatch.setattr(module, "make_engine", make)
    settings = TrainSettings(epochs=2, batch_size=256, averages=4, learning_rate=0.1)
    fit = run(settings)  # 63 steps an epoch
    ((engine, tables),) = engines
    assert len(tables) == 2 * 8
    first = 8 * fit.best_epoch
    np.testing.assert_allclose(fit.table, np.mean(tables[first + 4 : first + 8], 0), atol=1e-6)
    assert np.array_equal(engine.table, tables[-1])  # training itself goes on from the last
    plain = run(replace(settings, averages=1))
    tables = engines[1][1]
    assert any(np.array_equal(plain.table, t) for t in tables)
    unjudged = run(settings, judged=False)
    np.testing.assert_allclose(unjudged.table, np.mean(engines[2][1][-4:], 0), atol=1e-6)


def test_initialisation_is_the_same_everywhere():
    table = np.empty((9000, 5), np.float32)
    initialise(table, seed=3, scale=0.02)
    assert np.abs(table[:, :-1]).max() <= 0.02
    assert np.array_equal(table[:, -1], np.zeros(9000))
    assert abs(table[:, :-1].mean()) < 1e-3
    assert table[0, 0] == np.float32(-0.004023456480354071)
    smaller = np.empty((100, 5), np.float32)
    initialise(smaller, seed=3, scale=0.02)
    assert np.array_equal(smaller, table[:100])


def test_small_tables_take_smaller_steps():
    assert TrainSettings().settled(10).batch_size == 32
    assert TrainSettings().settled(25_000).batch_size == 256
    assert TrainSettings().settled(10**7).batch_size == 2048
    assert TrainSettings().settled(10**7).reg_every == 1000
    assert TrainSettings(batch_size=100).settled(1000).reg_every == 10


def test_callbacks_stop_the_run():
    seen = []
    fit = run(callbacks=[lambda record: seen.append(record["epoch"]) or record["epoch"] == 2])
    assert seen == [1, 2]
    assert len(fit.history) == 2


def test_ctrl_c_keeps_the_best():
    def interrupt(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    fit = run(callbacks=[interrupt])
    assert len(fit.history) == 2
    assert fit.metrics
    with pytest.raises(KeyboardInterrupt):  # nothing to keep yet
        run(judged=False, callbacks=[interrupt])


@pytest.mark.parametrize("when", [2, 5])
def test_ctrl_c_ends_the_search_for_a_rate(when):
    """In the first rate's run, or in a later one before it has anything to keep."""
    count = []

    def interrupt(record):
        count.append(record["learning_rate"])
        if len(count) == when:
            raise KeyboardInterrupt

    fit = run(TrainSettings(epochs=4, batch_size=256), callbacks=[interrupt])
    assert len(count) == when
    assert fit.settings.learning_rate in count


def test_a_callback_ends_the_search_for_a_rate():
    seen = []
    fit = run(
        TrainSettings(epochs=4, batch_size=256),
        callbacks=[lambda record: seen.append(record["learning_rate"]) or len(seen) == 2],
    )
    assert seen == [RATES[0]] * 2
    assert fit.was_stopped


@pytest.mark.parametrize("how", ["Ctrl-C", "callback"])
@pytest.mark.parametrize("probe", [False, True])
def test_a_stop_is_the_last_of_a_search_though_an_earlier_rate_was_better(monkeypatch, how, probe):
    _, layout, counts, rows, valid = planted()
    problem = Problem(layout=layout, rows=rows, counts=counts, validation=valid)
    tried = []

    def fitted(*about):
        tried.append(about[1].learning_rate)
        if len(tried) == 1:
            return real(*about)
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        return replace(real(*about), was_stopped=True)

    real = search.fitted
    monkeypatch.setattr(search, "fitted", fitted)
    settings = TrainSettings(epochs=2, batch_size=256)
    fit = train(problem, settings, rates=(0.1, 1e-4), probe=probe)
    assert tried == [0.1, 1e-4]
    assert fit.was_stopped
    assert fit.settings.learning_rate == 0.1


def test_divergence_is_explained():
    with pytest.raises(TrainingError, match="learning_rate"), np.errstate(all="ignore"):
        run(TrainSettings(learning_rate=1e30, epochs=5, batch_size=256))


def test_one_class():
    _, layout, counts, rows, _ = planted()
    codes = rows.read(0, 100)["codes"]
    with pytest.raises(SettingError, match="one class"):
        rows = Rows(codes=codes, target=np.zeros(100))
        train(Problem(layout=layout, rows=rows, counts=counts), TrainSettings())


class Stop(Exception):
    pass


@pytest.mark.parametrize("when", [1, 2, 5, 9])
def test_resume_gives_the_same_bits(tmp_path, monkeypatch, when):
    """k chunks + save + load + the rest = all at once, bit for bit."""
    import fieldwise.train.loop as module

    monkeypatch.setattr(module, "CHUNK_ROWS", 4096)
    settings = TrainSettings(epochs=3, batch_size=256, reg_every=7, patience=9, learning_rate=0.1)
    whole = run(settings)
    real, count = checkpoints.save, [0]

    def save(*arguments):
        real(*arguments)
        count[0] += 1
        if count[0] == when:
            raise Stop

    monkeypatch.setattr(checkpoints, "save", save)
    options = {"checkpoint": tmp_path / "c", "checkpoint_minutes": 0}
    with pytest.raises(Stop):
        run(settings, **options)
    monkeypatch.setattr(checkpoints, "save", real)
    resumed = run(settings, resume=True, **options)
    assert resumed.table.tobytes() == whole.table.tobytes()
    assert resumed.state.tobytes() == whole.state.tobytes()
    clocks = ("seconds", "rows_per_second")
    for a, b in zip(resumed.history, whole.history, strict=True):
        assert {k: v for k, v in a.items() if k not in clocks} == (
            {k: v for k, v in b.items() if k not in clocks}
        )


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(checkpoint=tmp_path / "c")
    with pytest.raises(SettingError, match="another run: settings"):
        run(
            TrainSettings(batch_size=128, learning_rate=0.1), checkpoint=tmp_path / "c", resume=True
        )


def test_a_damaged_checkpoint_is_refused(tmp_path):
    run(checkpoint=tmp_path / "c")
    (file,) = (tmp_path / "c").glob("state-*.bin")
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="state-.*altered"):
        run(checkpoint=tmp_path / "c", resume=True)


def test_splits(tmp_path):
    store = synthetic([50, 7], 5000).to_store(tmp_path / "s")
    words = load_vocabulary(store)
    codes = store.array("codes")
    random = held_out_rows(store, words, "random", 0.2, seed=1)
    assert random.mean() == pytest.approx(0.2, abs=0.03)
    assert np.array_equal(random, held_out_rows(store, words, "random", 0.2, seed=1))
    groups = held_out_rows(store, words, "group:f0", 0.3)
    assert not set(codes[groups, 0]) & set(codes[~groups, 0])
    late = held_out_rows(store, words, "time:f0", 0.2)
    assert 0 < late.mean() <= 0.2
    assert codes[late, 0].min() > codes[~late & (codes[:, 0] > 0), 0].max()
    for rule in ("alphabetical", "time", "random:f0"):
        with pytest.raises(SettingError, match="is not random, time:FIELD or group:FIELD"):
            held_out_rows(store, words, rule)
    with pytest.raises(Exception, match="field 'f9'"):
        held_out_rows(store, words, "time:f9")
    with pytest.raises(SettingError, match="validation=2"):
        fit_store(store, validation=2)
