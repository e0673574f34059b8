"""The GPU engine against the slow twin: under Triton's interpreter where there is no GPU.

Imports nothing that needs polars, Numba or scikit-learn, so it runs where only torch, Triton and
NumPy are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fieldwise import engines as engines_module  # noqa: E402
from fieldwise.data.shuffle import Rows  # noqa: E402
from fieldwise.engines import StepSettings, engine_for, fill, host, make_engine  # noqa: E402
from fieldwise.errors import SettingError, TrainingError  # noqa: E402
from fieldwise.layout import Layout  # noqa: E402
from fieldwise.objective import Head, Objective  # noqa: E402
from fieldwise.problem import Problem  # noqa: E402
from fieldwise.train import Running, TrainSettings, train  # noqa: E402
from interpreted import mended  # noqa: E402

ON_GPU = torch.cuda.is_available()
mended()
pytestmark = pytest.mark.gpu

CLOSE = {"rtol": 5e-4, "atol": 5e-6}  # float32 against float64 after a few steps

SHAPES = {
    "ragged": ((3, 7, 2, 40), (2, 3, 1, 5)),
    "one category": ((1, 1, 4), (1, 1, 2)),
    "one field": ((6,), (3,)),
    "rank 0": ((5, 4), (0, 2)),
    "wide": ((9,) * 7, (5,) * 7),
}
OBJECTIVES = {
    "logistic": ((Head(),), 1),
    "members": ((Head(),), 2),
    "softmax": ((Head("softmax", 3),), 1),
    "numbers": ((Head("squared"), Head("absolute"), Head("huber", delta=0.4)), 1),
    "classes and a count": ((Head("softmax", 4), Head("poisson")), 2),
}


def engines(layout, settings, objective, seed=1, names=("reference", "gpu"), **options):
    random = np.random.default_rng(seed)
    start = random.normal(0, 0.3, (layout.n_rows, layout.width))
    offsets = random.normal(0, 0.3, layout.n_outputs)
    made = []
    for name in names:
        extra = options if name == "gpu" else {}
        engine = make_engine(name, layout, settings, objective=objective, offsets=offsets, **extra)
        fill(engine.table, start)
        fill(engine.state, 1e-3)
        fill(engine.decay, settings.weight_decay * np.linspace(0.5, 1.5, len(engine.decay)))
        made.append(engine)
    return made


def drawn(layout, objective, n, *, valued=False, weights=None, seed=0, unseen=False):
    random = np.random.default_rng(seed)
    sizes = np.array(layout.sizes)[layout.slot_owner]
    codes = np.stack([random.integers(-int(unseen), d, n) for d in sizes], axis=1)
    values = random.normal(size=codes.shape) if valued else None
    if layout.n_slots > layout.n_fields:
        values = np.ones(codes.shape) if values is None else values
        many = np.array(layout.slots)[layout.slot_owner] > 1
        values[:, many] *= random.random((n, int(many.sum()))) < 0.6
        codes = np.where(values == 0, 0, codes)
    columns = []
    for head in objective.heads:
        draw = {
            "logistic": lambda: random.integers(0, 2, n),
            "softmax": lambda size=head.size: random.integers(0, size, n),
            "poisson": lambda: random.poisson(1.5, n),
        }
        columns.append(draw.get(head.loss, lambda: random.normal(size=n))())
    y = np.stack(columns, axis=1).astype(float)
    n_weights = {None: 0, "one": 1, "each": len(objective.copies)}[weights]
    w = random.random((n, n_weights)) if n_weights else None
    return codes.astype(np.int32), values, y, w


def same(truth, fast, data):
    for engine in (truth, fast):
        engine.run(*data)
    told = [host(engine.totals).tolist() for engine in (truth, fast)]
    assert told[1] == pytest.approx(told[0], rel=1e-4)
    assert truth.n_steps == fast.n_steps
    np.testing.assert_allclose(host(fast.table), truth.table, **CLOSE)
    np.testing.assert_allclose(host(fast.state), truth.state, **CLOSE)
    np.testing.assert_allclose(host(fast.field_weights), truth.field_weights, **CLOSE)
    found = [engine.scores(*data[:2]) for engine in (truth, fast)]
    assert found[0].shape == found[1].shape
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("valued", [False, True])
def test_plain_steps_are_the_slow_twins(shape, valued):
    layout, objective = Layout(*SHAPES[shape]), Objective()
    settings = StepSettings(0.05, 1e-3, 1e-3, reg_every=3, batch_size=16)
    weights = "one" if valued else None
    data = drawn(layout, objective, 41, valued=valued, weights=weights)
    same(*engines(layout, settings, objective), data)


@pytest.mark.parametrize("slots", [(), (1, 3, 1, 2)], ids=["plain", "slots"])
@pytest.mark.parametrize("combine", ["sum", "weighted", "vote"])
@pytest.mark.parametrize("heads", OBJECTIVES)
def test_every_objective_is_the_slow_twins(heads, combine, slots):
    objective = Objective(*OBJECTIVES[heads], combine)
    layout = Layout(*SHAPES["ragged"], objective.n_outputs, slots)
    settings = StepSettings(0.05, 1e-3, 1e-3, reg_every=2, batch_size=16)
    valued, weights = {"sum": (True, "each"), "weighted": (False, None)}.get(
        combine, (False, "one")
    )
    data = drawn(layout, objective, 25, valued=valued, weights=weights)
    same(*engines(layout, settings, objective), data)


def test_long_runs_go_by_pieces():
    """One row for all samples of a field, and runs around once and twice a piece's length."""
    layout, objective = Layout((1, 3, 200), (2, 2, 3)), Objective()
    settings = StepSettings(0.05, 1e-3, 0.0, batch_size=128)
    data = drawn(layout, objective, 256)
    data[0][:, 1] = np.repeat([0, 1, 2, 0], [65, 32, 31, 128])
    same(*engines(layout, settings, objective), data)


def test_rows_that_are_absent_do_not_move():
    layout, objective = Layout(*SHAPES["ragged"]), Objective()
    codes, _, y, _ = drawn(layout, objective, 16)
    codes[:, 3] %= 5
    (fast,) = engines(
        layout, StepSettings(weight_decay=0.5, penalty=0.0, batch_size=16), objective, names=["gpu"]
    )
    before = host(fast.table).copy()
    fast.run(codes, None, y, None)
    after = host(fast.table)
    assert np.array_equal(after[-35:], before[-35:])
    assert not np.array_equal(after[:12], before[:12])


def test_unseen_rows_score_as_the_weighted_mean():
    layout, objective = Layout(*SHAPES["ragged"]), Objective()
    codes, *_ = drawn(layout, objective, 30, unseen=True)
    counts = np.random.default_rng(3).integers(0, 9, layout.n_rows)
    truth, fast = engines(layout, StepSettings(), objective)
    for engine in (truth, fast):
        engine.set_means(counts)
    assert (codes < 0).any()
    np.testing.assert_allclose(
        fast.scores(codes, None), truth.scores(codes, None), rtol=1e-3, atol=1e-5
    )


def test_bounds_hold_after_a_due_step():
    layout, objective = Layout(*SHAPES["ragged"]), Objective()
    settings = StepSettings(0.05, 0.0, 0.0, 1, 16, max_variance=0.2, max_mean=0.1)
    data = drawn(layout, objective, 16)
    same(*engines(layout, settings, objective), data)


def test_the_same_bits_every_time():
    layout, objective = Layout(*SHAPES["wide"]), Objective()
    settings = StepSettings(0.05, 1e-3, 1e-3, reg_every=3, batch_size=16)
    data = drawn(layout, objective, 48)
    found = []
    for _ in range(2):
        (engine,) = engines(layout, settings, objective, names=["gpu"])
        engine.run(*data)
        found.append((host(engine.table), host(engine.state)))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_half_precision_follows():
    layout, objective = Layout(*SHAPES["ragged"]), Objective()
    settings = StepSettings(0.05, 1e-3, 1e-3, reg_every=3, batch_size=16)
    data = drawn(layout, objective, 48)
    truth, fast = engines(layout, settings, objective, half=True)
    for engine in (truth, fast):
        engine.run(*data)
    assert fast.table.dtype == torch.bfloat16
    np.testing.assert_allclose(host(fast.table), truth.table, rtol=0.02, atol=0.02)
    away = (host(fast.table) - truth.table) / np.abs(truth.table).clip(0.01)
    assert abs(away.mean()) < 1e-3  # rounded either way


def problem(n=150, **parts):
    random = np.random.default_rng(0)
    layout = Layout((4, 9, 30), (2, 2, 3))
    codes = np.stack([random.integers(0, d, n) for d in layout.sizes], axis=1).astype(np.int32)
    y = (random.random((n, 1)) < 0.2 + 0.5 * (codes[:, :1] == codes[:, 1:2] % 4)).astype(float)
    held_out = random.random(n) < 0.3
    arrays = {"codes": codes, "target": y, **parts}
    counts = np.ones(layout.n_rows, np.int64)
    rest = {"only": ~held_out, "held_out": held_out}
    return Problem(layout=layout, rows=Rows(**arrays), counts=counts, **rest)


SETTINGS = TrainSettings(learning_rate=0.1, epochs=2, batch_size=64, averages=2)


@pytest.fixture(scope="module")
def whole():
    """A run that nothing stops."""
    return train(problem(), SETTINGS, Running(engine="gpu"))


def test_training_is_that_of_the_slow_twin(whole):
    truth = train(problem(), SETTINGS, Running(engine="reference"))
    np.testing.assert_allclose(whole.table, truth.table, rtol=1e-3, atol=1e-4)
    for a, b in zip(truth.history, whole.history, strict=True):
        assert b["logloss"] == pytest.approx(a["logloss"], abs=1e-5)
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-5)


def test_rows_that_are_streamed_are_the_rows_that_are_held():
    weight = np.random.default_rng(1).random((150, 1))
    fits = [
        train(problem(weight=weight), SETTINGS, Running(engine="gpu", resident=resident))
        for resident in (True, False)
    ]
    assert np.array_equal(fits[0].table, fits[1].table)


def test_half_precision_is_resumed_to_the_same_bits(tmp_path):
    settings = replace(SETTINGS, half=True)
    whole = train(problem(), settings, Running(engine="gpu"))

    def stop(record):
        raise Stop

    options = {"engine": "gpu", "checkpoint": tmp_path / "c"}
    with pytest.raises(Stop):
        train(problem(), settings, Running(**options, checkpoint_minutes=0, callbacks=[stop]))
    again = train(problem(), settings, Running(**options, resume=True))
    assert np.array_equal(again.table, whole.table)


@pytest.mark.skipif(not ON_GPU, reason="graphs are recorded on a GPU alone")
@pytest.mark.parametrize("kind", ["plain", "softmax", "lists", "weighted", "odd batches"])
def test_recorded_steps_are_the_slow_twins(kind):
    """More than two groups of steps, so that a graph is recorded and replayed."""
    heads = (Head("softmax", 3),) if kind == "softmax" else (Head(),)
    objective = Objective(heads, 1, "weighted" if kind == "weighted" else "sum")
    slots = (1, 2, 1, 3) if kind == "lists" else ()
    layout = Layout(*SHAPES["ragged"], objective.n_outputs, slots)
    size = 7 if kind == "odd batches" else 8
    settings = StepSettings(0.01, 1e-3, 1e-3, reg_every=150, batch_size=size)
    data = drawn(layout, objective, 220 * size + 3, weights="one")
    truth, fast = engines(layout, settings, objective)
    for engine in (truth, fast):
        engine.run(*data)
    assert fast._graph is not None
    np.testing.assert_allclose(host(fast.table), truth.table, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(host(fast.state), truth.state, rtol=1e-2, atol=1e-4)


class Stop(Exception):
    pass


def test_a_run_that_is_resumed_gives_the_same_bits(tmp_path, whole):
    def stop(record):
        raise Stop

    options = {"engine": "gpu", "checkpoint": tmp_path / "c"}
    with pytest.raises(Stop):
        train(problem(), SETTINGS, Running(**options, checkpoint_minutes=0, callbacks=[stop]))
    again = train(problem(), SETTINGS, Running(**options, resume=True))
    assert np.array_equal(again.table, whole.table)
    assert [h["logloss"] for h in again.history] == [h["logloss"] for h in whole.history]


def test_a_gpu_that_runs_out_of_memory_leaves_what_was_saved(tmp_path, monkeypatch, whole):
    from fieldwise.engines import gpu

    steps = gpu.GpuEngine._steps

    def few(self, part, n_steps, *, due):
        if self.n_steps >= 3:
            raise torch.cuda.OutOfMemoryError("no room")
        steps(self, part, n_steps, due=due)

    monkeypatch.setattr(gpu.GpuEngine, "_steps", few)
    options = {"engine": "gpu", "checkpoint": tmp_path / "c"}
    with pytest.raises(TrainingError, match="out of memory after [0-9]+ steps"):
        train(problem(), SETTINGS, Running(**options))
    monkeypatch.setattr(gpu.GpuEngine, "_steps", steps)
    again = train(problem(), SETTINGS, Running(**options, resume=True))
    assert np.array_equal(again.table, whole.table)


def test_a_gpu_that_is_too_small_says_so(monkeypatch):
    from fieldwise.engines import gpu

    monkeypatch.setattr(gpu, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "free_memory", lambda: 3 << 20)
    with pytest.raises(SettingError, match=r"needs 1\.\d GiB of GPU memory.*0\.0 GiB are free"):
        make_engine("gpu", Layout((9000, 9000), (2048, 2048)), StepSettings())


def test_devices(monkeypatch):
    small, large = Layout((5, 5), (2, 2)), Layout((5, 5), (2, 2), component="fm")
    assert engine_for("auto", small, 10) == "cpu"
    assert engine_for("cuda", small, 10) == "gpu"
    assert engine_for("cpu", large, 10) == "reference"
    monkeypatch.setattr(engines_module, "gpu_is_here", lambda: True)
    monkeypatch.setattr(engines_module, "_why_not", lambda layout: "no room")
    assert engine_for("auto", small, 1 << 40) == "cpu"
    monkeypatch.setattr(engines_module, "_why_not", lambda layout: "")
    assert engine_for("auto", small, 10) == "cpu"
    assert engine_for("auto", small, 1 << 40) == "gpu"
    assert engine_for("auto", large, 1 << 40) == "reference"
    with pytest.raises(SettingError, match="device='tpu' is not one of auto, cpu, cuda"):
        engine_for("tpu", small, 10)
    with pytest.raises(SettingError, match="half=True keeps the table in bfloat16"):
        make_engine("reference", small, StepSettings(), half=True)


def test_without_triton_it_says_what_to_install():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from fieldwise.engines import StepSettings, make_engine\n"
        "from fieldwise.layout import Layout\n"
        "from fieldwise.errors import SettingError\n"
        "try: make_engine('gpu', Layout((2,), (1,)), StepSettings())\n"
        "except SettingError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'fieldwise[gpu]'" in done.stdout, done.stderr


def test_what_cannot_run_says_so(monkeypatch):
    with pytest.raises(SettingError, match="no component 'fm'"):
        make_engine("gpu", Layout((2, 2), (1, 1), component="fm"), StepSettings())
    if not ON_GPU:
        from fieldwise.engines import gpu

        monkeypatch.setattr(gpu, "INTERPRETED", False)
        with pytest.raises(SettingError, match="no GPU is here"):
            make_engine("gpu", Layout((2, 2), (1, 1)), StepSettings())


def test_nothing_heavy_is_imported():
    code = (
        "import sys, fieldwise.engines.gpu, fieldwise.fitting;"
        "bad = {'polars', 'numba', 'sklearn', 'scipy', 'pandas'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
