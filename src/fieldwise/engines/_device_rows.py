"""Rows of a table on the device: all of them where they fit, else a group at a time.

Rows are read from the source in threads (a store checks its blocks as they are read) and travel
through pinned memory, so that copying runs beside the steps that are still under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from ..data.shuffle import Table

__all__ = ["DeviceRows"]

READ_ROWS = 1 << 17
THREADS = 8
KINDS = {"codes": torch.int32}  # everything else is float32
MOST = 0.5  # of the memory that is free


class DeviceRows:
    """A `Table` whose shuffled groups are on the device; see `Batches`.

    `resident` None: where all rows take up to half of the memory that is free.
    """

    def __init__(self, source: Table, device: torch.device, resident: bool | None = None) -> None:
        self._source = source
        self._device = device
        self.n_rows = source.n_rows
        one = source.read(0, min(1, source.n_rows))
        self._widths = {name: one[name].shape[1] for name in source.names}
        if resident is None:
            needed = 4 * self.n_rows * sum(self._widths.values())
            free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 1 << 33
            resident = needed <= MOST * free
        self.is_resident = resident
        self._whole: dict[str, torch.Tensor] = {}
        if resident:
            spans = [
                (low, min(low + READ_ROWS, self.n_rows)) for low in range(0, self.n_rows, READ_ROWS)
            ]
            self._whole = self._loaded(spans, [None] * len(spans))

    @property
    def names(self) -> list[str]:
        return self._source.names

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        return self._source.read(start, stop)

    def shuffled(
        self, spans: Sequence[tuple[int, int]], kept: Sequence[np.ndarray | None], bits: np.ndarray
    ) -> dict[str, torch.Tensor]:
        """Rows of spans (start, stop), of each those that are kept, in the order of their bits."""
        keys = self._sent((bits ^ np.uint64(1 << 63)).view(np.int64))
        order = torch.sort(keys, stable=True).indices
        if not self.is_resident:
            return {k: a[order] for k, a in self._loaded(spans, kept).items()}
        parts = []
        for (start, stop), mask in zip(spans, kept, strict=True):
            parts.append(np.arange(start, stop) if mask is None else start + np.flatnonzero(mask))
        rows = self._sent(np.concatenate(parts))[order]
        return {name: whole[rows] for name, whole in self._whole.items()}

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        """On the device soon; the caller need not wait."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def _loaded(
        self, spans: Sequence[tuple[int, int]], kept: Sequence[np.ndarray | None]
    ) -> dict[str, torch.Tensor]:
        """The rows of spans one after the other."""
        counts = [
            stop - start if mask is None else int(np.count_nonzero(mask))
            for (start, stop), mask in zip(spans, kept, strict=True)
        ]
        ends = np.cumsum(counts)
        out = {
            name: torch.empty(
                (int(ends[-1]), width),
                dtype=KINDS.get(name, torch.float32),
                device=self._device,
            )
            for name, width in self._widths.items()
        }

        def load(k: int) -> None:
            found = self._source.read(*spans[k])
            mask = kept[k]
            place = slice(int(ends[k]) - counts[k], int(ends[k]))
            for name, target in out.items():
                rows = found[name] if mask is None else found[name][mask]
                kind = np.int32 if name in KINDS else np.float32
                target[place].copy_(self._sent(np.ascontiguousarray(rows, kind)))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(load, range(len(spans))))
        return out
