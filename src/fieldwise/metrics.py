"""How good scores are: logloss, AUC, calibration. Plain NumPy, float64, weighted."""

from __future__ import annotations

import numpy as np

from .losses import LOSSES, sigmoid

__all__ = ["auc", "binary_metrics", "calibration_error", "logloss"]


def logloss(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The weighted mean of log(1 + exp(z)) - y z, for scores z."""
    return float(np.sum(w * LOSSES["logistic"].value(z, y)) / np.sum(w))


def auc(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The chance that a positive scores above a negative, ties counted half; NaN with one class.

    A fractional y is that share of a positive and the rest of a negative.
    """
    order = np.argsort(z, kind="stable")
    positive, negative = (w * y)[order], (w * (1 - y))[order]
    _, first = np.unique(z[order], return_index=True)
    up, down = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    below = np.cumsum(down) - down
    total = positive.sum() * negative.sum()
    return float(np.sum(up * (below + down / 2)) / total) if total > 0 else float("nan")


def calibration_error(z: np.ndarray, y: np.ndarray, w: np.ndarray, n_bins: int = 20) -> float:
    """The mean distance of predicted and observed share over bins of equal weight."""
    order = np.argsort(z, kind="stable")
    p, y, w = sigmoid(z[order]), y[order], w[order]
    done = np.cumsum(w)
    part = np.minimum((done - w / 2) / done[-1] * n_bins, n_bins - 1).astype(int)
    gap = np.bincount(part, weights=w * (p - y), minlength=n_bins)
    return float(np.sum(np.abs(gap)) / done[-1])


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
