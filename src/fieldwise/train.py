"""The training loop: epochs, early stopping, history, checkpoints. Imports no engine by name.

A run is a function of its rows, settings and seed: the same bits for any number of threads, and
after any number of interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import maths
from .data.shuffle import Batches, Rows, Table, gathered
from .engines import Engine, StepSettings, empty_like, engine_for, fill, host, make_engine
from .errors import SettingError, TrainingError
from .layout import Layout
from .objective import Objective
from .problem import Problem, Ready, evaluate, judge_rows, with_voices
from .progress import progress
from .state import Run, Saver
from .targets import Scale, aggregated, scale_of

__all__ = [
    "Fit",
    "Running",
    "TrainSettings",
    "Watch",
    "fitted_engine",
    "grown",
    "initialise",
    "on_distinct_rows",
    "train",
]

# Tried from the smallest up while the next is better. Where rare categories are many the smallest
# generalises best, where pairs of categories repeat often the largest (flights, Frappe).
RATES = (0.05, 0.15, 0.4)
SHRINKAGE = 1.0
# Of few rows, smaller steps and a stronger shrinkage are tried as well: better where rows are too
# few to tell categories apart, worse where a rule is sharp.
FEW, FEW_RATES, FEW_SHRINKAGE = 50_000, (0.02, *RATES), 10.0
TRIAL = 2  # epochs after which a rate that is behind the one before is given up
CHUNK_ROWS = 1 << 17  # rows handed to the engine at a time
INIT_ROWS = 4096  # of a table, whose starting values are drawn at a time
TELL_SECONDS = 0.2
MAY_BE_NONE = (
    "learning_rate",
    "weight_decay",
    "shrinkage",
    "reg_every",
    "batch_size",
    "max_variance",
    "max_mean",
)
Callback = Callable[[dict[str, Any]], bool | None]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train. None means: adapted to the table."""

    learning_rate: float | None = None  # RATES are tried on the rows to judge by
    weight_decay: float | None = None  # of the rows in a batch, all alike; 0
    shrinkage: float | None = None  # decay by count; 1 unless weight_decay is set
    penalty: float = 1e-5
    reg_every: int | None = None  # min(1000, steps in an epoch)
    batch_size: int | None = None  # 2048, less for small tables
    epochs: int = 30
    patience: int = 2
    max_variance: float | None = None  # bounds of every field's variance and mean norm
    max_mean: float | None = None
    bagging: bool = False  # every member of an ensemble on rows drawn with replacement
    averages: int = 8  # tables of an epoch's second half whose mean is kept; 1: its last alone
    half: bool = False  # the table in bfloat16, on a GPU
    init_scale: float = 0.02
    initial_state: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, strict in (
            ("learning_rate", 0, True),
            ("weight_decay", 0, False),
            ("shrinkage", 0, False),
            ("penalty", 0, False),
            ("reg_every", 1, False),
            ("batch_size", 1, False),
            ("epochs", 1, False),
            ("patience", 1, False),
            ("averages", 1, False),
            ("init_scale", 0, False),
            ("initial_state", 0, False),
            ("seed", 0, False),
            ("max_variance", 0, True),
            ("max_mean", 0, True),
        ):
            value = getattr(self, name)
            if value is None and name in MAY_BE_NONE:
                continue
            good = isinstance(value, (int, float, np.number)) and np.isfinite(value)
            if not good or value < least or (strict and value == least):
                word = "more than" if strict else "at least"
                raise SettingError(f"{name}={value!r} must be a number of {word} {least}")

    def settled(self, n_rows: int) -> TrainSettings:
        """With everything decided for a table of so many rows."""
        batch = self.batch_size or int(min(2048, max(32, 2 ** int(np.log2(max(n_rows, 1) / 64)))))
        steps = -(-n_rows // batch)
        every = self.reg_every or max(1, min(1000, steps))
        shrinkage = self.shrinkage
        if shrinkage is None:
            shrinkage = SHRINKAGE if self.weight_decay is None else 0.0
        decay = self.weight_decay or 0.0
        return replace(
            self, batch_size=batch, reg_every=every, weight_decay=decay, shrinkage=shrinkage
        )


@dataclass(frozen=True)
class Watch:
    """Looks at the engine about every so many steps, and after every epoch. Once `look` returns
    True the run is over, and its table is the engine's as it is then."""

    look: Callable[[Engine], bool]
    every: int

    def ends(self, engine: Engine, before: int, *, is_last: bool) -> bool:
        """Whether it is over, after steps that began at number `before`."""
        is_due = is_last or before // self.every < engine.n_steps // self.every
        return is_due and self.look(engine)


@dataclass(frozen=True, kw_only=True)
class Running:
    """How to run: none of it changes the result, but for the last digits on another device. A
    callback gets each epoch's record and stops the run by returning True."""

    device: str = "auto"  # "cuda", "cpu"
    # By name, whatever the device; or what makes one of a layout, steps, an objective and offsets.
    engine: str | Callable[..., Engine] | None = None
    resident: bool | None = None  # whether a GPU holds all rows; None: where they fit
    n_jobs: int | None = None
    callbacks: Sequence[Callback] = ()
    watch: Watch | None = None
    checkpoint: Path | None = None
    checkpoint_minutes: float = 10.0
    resume: bool = False
    show: bool | None = False  # None: where there is a terminal
    keeps_best: bool = True  # Ctrl-C ends training with the best so far; false: it is an error


@dataclass
class Fit:
    """What training gives: the best table, and how it got there."""

    table: np.ndarray
    state: np.ndarray
    history: list[dict[str, Any]]
    best_epoch: int
    metrics: dict[str, float]  # of the best epoch on the validation rows; empty without any
    settings: TrainSettings  # with everything decided
    scale: Scale
    field_weights: np.ndarray  # (m,) ones, but for combine="weighted"
    objective: Objective  # as it was, with the weights of a vote
    was_stopped: bool = False  # by Ctrl-C or a callback


def initialise(table: Any, seed: int, scale: float, n_biases: int = 1) -> None:
    """U and V uniform in +-scale, b zero; the same bits on every machine."""
    if not isinstance(table, np.ndarray):
        drawn = np.empty(tuple(table.shape), np.float32)
        initialise(drawn, seed, scale, n_biases)
        fill(table, drawn)
        return

    def draw(start: int) -> None:
        part = table[start : start + INIT_ROWS]
        n, width = part.shape
        part[:] = maths.starting_rows(seed, scale, start, n, width, n_biases)

    with ThreadPoolExecutor() as pool:
        list(pool.map(draw, range(0, len(table), INIT_ROWS)))


def grown(
    table: np.ndarray, old: Layout, new: Layout, settings: TrainSettings | None
) -> np.ndarray:
    """The table with rows for new categories: random where `settings` are given, else zero.

    Fields only grow at their end and ranks stay, so columns keep their place.
    """
    out = np.zeros((new.n_rows, table.shape[1]), dtype=table.dtype)
    if settings is not None:
        initialise(out, settings.seed + 1, settings.init_scale, new.n_outputs)
    for i in range(old.n_fields):
        mine = table[old.own(i)]
        out[new.offsets[i] : new.offsets[i] + len(mine)] = mine
    return out


def on_distinct_rows(problem: Problem, settings: TrainSettings) -> tuple[Problem, TrainSettings]:
    """The same problem with equal rows taken together, in memory, in batches of as much weight."""
    judge = problem.validation
    if problem.held_out is not None:
        judge = Rows(**gathered(problem.rows, problem.held_out))
    whole = gathered(problem.rows, problem.only)
    n = len(whole["codes"])
    batch = settings.settled(n).batch_size or 1
    few = aggregated(whole, problem.objective.heads)
    if settings.batch_size is None:
        settings = replace(settings, batch_size=max(1, round(batch * len(few["codes"]) / n)))
    merged = replace(problem, rows=Rows(**few), validation=judge, only=None, held_out=None)
    return merged, settings


def train(
    problem: Problem,
    settings: TrainSettings,
    running: Running | None = None,
    start: Fit | None = None,
    rates: Sequence[float] | None = None,
    *,
    probe: bool = False,
) -> Fit:
    """Train and keep the table that is best on the rows to judge by; without any, the last epoch's.

    `start` is a fit to go on from, `rates` are the steps to try where none is set: each to its end,
    or with `probe` for an epoch, of which the best is taken. Ctrl-C keeps the best so far.
    """
    running = running or Running()
    scale = start.scale if start else scale_of(problem.rows, problem.only, problem.objective)
    if settings.learning_rate is None and problem.judge is not None and probe:
        short = replace(settings, epochs=1)
        apart = running.checkpoint and running.checkpoint / "probe"
        quiet = replace(running, checkpoint=apart, callbacks=())
        best = _climb(problem, short, quiet, start, scale, rates or RATES)
        settings = replace(settings, learning_rate=best.settings.learning_rate)
    if settings.learning_rate is None and problem.judge is not None:
        fit = _climb(problem, settings, running, start, scale, rates or RATES)
        n = Batches(problem.rows, 1, only=problem.only).n_rows
        is_set = settings.weight_decay is not None or settings.shrinkage is not None
        if is_set or start or n >= FEW or fit.was_stopped:
            return fit
        shrunk = replace(settings, shrinkage=FEW_SHRINKAGE)
        folder = running.checkpoint and running.checkpoint / "shrunk"
        running = replace(running, checkpoint=folder)
        other = _climb(problem, shrunk, running, start, scale, rates or FEW_RATES)
        return other if other.metrics["loss"] < fit.metrics["loss"] else fit
    settings = replace(settings, learning_rate=settings.learning_rate or RATES[0])
    return _train(problem, settings, running, start, scale)


def _climb(
    problem: Problem,
    settings: TrainSettings,
    running: Running,
    start: Fit | None,
    scale: Scale,
    rates: Sequence[float],
) -> Fit:
    """One fit a rate, from the smallest up, while they get better on the rows to judge by."""
    best: Fit | None = None
    for rate in rates:
        folder = running.checkpoint and running.checkpoint / f"rate-{rate}"
        one, settings = replace(running, checkpoint=folder), replace(settings, learning_rate=rate)
        try:
            fit = _train(problem, settings, one, start, scale, _behind(best) if best else None)
        except KeyboardInterrupt:
            if best is None or not running.keeps_best:
                raise
            return best
        if best is not None and fit.metrics["loss"] >= best.metrics["loss"]:
            return best
        best = fit
        if fit.was_stopped:
            break
    assert best is not None
    return best


def _behind(last: Fit) -> Callback:
    """Stops a run that is behind the last one after the epochs of a trial."""

    def stop(record: dict[str, Any]) -> bool:
        at = record["epoch"]
        return at == TRIAL <= len(last.history) and bool(
            record["loss"] > last.history[at - 1]["loss"]
        )

    return stop


def _engine(
    problem: Problem, settings: TrainSettings, running: Running, scale: Scale, n_rows: int
) -> Engine:
    """An engine for so many rows to train on."""
    step = StepSettings(
        learning_rate=settings.learning_rate or RATES[0],
        weight_decay=settings.weight_decay or 0.0,
        penalty=settings.penalty,
        reg_every=settings.reg_every or 1000,
        batch_size=settings.batch_size or 1,
        max_variance=settings.max_variance,
        max_mean=settings.max_mean,
    )
    layout = problem.layout
    about = (scale.scaled(problem.objective), scale.offsets)
    if callable(running.engine):
        return running.engine(layout, step, *about)
    return make_engine(
        *(running.engine or engine_for(running.device, layout, n_rows), layout, step),
        objective=about[0],
        offsets=about[1],
        n_jobs=running.n_jobs,
        half=settings.half,
    )


def _decay(problem: Problem, settings: TrainSettings) -> np.ndarray:
    """(d,) of every row of the table, each time it is in a batch"""
    n = problem.n_counted
    shares = np.minimum(problem.counts / n, 1.0)
    shared = maths.shared_decay(shares, n, settings.batch_size or 1, settings.shrinkage or 0.0)
    return ((settings.weight_decay or 0.0) + shared).astype(np.float32)


def fitted_engine(problem: Problem, fit: Fit, running: Running | None = None) -> Engine:
    """An engine that scores as the fit does."""
    engine = _engine(problem, fit.settings, running or Running(device="cpu"), fit.scale, 0)
    fill(engine.table, fit.table)
    fill(engine.field_weights, fit.field_weights)
    engine.set_means(problem.counts)
    return engine


def _begun(
    problem: Problem, settings: TrainSettings, running: Running, start: Fit | None, scale: Scale
) -> tuple[Run, Saver]:
    """A run with its engine, at its beginning or where a checkpoint left it."""
    layout, only = problem.layout, problem.only
    trained = Batches(problem.rows, 1, only=only).n_rows
    batch = settings.batch_size or 1
    engine = _engine(problem, settings, running, scale, trained)
    if settings.shrinkage and hasattr(engine, "decay"):
        fill(engine.decay[: layout.n_rows], _decay(problem, settings))
    if start:
        fill(engine.table, start.table)
        fill(engine.state, start.state)
        fill(engine.field_weights, start.field_weights)
    else:
        if hasattr(engine, "initialise"):
            engine.initialise(settings.seed, settings.init_scale)
        else:
            initialise(engine.table, settings.seed, settings.init_scale, layout.n_outputs)
        fill(engine.state, settings.initial_state)
    rows: Table = Ready(problem.rows, problem, scale, bagging=settings.bagging, seed=settings.seed)
    if hasattr(engine, "hold"):
        rows = engine.hold(rows, resident=running.resident)
    chunk = max(1, min(CHUNK_ROWS // batch, -(-trained // (2 * batch * settings.averages))))
    if running.watch is not None:
        chunk = min(chunk, running.watch.every)
    batches = Batches(rows, chunk * batch, only=only, seed=settings.seed)
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
def _room(n_steps: Callable[[], int]) -> Iterator[None]:
    """A GPU without room is an error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which may not be here
            raise
        raise TrainingError(
            f"the GPU is out of memory after {n_steps():,} steps; something else may have taken "
            "it. What was saved last is intact: resume, or lower batch_size or the rank"
        ) from error


def _train(
    problem: Problem,
    settings: TrainSettings,
    running: Running,
    start: Fit | None,
    scale: Scale,
    give_up: Callback | None = None,
) -> Fit:
    """One fit; `give_up` looks at each epoch's record as a callback does."""
    settings = settings.settled(Batches(problem.rows, 1, only=problem.only).n_rows)
    judge = judge_rows(problem)
    with _room(lambda: 0):
        run, saver = _begun(problem, settings, running, start, scale)
    engine, was_stopped = run.engine, False
    try:
        while run.batches.cursor.epoch < settings.epochs and not _exhausted(run, settings):
            with _room(lambda: engine.n_steps):
                if _epoch(run, problem, saver, settings, running):
                    was_stopped = True
                    run.keep_current()
                    break
                record = _finish_epoch(run, problem, judge, scale, settings.learning_rate)
            stops = [bool(callback(record)) for callback in running.callbacks]  # all are told
            was_stopped = any(stops)
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
    """Whether the last epochs brought nothing."""
    return run.best_epoch >= 0 and len(run.history) - 1 - run.best_epoch >= settings.patience


def _epoch(
    run: Run, problem: Problem, saver: Saver, settings: TrainSettings, running: Running
) -> bool:
    """The rest of the current epoch, or up to where the watch ends it: then True."""
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
                continue  # to ask for the loss is to wait for it
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
    """Of the epoch so far; of ensembles and votes the mean over members and fields."""
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
