"""How good scores are, for every kind of target. Plain NumPy, float64, weighted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .losses import LOSSES, sigmoid
from .objective import Head

__all__ = [
    "auc",
    "binary_metrics",
    "calibration_error",
    "equal_parts",
    "head_metrics",
    "logloss",
    "measure",
]


def logloss(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The weighted mean of log(1 + exp(z)) - y z, for scores z."""
    return float(np.sum(w * LOSSES["logistic"].value(z, y, 0.0)) / np.sum(w))


def auc(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The chance that a positive scores above a negative, ties counted half; NaN with one class.

    A fractional y counts as that share of a positive and the rest of a negative.
    """
    order = np.argsort(z, kind="stable")
    positive, negative = (w * y)[order], (w * (1 - y))[order]
    _, first = np.unique(z[order], return_index=True)
    up, down = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    below = np.cumsum(down) - down
    total = positive.sum() * negative.sum()
    return float(np.sum(up * (below + down / 2)) / total) if total > 0 else float("nan")


def equal_parts(scores: np.ndarray, w: np.ndarray, n_bins: int) -> np.ndarray:
    """(n,) which of `n_bins` bins of equal weight each row falls in, in order of scores"""
    order = np.argsort(scores, kind="stable")
    done = np.cumsum(w[order])
    part = np.empty(len(scores), int)
    part[order] = np.minimum((done - w[order] / 2) / done[-1] * n_bins, n_bins - 1)
    return part


def calibration_error(z: np.ndarray, y: np.ndarray, w: np.ndarray, n_bins: int = 20) -> float:
    """The mean gap between the predicted and the observed share, over bins of equal weight."""
    part = equal_parts(z, w, n_bins)
    gap = np.bincount(part, weights=w * (sigmoid(z) - y), minlength=n_bins)
    return float(np.sum(np.abs(gap)) / np.sum(w))


def binary_metrics(z: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> dict[str, float]:
    """logloss, AUC, normalised entropy (logloss over that of the base rate), calibration error."""
    z, y = z.astype(np.float64), y.astype(np.float64)
    w = np.ones(len(y)) if w is None else w.astype(np.float64)
    rate = float(np.sum(w * y) / np.sum(w))
    inner = min(max(rate, 1e-15), 1 - 1e-15)
    base = -(inner * np.log(inner) + (1 - inner) * np.log(1 - inner))
    loss = logloss(z, y, w)
    return {
        "logloss": loss,
        "auc": auc(z, y, w),
        "normalised_entropy": loss / base,
        "calibration_error": calibration_error(z, y, w),
        "base_rate": rate,
    }


def _class_metrics(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> dict[str, float]:
    loss = float(np.sum(w * LOSSES["softmax"].value(z, y, 0.0)) / np.sum(w))
    share = np.bincount(y.astype(int), weights=w) / np.sum(w)
    base = -float(np.sum(share * np.log(np.maximum(share, 1e-15))))
    right = np.argmax(z, axis=1) == y
    return {
        "logloss": loss,
        "accuracy": float(np.sum(w * right) / np.sum(w)),
        "normalised_entropy": loss / base if base > 0 else float("nan"),
    }


def _number_metrics(found: np.ndarray, y: np.ndarray, w: np.ndarray) -> dict[str, float]:
    total = np.sum(w)
    away = found - y
    mean = np.sum(w * y) / total
    error, spread = np.sum(w * away**2) / total, np.sum(w * (y - mean) ** 2) / total
    return {
        "rmse": float(np.sqrt(error)),
        "mae": float(np.sum(w * np.abs(away)) / total),
        "r2": float(1 - error / spread) if spread > 0 else float("nan"),
    }


def head_metrics(
    head: Head, z: np.ndarray, y: np.ndarray, w: np.ndarray | None = None
) -> dict[str, float]:
    """`loss`, the mean that training minimises, and the usual metrics of such a target."""
    z, y = z.astype(np.float64), y.astype(np.float64)
    w = np.ones(len(y)) if w is None else w.astype(np.float64)
    loss = LOSSES[head.loss]
    mean = float(np.sum(w * loss.value(z, y, head.delta)) / np.sum(w))
    if head.loss == "logistic":
        return {"loss": mean, **binary_metrics(z, y, w)}
    if head.loss == "softmax":
        return {"loss": mean, **_class_metrics(z, y, w)}
    found = {"loss": mean, **_number_metrics(loss.prediction(z), y, w)}
    if head.loss == "poisson":
        terms = np.where(y > 0, y * (np.log(np.maximum(y, 1e-300)) - z), 0.0)
        rate = loss.prediction(z)
        found["deviance"] = float(2 * np.sum(w * (terms - y + rate)) / np.sum(w))
    return found


def measure(
    heads: Sequence[Head],
    z: Sequence[np.ndarray],
    y: np.ndarray,
    w: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> dict[str, float]:
    """The metrics of one head; of several, those of each, suffixed with its name or number, and
    the sum of their losses as `loss`."""
    found = [head_metrics(h, z[k], y[:, k], w) for k, h in enumerate(heads)]
    if len(found) == 1:
        return found[0]
    out = {"loss": sum(f["loss"] for f in found)}
    for k, f in enumerate(found):
        label = names[k] if names else k + 1
        out |= {f"{name}_{label}": value for name, value in f.items()}
    return out
