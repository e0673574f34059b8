"""Rows of a table on the device: all of them if they fit, else a group at a time.

Rows are read from the source in threads (a store checks its blocks as they are read) and copied
through pinned memory, while earlier steps still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from ..data.shuffle import Table

__all__ = ["DeviceRows", "free_memory"]

READ_ROWS = 1 << 17
THREADS = 8
KINDS = {"codes": torch.int32}  # everything else is float32
MOST = 0.5  # of the free memory


def free_memory() -> int:
    """Bytes of GPU memory that can be allocated, including torch's own reserve."""
    reserve = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0]) + int(reserve)


class DeviceRows:
    """A `Table` whose shuffled groups are on the device; see `Batches`.

    `resident`: whether all rows are; None: if they take up to half of the free memory less
    `spared` bytes.
    """

    def __init__(
        self,
        source: Table,
        device: torch.device,
        *,
        resident: bool | None = None,
        spared: int = 0,
    ) -> None:
        self._source = source
        self._device = device
        # Copies have a stream of their own, so that they do not wait for the steps.
        self._copies: Any = None
        if device.type == "cuda":
            self._copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.n_rows = source.n_rows
        one = source.read(0, min(1, source.n_rows))
        self._widths = {name: one[name].shape[1] for name in source.names}
        if resident is None:
            needed = 4 * self.n_rows * sum(self._widths.values())
            free = free_memory() if device.type == "cuda" else 1 << 33
            resident = needed <= MOST * (free - spared)
        self.is_resident = resident
        self._whole: dict[str, torch.Tensor] = {}
        if resident:
            spans = [
                (low, min(low + READ_ROWS, self.n_rows)) for low in range(0, self.n_rows, READ_ROWS)
            ]
            self._whole = self._loaded(spans)

    @property
    def names(self) -> list[str]:
        return self._source.names

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        return self._source.read(start, stop)

    def shuffled(
        self, spans: Sequence[tuple[int, int]], kept: Sequence[np.ndarray | None], bits: np.ndarray
    ) -> dict[str, torch.Tensor]:
        """The kept rows of spans (start, stop), in the order of their bits."""
        keys = self._sent((bits ^ np.uint64(1 << 63)).view(np.int64), torch.int64)
        order = torch.sort(keys, stable=True).indices
        begins = [start for start, _ in spans]
        taken = self._whole
        if not self.is_resident:
            taken = self._loaded(spans)
            begins = [0, *np.cumsum([stop - start for start, stop in spans])[:-1].tolist()]
        parts = []
        for begin, (start, stop), mask in zip(begins, spans, kept, strict=True):
            place = np.arange(stop - start) if mask is None else np.flatnonzero(mask)
            parts.append(begin + place)
        rows = self._sent(np.concatenate(parts), torch.int64)[order]
        return {name: array[rows] for name, array in taken.items()}

    def _sent(self, array: np.ndarray, kind: torch.dtype) -> torch.Tensor:
        """The array on the device, copied without waiting."""
        with self._copying():
            out = self._pinned(array, kind).to(self._device, non_blocking=True)
        self._handed_over([out])
        return out

    def _pinned(self, array: np.ndarray, kind: torch.dtype) -> torch.Tensor:
        pinned = torch.empty(array.shape, dtype=kind, pin_memory=self._copies is not None)
        np.copyto(pinned.numpy(), array, casting="same_kind")
        return pinned

    def _copying(self) -> Any:
        return nullcontext() if self._copies is None else torch.cuda.stream(self._copies)

    def _handed_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the steps that come next use the copied tensors."""
        if self._copies is not None:
            steps = torch.cuda.current_stream()
            steps.wait_stream(self._copies)
            for tensor in tensors:
                tensor.record_stream(steps)

    def _loaded(self, spans: Sequence[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """The rows of spans on the device, one span after the other."""
        ends = np.cumsum([stop - start for start, stop in spans])
        with self._copying():
            out = {
                name: torch.empty(
                    (int(ends[-1]), width),
                    dtype=KINDS.get(name, torch.float32),
                    device=self._device,
                )
                for name, width in self._widths.items()
            }

        def load(k: int) -> None:
            start, stop = spans[k]
            found = self._source.read(start, stop)
            place = slice(int(ends[k]) - (stop - start), int(ends[k]))
            with self._copying():
                for name, target in out.items():
                    target[place].copy_(self._pinned(found[name], target.dtype), non_blocking=True)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(load, range(len(spans))))
        self._handed_over(out.values())
        return out
