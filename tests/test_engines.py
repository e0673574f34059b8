"""Every engine against the slow twin: scores, losses, table and state, on ragged shapes."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np
import pytest

from fieldwise.engines import StepSettings, make_engine
from fieldwise.engines import cpu as cpu_module
from fieldwise.engines._numba import pool
from fieldwise.errors import SettingError
from fieldwise.layout import Layout

# Stated once: float32 against float64 after a few steps.
CLOSE = {"rtol": 2e-4, "atol": 2e-6}

SHAPES = {
    "ragged": ((3, 7, 2, 40), (2, 3, 1, 5)),
    "one category": ((1, 1, 4), (1, 1, 2)),
    "one field": ((6,), (3,)),
    "rank 0": ((5, 4), (0, 2)),
    "all rank 0": ((5, 4), (0, 0)),
    "odd width": ((9,) * 7, (5,) * 7),
    "a whole line": ((9, 9, 9), (5, 5, 5)),
}


def case(shape, n=70, seed=0, unseen=False):
    sizes, ranks = SHAPES[shape]
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(-int(unseen), d, n) for d in sizes], axis=1)
    y = random.integers(0, 2, (n, 1)).astype(float)
    return Layout(sizes, ranks), codes.astype(np.int32), y, random


def engines(layout, settings, seed=1, names=("reference", "cpu"), **options):
    start = np.random.default_rng(seed).normal(0, 0.3, (layout.n_rows, layout.width))
    made = []
    for name in names:
        engine = make_engine(
            name, layout, settings, offsets=[-0.5], **(options if name == "cpu" else {})
        )
        engine.table[:] = start
        engine.state[:] = 1e-6
        made.append(engine)
    return made


def told_by(engine, *data):
    engine.run(*data)
    return tuple(engine.totals)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("valued", [False, True])
def test_steps_and_scores_are_the_slow_twins(shape, weighted, valued):
    layout, codes, y, random = case(shape)
    settings = StepSettings(
        learning_rate=0.05, weight_decay=1e-3, penalty=1e-3, reg_every=3, batch_size=16
    )
    truth, fast = engines(layout, settings, n_jobs=2)
    if weighted:  # a decay of its own for every row
        for engine in (truth, fast):
            engine.decay[:] = np.linspace(0.0, 0.1, len(engine.decay))
    weight = random.random(y.shape) if weighted else None
    values = random.normal(size=codes.shape) if valued else None
    told = [told_by(e, codes, values, y, weight) for e in (truth, fast)]
    assert told[1] == pytest.approx(told[0], rel=1e-5)
    assert truth.n_steps == fast.n_steps == 5
    np.testing.assert_allclose(fast.table, truth.table, **CLOSE)
    np.testing.assert_allclose(fast.state, truth.state, **CLOSE)
    np.testing.assert_allclose(
        fast.scores(codes, values), truth.scores(codes, values), rtol=1e-4, atol=1e-4
    )


def test_all_rows_equal_and_a_single_row():
    layout, codes, y, _ = case("ragged")
    for rows in (np.repeat(codes[:1], 50, axis=0), codes[:1]):
        truth, fast = engines(layout, StepSettings(batch_size=50, weight_decay=0.1))
        for engine in (truth, fast):
            engine.run(rows, None, y[: len(rows)], None)
        np.testing.assert_allclose(fast.table, truth.table, **CLOSE)
        np.testing.assert_allclose(fast.state, truth.state, **CLOSE)


def test_rows_that_are_absent_do_not_move():
    layout, codes, y, _ = case("ragged")
    codes[:, 3] %= 5
    (fast,) = engines(layout, StepSettings(weight_decay=0.5, penalty=0.0), names=["cpu"])
    before = fast.table.copy()
    fast.run(codes, None, y, None)
    assert np.array_equal(fast.table[-35:], before[-35:])
    assert not np.array_equal(fast.table[:12], before[:12])


def test_unseen_rows_score_as_the_weighted_mean():
    layout, codes, _, random = case("ragged", unseen=True)
    counts = random.integers(0, 9, layout.n_rows)
    truth, fast = engines(layout, StepSettings())
    for engine in (truth, fast):
        engine.set_means(counts)
    assert (codes < 0).any()
    np.testing.assert_allclose(fast.scores(codes, None), truth.scores(codes, None), rtol=1e-4)
    own = slice(*layout.offsets[1:3])
    mean = (counts[own] @ truth.table[own]) / counts[own].sum()
    np.testing.assert_allclose(truth._table[layout.n_rows + 1], mean)


@pytest.mark.parametrize("block", [7, 8192])
def test_the_same_bits_for_any_number_of_threads(monkeypatch, block):
    monkeypatch.setattr(cpu_module, "PENALTY_ROWS", block)
    layout, codes, y, _ = case("odd width", n=900)
    settings = StepSettings(penalty=1e-3, reg_every=2, batch_size=128)
    seen = set()
    for threads in (1, 2, 3, 5):
        (engine,) = engines(layout, settings, names=["cpu"], n_jobs=1)
        engine.n_threads = threads  # more than there are cores is fine for the kernels
        engine.run(codes, None, y, None)
        scores = engine.scores(codes, None)
        seen.add((engine.table.tobytes(), engine.state.tobytes(), scores.tobytes()))
    assert len(seen) == 1


def test_a_callers_own_kernels_keep_their_threads():
    before = numba.get_num_threads()
    layout, codes, y, _ = case("odd width", n=900)
    (engine,) = engines(layout, StepSettings(batch_size=128), names=["cpu"], n_jobs=1)
    engine.run(codes, None, y, None)
    with pool(1):
        assert numba.get_num_threads() == 1
        with pool() as n:  # busy: the work is done without it
            assert n == 0
    with pool(99) as n:
        assert n == numba.config.NUMBA_NUM_THREADS
    assert numba.get_num_threads() == before


def test_running_in_pieces_is_the_same_as_at_once():
    layout, codes, y, _ = case("ragged", n=160)
    settings = StepSettings(penalty=1e-2, reg_every=3, batch_size=16)
    whole, pieces = engines(layout, settings, names=["cpu", "cpu"])
    whole.run(codes, None, y, None)
    for part in np.split(np.arange(160), [16, 80, 96]):
        pieces.run(codes[part], None, y[part], None)
    assert whole.table.tobytes() == pieces.table.tobytes()
    assert whole.state.tobytes() == pieces.state.tobytes()


def test_a_second_process_finds_compiled_code():
    """Numba's cache holds every kernel: a new process loads and does not compile."""
    code = """
import numpy as np
from numba.core import event
from fieldwise.engines import StepSettings, make_engine
from fieldwise.layout import Layout
compiled = []
class Listen(event.Listener):
    def on_start(self, e): compiled.append(e.data["dispatcher"].py_func.__name__)
    def on_end(self, e): pass
event.register("numba:compile", Listen())
e = make_engine("cpu", Layout((5, 4), (2, 2)), StepSettings(penalty=1.0, reg_every=2, batch_size=8))
codes = np.zeros((300, 2), np.int32)
for values in (None, np.ones((300, 2))):
    e.run(codes, values, np.zeros((300, 1)), None)
    e.scores(codes, values); e.scores(codes[:3], values if values is None else values[:3])
print("compiled", *compiled)
"""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["compiled"]


def test_refusals(monkeypatch):
    layout = Layout((5, 4), (2, 2))
    with pytest.raises(SettingError, match="engine='tpu'"):
        make_engine("tpu", layout, StepSettings())
    monkeypatch.setattr(cpu_module, "_memory_available", lambda: 100)
    with pytest.raises(SettingError, match=r"the model needs .* GB.*lower the rank"):
        make_engine("cpu", layout, StepSettings())
