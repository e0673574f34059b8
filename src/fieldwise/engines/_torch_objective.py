"""`Objective.slopes` in torch, for tensors on a device. Tested against the NumPy version."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import logsigmoid

from ..losses import LARGEST
from ..objective import Objective

__all__ = ["slopes"]

Tensor = torch.Tensor
Pair = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def _logistic(z: Tensor, y: Tensor, _: float) -> tuple[Tensor, Tensor]:
    return (1 - y) * z - logsigmoid(z), torch.sigmoid(z) - y


def _softmax(z: Tensor, y: Tensor, _: float) -> tuple[Tensor, Tensor]:
    chosen = y.long()[:, None]
    logs = torch.log_softmax(z, dim=1)
    ones = torch.zeros_like(z).scatter_(1, chosen, 1.0)
    return -(logs.gather(1, chosen)[:, 0]), logs.exp() - ones


def _squared(z: Tensor, y: Tensor, _: float) -> tuple[Tensor, Tensor]:
    return (z - y) ** 2 / 2, z - y


def _absolute(z: Tensor, y: Tensor, _: float) -> tuple[Tensor, Tensor]:
    return (z - y).abs(), (z - y).sign()


def _huber(z: Tensor, y: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    away = (z - y).abs()
    value = torch.where(away <= delta, away**2 / 2, delta * (away - delta / 2))
    return value, (z - y).clamp(-delta, delta)


def _poisson(z: Tensor, y: Tensor, _: float) -> tuple[Tensor, Tensor]:
    rate = z.clamp(max=LARGEST).exp()
    return rate - y * z, rate - y


PAIRS: dict[str, Pair] = {
    "logistic": _logistic,
    "softmax": _softmax,
    "squared": _squared,
    "absolute": _absolute,
    "huber": _huber,
    "poisson": _poisson,
}


def slopes(
    objective: Objective, f: Tensor, offsets: Tensor, y: Tensor, w: Tensor, total: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted losses (n,), their derivatives by f (n, K, m), and by u (m,).

    f (n, K, m), or (n, K, 1) if fields are summed already; w (n, 1) or (n, copies), total (1,) or
    (copies,) its sums.
    """
    losses, df, du = torch.zeros_like(f[:, 0, 0]), torch.zeros_like(f), torch.zeros_like(u)
    for e, (head, first, target) in enumerate(objective.copies):
        outputs = slice(first, first + head.size)
        at = e if w.shape[1] > 1 else 0
        share = torch.where(total[at] > 0, w[:, at] / total[at], 0.0)
        if objective.combine == "weighted":
            voices = [f[:, outputs] @ u]
        else:
            voices = [f[:, outputs, i] for i in range(f.shape[2])]
        for i, voice in enumerate(voices):
            z = voice + offsets[outputs]
            z = z if head.loss == "softmax" else z[:, 0]
            value, slope = PAIRS[head.loss](z, y[:, target], head.delta)
            losses += w[:, at] * value
            dz = (slope if slope.ndim > 1 else slope[:, None]) * share[:, None]
            if objective.combine == "weighted":
                df[:, outputs] = dz[:, :, None] * u
                du += torch.einsum("so,soi->i", dz, f[:, outputs])
            else:
                df[:, outputs, i] = dz
    return losses, df, du
