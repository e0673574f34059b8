"""The search for a learning rate: one fit per rate, in ascending order, while they get better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..callbacks import Callback
from ..data.shuffle import Batches
from ..problem import Problem
from ..targets import Scale, scale_of
from .loop import fitted
from .settings import RATES, Fit, Running, TrainSettings

__all__ = ["train"]

# With few rows, smaller steps and a stronger shrinkage are tried as well: better where rows are too
# few to tell categories apart, worse where the target follows a sharp rule.
FEW, FEW_RATES, FEW_SHRINKAGE = 50_000, (0.02, *RATES), 10.0
TRIAL = 2  # epochs after which a rate that is behind the previous one is given up


def train(
    problem: Problem,
    settings: TrainSettings,
    running: Running | None = None,
    start: Fit | None = None,
    rates: Sequence[float] | None = None,
    *,
    probe: bool = False,
) -> Fit:
    """Train, and return the table that is best on the validation rows; without any, the last one.

    `start` is a fit to continue from. `rates` are tried if no learning rate is set: each in full,
    or with `probe` for one epoch, then the best of them in full. Ctrl-C keeps the best so far.
    """
    running = running or Running()
    scale = start.scale if start else scale_of(problem.rows, problem.only, problem.objective)
    if settings.learning_rate is None and problem.judge is not None and probe:
        short = replace(settings, epochs=1)
        apart = running.checkpoint and running.checkpoint / "probe"
        quiet = replace(running, checkpoint=apart, callbacks=())
        best = _climb(problem, short, quiet, start, scale, rates or RATES)
        if best.was_stopped:
            return best
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
    return fitted(problem, settings, running, start, scale)


def _climb(
    problem: Problem,
    settings: TrainSettings,
    running: Running,
    start: Fit | None,
    scale: Scale,
    rates: Sequence[float],
) -> Fit:
    """Fit with one rate after the other while they get better on the validation rows; the best."""
    best: Fit | None = None
    for rate in rates:
        folder = running.checkpoint and running.checkpoint / f"rate-{rate}"
        one, settings = replace(running, checkpoint=folder), replace(settings, learning_rate=rate)
        try:
            fit = fitted(problem, settings, one, start, scale, _behind(best) if best else None)
        except KeyboardInterrupt:
            if best is None or not running.keeps_best:
                raise
            return replace(best, was_stopped=True)
        if best is not None and fit.metrics["loss"] >= best.metrics["loss"]:
            return replace(best, was_stopped=fit.was_stopped)
        best = fit
        if fit.was_stopped:
            break
    assert best is not None
    return best


def _behind(last: Fit) -> Callback:
    """A callback that stops a run whose loss after `TRIAL` epochs is above that of `last`."""

    def stop(record: dict[str, Any]) -> bool:
        at = record["epoch"]
        return at == TRIAL <= len(last.history) and bool(
            record["loss"] > last.history[at - 1]["loss"]
        )

    return stop
