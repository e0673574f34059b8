"""Which rows and columns of the one table belong to which field; the rules for ranks.

Rows: field i owns rows offsets[i] .. offsets[i + 1], one per category. Columns: every output has a
block of r_i columns for every field i: block o * m + i begins at column starts[o * m + i]. The last
columns are the biases b, one per output. Where row and column belong to the same field the entry is
V, everywhere else it is U.

Components: a category's model is linear over the other fields, or a small factorisation machine
("fm"), whose pairs of other fields have columns of their own: in a block, r_i columns for pairs
follow the r_i linear ones.

Slots: a sample has one row per slot. A field has one slot, or several if it may have many values at
once; its slots are slot_starts[i] .. slot_starts[i + 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import SettingError, not_one_of

__all__ = ["COMPONENTS", "Layout", "constant_ranks", "default_rank", "log_ranks"]

COMPONENTS = {"linear": 1, "fm": 2}  # kinds of columns in a block
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
        # The ceiling, without a logarithm's rounding.
        while rank < d and base**rank < d * (1 - 1e-12):
            rank += 1
        ranks.append(rank)
    return tuple(ranks)


def default_rank(sizes: Sequence[int], n_outputs: int = 1) -> int:
    """The highest of RANKS whose table has at most LARGE entries, or the lowest: higher ranks are
    better, and cost more."""
    for rank in RANKS[:-1]:
        if n_outputs * sum(sizes) * (sum(constant_ranks(sizes, rank)) + 1) <= LARGE:
            return rank
    return RANKS[-1]


@dataclass(frozen=True)
class Layout:
    """Which rows and columns of the table belong to which field; `Layout.of` chooses the ranks.

    Parameters
    ----------
    sizes : d_1 .. d_m, the number of categories of each field.
    ranks : r_1 .. r_m.
    n_outputs : K, scores per sample.
    slots : rows that a sample has of each field; empty: one each.
    component : "linear" or "fm".
    """

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    n_outputs: int = 1
    slots: tuple[int, ...] = ()
    component: str = "linear"

    def __post_init__(self) -> None:
        if self.component not in COMPONENTS:
            raise not_one_of(f"component={self.component!r}", self.component, COMPONENTS)
        object.__setattr__(self, "sizes", tuple(int(d) for d in self.sizes))
        object.__setattr__(self, "ranks", tuple(int(r) for r in self.ranks))
        slots = tuple(int(s) for s in self.slots)
        object.__setattr__(self, "slots", slots or (1,) * len(self.sizes))
        if (
            self.n_outputs < 1
            or len(self.slots) != len(self.sizes)
            or min(self.slots, default=1) < 1
        ):
            raise SettingError(
                f"{self.n_outputs} outputs and slots {self.slots}; there must be at least one "
                "output, and at least one slot for every field"
            )
        if len(self.sizes) != len(self.ranks) or not self.sizes:
            raise SettingError(
                f"{len(self.sizes)} sizes and {len(self.ranks)} ranks; "
                "a layout needs a size and a rank for every field, and at least one field"
            )
        for i, (d, r) in enumerate(zip(self.sizes, self.ranks, strict=True)):
            if d < 1 or r < 0:
                raise SettingError(f"field {i}: size {d} and rank {r}; must be at least 1 and 0")

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        *,
        rank: int | None = None,
        rank_base: float | None = None,
        overrides: Mapping[int, int] | None = None,
        n_outputs: int = 1,
        slots: Sequence[int] = (),
        component: str = "linear",
    ) -> Layout:
        """The layout of fields with `sizes` categories.

        Parameters
        ----------
        sizes : the number of categories of each field.
        rank : of all fields; None is 32, or 16 or 8 where the table would be large.
        rank_base : ranks are the logarithm of a field's size to this base instead.
        overrides : ranks of single fields, by their number.
        n_outputs : scores per sample.
        slots : rows that a sample has of each field; empty: one each.
        component : "linear" or "fm".
        """
        rank = default_rank(sizes, n_outputs) if rank is None else rank
        ranks = constant_ranks(sizes, rank) if rank_base is None else log_ranks(sizes, rank_base)
        overrides = overrides or {}
        changed = [min(overrides.get(i, r), sizes[i]) for i, r in enumerate(ranks)]
        return cls(tuple(sizes), tuple(changed), n_outputs, tuple(slots), component)

    @property
    def n_fields(self) -> int:
        """m"""
        return len(self.sizes)

    @cached_property
    def n_rows(self) -> int:
        """d"""
        return sum(self.sizes)

    @cached_property
    def n_columns(self) -> int:
        """R, without the biases"""
        return self.n_outputs * sum(self.widths)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Columns of every field's block: r_i of each kind."""
        return tuple(COMPONENTS[self.component] * r for r in self.ranks)

    @property
    def width(self) -> int:
        """R + K, the columns of the table"""
        return self.n_columns + self.n_outputs

    @property
    def n_slots(self) -> int:
        """S, the rows a sample has"""
        return sum(self.slots)

    @property
    def n_parameters(self) -> int:
        """The number of entries of the table, biases included."""
        return self.n_rows * self.width

    @cached_property
    def offsets(self) -> np.ndarray:
        """(m + 1,) the first row of each field, and d"""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """(K m + 1,) the first column of every output's block of each field, and R"""
        return np.concatenate([[0], np.cumsum(self.widths * self.n_outputs)]).astype(np.int64)

    @cached_property
    def owner(self) -> np.ndarray:
        """(R,) the field that owns each column"""
        return np.tile(np.repeat(np.arange(self.n_fields), self.widths), self.n_outputs)

    @cached_property
    def output(self) -> np.ndarray:
        """(R,) the output of each column"""
        return np.repeat(np.arange(self.n_outputs), sum(self.widths))

    @cached_property
    def is_pair(self) -> np.ndarray:
        """(R,) true for the columns of pairs of fields"""
        kinds = range(COMPONENTS[self.component])
        one = np.concatenate([np.repeat([k == 1 for k in kinds], r) for r in self.ranks])
        return np.tile(one.astype(bool), self.n_outputs)

    @cached_property
    def slot_starts(self) -> np.ndarray:
        """(m + 1,) the first slot of each field, and S"""
        return np.concatenate([[0], np.cumsum(self.slots)]).astype(np.int64)

    @cached_property
    def slot_offsets(self) -> np.ndarray:
        """(S,) int32, the first row of each slot's field"""
        return self.offsets[self.slot_owner].astype(np.int32)

    @cached_property
    def slot_owner(self) -> np.ndarray:
        """(S,) the field of each slot"""
        return np.repeat(np.arange(self.n_fields), self.slots)

    def block(self, output: int, field: int) -> slice:
        """The columns of an output's block of a field."""
        at = output * self.n_fields + field
        return slice(int(self.starts[at]), int(self.starts[at + 1]))

    def columns(self, output: int) -> slice:
        """The columns of an output, without its bias."""
        first, last = output * self.n_fields, (output + 1) * self.n_fields
        return slice(int(self.starts[first]), int(self.starts[last]))

    def own(self, field: int) -> slice:
        """The rows of a field."""
        return slice(int(self.offsets[field]), int(self.offsets[field + 1]))

    def cut(self, field: int, rows: slice) -> tuple[slice, slice, slice]:
        """Split `rows` into those before a field's own, its own, and those after, as slices
        relative to the first of `rows`."""
        own, n = self.own(field), rows.stop - rows.start
        first, last = (min(max(at - rows.start, 0), n) for at in (own.start, own.stop))
        return slice(0, first), slice(first, last), slice(last, n)

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """codes (n, S) within fields -> rows (n, S) of the table; codes must not be negative"""
        return codes + self.offsets[self.slot_owner]

    def rows_or_unseen(self, codes: np.ndarray) -> np.ndarray:
        """Like `rows`, for a table that ends with one row per field for unseen values, code -1."""
        return np.where(codes < 0, self.n_rows + self.slot_owner, self.rows(codes))
