"""Results of methods: means and deviations over seeds, and intervals of the differences."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import __version__
from ..baselines.methods import OURS, Method
from ..data.shuffle import gathered, row_weights
from ..losses import LOSSES
from .parts import Parts

__all__ = ["Result", "results_of"]

DRAWS = 1000  # of the bootstrap


@dataclass
class Result:
    """A method's row: `status` is ok, failed, out of time or unavailable."""

    method: Method
    status: str
    note: str = ""
    fits: list[dict[str, Any]] = field(default_factory=list)


def results_of(results: list[Result], parts: Parts, about: dict[str, Any]) -> dict[str, Any]:
    """All results as a dict for JSON."""
    losses = {r.method.name: _row_losses(r, parts) for r in results if r.fits}
    intervals = _differences(losses)
    return {
        **about,
        "table": parts.about,
        "fieldwise": __version__,
        "machine": {"cores": os.cpu_count(), "system": platform.system()},
        "methods": [_row(r, intervals.get(r.method.name)) for r in results],
    }


def _row(result: Result, difference: dict[str, float] | None) -> dict[str, Any]:
    """The figures of a method; None for missing ones."""
    row: dict[str, Any] = {"name": result.method.name, "status": result.status}
    row |= dict.fromkeys(("logloss", "auc", "seconds", "parameters"))
    row |= {"note": result.note}
    if not result.fits:
        return row
    fits = result.fits
    for name in ("logloss", "auc", "accuracy", "seconds", "validation_loss"):
        values = [fit[name] for fit in fits if name in fit]
        if values:
            row[name] = float(np.mean(values))
        if len(values) > 1 and name != "seconds":
            row[f"{name}_deviation"] = float(np.std(values, ddof=1))
    row["parameters"] = round(float(np.mean([fit["size"] for fit in fits])))
    row["counts"] = "trees" if result.method.counts_trees else "parameters"
    row["rounds"] = float(np.mean([fit["rounds"] for fit in fits]))
    row["settings"] = fits[0]["settings"]
    row["seeds"] = len(fits)
    if difference is not None:
        row["difference"] = difference
    return row


def _row_losses(result: Result, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the loss on every test row, a mean over seeds, and the rows' weights"""
    found = gathered(parts.problem.rows, parts.test)
    y = found["target"][:, 0]
    head = parts.problem.objective.heads[0]
    mean = np.zeros(len(y))
    for fit in result.fits:
        z = np.load(fit["scores"]).astype(np.float64)
        mean += LOSSES[head.loss].value(z if head.size > 1 else z[:, 0], y, 0.0)
    return mean / len(result.fits), row_weights(found).astype(np.float64)


def _differences(
    losses: dict[str, tuple[np.ndarray, np.ndarray]],
) -> dict[str, dict[str, float]]:
    """Every method's logloss less ours, with a 95 % interval from 1,000 bootstrap draws of the test
    rows."""
    if OURS not in losses:
        return {}
    ours, weight = losses[OURS]
    names = [name for name in losses if name != OURS]
    if not names:
        return {}
    away = np.stack([losses[name][0] - ours for name in names], axis=1)  # (n, methods)
    n, random = len(ours), np.random.default_rng(0)
    drawn = np.empty((DRAWS, len(names)))
    for k in range(DRAWS):
        share = np.bincount(random.integers(0, n, n), minlength=n) * weight
        drawn[k] = share @ away / share.sum()
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    mean = weight @ away / weight.sum()
    return {
        name: {"mean": float(mean[k]), "low": float(low[k]), "high": float(high[k])}
        for k, name in enumerate(names)
    }
