"""What a run starts with: an initial table, equal rows merged, an engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from .. import maths
from ..data.shuffle import Rows, gathered
from ..engines import Engine, StepSettings, engine_for, fill, make_engine
from ..layout import Layout
from ..problem import Problem
from ..targets import Scale, aggregated
from .settings import RATES, Fit, Running, TrainSettings

__all__ = ["engine_to_train", "fitted_engine", "grown", "initialise", "on_distinct_rows"]

INIT_ROWS = 4096  # rows of the table initialised at a time


def initialise(table: Any, seed: int, scale: float, n_biases: int = 1) -> None:
    """Fill a table: U and V uniform in +-scale, b zero; the same bits on every machine."""
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
    """The table with rows for new categories: random if `settings` are given, else zero.

    Fields only grow at their end and ranks stay the same, so columns keep their place.
    """
    out = np.zeros((new.n_rows, table.shape[1]), dtype=table.dtype)
    if settings is not None:
        initialise(out, settings.seed + 1, settings.init_scale, new.n_outputs)
    for i in range(old.n_fields):
        mine = table[old.own(i)]
        out[new.offsets[i] : new.offsets[i] + len(mine)] = mine
    return out


def on_distinct_rows(problem: Problem, settings: TrainSettings) -> tuple[Problem, TrainSettings]:
    """The same problem with equal rows merged, in memory. Batches then have fewer rows, of the same
    total weight."""
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


def engine_to_train(
    problem: Problem, settings: TrainSettings, running: Running, scale: Scale, n_rows: int
) -> Engine:
    """The engine to train with on `n_rows` rows."""
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


def fitted_engine(problem: Problem, fit: Fit, running: Running | None = None) -> Engine:
    """An engine that scores as the fit does."""
    engine = engine_to_train(problem, fit.settings, running or Running(device="cpu"), fit.scale, 0)
    fill(engine.table, fit.table)
    fill(engine.field_weights, fit.field_weights)
    engine.set_means(problem.counts)
    return engine
