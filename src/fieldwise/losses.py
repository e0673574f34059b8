"""Losses of a score z against a target y: value, derivative, and what z means.

Binary targets are 0 or 1 (or a fraction between). Everything is elementwise, in the type it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["LOSSES", "Loss", "log_odds", "sigmoid"]

Elementwise = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Loss:
    """value(z, y), its derivative by z, and the prediction that a score stands for."""

    name: str
    value: Elementwise
    derivative: Elementwise
    prediction: Callable[[np.ndarray], np.ndarray]


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow on either side."""
    small = np.exp(-np.abs(z))
    out: np.ndarray = np.where(z >= 0, 1 / (1 + small), small / (1 + small))
    return out


def log_odds(share: float) -> float:
    """The score whose sigmoid is this share; shares of 0 and 1 are held off infinity."""
    share = min(max(float(share), 1e-12), 1 - 1e-12)
    return float(np.log(share) - np.log1p(-share))


def _logistic(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log(1 + exp(z)) - y z, which is the paper's log(1 + exp(-z y')) for y' = 2 y - 1."""
    return np.maximum(z, 0) - y * z + np.log1p(np.exp(-np.abs(z)))


LOGISTIC = Loss("logistic", _logistic, lambda z, y: sigmoid(z) - y, sigmoid)
LOSSES = {LOGISTIC.name: LOGISTIC}
