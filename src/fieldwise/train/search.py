"""The search for a step size: one fit a rate, from the smallest up, while they get better."""

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

# Of few rows, smaller steps and a stronger shrinkage are tried as well: better where rows are too
# few to tell categories apart, worse where a rule is sharp.
FEW, FEW_RATES, FEW_SHRINKAGE = 50_000, (0.02, *RATES), 10.0
TRIAL = 2  # epochs after which a rate that is behind the one before is given up


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
    """One fit a rate, from the smallest up, while they get better on the rows to judge by."""
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
    """Stops a run that is behind the last one after the epochs of a trial."""

    def stop(record: dict[str, Any]) -> bool:
        at = record["epoch"]
        return at == TRIAL <= len(last.history) and bool(
            record["loss"] > last.history[at - 1]["loss"]
        )

    return stop
