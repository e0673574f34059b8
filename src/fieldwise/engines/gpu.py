"""The GPU engine: fused Triton steps, many of them in one CUDA graph; torch for memory and sorting.

Needs torch, Triton and NumPy. Gives the same bits in every run: no sum depends on the order in
which programs finish. Under Triton's interpreter it runs on the CPU, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..data.shuffle import Table
from ..errors import SettingError
from ..layout import Layout
from ..maths import EPSILON, category_shares, constrain
from ..objective import Objective
from . import StepSettings, fill, host

try:
    import torch

    from . import _triton
    from ._device_rows import DeviceRows, free_memory
    from ._torch_objective import slopes
except ImportError as error:  # pragma: no cover
    raise SettingError(
        f"device='cuda' needs torch and Triton ({error}): pip install 'fieldwise[gpu]'"
    ) from error

__all__ = ["GpuEngine", "make", "memory_needed"]

GROUP = 64  # steps whose rows are sorted together, and which make up one graph
SECTOR = 8  # floats that memory transfers at once
SCORE_ROWS = 1 << 15
WIDEST = 1 << 16  # columns of a row
DENSE_ROWS = 1 << 16  # rows processed at a time in a step of all rows
SLOTS_AT_ONCE = 8  # rows of a sample that are read at a time
RUNS = 2  # rows that take their step at a time
PIECE = 16  # entries of a run that are summed at once; longer runs are cut
AT_ONCE = 4  # entries of a piece, and pieces, that are read at a time
PIECES_AT_ONCE = 4
COLUMNS_A_WARP = 128
TILE = 1 << 14  # entries of rows that are read at a time, at most
PROGRAMS = 32  # per multiprocessor, each of which takes one run after the other
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def stride_of(layout: Layout) -> int:
    """R + K, rounded up to whole sectors."""
    return -(-layout.width // SECTOR) * SECTOR


def memory_needed(layout: Layout, *, half: bool = False) -> int:
    """Bytes for the table, Adagrad's state, the penalty's gradient, and the loop's two tables: an
    epoch's mean and the best."""
    entries = (layout.n_rows + layout.n_fields) * stride_of(layout)
    return entries * (3 * 4 + 2 * (2 if half else 4))


def why_not(layout: Layout, *, half: bool = False) -> str:
    """The reason why this machine's GPU cannot train such a model; empty if it can."""
    if not torch.cuda.is_available():
        return "no GPU is here that torch can use"
    if layout.width > WIDEST:
        return f"rows of {layout.width:,} columns are more than the {WIDEST:,} its kernels take"
    needed, free = memory_needed(layout, half=half), free_memory()
    if needed > 0.95 * free:
        return (
            f"the model needs {needed / 2**30:.1f} GiB of GPU memory ({layout.n_rows:,} rows of "
            f"{layout.width} columns, five times) and {free / 2**30:.1f} GiB are free; lower the "
            "rank, or raise min_count to have fewer rows"
        )
    return ""


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()


def _two_parts(width: int) -> tuple[int, int]:
    """MAIN and TAIL, powers of two that cover a row."""
    main = max(16, 1 << (width.bit_length() - 1))
    rest = width - main
    return (2 * main, 16) if rest > main // 2 else (main, max(16, _power(rest)))


@dataclass
class _Sorted:
    """The sorted entries of some batches: keys (batches, entries); for each run where it begins
    (batches, entries + 1), its row and its field (batches, entries); the run of the last of every
    PIECE entries; and the number of runs (batches, 1)."""

    keys: torch.Tensor
    begins: torch.Tensor
    rows: torch.Tensor
    fields: torch.Tensor
    run_at: torch.Tensor
    n_runs: torch.Tensor


class GpuEngine:
    """See `Engine`. Arrays are torch tensors on the device; `run` takes those or NumPy's."""

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
            raise SettingError(f"the gpu engine has no component {layout.component!r}; use auto")
        self.device = torch.device("cpu" if INTERPRETED else "cuda")
        if not INTERPRETED and (reason := why_not(layout, half=half)):
            raise SettingError(f"device='cuda': {reason}; or device='cpu'")
        self.layout, self.settings = layout, settings
        self.objective = objective or Objective()
        self.offsets = np.zeros(layout.n_outputs) if offsets is None else offsets
        self.half = half
        self.n_steps = 0
        self._stride = stride_of(layout)
        shape = (layout.n_rows + layout.n_fields, self._stride)
        kind = torch.bfloat16 if half else torch.float32
        self._table = torch.zeros(shape, dtype=kind, device=self.device)
        self._state = torch.zeros(shape, device=self.device)
        self.table = self._table[: layout.n_rows, : layout.width]
        self.state = self._state[: layout.n_rows, : layout.width]
        self.decay = torch.full((shape[0],), settings.weight_decay, device=self.device)
        self.field_weights = torch.ones(layout.n_fields, device=self.device)
        self.field_state = torch.full((layout.n_fields,), 1e-6, device=self.device)
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._seed = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._kept: _Scratch | None = None
        self._scoring: _Scratch | None = None
        self._pull: torch.Tensor | None = None
        self._graph: _Graph | None = None
        self._is_warm = False
        self._n_programs = 8
        self._other: Any = None
        if not INTERPRETED:
            self._other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._n_programs = PROGRAMS * torch.cuda.get_device_properties(0).multi_processor_count
        self._describe()

    def _describe(self) -> None:
        """Set what the kernels need to know about columns, slots and fields."""
        layout, r = self.layout, self.layout.n_columns
        self._main, self._tail = _two_parts(layout.width)
        self._by_field = self.objective.combine != "sum"
        self._plain = (
            not self._by_field
            and layout.n_outputs == 1
            and self.objective.heads[0].loss == "logistic"
        )
        self._n_scores = layout.n_outputs * (layout.n_fields if self._by_field else 1)
        score = np.zeros(self._main + self._tail, np.int32)
        score[:r] = layout.output
        score[r : layout.width] = np.arange(layout.n_outputs)
        if self._by_field:
            score *= layout.n_fields
            score[:r] += layout.owner.astype(np.int32)
        first, own = np.full_like(score, -1), np.zeros_like(score)
        first[:r] = layout.slot_starts[layout.owner]
        own[:r] = np.array(layout.slots)[layout.owner]
        self._first, self._own, self._score = map(self._int32, (first, own, score))
        self._block_starts = self._int32(layout.starts)
        self._rank = _power(max(1, *layout.ranks))
        # As matrices of 0 and 1: columns to scores, slots to fields.
        self._score_of = torch.eye(self._n_scores, device=self.device)[self._score[:r].long()]
        slot_field = layout.slot_owner
        self._field_of = torch.eye(layout.n_fields, device=self.device)[torch.tensor(slot_field)]
        self._slot_field = self._int32(slot_field)
        self._biased = self._int32(np.ones(layout.n_fields))  # fields whose biases this engine has
        self._is_shared = False
        self._slot_starts = self._int32(layout.slot_starts)
        self._slot_offsets = self._int32(layout.offsets[slot_field])
        self._slot_sizes = self._int32(np.array(layout.sizes)[slot_field])
        self._place = self._int32(np.arange(layout.n_slots) - layout.slot_starts[slot_field])
        self._sizes, self._offsets_of_fields = map(self._int32, (layout.sizes, layout.offsets))
        self._offsets = torch.tensor(self.offsets, dtype=torch.float32, device=self.device)
        self._span = self.settings.batch_size * max(layout.slots)
        largest = (max(layout.sizes) + 2) * self._span
        self._key_type = torch.int32 if largest < 2**31 else torch.int64

    def _int32(self, array: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(array), dtype=torch.int32, device=self.device)

    def _on_device(self, array: Any, kind: torch.dtype) -> torch.Tensor | None:
        if array is None:
            return None
        if isinstance(array, np.ndarray):
            array = torch.from_numpy(np.ascontiguousarray(array))
        return array.to(self.device, kind, non_blocking=True)

    def hold(self, rows: Table, *, resident: bool | None = None) -> DeviceRows:
        """A table's rows on the device, for `Batches`."""
        still = memory_needed(self.layout, half=self.half) - 2 * self._state.nbytes
        return DeviceRows(rows, self.device, resident=resident, spared=max(0, still))

    def run(self, codes: Any, values: Any, target: Any, weight: Any) -> None:
        codes = self._on_device(codes, torch.int32)
        values, target, weight = (
            self._on_device(x, torch.float32) for x in (values, target, weight)
        )
        size, at = self.settings.batch_size, 0
        while at < len(codes):
            plain = self.settings.until_due(self.n_steps)
            n_steps = max(1, min(GROUP, (len(codes) - at) // size, plain))
            rows = slice(at, at + n_steps * size)
            part = [None if x is None else x[rows] for x in (codes, values, target, weight)]
            if n_steps == GROUP and not INTERPRETED:
                self._whole_group(part)
            else:
                self._seed.fill_(self.n_steps)
                self._steps(part, n_steps, due=plain == 0)
            self.n_steps += n_steps
            at += n_steps * size

    def _whole_group(self, part: list[Any]) -> None:
        """A group of steps from a graph; the first time without one, which compiles the kernels."""
        if self._graph is None and not self._is_warm:
            self._seed.fill_(self.n_steps)
            self._steps([None if x is None else x.clone() for x in part], GROUP, due=False)
            self._is_warm = True
            return
        if self._graph is None:
            self._graph = _Graph(self, part)
        self._graph(part, self.n_steps)

    def _steps(self, part: list[Any], n_steps: int, *, due: bool) -> None:
        """Steps over n_steps batches, of which a single one may be short."""
        n, weight = len(part[0]) // n_steps, part[3]
        if weight is None:
            totals = torch.full((n_steps, 1), float(n), device=self.device)
        else:
            totals = weight.view(n_steps, n, -1).sum(dim=1)  # (steps, 1 or copies)
        codes, values, target, weight = self._mine(part, n_steps)
        n = len(codes) // n_steps
        scratch = self._scratch(n)
        rows = self._rows(codes)
        found = self._sorted(codes, values, n_steps, n)
        losses = torch.empty(n_steps * n, device=self.device)
        for k in range(n_steps):
            batch = slice(k * n, (k + 1) * n)
            x, w = (None if array is None else array[batch] for array in (values, weight))
            self._forward(scratch, rows[batch], x, target[batch], w, totals[k], losses[batch])
            self._update(scratch, found, k, x, due=due)
        self.totals[0] += self._summed(losses.sum(dtype=torch.float64))
        self.totals[1] += totals.sum(dtype=torch.float64) / totals.shape[1]

    def _mine(self, part: list[Any], n_steps: int) -> list[Any]:
        """The rows of some batches that are this engine's: all."""
        return part

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        """x summed over the engines with other rows of a batch: there are none."""
        return x

    def _scratch(self, n: int) -> _Scratch:
        """The buffers for a step of n samples; kept for whole batches."""
        if n != self.settings.batch_size:
            return _Scratch(self, n)
        if self._kept is None:
            self._kept = _Scratch(self, n)
        return self._kept

    def _rows(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes -> rows of the table; the rows of unseen values are the last."""
        known = codes + self._slot_offsets
        return torch.where(codes < 0, self.layout.n_rows + self._slot_field, known)

    def _sorted(self, codes: Any, values: Any, n_steps: int, n: int) -> _Sorted:
        """Every batch's entries, sorted by row."""
        layout = self.layout
        n_slots, m = layout.n_slots, layout.n_fields
        span, many = self._span, n_slots > m
        block = min(1024, _power(n))
        keys = torch.empty((n_steps, n_slots, n), dtype=self._key_type, device=self.device)
        _triton.pack[(n_slots, n_steps)](
            *(codes, values if many else codes, keys, self._slot_sizes, self._place, n),
            *(n_slots, self.settings.batch_size, span, block, many),
        )
        if many:
            parts = [keys[:, a:b].reshape(n_steps, -1) for a, b in pairwise(layout.slot_starts)]
            keys = torch.cat([torch.sort(part, dim=1).values for part in parts], dim=1)
        else:
            keys = torch.sort(keys, dim=2).values.view(n_steps, -1)
        n_entries = n_slots * n
        found = _Sorted(
            keys,
            *(
                torch.empty((n_steps, width), dtype=torch.int32, device=self.device)
                for width in (n_entries + 1, n_entries, n_entries, n_entries // PIECE + 1, 1)
            ),
        )
        counts = torch.empty((n_steps, m), dtype=torch.int32, device=self.device)
        _triton.count_runs[(m, n_steps)](
            keys, self._slot_starts, counts, n, n_entries, m, span, block
        )
        _triton.find_runs[(m, n_steps)](
            *(keys, self._slot_starts, counts, self._sizes, self._offsets_of_fields),
            *(found.begins, found.rows, found.fields, found.run_at, found.n_runs),
            *(n, n_entries, layout.n_rows, m, _power(m), span, block, PIECE),
        )
        return found

    def _common(self) -> dict[str, Any]:
        """The constants that all kernels are compiled with."""
        return {
            "S": self.layout.n_slots,
            "STRIDE": self._stride,
            "R": self.layout.n_columns,
            "MAIN": self._main,
            "TAIL": self._tail,
            "num_warps": max(1, min(8, self._main // (COLUMNS_A_WARP * (2 if self.half else 1)))),
        }

    def _gather(
        self, scratch: _Scratch, rows: Any, x: Any, y: Any, w: Any, total: Any, losses: Any
    ) -> None:
        """p and q, and for a plain objective losses and derivatives, or without y the score."""
        unused = self._first
        _triton.forward[(len(rows),)](
            *(self._table, rows, unused if x is None else x, self._first, self._own),
            *(scratch.a, scratch.c, float(self.offsets[0])),
            *(unused if array is None else array for array in (y, w, total)),
            *(scratch.d, unused if losses is None else losses),
            **self._common(),
            SLOTS=max(1, min(SLOTS_AT_ONCE, _power(self.layout.n_slots), TILE // self._main)),
            WIDTH=self.layout.width,
            MOST=max(self.layout.slots),
            VALUED=x is not None,
            WEIGHTED=w is not None,
            PLAIN=self._plain,
            KEEP=y is not None or not self._plain,
        )

    def _forward(
        self, scratch: _Scratch, rows: Any, x: Any, y: Any, w: Any, total: Any, losses: Any
    ) -> None:
        """p, q, losses and the derivatives by scores; also the step of the field weights."""
        self._gather(scratch, rows, x, y, w, total, losses)
        if self._plain:
            return
        w = torch.ones((len(rows), 1), device=self.device) if w is None else w
        f = self._field_scores(scratch, rows, x)
        found, df, du = slopes(self.objective, f, self._offsets, y, w, total, self.field_weights)
        losses.copy_(found)
        scratch.d.copy_(df.flatten(1))
        if self.objective.combine == "weighted":
            du = self._summed(du)
            self.field_state += du**2
            step = self.settings.learning_rate * du / (self.field_state.sqrt() + EPSILON)
            self.field_weights.sub_(step).clamp_(min=0)

    def _field_scores(self, scratch: _Scratch, rows: Any, values: Any) -> torch.Tensor:
        """f (n, K, m), or if fields are summed z (n, K, 1), from p and q."""
        layout = self.layout
        n, r = len(rows), layout.n_columns
        products = scratch.a[:n, :r] * scratch.c[:n, :r]
        bias = self._table[:, r : layout.width][rows.long()].float()  # (n, S, K)
        if values is not None:
            bias = bias * values[:, :, None]
        made = products @ self._score_of
        if not self._by_field:
            return (made + bias.sum(dim=1))[:, :, None]
        by_field = (bias.transpose(1, 2) @ self._field_of).flatten(1)
        return (made + by_field).view(n, layout.n_outputs, layout.n_fields)

    def _update(self, scratch: _Scratch, found: _Sorted, k: int, x: Any, *, due: bool) -> None:
        """The step of the batch's rows, or in a due step of all rows."""
        pull = self._penalty_gradient() if due else self._table
        self._take(scratch, found, k, x, pull, self.decay, adds=due)
        if self.half:
            self._seed += 1
        if due:
            self._dense_step(pull)
            self._constrain()

    def _take(
        self,
        scratch: _Scratch,
        found: _Sorted,
        k: int,
        x: Any,
        pull: Any,
        decay: Any,
        *,
        adds: bool,
    ) -> None:
        """The steps of the rows of batch k; or with `adds`, add their gradients to `pull`."""
        s, keys = self.settings, found.keys[k]
        common = self._common() | {
            "M": self.layout.n_fields,
            "K": self.layout.n_outputs,
            "RANK": self._rank,
            "OWN": scratch.own,
            "N_SCORES": self._n_scores,
            "BATCH": s.batch_size,
            "SPAN": self._span,
            "LENGTH": PIECE,
            "VALUED": x is not None,
            "BY_FIELD": self._by_field,
            "SHARED": self._is_shared,
            "PULL": adds,
            "HALF": self.half,
        }
        tables = (self._table, self._state, pull, keys)
        runs = (found.begins[k], found.rows[k], found.fields[k])
        samples = (keys if x is None else x, scratch.a, scratch.c, scratch.d)
        columns = (self._score, self._biased, self._block_starts, self._slot_starts)
        rates = (s.learning_rate, decay, self._seed)
        with self._beside():
            if len(keys) > PIECE:
                _triton.long_runs[(len(keys) // PIECE,)](
                    *(*tables, *runs, found.run_at[k], *samples, *columns),
                    *(scratch.partial, scratch.counters, *rates),
                    AT_ONCE=AT_ONCE,
                    PIECES=PIECES_AT_ONCE,
                    **common,
                )
        _triton.short_runs[(min(self._n_programs, -(-len(keys) // RUNS)),)](
            *(*tables, *runs, found.n_runs[k], *samples, *columns, *rates), RUNS=RUNS, **common
        )
        self._join()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Launch kernels that run in parallel with those after the context, until `_join`."""
        if self._other is None:
            yield
            return
        self._other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._other):
            yield

    def _join(self) -> None:
        if self._other is not None:
            torch.cuda.current_stream().wait_stream(self._other)

    def _dense_step(self, slope: torch.Tensor) -> None:
        """Adagrad on all rows, in pieces."""
        for low in range(0, len(slope), DENSE_ROWS):
            part = slice(low, low + DENSE_ROWS)
            self._adagrad(part, slope[part], self.n_steps)

    def _adagrad(self, part: Any, g: torch.Tensor, seed: int) -> None:
        """The step of some rows, given their gradient."""
        squares = self._state[part] + g * g
        self._state[part] = squares
        step = self.settings.learning_rate * g / (squares.sqrt() + EPSILON)
        self._table[part] = self._rounded(self._table[part].float() - step, seed)

    def _rounded(self, table: torch.Tensor, seed: int) -> torch.Tensor:
        """Numbers as the table stores them: in half precision rounded up or down at random."""
        if not self.half:
            return table
        draw = torch.Generator(self.device).manual_seed(seed)
        chance = torch.randint(
            0, 1 << 16, table.shape, generator=draw, dtype=torch.int32, device=self.device
        )
        bits = table.view(torch.int32) + chance
        return (bits & -65536).view(torch.float32).to(torch.bfloat16)

    def _penalty_gradient(self) -> torch.Tensor:
        """The weighted gradient of variance and mean for all rows, from small matrices.

        dU = U (2 C^T C + 2 v^T v)      dV = 2 C G + (2 / d_i) v G      see `maths`
        """
        layout, weight = self.layout, self.settings.penalty
        if self._pull is None:
            self._pull = torch.empty_like(self._state)
        out = self._pull.zero_()
        if not weight:
            return out
        for o in range(layout.n_outputs):
            for i in range(layout.n_fields):
                columns, own, d = layout.block(o, i), layout.own(i), layout.sizes[i]
                X = self._table[: layout.n_rows, columns].float()
                V = X[own]
                b = self._table[own, layout.n_columns + o].float()
                v, mean = V.mean(dim=0), b.mean()
                C = V - v
                G = X.T @ X - V.T @ V
                out[: layout.n_rows, columns] = X @ (2 * weight * (C.T @ C + torch.outer(v, v)))
                out[own, columns] = 2 * weight * (C @ G + (v @ G) / d)
                out[own, layout.n_columns + o] = 2 * weight * (b - mean + mean / d)
        return out

    def _constrain(self) -> None:
        """Bring every field's variance and mean within bounds; see `maths.constrain`."""
        layout, s = self.layout, self.settings
        if s.max_variance is None and s.max_mean is None:
            return
        table = host(self.table)
        constrain(table, layout, s.max_variance, s.max_mean)
        fill(self.table, table)

    def scores(self, codes: Any, values: Any) -> np.ndarray:
        codes = self._on_device(codes, torch.int32)
        values = self._on_device(values, torch.float32)
        parts = []
        for low in range(0, max(len(codes), 1), SCORE_ROWS):
            part = slice(low, low + SCORE_ROWS)
            parts.append(self._scores(codes[part], None if values is None else values[part]))
        found: np.ndarray = torch.cat(parts).cpu().numpy()
        return found

    def _scores(self, codes: torch.Tensor, values: Any) -> torch.Tensor:
        rows = self._rows(codes)
        if len(rows) == 0:
            return torch.empty((0, self.layout.n_outputs), device=self.device)
        if self._scoring is None or len(self._scoring.d) != len(rows):
            self._scoring = _Scratch(self, len(rows), keep=not self._plain)
        scratch = self._scoring
        self._gather(scratch, rows, values, None, None, None, None)
        if self._plain:
            return scratch.d.clone()
        f = self._field_scores(scratch, rows, values)
        if self.objective.is_vote:
            return f + self._offsets[:, None]
        if self.objective.combine == "weighted":
            return f @ self.field_weights + self._offsets
        return f[:, :, 0] + self._offsets

    def set_means(self, counts: np.ndarray) -> None:
        layout = self.layout
        shares = torch.from_numpy(category_shares(layout, counts)).to(self.device, torch.float32)
        for i in range(layout.n_fields):
            own = layout.own(i)
            self._table[layout.n_rows + i, : layout.width] = shares[own] @ self.table[own].float()


class _Scratch:
    """The buffers that a step needs."""

    def __init__(self, engine: GpuEngine, n: int, *, keep: bool = True) -> None:
        layout, device = engine.layout, engine.device
        rows = n if keep else 1
        self.a = torch.zeros((rows, engine._stride), device=device)
        self.c = torch.zeros((rows, engine._stride), device=device)
        self.d = torch.zeros((n, engine._n_scores), device=device)
        pieces = n * layout.n_slots // PIECE + 1 if keep else 1
        self.own = _power(layout.n_outputs * engine._rank)
        self.partial = torch.empty((pieces, engine._stride + self.own), device=device)
        self.counters = torch.zeros(pieces, dtype=torch.int32, device=device)


class _Graph:
    """A group of steps, recorded once and replayed on other rows."""

    def __init__(self, engine: GpuEngine, part: list[Any]) -> None:
        self._engine = engine
        self._part = [None if x is None else x.clone() for x in part]
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            engine._steps(self._part, GROUP, due=False)

    def __call__(self, part: list[Any], n_steps: int) -> None:
        self._engine._seed.fill_(n_steps)
        for mine, given in zip(self._part, part, strict=True):
            if mine is not None:
                mine.copy_(given)
        self._graph.replay()


make = GpuEngine
