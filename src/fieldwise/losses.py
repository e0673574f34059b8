"""Losses of scores z against a target y: value, derivatives, what z means, which y are allowed.

y (n,) is 0, 1 or a share between (logistic), the index of a class (softmax), a count (poisson) or
any number. z is (n,), for softmax (n, classes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .errors import DataError

__all__ = [
    "LARGEST_NUMBER",
    "LOSSES",
    "Loss",
    "check_target",
    "check_weight",
    "log_odds",
    "sigmoid",
    "softmax",
]

Pair = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
LARGEST = 30.0  # poisson scores are clipped here before exponentiation
LARGEST_COUNT = 1e13  # about exp(LARGEST)
LARGEST_NUMBER = 1e31  # of a target's spread and of weights: float32 can sum thousands of them


@dataclass(frozen=True)
class Loss:
    """value(z, y, delta) and its derivative by z (delta is huber's), the prediction for a score,
    the best constant score, start(y, w), and the second derivative (n,), for softmax
    (n, classes, classes); None if it is of no use."""

    name: str
    value: Pair
    derivative: Pair
    prediction: Callable[[np.ndarray], np.ndarray]
    start: Callable[[np.ndarray, np.ndarray], np.ndarray | float]
    curvature: Pair | None = None


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow on either side."""
    small = np.exp(-np.abs(z))
    out: np.ndarray = np.where(z >= 0, 1 / (1 + small), small / (1 + small))
    return out


def softmax(z: np.ndarray) -> np.ndarray:
    """exp(z_k) / sum_k exp(z_k) over the last axis."""
    small = np.exp(z - z.max(axis=-1, keepdims=True))
    out: np.ndarray = small / small.sum(axis=-1, keepdims=True)
    return out


def log_odds(share: float) -> float:
    """The score whose sigmoid is `share`, finite even for 0 and 1."""
    share = min(max(float(share), 1e-12), 1 - 1e-12)
    return float(np.log(share) - np.log1p(-share))


def _logistic(z: np.ndarray, y: np.ndarray, _: float) -> np.ndarray:
    """log(1 + exp(z)) - y z, which is the paper's log(1 + exp(-z y')) for y' = 2 y - 1."""
    return np.maximum(z, 0) - y * z + np.log1p(np.exp(-np.abs(z)))


def _cross_entropy(z: np.ndarray, y: np.ndarray, _: float) -> np.ndarray:
    top = z.max(axis=1)
    total = np.log(np.exp(z - top[:, None]).sum(axis=1))
    out: np.ndarray = top + total - z[np.arange(len(z)), y.astype(int)]
    return out


def _cross_entropy_slope(z: np.ndarray, y: np.ndarray, _: float) -> np.ndarray:
    out = softmax(z)
    out[np.arange(len(z)), y.astype(int)] -= 1
    return out


def _cross_entropy_curvature(z: np.ndarray, y: np.ndarray, _: float) -> np.ndarray:
    p = softmax(z)
    out: np.ndarray = p[:, :, None] * np.eye(z.shape[1]) - p[:, :, None] * p[:, None, :]
    return out


def _huber(z: np.ndarray, y: np.ndarray, delta: float) -> np.ndarray:
    away = np.abs(z - y)
    out: np.ndarray = np.where(away <= delta, away**2 / 2, delta * (away - delta / 2))
    return out


def _rate(z: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.exp(np.minimum(z, LARGEST))
    return out


def _mean(y: np.ndarray, w: np.ndarray) -> float:
    return float(np.sum(w * y) / np.sum(w))


def _median(y: np.ndarray, w: np.ndarray) -> float:
    order = np.argsort(y, kind="stable")
    total = np.cumsum(w[order])
    return float(y[order][np.searchsorted(total, total[-1] / 2)])


def _class_scores(y: np.ndarray, w: np.ndarray) -> np.ndarray:
    share = np.bincount(y.astype(int), weights=w) / np.sum(w)
    out: np.ndarray = np.log(np.maximum(share, 1e-12))
    return out - out.mean()


def _same(z: np.ndarray) -> np.ndarray:
    return z


_LOSSES = (
    Loss(
        "logistic",
        _logistic,
        lambda z, y, _: sigmoid(z) - y,
        sigmoid,
        lambda y, w: log_odds(_mean(y, w)),
        lambda z, y, _: sigmoid(z) * sigmoid(-z),
    ),
    Loss(
        *("softmax", _cross_entropy, _cross_entropy_slope, softmax, _class_scores),
        _cross_entropy_curvature,
    ),
    Loss(
        "squared",
        lambda z, y, _: (z - y) ** 2 / 2,
        lambda z, y, _: z - y,
        _same,
        _mean,
        lambda z, y, _: np.ones_like(z),
    ),
    Loss(
        "absolute",
        lambda z, y, _: np.abs(z - y),
        lambda z, y, _: np.sign(z - y),
        _same,
        _median,
    ),
    Loss(
        "huber",
        _huber,
        lambda z, y, delta: np.clip(z - y, -delta, delta),
        _same,
        _median,
        lambda z, y, delta: (np.abs(z - y) <= delta).astype(np.float64),
    ),
    Loss(
        "poisson",
        lambda z, y, _: _rate(z) - y * z,
        lambda z, y, _: _rate(z) - y,
        _rate,
        lambda y, w: float(np.log(_mean(y, w) or 1e-12)),
        lambda z, y, _: _rate(z),
    ),
)
LOSSES = {loss.name: loss for loss in _LOSSES}  # in the order of the kernels' numbers


def check_target(loss: str, y: np.ndarray) -> None:
    """Refuse target values that the loss is not defined for."""
    if not np.isfinite(y).all():
        raise DataError("the target holds NaN or infinity; drop those rows")
    if loss == "poisson" and (y < 0).any():
        raise DataError(f"the target holds {y.min():g}; counts for poisson are at least 0")
    if loss == "poisson" and (y > LARGEST_COUNT).any():
        raise DataError(
            f"the target holds {y.max():g}; counts for poisson are at most {LARGEST_COUNT:g}. "
            "Use loss='squared', or learn its logarithm"
        )
    if loss == "logistic" and ((y < 0) | (y > 1)).any():
        raise DataError("the target lies outside 0 and 1; logistic takes 0, 1 or a share between")


def check_weight(w: np.ndarray) -> None:
    """Refuse row weights (n,) that are negative, not finite, all zero, or out of range."""
    wrong = ~np.isfinite(w) | (w < 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"row {row + 1:,}: the weight is {w[row]:g}; a weight is a finite number of at least 0"
        )
    most = float(w.max(initial=0.0))
    if most == 0:
        raise DataError("every row has a weight of zero; give some a positive weight")
    if not 1 / LARGEST_NUMBER <= most <= LARGEST_NUMBER:
        raise DataError(
            f"the largest weight is {most:g}; it must lie between {1 / LARGEST_NUMBER:g} and "
            f"{LARGEST_NUMBER:g}. Multiply all weights by a number"
        )
