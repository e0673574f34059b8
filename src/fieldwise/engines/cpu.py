"""The CPU engine: fused Numba kernels, the same bits for any number of threads.

Rows of the table are padded to whole cache lines. The penalty runs through BLAS in fixed blocks of
rows, one thread a block, summed in the order of blocks.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
from threadpoolctl import ThreadpoolController

from .. import maths
from ..errors import SettingError
from ..layout import Layout
from . import StepSettings, _kernels
from ._vectors import LINE

__all__ = ["CpuEngine", "make", "score", "table_rows"]

SMALL_STEP = 1 << 18  # floats gathered a step that are not worth waking other threads for
SMALL = 256  # rows not worth waking other threads for
PENALTY_ROWS = 8192  # rows of a block: its slopes stay in the second cache

# Numba's own pool instead of OpenMP: no thread spins while it waits, which beside another busy
# process made a step twelve times slower, and a forked child may go on using it. It may not be
# entered twice at once.
if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"
_RUNNING = threading.Lock()


def padded(layout: Layout) -> int:
    """R + 1, up to whole cache lines."""
    return -(-(layout.n_columns + 1) // LINE) * LINE


def memory_needed(layout: Layout) -> int:
    """Bytes for the table, Adagrad's state, and the loop's two: an epoch's mean and the best."""
    return 4 * 4 * (layout.n_rows + layout.n_fields) * padded(layout)


def _memory_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [x.split()[1] for x in lines if x.startswith("MemAvailable")]
    return int(found[0]) * 1024 if found else None


def _check_memory(layout: Layout) -> None:
    needed, free = memory_needed(layout), _memory_available()
    if free is not None and needed > 0.95 * free:
        raise SettingError(
            f"the model needs {needed / 1e9:.1f} GB ({layout.n_rows:,} rows of "
            f"{layout.n_columns + 1} columns, four times) and {free / 1e9:.1f} GB are free; "
            "lower the rank, or raise min_count to have fewer rows"
        )


def table_rows(layout: Layout, codes: np.ndarray) -> np.ndarray:
    """Rows of the table, contiguous int32; unseen codes have theirs after all others."""
    rows = np.add(codes, layout.offsets[:-1].astype(np.int32), dtype=np.int32)
    unseen = codes < 0
    if unseen.any():
        rows = np.where(unseen, layout.n_rows + np.arange(layout.n_fields, dtype=np.int32), rows)
    return np.ascontiguousarray(rows)


def score(
    table: np.ndarray,
    layout: Layout,
    codes: np.ndarray,
    values: np.ndarray | None,
    intercept: float,
    n_threads: int | None = None,
) -> np.ndarray:
    """z of every row; table (d + m, at least R + 1) float32 ends with the rows for unseen values.

    Safe to call from many threads: those that find the parallel kernel busy work by themselves.
    """
    rows = table_rows(layout, codes)
    x, valued = _values(values)
    out = np.empty(len(rows), np.float32)
    common = (table, rows, x, layout.starts, np.float32(intercept), out)
    if len(rows) < SMALL or not _RUNNING.acquire(blocking=False):
        _kernels.score_serial(*common, valued)
        return out
    try:
        n_threads = n_threads or numba.config.NUMBA_NUM_THREADS
        numba.set_num_threads(n_threads)
        _kernels.score(*common, n_threads, valued)
    finally:
        _RUNNING.release()
    return out


class CpuEngine:
    """See `Engine`."""

    def __init__(
        self,
        layout: Layout,
        settings: StepSettings,
        intercept: float = 0.0,
        n_jobs: int | None = None,
    ) -> None:
        _check_memory(layout)
        self.layout = layout
        self.settings = settings
        self.n_steps = 0
        cores = numba.config.NUMBA_NUM_THREADS
        self.n_threads = min(n_jobs, cores) if n_jobs and n_jobs > 0 else cores
        if settings.batch_size * layout.n_fields * padded(layout) < SMALL_STEP:
            self.n_threads = 1
        self._intercept = float(intercept)
        self._starts = layout.starts
        shape = (layout.n_rows + layout.n_fields, padded(layout))
        self._table = np.zeros(shape, np.float32)  # the last rows stand for unseen values
        self._state = np.zeros(shape, np.float32)
        width = layout.n_columns + 1
        self.table = self._table[: layout.n_rows, :width]
        self.state = self._state[: layout.n_rows, :width]
        self._scratch: tuple[np.ndarray, ...] | None = None

    def _make_scratch(self) -> tuple[np.ndarray, ...]:
        size, m = self.settings.batch_size, self.layout.n_fields
        width = self._table.shape[1]
        # Padding columns are summed along with the rest and must be zero.
        a, c = np.zeros((size, width), np.float32), np.zeros((size, width), np.float32)
        entries = [np.zeros(size * m, np.int32) for _ in range(3)]
        return (
            *(a, c, np.zeros(size, np.float32)),
            np.zeros(len(self._table), np.int32),  # places
            *entries,  # samples, distinct, owners
            np.zeros(size * m + 1, np.int32),  # begins
            np.zeros(m, np.int32),  # counts
            np.zeros(self.n_threads + 1, np.int64),  # shares
        )

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> tuple[float, float]:
        if self._scratch is None:
            self._scratch = self._make_scratch()
        rows = table_rows(self.layout, codes)
        y = np.ascontiguousarray(target, np.float32)
        w = np.ones(len(y), np.float32) if weight is None else weight.astype(np.float32)
        x, valued = _values(values)
        loss = total = 0.0
        first = 0
        with _RUNNING:
            numba.set_num_threads(self.n_threads)
            while first < len(rows):
                n_plain = self._steps_until_penalty() * self.settings.batch_size
                last = min(first + max(n_plain, self.settings.batch_size), len(rows))
                part = slice(first, last)
                step = self._plain_steps if n_plain else self._penalty_step
                more, size = step(rows[part], x[part] if valued else x, y[part], w[part], valued)
                loss, total, first = loss + more, total + size, last
        return loss, total

    def _steps_until_penalty(self) -> int:
        """Steps before the one that the penalty joins; 0: it is the next."""
        if not self.settings.penalty:
            return 1 << 40
        return self.settings.reg_every - 1 - self.n_steps % self.settings.reg_every

    def _plain_steps(
        self, rows: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray, valued: bool
    ) -> tuple[float, float]:
        s = self.settings
        self.n_steps += -(-len(rows) // s.batch_size)
        return _kernels.train_steps(
            *(
                self._table,
                self._state,
                rows,
                x,
                y,
                w,
                self._starts,
                np.float32(self._intercept),
                self._scratch,
            ),
            *(s.batch_size, np.float32(s.learning_rate), np.float32(s.weight_decay)),
            *(self.n_threads, valued),
        )

    def _penalty_step(
        self, rows: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray, valued: bool
    ) -> tuple[float, float]:
        """A step whose gradient is the batch's and the penalty's: every row of the table moves."""
        assert self._scratch is not None
        a, c, losses, places, samples, distinct, owners, begins, counts, _ = self._scratch
        n = len(rows)
        self.n_steps += 1
        total = _kernels.forward(
            *(
                self._table,
                rows,
                x,
                y,
                w,
                self._starts,
                np.float32(self._intercept),
                a[:n],
                c[:n],
                losses[:n],
            ),
            *(self.n_threads, valued),
        )
        runs = _kernels.group(
            rows, places, samples, distinct, owners, begins, counts, self.n_threads
        )
        order = np.argsort(distinct[:runs], kind="stable")
        edges = np.arange(0, len(self._table) + PENALTY_ROWS, PENALTY_ROWS)
        cuts = np.searchsorted(distinct[:runs][order], edges)
        slopes_of = _Penalty(self._table, self.layout, self.settings.penalty)
        lr, decay = np.float32(self.settings.learning_rate), np.float32(self.settings.weight_decay)

        def work(block: int) -> None:
            low = int(edges[block])
            slopes = slopes_of(low, min(low + PENALTY_ROWS, len(self._table)))
            _kernels.add_batch(
                *(self._table, slopes, low, order, cuts[block], cuts[block + 1], a, c, x, samples),
                *(distinct, owners, begins, self._starts, decay, valued),
            )
            _kernels.apply_block(self._table, self._state, slopes, low, lr)

        with ThreadpoolController().limit(limits=1, user_api="blas"):
            slopes_of.measure(self.n_threads)
            with ThreadPoolExecutor(self.n_threads) as pool:
                list(pool.map(work, range(len(edges) - 1)))
        return float(np.sum(losses[:n], dtype=np.float64)), total

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        return score(self._table, self.layout, codes, values, self._intercept, self.n_threads)

    def set_means(self, counts: np.ndarray) -> None:
        means = maths.mean_rows(self.table, self.layout, counts)
        self._table[self.layout.n_rows :, : means.shape[1]] = means


def _values(values: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """What the kernels take: values (n, m), or one unused cell."""
    if values is None:
        return np.ones((1, 1), np.float32), False
    return np.ascontiguousarray(values, np.float32), True


class _Penalty:
    """The penalty's gradient for blocks of rows, from small matrices measured beforehand.

    dU = U (2 C^T C + 2 v^T v)      dV = V (2 G) + (2 / d_i - 2) v G
    db = 2 b + (2 / d_i - 2) mean(b)                                  all times the weight
    """

    def __init__(self, table: np.ndarray, layout: Layout, weight: float) -> None:
        self._table = table
        self._layout = layout
        self._weight = weight

    def _columns(self, i: int) -> slice:
        return slice(self._layout.starts[i], self._layout.starts[i + 1])

    def _moments(self, low: int, high: int) -> list[np.ndarray]:
        """X^T X of every field's columns over some rows."""
        rows = self._table[low:high]
        out = []
        for i in range(self._layout.n_fields):
            X = rows[:, self._columns(i)]
            out.append((X.T @ X).astype(np.float64))
        return out

    def measure(self, n_threads: int) -> None:
        layout = self._layout
        m = layout.n_fields
        cuts = sorted({*range(0, layout.n_rows, PENALTY_ROWS), *layout.offsets.tolist()})
        spans = list(pairwise(cuts))  # no span crosses two fields
        with ThreadPoolExecutor(n_threads) as pool:
            found = list(pool.map(lambda span: self._moments(*span), spans))
        fields = np.searchsorted(layout.offsets, [low for low, _ in spans], side="right") - 1
        self._u, self._v, self._constant, self._bias = [], [], [], []
        for i in range(m):
            everything = _ordered_sum([f[i] for f in found])
            owned = [f[i] for f, owner in zip(found, fields, strict=True) if owner == i]
            mine = _ordered_sum(owned)
            own = self._table[layout.offsets[i] : layout.offsets[i + 1]]
            d = len(own)
            v = own[:, self._columns(i)].mean(axis=0, dtype=np.float64)
            G = everything - mine
            self._u.append(self._small(2 * (mine - d * np.outer(v, v) + np.outer(v, v))))
            self._v.append(self._small(2 * G))
            self._constant.append(self._small((2 / d - 2) * (v @ G)))
            bias = own[:, layout.n_columns].mean(dtype=np.float64)
            self._bias.append(np.float32(self._weight * (2 / d - 2) * bias))

    def _small(self, matrix: np.ndarray) -> np.ndarray:
        return (self._weight * matrix).astype(np.float32)

    def __call__(self, low: int, high: int) -> np.ndarray:
        """The gradient of rows low .. high; rows for unseen values have none."""
        layout = self._layout
        rows = self._table[low:high]
        out = np.zeros_like(rows)
        inside = max(0, min(high, layout.n_rows) - low)
        b = layout.n_columns
        for i in range(layout.n_fields):
            columns = self._columns(i)
            out[:inside, columns] = rows[:inside, columns] @ self._u[i]
            first = max(int(layout.offsets[i]) - low, 0)
            last = min(int(layout.offsets[i + 1]) - low, inside)
            if first < last:
                own = slice(first, last)
                out[own, columns] = rows[own, columns] @ self._v[i] + self._constant[i]
                out[own, b] = np.float32(2 * self._weight) * rows[own, b] + self._bias[i]
        return out


def _ordered_sum(parts: list[np.ndarray]) -> np.ndarray:
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def make(layout: Layout, settings: StepSettings, **options: Any) -> CpuEngine:
    return CpuEngine(layout, settings, **options)
