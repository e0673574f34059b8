"""The training loop: epochs, early stopping, history, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from .. import maths
from ..callbacks import Callback, tell
from ..data.shuffle import Batches, Table
from ..engines import empty_like, fill, host
from ..errors import TrainingError
from ..problem import EngineRows, Problem, evaluate, judge_rows, with_voices
from ..progress import progress
from ..targets import Scale
from .settings import Fit, Running, TrainSettings
from .start import engine_to_train, initialise
from .state import Run, Saver

__all__ = ["fitted"]

CHUNK_ROWS = 1 << 17  # rows handed to the engine at a time
TELL_SECONDS = 0.2


def fitted(
    problem: Problem,
    settings: TrainSettings,
    running: Running,
    start: Fit | None,
    scale: Scale,
    give_up: Callback | None = None,
) -> Fit:
    """Train once with these settings. `give_up` gets each epoch's record and, like a callback, ends
    the run by returning True."""
    settings = settings.settled(Batches(problem.rows, 1, only=problem.only).n_rows)
    judge = judge_rows(problem)
    with _memory_errors(lambda: 0):
        run, saver = _begun(problem, settings, running, start, scale)
    engine, was_stopped = run.engine, False
    try:
        while run.batches.cursor.epoch < settings.epochs and not _exhausted(run, settings):
            with _memory_errors(lambda: engine.n_steps):
                if _epoch(run, problem, saver, settings, running):
                    was_stopped = True
                    run.keep_current()
                    break
                record = _finish_epoch(run, problem, judge, scale, settings.learning_rate)
            was_stopped = tell(running.callbacks, record)
            if was_stopped or (give_up is not None and give_up(record)):
                break
            saver.now()
    except KeyboardInterrupt:
        if run.best is None or not running.keeps_best:
            raise
        was_stopped = True
    table = host(next(t for t in (run.best, run.mean, engine.table) if t is not None))
    weights = run.best_field_weights
    weights = host(engine.field_weights) if weights is None else weights
    objective = problem.objective
    if objective.combine == "weighted_vote":
        objective = with_voices(engine, problem, judge, scale, table)
        if judge is not None:
            weighed = replace(problem, objective=objective)
            run.metrics = evaluate(engine, weighed, *judge, scale)
    about = (run.history, run.best_epoch, run.metrics, settings, scale)
    return Fit(
        table, host(engine.state), *about, np.array(weights, np.float64), objective, was_stopped
    )


def _exhausted(run: Run, settings: TrainSettings) -> bool:
    """Whether the last `patience` epochs brought no improvement."""
    return run.best_epoch >= 0 and len(run.history) - 1 - run.best_epoch >= settings.patience


def _begun(
    problem: Problem, settings: TrainSettings, running: Running, start: Fit | None, scale: Scale
) -> tuple[Run, Saver]:
    """A run, new or restored from its checkpoint, and its saver."""
    layout, only = problem.layout, problem.only
    trained = Batches(problem.rows, 1, only=only).n_rows
    batch, seed = settings.batch_size or 1, settings.seed
    engine = engine_to_train(problem, settings, running, scale, trained)
    if settings.shrinkage and hasattr(engine, "decay"):
        fill(engine.decay[: layout.n_rows], _decay(problem, settings))
    if start:
        fill(engine.table, start.table)
        fill(engine.state, start.state)
        fill(engine.field_weights, start.field_weights)
    else:
        if hasattr(engine, "initialise"):
            engine.initialise(seed, settings.init_scale)
        else:
            initialise(engine.table, seed, settings.init_scale, layout.n_outputs)
        fill(engine.state, settings.initial_state)
    rows: Table = EngineRows(problem.rows, problem, scale, bagging=settings.bagging, seed=seed)
    if hasattr(engine, "hold"):
        rows = engine.hold(rows, resident=running.resident)
    chunk = max(1, min(CHUNK_ROWS // batch, -(-trained // (2 * batch * settings.averages))))
    if running.watch is not None:
        chunk = min(chunk, running.watch.every)
    batches = Batches(rows, chunk * batch, only=only, seed=seed)
    run = Run(engine, batches, settings.averages)
    identity = {
        "settings": asdict(settings),
        "n_rows": trained,
        "sizes": list(layout.sizes),
        "ranks": list(layout.ranks),
        "component": layout.component,
        "engine": getattr(engine, "name", ""),
        "objective": repr(problem.objective),
    }
    if running.resume and running.checkpoint is not None:
        run.restore(running.checkpoint, identity)
    return run, Saver(run, running.checkpoint, identity, running.checkpoint_minutes)


@contextmanager
def _memory_errors(n_steps: Callable[[], int]) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch may not be installed
            raise
        raise TrainingError(
            f"the GPU is out of memory after {n_steps():,} steps; another process may be using "
            "it. The last checkpoint is intact: resume, or lower batch_size or the rank"
        ) from error


def _decay(problem: Problem, settings: TrainSettings) -> np.ndarray:
    """(d,) how much each row of the table decays every time it is in a batch"""
    n = problem.n_counted
    shares = np.minimum(problem.counts / n, 1.0)
    shared = maths.shared_decay(shares, n, settings.batch_size or 1, settings.shrinkage or 0.0)
    return ((settings.weight_decay or 0.0) + shared).astype(np.float32)


def _epoch(
    run: Run, problem: Problem, saver: Saver, settings: TrainSettings, running: Running
) -> bool:
    """Train for the rest of the current epoch; true if the watch ended the run."""
    number = run.batches.cursor.epoch
    title = f"epoch {number + 1}/{settings.epochs}"
    done = run.batches.cursor.batch * run.batches.batch_size
    begun = time.perf_counter()
    with progress(title, run.batches.n_rows, show=running.show) as tell:
        fresh, told = done, begun
        for batch in run.batches:
            before = run.engine.n_steps
            run.engine.run(
                *(batch["codes"], batch.get("values"), batch["target"], batch.get("weight"))
            )
            run.take(done // run.batches.batch_size)
            done += len(batch["codes"])
            is_last = done >= run.batches.n_rows
            if running.watch and running.watch.ends(run.engine, before, is_last=is_last):
                return True
            is_due = saver.is_due() and not is_last
            early = time.perf_counter() - told < TELL_SECONDS
            if early and not is_last and not is_due:
                continue  # reading the loss waits for the device
            mean = _mean_loss(run, problem)
            told = time.perf_counter()
            if not np.isfinite(mean):
                raise TrainingError(
                    f"the loss is {mean} in epoch {number + 1}: the steps are too large. "
                    f"Lower learning_rate={settings.learning_rate} or raise "
                    f"initial_state={settings.initial_state}"
                )
            tell(done, f"loss {mean:.4f}, {(done - fresh) / (told - begun):,.0f} rows/s")
            if is_due:
                saver.now()
    run.seconds += time.perf_counter() - begun
    return False


def _mean_loss(run: Run, problem: Problem) -> float:
    """The epoch's mean loss so far, for ensembles and votes also over members and fields."""
    n_copies = problem.objective.n_members
    if problem.objective.is_vote:
        n_copies *= problem.layout.n_fields
    loss, weight = host(run.engine.totals).tolist()
    return loss / n_copies / weight if weight else 0.0 * loss


def _finish_epoch(
    run: Run,
    problem: Problem,
    judge: tuple[Table, np.ndarray | None] | None,
    scale: Scale,
    rate: float | None,
) -> dict[str, Any]:
    """Record the epoch, and keep its table if it is the best."""
    record: dict[str, Any] = {
        "epoch": len(run.history) + 1,
        "learning_rate": rate,
        "train_loss": scale.of_loss(problem.objective) * _mean_loss(run, problem),
        "seconds": run.seconds,
        "rows_per_second": run.batches.n_rows / max(run.seconds, 1e-9),
    }
    if judge is not None:
        run.swap()
        run.engine.set_means(problem.counts)
        found = evaluate(run.engine, problem, *judge, scale)
        record |= found
        if not np.isfinite(found["loss"]):
            raise TrainingError("the validation loss is not a number; lower learning_rate")
        if found["loss"] < run.best_loss:
            run.best_loss, run.metrics = found["loss"], found
            run.best_field_weights = host(run.engine.field_weights).copy()
            run.best_epoch = len(run.history)
            if run.best is None:
                run.best = empty_like(run.engine.table)
            fill(run.best, run.engine.table)
        run.swap()
    run.history.append(record)
    fill(run.engine.totals, 0.0)
    run.seconds, run.n_taken = 0.0, 0
    return record
