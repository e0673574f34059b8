"""The CPU engine: fused Numba kernels, the same bits for any number of threads.

Rows of the table are padded to whole cache lines. The penalty uses BLAS on fixed blocks of rows,
one thread per block, summed in the order of blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .. import maths
from ..blas import one_blas_thread
from ..errors import SettingError
from ..layout import Layout
from ..losses import LOSSES
from ..objective import COMBINE, Objective
from ..packed import Packed
from . import StepSettings, _kernels, _packed, _products
from ._numba import pool, threads
from ._penalty import PENALTY_ROWS, Penalty
from ._vectors import LINE

__all__ = ["CpuEngine", "make", "products", "score", "table_rows"]

SMALL_STEP = 1 << 18  # floats gathered per step; below, other threads are not worth waking
SMALL = 256  # rows to score; below, the same


def padded(layout: Layout) -> int:
    """R + K, rounded up to whole cache lines."""
    return -(-layout.width // LINE) * LINE


def memory_needed(layout: Layout) -> int:
    """Bytes for the table, Adagrad's state, an epoch's mean and the best table."""
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
            f"{layout.width} columns, four times) and {free / 1e9:.1f} GB are free; "
            "lower the rank, or raise min_count to have fewer rows"
        )


def table_rows(layout: Layout, codes: np.ndarray) -> np.ndarray:
    """Codes -> rows of the table, contiguous int32; the rows of unseen values are the last."""
    rows = np.add(codes, layout.slot_offsets, dtype=np.int32, order="C")
    if codes.size and codes.min() < 0:
        unseen = (layout.n_rows + layout.slot_owner).astype(np.int32)
        rows = np.ascontiguousarray(np.where(codes < 0, unseen, rows))
    return rows


def score(
    table: np.ndarray | Packed,
    layout: Layout,
    codes: np.ndarray,
    values: np.ndarray | None,
    offsets: np.ndarray,
    n_threads: int | None = None,
    by_field: bool = False,
) -> np.ndarray:
    """z of every row, (n, K), or every field's score without offsets, (n, K, m).

    table (d + m, at least R + K), float32 or packed, ends with the rows for unseen values. Safe to
    call from many threads: those that find the parallel kernel busy use one thread.
    """
    rows = table_rows(layout, codes)
    x, valued = _values(values)
    n_scores = layout.n_outputs * (layout.n_fields if by_field else 1)
    out = np.empty((len(rows), n_scores), np.float32)
    kernels: Any = _kernels
    held: Any = table
    if isinstance(table, Packed):
        kernels, held = _packed, (table.entries, table.scale, table.bias)
    common = (held, rows, x, layout.starts, layout.slot_starts, offsets.astype(np.float32), out)
    with pool(n_threads, wanted=len(rows) >= SMALL) as n:
        if n:
            kernels.score(*common, n, by_field, valued)
        else:
            kernels.score_serial(*common, by_field, valued)
    return out.reshape(len(rows), layout.n_outputs, layout.n_fields) if by_field else out


def products(table: np.ndarray, rows: slice, weights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Rows of a table times one vector, separately for each output's columns, (n, K) float32

    weights (R,), edges (K + 1,) where the columns of outputs begin. Equal rows give equal bits.
    Safe to call from many threads, as `score` is.
    """
    out = np.empty((rows.stop - rows.start, len(edges) - 1), np.float32)
    common = (table, rows.start, weights, edges, out)
    with pool(wanted=len(out) >= SMALL) as n:
        if n:
            _products.products(*common, n)
        else:
            _products.products_serial(*common)
    return out


class CpuEngine:
    """See `Engine`."""

    def __init__(
        self,
        layout: Layout,
        settings: StepSettings,
        objective: Objective | None = None,
        offsets: np.ndarray | None = None,
        n_jobs: int | None = None,
        *,
        half: bool = False,
    ) -> None:
        if layout.component != "linear":
            raise SettingError(f"the cpu engine has no component {layout.component!r}; use auto")
        _check_memory(layout)
        if half:
            raise SettingError("half=True keeps the table in bfloat16 on a GPU; set device='cuda'")
        self.layout = layout
        self.settings = settings
        self.objective = objective or Objective()
        self.offsets = np.zeros(layout.n_outputs) if offsets is None else offsets
        self.n_steps = 0
        self.totals = np.zeros(2)
        self.n_threads = threads(n_jobs)
        if settings.batch_size * layout.n_slots * padded(layout) < SMALL_STEP:
            self.n_threads = 1
        shape = (layout.n_rows + layout.n_fields, padded(layout))
        self._table = np.zeros(shape, np.float32)  # the last rows stand for unseen values
        self._state = np.zeros(shape, np.float32)
        self.table = self._table[: layout.n_rows, : layout.width]
        self.state = self._state[: layout.n_rows, : layout.width]
        self.decay = np.full(len(self._table), settings.weight_decay, np.float32)
        self.biased = np.ones(layout.n_fields, np.bool_)  # fields whose biases this engine has
        self.field_weights = np.ones(layout.n_fields, np.float32)
        self.field_state = np.full(layout.n_fields, 1e-6, np.float32)
        self._scratch: _Scratch | None = None

    def _kernel_objective(self) -> tuple[Any, ...]:
        """The objective as the kernels take it."""
        codes = list(LOSSES)
        copies = [[codes.index(h.loss), first, h.size, t] for h, first, t in self.objective.copies]
        deltas = [head.delta for head, *_ in self.objective.copies]
        combine = COMBINE.index("vote" if self.objective.is_vote else self.objective.combine)
        return (
            self.offsets.astype(np.float32),
            np.array(copies, np.int64),
            np.array(deltas, np.float32),
            combine,
            self.field_weights if self.objective.combine == "weighted" else np.ones(0, np.float32),
        )

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> None:
        data, valued = self._data(codes, values, target, weight)
        n, first = len(codes), 0
        with pool(self.n_threads, wait=True):
            while first < n:
                n_plain = self.settings.until_due(self.n_steps) * self.settings.batch_size
                last = min(first + max(n_plain, self.settings.batch_size), n)
                step = self._plain_steps if n_plain else self._due_step
                self.totals += step(_part(data, slice(first, last), valued), valued)
                first = last

    def _data(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> tuple[tuple[np.ndarray, ...], bool]:
        """Rows, values, targets and weights as the kernels take them; whether there are values."""
        if self._scratch is None:
            self._scratch = _Scratch(self)
        x, valued = _values(values)
        y = np.ascontiguousarray(target, np.float32)
        w = np.ascontiguousarray(np.ones((len(y), 1)) if weight is None else weight, np.float32)
        return (table_rows(self.layout, codes), x, y, w), valued

    def _plain_steps(self, data: tuple[np.ndarray, ...], valued: bool) -> tuple[float, float]:
        assert self._scratch is not None
        s, scratch = self.settings, self._scratch
        self.n_steps += -(-len(data[0]) // s.batch_size)
        found: tuple[float, float] = _kernels.train_steps(
            *(self._table, self._state, data, self.layout.starts, self.layout.slot_starts),
            *(self._kernel_objective(), self.field_state, scratch.samples, scratch.entries),
            *(scratch.runs, scratch.shares, scratch.places, s.batch_size),
            *(np.float32(s.learning_rate), self.decay, self.biased, self.n_threads, valued),
        )
        return found

    @property
    def _steps(self) -> tuple[Any, ...]:
        """A step's settings as the kernels take them."""
        layout, rate = self.layout, np.float32(self.settings.learning_rate)
        return rate, self.decay, layout.n_outputs, layout.n_fields, self.biased

    def _due_step(self, data: tuple[np.ndarray, ...], valued: bool) -> tuple[float, float]:
        """A step whose gradient is the batch's plus the penalty's: every row of the table moves."""
        assert self._scratch is not None
        layout, s = self.layout, self.settings
        self.n_steps += 1
        found = self._forward(data, valued)
        rows, g = self._gradient(data, valued)
        order = np.argsort(rows, kind="stable")
        rows, g = rows[order], g[order]
        edges = np.arange(0, len(self._table) + PENALTY_ROWS, PENALTY_ROWS)
        cuts = np.searchsorted(rows, edges)
        slopes_of = Penalty(self._table, layout, s.penalty)
        rate = np.float32(s.learning_rate)

        def work(block: int) -> None:
            low = int(edges[block])
            slopes = slopes_of(low, min(low + PENALTY_ROWS, len(self._table)))
            mine = slice(cuts[block], cuts[block + 1])
            _kernels.add_rows(self._table, slopes, low, rows[mine], g[mine], self.decay)
            _kernels.apply_block(self._table, self._state, slopes, low, rate)

        with one_blas_thread():
            slopes_of.measure(self.n_threads)
            with ThreadPoolExecutor(self.n_threads) as pool:
                list(pool.map(work, range(len(edges) - 1)))
            maths.constrain(self.table, layout, s.max_variance, s.max_mean)
        self._weigh_fields(len(data[0]))
        return found

    def _forward(self, data: tuple[np.ndarray, ...], valued: bool) -> tuple[float, float]:
        """Put a batch's scores and derivatives into the scratch; returns its loss and weight."""
        assert self._scratch is not None
        parts = self._scratch.of(len(data[0]))
        weight = _kernels.forward(
            *(self._table, data, self.layout.starts, self.layout.slot_starts),
            *(self._kernel_objective(), parts, self.n_threads, valued),
        )
        return float(np.sum(parts[4], dtype=np.float64)), float(weight)

    def _group(self, data: tuple[np.ndarray, ...]) -> int:
        """Group a batch's entries by row; returns the number of distinct rows."""
        assert self._scratch is not None
        s = self._scratch
        where = (self.layout.slot_starts, s.places, s.entries, s.runs)
        return int(_kernels.group(data[0], data[1], *where, self.n_threads))

    def _gradient(
        self, data: tuple[np.ndarray, ...], valued: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows (k,) of the last batch of `_forward`, and gradients (k, columns)."""
        assert self._scratch is not None
        s, total = self._scratch, self._group(data)
        out = np.empty((total, self._table.shape[1]), np.float32)
        _kernels.gradients(
            *(s.of(len(data[0]))[:3], data[1], s.entries, s.runs, total, self.layout.starts),
            *(self._steps, self.objective.combine != "sum", out, self.n_threads, valued),
        )
        return s.runs[0][:total].copy(), out

    def _weigh_fields(self, n: int) -> None:
        assert self._scratch is not None
        if self.objective.combine == "weighted":
            rate, du = np.float32(self.settings.learning_rate), self._scratch.samples[3]
            _kernels.weigh_fields(self.field_weights, self.field_state, du, n, rate)

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        by_field = self.objective.combine != "sum"
        common = (self._table, self.layout, codes, values, self.offsets, self.n_threads)
        found = score(*common, by_field=by_field)
        if self.objective.is_vote:
            return found + self.offsets[:, None].astype(np.float32)
        if self.objective.combine == "weighted":
            return found @ self.field_weights + self.offsets.astype(np.float32)
        return found

    def set_means(self, counts: np.ndarray) -> None:
        means = maths.mean_rows(self.table, self.layout, counts)
        self._table[self.layout.n_rows :, : means.shape[1]] = means


class _Scratch:
    """The buffers that a step needs; allocated once."""

    def __init__(self, engine: CpuEngine) -> None:
        layout, size = engine.layout, engine.settings.batch_size
        n_outputs, m, width = layout.n_outputs, layout.n_fields, padded(layout)
        combine = engine.objective.combine
        n_scores = n_outputs * {"sum": 1, "weighted": m + 1}.get(combine, m)
        # Padding columns are summed along with the rest and must be zero.
        self.samples = (
            *(np.zeros((size, width), np.float32) for _ in range(2)),  # a, c
            np.zeros((size, n_scores), np.float32),  # d
            np.zeros((size, m if combine == "weighted" else 0), np.float32),  # du
            np.zeros(size, np.float32),  # losses
        )
        n_entries = size * layout.n_slots
        several = n_entries if layout.n_slots > m else 0
        self.entries = (np.zeros(n_entries, np.int32), np.zeros(several, np.int32))  # sample, slot
        self.runs = (
            *(np.zeros(n_entries, np.int32) for _ in range(4)),  # distinct, owners, begins, ends
            np.zeros(m, np.int32),  # counts
        )
        self.shares = np.zeros(engine.n_threads + 1, np.int64)
        self.places = np.zeros(layout.n_rows + m, np.int32)

    def of(self, n: int) -> tuple[np.ndarray, ...]:
        """`samples`, cut to the first n."""
        return tuple(buffer[:n] for buffer in self.samples)


def _part(data: tuple[np.ndarray, ...], some: slice, valued: bool) -> tuple[np.ndarray, ...]:
    """`data` of some rows. Without values, the one unused cell stays."""
    rows, x, y, w = data
    return rows[some], x[some] if valued else x, y[some], w[some]


def _values(values: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """What the kernels take: values (n, S), or one unused cell."""
    if values is None:
        return np.ones((1, 1), np.float32), False
    return np.ascontiguousarray(values, np.float32), True


make = CpuEngine
