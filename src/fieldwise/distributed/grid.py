"""Which worker has what: workers share the columns, by whole fields; if that is not enough, several
groups of workers have all columns each, and share the rows of every batch.

    rank      0        1        2        3           4 workers, 2 groups
    rows      first half        second half          of every batch
    columns   a, c     b        a, c     b           fields
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from ..errors import SettingError
from ..layout import Layout

__all__ = ["Grid", "share_columns"]


@dataclass(frozen=True)
class Grid:
    """The place of one worker among `n_workers`, in `n_groups` of the same size."""

    rank: int
    n_workers: int
    n_groups: int = 1

    def __post_init__(self) -> None:
        if self.n_groups < 1 or self.n_workers < 1 or self.n_workers % self.n_groups:
            raise SettingError(
                f"{self.n_workers} workers cannot be cut into {self.n_groups} groups of one size"
            )

    @property
    def n_shards(self) -> int:
        """The number of workers in a group: the columns are cut into so many parts."""
        return self.n_workers // self.n_groups

    @property
    def shard(self) -> int:
        """The index of this worker's part of the columns."""
        return self.rank % self.n_shards

    @property
    def group(self) -> int:
        """The index of this worker's part of a batch's rows."""
        return self.rank // self.n_shards

    def same_rows(self, group: int) -> list[int]:
        """The workers of a group: they have the same rows."""
        return list(range(group * self.n_shards, (group + 1) * self.n_shards))

    def same_columns(self, shard: int) -> list[int]:
        """The workers that have a part of the columns, one per group."""
        return list(range(shard, self.n_workers, self.n_shards))


def share_columns(layout: Layout, n_shards: int) -> list[list[int]]:
    """The fields of every shard, so that the largest shard has few columns: the widest field goes
    first, each to the shard with the fewest columns so far."""
    wide = [i for i in range(layout.n_fields) if layout.widths[i]]
    if n_shards > max(len(wide), 1):
        raise SettingError(
            f"{n_shards} workers share the columns of {len(wide)} fields; take at most "
            f"{max(len(wide), 1)}, or more groups of them"
        )
    found: list[list[int]] = [[] for _ in range(n_shards)]
    loads = [(0, k) for k in range(n_shards)]
    for i in sorted(range(layout.n_fields), key=lambda i: (-layout.widths[i], -layout.sizes[i])):
        load, k = heapq.heappop(loads)
        found[k].append(i)
        heapq.heappush(loads, (load + layout.n_outputs * layout.widths[i], k))
    return [sorted(fields) for fields in found]
