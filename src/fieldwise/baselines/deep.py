"""DeepFM (Guo et al. 2017), IPNN and OPNN (Qu et al. 2016): layers over rows and their products."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import SettingError
from ..layout import Layout
from .engine import Baseline
from .factorisation import pairs

__all__ = ["IPNN", "OPNN", "DeepFM"]

HIDDEN = (400, 400, 400)
# Adagrad's first step is the whole learning rate, however small the slope: at 0.1 larger than the
# weights of a layer. The mean validation loss of the three on Frappe at that rate: 0.180 with 1,
# 0.174 with 3, 0.169 with 10, 0.189 with 30, 0.191 without a bound.
FIRST_STEP = 10.0


class Dropout(nn.Module):
    """Dropout that draws one byte per number, so the chance is a multiple of 1 / 256; torch's own
    Dropout takes longer to draw than its layer takes."""

    draws: torch.Generator | None = None  # the engine's

    def __init__(self, chance: float) -> None:
        super().__init__()
        if not 0 <= chance < 1:
            raise SettingError(f"dropout={chance} must be at least 0 and less than 1")
        self.dropped = round(256 * chance)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.dropped:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        words.random_(-(2**63), None, generator=self.draws)
        drawn = words.view(torch.uint8)[: x.numel()].view(x.shape)
        return x * (drawn >= self.dropped) * (256 / (256 - self.dropped))


def layers(width: int, dropout: float) -> nn.Sequential:
    """width -> 400 -> 400 -> 400 -> 1, with ReLU and dropout"""
    parts: list[nn.Module] = []
    for size in HIDDEN:
        parts += [nn.Linear(width, size), nn.ReLU(), Dropout(dropout)]
        width = size
    return nn.Sequential(*parts, nn.Linear(width, 1))


class DeepFM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i . v_j + layers(v_1, ..., v_m)        rows: w, v (rank)"""

    first_step = FIRST_STEP

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        self.width = 1 + rank
        self.layers = layers(layout.n_fields * rank, dropout)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        v = taken[:, :, 1:]
        deep = self.layers(v.flatten(1))[:, 0]
        return taken[:, :, 0].sum(dim=1) + pairs(v) + deep


class IPNN(Baseline):
    """z = sum_j w[x_j] + layers(v_1, ..., v_m, and v_i . v_j of all i < j)    rows: w, v (rank)"""

    first_step = FIRST_STEP
    upper: torch.Tensor  # the places of the products of i < j among all

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        m = layout.n_fields
        self.width = 1 + rank
        self.layers = layers(m * rank + m * (m - 1) // 2, dropout)
        first, second = torch.triu_indices(m, m, 1)
        self.register_buffer("upper", first * m + second)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        v = taken[:, :, 1:]
        products = (v @ v.transpose(1, 2)).flatten(1)[:, self.upper]
        deep = self.layers(torch.cat([v.flatten(1), products], dim=1))[:, 0]
        return taken[:, :, 0].sum(dim=1) + deep


class OPNN(Baseline):
    """z = sum_j w[x_j] + layers(v_1, ..., v_m, and s s^T) with s = sum_j v_j    rows: w, v (rank)

    The outer products v_i v_j^T of all i, j are summed, as the authors do to make them affordable.
    """

    first_step = FIRST_STEP

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        self.width = 1 + rank
        self.layers = layers(layout.n_fields * rank + rank * rank, dropout)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        v = taken[:, :, 1:]
        s = v.sum(dim=1)
        outer = (s[:, :, None] * s[:, None, :]).flatten(1)
        deep = self.layers(torch.cat([v.flatten(1), outer], dim=1))[:, 0]
        return taken[:, :, 0].sum(dim=1) + deep
