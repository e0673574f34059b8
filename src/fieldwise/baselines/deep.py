"""DeepFM (Guo et al. 2017), IPNN and OPNN (Qu et al. 2016): products of rows, layers over them."""

from __future__ import annotations

import torch
from torch import nn

from ..layout import Layout
from .engine import Baseline
from .factorisation import pairs

__all__ = ["IPNN", "OPNN", "DeepFM"]

HIDDEN = (400, 400, 400)


def layers(width: int, dropout: float) -> nn.Sequential:
    """width -> 400 -> 400 -> 400 -> 1, with ReLU and dropout"""
    parts: list[nn.Module] = []
    for size in HIDDEN:
        parts += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*parts, nn.Linear(width, 1))


class DeepFM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i . v_j + layers(v_1, ..., v_m)        rows: w, v (rank)"""

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        self.width = 1 + rank
        self.layers = layers(layout.n_fields * rank, dropout)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        v = taken[:, :, 1:]
        deep = self.layers(v.flatten(1))[:, 0]
        return taken[:, :, 0].sum(dim=1) + pairs(v) + deep


class IPNN(Baseline):
    """z = layers(v_1, ..., v_m, and v_i . v_j of all i < j)        rows: v (rank)"""

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        m = layout.n_fields
        self.width = rank
        self.layers = layers(m * rank + m * (m - 1) // 2, dropout)
        self.first, self.second = torch.triu_indices(m, m, 1)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        first, second = self.first.to(taken.device), self.second.to(taken.device)
        products = (taken[:, first] * taken[:, second]).sum(dim=2)
        found: torch.Tensor = self.layers(torch.cat([taken.flatten(1), products], dim=1))
        return found[:, 0]


class OPNN(Baseline):
    """z = layers(v_1, ..., v_m, and s s^T) with s = sum_j v_j        rows: v (rank)"""

    def __init__(self, layout: Layout, rank: int, dropout: float) -> None:
        super().__init__()
        self.width = rank
        self.layers = layers(layout.n_fields * rank + rank * rank, dropout)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        s = taken.sum(dim=1)
        outer = (s[:, :, None] * s[:, None, :]).flatten(1)
        found: torch.Tensor = self.layers(torch.cat([taken.flatten(1), outer], dim=1))
        return found[:, 0]
