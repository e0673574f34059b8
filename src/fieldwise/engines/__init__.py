"""Engines: functions over the one table. An engine steps, scores, and nothing else.

Initialisation, shuffling, early stopping and checks for NaN are train.py's, once for all engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from ..errors import SettingError
from ..layout import Layout

__all__ = ["ENGINES", "Engine", "StepSettings", "make_engine"]

ENGINES = {"reference": ".reference", "cpu": ".cpu"}


@dataclass(frozen=True)
class StepSettings:
    """What a step does: Adagrad's learning rate, decay of the rows present, and every `reg_every`
    steps the penalty with weight `penalty`."""

    learning_rate: float = 0.1
    weight_decay: float = 1e-6
    penalty: float = 1e-5
    reg_every: int = 1000
    batch_size: int = 2048


class Engine(Protocol):
    """table and state are (d, R + 1); codes are numbers within fields, -1 for unseen."""

    layout: Layout
    table: np.ndarray
    state: np.ndarray
    n_steps: int  # taken so far; decides when the penalty is due

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> tuple[float, float]:
        """Steps over all rows in their order; the sums of weighted losses and of weights."""
        ...

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        """z of every row; unseen rows are as `set_means` left them."""
        ...

    def set_means(self, counts: np.ndarray) -> None:
        """A row a field for values never seen: the mean of its rows weighted by counts (d,)."""
        ...


def make_engine(
    name: str, layout: Layout, settings: StepSettings, *, intercept: float = 0.0, **options: Any
) -> Engine:
    """The engine of that name; "auto" is the fastest there is."""
    if name == "auto":
        name = "cpu"
    if name not in ENGINES:
        raise SettingError(f"engine={name!r} is not one of auto, {', '.join(ENGINES)}")
    module = import_module(ENGINES[name], __name__)
    engine: Engine = module.make(layout, settings, intercept=intercept, **options)
    return engine
