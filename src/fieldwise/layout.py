"""Which row and which column of the one table belongs to which field; the rules for ranks.

Rows: field i owns rows offsets[i] .. offsets[i + 1], one a category. Columns: field i owns
starts[i] .. starts[i + 1], one a rank, and the last column is the bias b. Where row and column
belong to the same field the entry is V, everywhere else it is U.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import SettingError

__all__ = ["Layout", "constant_ranks", "default_rank", "log_ranks"]

RANKS = (32, 16, 8)
LARGE = 1 << 27  # entries of a table: half a gigabyte


def constant_ranks(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """r_i = min(rank, d_i)"""
    if rank < 0:
        raise SettingError(f"rank={rank} must be at least 0")
    return tuple(min(rank, d) for d in sizes)


def log_ranks(sizes: Sequence[int], base: float) -> tuple[int, ...]:
    """r_i = min(ceil(log_base d_i), d_i)"""
    if not base > 1:
        raise SettingError(f"rank base {base} must be more than 1")
    ranks = []
    for d in sizes:
        rank = 0
        while base**rank < d * (1 - 1e-12):  # the ceiling, without a logarithm's rounding
            rank += 1
        ranks.append(min(rank, d))
    return tuple(ranks)


def default_rank(sizes: Sequence[int]) -> int:
    """The highest of a few whose table stays in bounds: more is better, and dearer."""
    for rank in RANKS[:-1]:
        if sum(sizes) * (sum(constant_ranks(sizes, rank)) + 1) <= LARGE:
            return rank
    return RANKS[-1]


@dataclass(frozen=True)
class Layout:
    """sizes d_1 .. d_m and ranks r_1 .. r_m"""

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(d) for d in self.sizes))
        object.__setattr__(self, "ranks", tuple(int(r) for r in self.ranks))
        if len(self.sizes) != len(self.ranks) or not self.sizes:
            raise SettingError(
                f"{len(self.sizes)} sizes and {len(self.ranks)} ranks; "
                "a layout needs one of each a field, and at least one field"
            )
        for i, (d, r) in enumerate(zip(self.sizes, self.ranks, strict=True)):
            if d < 1 or not 0 <= r <= d:
                raise SettingError(f"field {i}: size {d} and rank {r}; need 0 <= rank <= size")

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        *,
        rank: int | None = None,
        rank_base: float | None = None,
        overrides: Mapping[int, int] | None = None,
    ) -> Layout:
        """A constant rank (None: `default_rank`), or the logarithm of the field's size."""
        rank = default_rank(sizes) if rank is None else rank
        ranks = constant_ranks(sizes, rank) if rank_base is None else log_ranks(sizes, rank_base)
        overrides = overrides or {}
        changed = [min(overrides.get(i, r), sizes[i]) for i, r in enumerate(ranks)]
        return cls(tuple(sizes), tuple(changed))

    @property
    def n_fields(self) -> int:
        """m"""
        return len(self.sizes)

    @property
    def n_rows(self) -> int:
        """d"""
        return sum(self.sizes)

    @property
    def n_columns(self) -> int:
        """R, the bias aside"""
        return sum(self.ranks)

    @property
    def n_parameters(self) -> int:
        """Entries of the table, the bias among them."""
        return self.n_rows * (self.n_columns + 1)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(m + 1,) the first row of each field, and d"""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """(m + 1,) the first column of each field, and R"""
        return np.concatenate([[0], np.cumsum(self.ranks)]).astype(np.int64)

    @cached_property
    def owner(self) -> np.ndarray:
        """(R,) the field that owns each column"""
        return np.repeat(np.arange(self.n_fields), self.ranks)

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """codes (n, m) within fields -> rows (n, m) of the table; codes must not be negative"""
        return codes + self.offsets[:-1]
