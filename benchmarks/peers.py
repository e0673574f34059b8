"""What the benchmarks compare with: short torch modules over sparse embeddings, and LightGBM.

Codes (n, m) come from `FieldEncoder`; every module takes rows of one table, numbered over fields.
`fit_torch` and `fit_lightgbm` train with early stopping on validation rows, as the estimator does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic

from fieldwise.layout import Layout

BATCH = 2048
PATIENCE = 2


@dataclass
class Peer:
    """A fitted peer: its probabilities, its best loss on the validation rows, what it took."""

    predict: Callable[[np.ndarray], np.ndarray]
    validation_logloss: float
    epochs: int
    seconds: float
    settings: dict[str, Any]


class OneTable(nn.Module):
    """The field-wise model as published: one embedding, autograd, z = sum_t p_t q_t + bias."""

    def __init__(self, layout: Layout, table: np.ndarray, *, sparse: bool) -> None:
        super().__init__()
        weight = torch.from_numpy(table)
        self.table = nn.Embedding.from_pretrained(weight, freeze=False, sparse=sparse)
        self.owner = torch.from_numpy(layout.owner)
        self.columns = torch.arange(layout.n_columns)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        taken = self.table(rows)  # (B, m, R + 1)
        q = taken[:, self.owner, self.columns]
        sums = taken.sum(dim=1)
        return ((sums[:, :-1] - q) * q).sum(dim=1) + sums[:, -1]


class LR(nn.Module):
    """z = b + sum_j w[x_j]"""

    def __init__(self, n_rows: int, n_fields: int, rank: int = 0) -> None:
        super().__init__()
        self.weight = nn.Embedding(n_rows, 1, sparse=True)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(1))
        self.latent = None
        if rank:
            self.latent = nn.Embedding(n_rows, self.width(n_fields, rank), sparse=True)
            nn.init.uniform_(self.latent.weight, -0.02, 0.02)

    @staticmethod
    def width(n_fields: int, rank: int) -> int:
        return rank

    def pairs(self, taken: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The score, and the mean over rows of the squared weights they use."""
        linear = self.weight(rows)
        z, size = self.bias + linear.sum(dim=(1, 2)), linear.square().sum()
        if self.latent is not None:
            taken = self.latent(rows)
            z, size = z + self.pairs(taken), size + taken.square().sum()
        return z, size / len(rows)


class FM(LR):
    """LR, and sum_{i < j} v[x_i] . v[x_j]"""

    def pairs(self, taken: torch.Tensor) -> torch.Tensor:
        return 0.5 * (taken.sum(dim=1).square() - taken.square().sum(dim=1)).sum(dim=1)


class FFM(LR):
    """LR, and sum_{i < j} v[x_i, j] . v[x_j, i]: a vector for every other field"""

    @staticmethod
    def width(n_fields: int, rank: int) -> int:
        return n_fields * rank

    def pairs(self, taken: torch.Tensor) -> torch.Tensor:
        n, m, _ = taken.shape
        v = taken.view(n, m, m, -1)
        products = (v * v.transpose(1, 2)).sum(dim=3)
        return 0.5 * (products.sum(dim=(1, 2)) - products.diagonal(dim1=1, dim2=2).sum(dim=1))


def logloss(chance: np.ndarray, y: np.ndarray) -> float:
    chance = np.clip(chance.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(y == 1, np.log(chance), np.log1p(-chance))))


def fit_torch(
    kind: type[LR],
    sizes: list[int],
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    *,
    rank: int = 0,
    lr: float = 0.1,
    decay: float = 0.0,
    epochs: int = 30,
) -> Peer:
    """Adagrad on the rows of each batch; `decay` weighs the squares of the weights in use."""
    started = time.perf_counter()
    torch.manual_seed(0)
    layout = Layout.of(sizes, rank=0)
    model = kind(layout.n_rows, layout.n_fields, rank)
    optimiser = torch.optim.Adagrad(model.parameters(), lr=lr, initial_accumulator_value=1e-6)
    rows = torch.from_numpy(layout.rows(train[0]))
    y = torch.from_numpy(train[1].astype(np.float32))

    def predict(codes: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            parts = torch.from_numpy(layout.rows(codes)).split(BATCH)
            return torch.sigmoid(torch.cat([model(part)[0] for part in parts])).numpy()

    best, kept, best_epoch, epoch = np.inf, None, 0, 0
    while epoch < epochs and epoch - best_epoch < PATIENCE:
        for batch in torch.randperm(len(rows)).split(BATCH):
            z, size = model(rows[batch])
            loss = logistic(z, y[batch]) + decay * size
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found = logloss(predict(validation[0]), validation[1])
        epoch += 1
        if found < best:
            best, best_epoch = found, epoch
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    settings = {"rank": rank} if rank else {}
    settings |= {"lr": lr, "decay": decay}
    return Peer(predict, best, epoch, time.perf_counter() - started, settings)


def fit_lightgbm(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    **settings: Any,
) -> Peer:
    """Every field a native categorical; `epochs` counts trees."""
    import lightgbm

    started = time.perf_counter()
    categorical = list(range(train[0].shape[1]))
    options = {"categorical_feature": categorical, "params": {"verbose": -1, "max_bin": 8192}}
    data = lightgbm.Dataset(*train, **options)
    judge = lightgbm.Dataset(*validation, reference=data, **options)
    model = lightgbm.train(
        {"objective": "binary", "verbose": -1, "seed": 0, "max_bin": 8192, **settings},
        data,
        num_boost_round=2000,
        valid_sets=[judge],
        callbacks=[lightgbm.early_stopping(30, verbose=False)],
    )
    best = float(model.best_score["valid_0"]["binary_logloss"])
    seconds = time.perf_counter() - started
    return Peer(model.predict, best, model.best_iteration, seconds, settings)
