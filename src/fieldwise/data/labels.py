"""The targets and weights of rows: provisional numbers while a table is read, then as stored."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError
from .chunks import Chunk
from .keys import Keys
from .schema import Field, Schema, Target, check_names
from .values import numbers_of

__all__ = ["TargetReader", "columns_of", "target_values", "weight_values"]


class TargetReader:
    """Turns a target column into provisional numbers, and these at the end into stored ones."""

    def __init__(self, target: Target, *, may_be_constant: bool) -> None:
        self.target = target
        self._may_be_constant = may_be_constant
        known = pl.Series(target.classes, dtype=pl.String)
        self._keys = Keys(Field(name=target.column, dtype=target.dtype), known)
        self._seen: set[float] = set()

    def add(self, chunk: Chunk) -> np.ndarray:
        column = chunk.frame[self.target.column]
        if self.target.trials is not None:
            return self._share(chunk, self.target.trials)
        if self.target.kind == "classes":
            out = self._keys.ids(chunk).astype(np.float64)
            missing = out == 0
        else:
            out = numbers_of(chunk, self.target.column)
            missing = ~np.isfinite(out)
        if missing.any():
            row = int(np.argmax(missing))
            shown = column[row]
            what = "is missing" if shown is None else f"is {shown!r}, not a finite number"
            raise DataError(
                f"{chunk.locate(row)}: target {self.target.column!r} {what}; drop such rows first"
            )
        known = len(self.target.classes)
        if self.target.kind == "classes" and known and out.max(initial=0) > known:
            row = int(np.argmax(out > known))
            raise DataError(
                f"{chunk.locate(row)}: target {self.target.column!r} holds {column[row]!r}, which "
                f"is not one of the classes {list(self.target.classes)} seen before"
            )
        if len(self._seen) < 2:
            self._seen |= set(np.unique(out)[:2].tolist())
        return out

    def _share(self, chunk: Chunk, trials: str) -> np.ndarray:
        good, all_ = (numbers_of(chunk, name) for name in (self.target.column, trials))
        wrong = ~(np.isfinite(all_) & (good >= 0) & (good <= all_))
        if wrong.any():
            row = int(np.argmax(wrong))
            shown = [chunk.frame[name][row] for name in (self.target.column, trials)]
            raise DataError(
                f"{chunk.locate(row)}: {self.target.column!r} is {shown[0]!r} of {trials!r} "
                f"{shown[1]!r}; there must be at least 0, and no more than trials"
            )
        out: np.ndarray = good / np.maximum(all_, 1e-300)
        self._seen |= {0.0, 1.0} if good.any() and (good < all_).any() else set()
        return out

    def absorb(self, other: TargetReader) -> np.ndarray:
        """Add what another has seen; returns this one's number for each of its provisional ones"""
        self._seen |= other._seen
        return self._keys.numbered(other._keys)

    def for_numbers(self, here: np.ndarray) -> TargetReader:
        """After `finish`: a reader that settles another's numbers; `here` is what `absorb` gave."""
        out = copy(self)
        if self.target.kind == "classes":
            out._position = self._position[here]
        return out

    def finish(self) -> Target:
        if len(self._seen) < 2 and not self._may_be_constant:
            raise DataError(
                f"target {self.target.column!r} has the same value in every row: nothing to learn"
            )
        if self.target.kind != "classes":
            return self.target
        found = self._keys.values()
        known = self.target.classes
        number = pl.col("key").cast(pl.Float64, strict=False)
        order = [number, pl.col("key")] if self.target.dtype in ("integer", "float") else ["key"]
        ranked = found.to_frame("key").with_row_index("id", offset=1)
        ranked = ranked if known else ranked.sort(order)
        self._position = np.zeros(len(found) + 1)
        self._position[ranked["id"].to_numpy()] = np.arange(len(found))
        return replace(self.target, classes=tuple(ranked["key"].to_list()))

    def settle(self, numbers: np.ndarray) -> np.ndarray:
        if self.target.kind != "classes":
            return numbers
        return self._position[numbers.astype(np.int64)]


def _weights(chunk: Chunk, name: str) -> np.ndarray:
    out = numbers_of(chunk, name)
    bad = ~(np.isfinite(out) & (out >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{chunk.locate(row)}: weight {name!r} is {chunk.frame[name][row]!r}; "
            "a weight is a finite number of at least 0"
        )
    return out


def columns_of(targets: Sequence[TargetReader], numbers: np.ndarray) -> np.ndarray:
    """Provisional numbers (targets, n) -> the stored ones, (n, targets)"""
    pairs = zip(targets, numbers, strict=True)
    return np.stack([target.settle(row) for target, row in pairs], axis=1)


def target_values(chunk: Chunk, schema: Schema) -> np.ndarray:
    """(n, targets) the targets of a chunk under this schema: positions of classes, or numbers."""
    if schema.target is None:
        raise SchemaError("the model has no target to compare with")
    check_names([t.column for t in schema.targets], chunk.frame.columns, "target")
    readers = [TargetReader(t, may_be_constant=True) for t in schema.targets]
    numbers = np.array([reader.add(chunk) for reader in readers])
    for reader in readers:
        reader.finish()
    return columns_of(readers, numbers)


def weight_values(chunk: Chunk, schema: Schema) -> np.ndarray:
    """The weights of a chunk's rows under this schema, times trials; ones if it has neither."""
    out = np.ones(chunk.frame.height)
    for role, name in (("weight", schema.weight), ("trials", schema.trials)):
        if name is not None:
            check_names([name], chunk.frame.columns, role)
            out = out * _weights(chunk, name)
    return out
