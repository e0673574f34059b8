"""Rows on their way into a store: read once, kept on disk as provisional numbers, then settled.

A table may be read in several parts, by several processes: what each learned is added up, and the
store is the same byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..files import disk_errors
from ..progress import progress
from .chunks import Source, ahead
from .labels import TargetReader, columns_of, weight_values
from .learn import Learner, Provisional
from .schema import Schema
from .store import StoreWriter
from .vocabulary import Vocabulary

__all__ = ["Reading", "Spool", "removed", "write_all"]


class Spool:
    """Provisional rows in a file, in the folder of the store they will become. One process may
    write it and another read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._shapes: list[tuple[tuple[int, ...], np.dtype]] = []

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return {**self.__dict__, "_file": None}

    def write(self, *arrays: np.ndarray) -> None:
        if self._file is None:
            self._file = self.path.open("wb")
        for array in arrays:
            array = np.ascontiguousarray(array)
            self._file.write(array.reshape(-1).view(np.uint8).data)
            self._shapes.append((array.shape, array.dtype))

    def flush(self) -> None:
        """Close the file, so that any process can read it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, arrays: int) -> Iterator[list[np.ndarray]]:
        """Yield what was written, in order, `arrays` arrays at a time."""
        self.flush()
        if not self._shapes:
            return
        with self.path.open("rb") as file:
            for i in range(0, len(self._shapes), arrays):
                out = []
                for shape, dtype in self._shapes[i : i + arrays]:
                    array = np.empty(shape, dtype=dtype)
                    file.readinto(array.reshape(-1).view(np.uint8).data)
                    out.append(array)
                yield out

    def remove(self) -> None:
        with suppress(OSError):  # on a full disk closing writes again, and fails
            self.flush()
        self.path.unlink(missing_ok=True)


@contextmanager
def removed(spools: Sequence[Spool]) -> Iterator[None]:
    """A context that removes the spools at its end."""
    try:
        yield
    finally:
        for spool in spools:
            spool.remove()


@dataclass
class Reading:
    """What was learned from some rows, and the spool that holds them."""

    learner: Learner
    targets: list[TargetReader]
    spool: Spool
    n_rows: int = 0

    @classmethod
    def of(
        cls,
        source: Source,
        schema: Schema,
        spool: Spool,
        start: Vocabulary | None = None,
        *,
        widens: bool = True,
        show: bool | None = False,
    ) -> Reading:
        targets = [TargetReader(t, may_be_constant=start is not None) for t in schema.targets]
        out = cls(Learner(schema, start, widens=widens), targets, spool)
        with progress("encoding", source.total, show=show) as tell:
            for chunk in ahead(source.chunks()):
                rows = out.learner.add(chunk)
                labels = np.array([target.add(chunk) for target in targets])
                weights = weight_values(chunk, schema) if schema.is_weighted else np.empty(0)
                with disk_errors(spool.path):
                    spool.write(labels, weights, *rows.arrays)
                out.n_rows += chunk.frame.height
                tell(chunk.done, f"{out.n_rows:,} rows")
        with disk_errors(spool.path):
            spool.flush()
        return out

    def write(self, writer: StoreWriter, *, show: bool | None) -> None:
        write_all([self], self.learner, self.targets, writer, show=show)


def write_all(
    readings: Sequence[Reading],
    learner: Learner,
    targets: Sequence[TargetReader],
    writer: StoreWriter,
    *,
    show: bool | None,
) -> None:
    """Merge what all readings learned into `learner` and `targets`, finish them, and write all
    rows, in the order of readings."""
    absorbed = [
        None
        if one.learner is learner
        else (
            learner.absorb(one.learner),
            [mine.absorb(theirs) for mine, theirs in zip(targets, one.targets, strict=True)],
        )
        for one in readings
    ]
    vocabulary = learner.finish()
    schema = vocabulary.schema
    final = replace(schema, targets=tuple(target.finish() for target in targets))
    writer.widen(codes=sum(final.slots), values=len(final.valued))
    with progress("writing", sum(one.n_rows for one in readings), show=show) as tell:
        for one, here in zip(readings, absorbed, strict=True):
            settles, own = learner, targets
            if here is not None:
                settles = learner.settling(here[0])
                own = [t.for_numbers(ids) for t, ids in zip(targets, here[1], strict=True)]
            for parts in ahead(_settled(one.spool, settles, vocabulary, own, schema)):
                writer.write(**parts)
                tell(writer.n_rows)
    writer.finish(final, vocabulary.to_bytes(), [f.counts() for f in vocabulary.fields])


def _settled(
    spool: Spool,
    learner: Learner,
    vocabulary: Vocabulary,
    targets: Sequence[TargetReader],
    schema: Schema,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays of the store, a chunk at a time."""
    for labels, weights, *arrays in spool.read(2 + learner.n_arrays):
        codes, values = learner.settle(Provisional.of(arrays), vocabulary)
        parts = {"codes": codes}
        if schema.valued:
            parts["values"] = values
        if targets:
            parts["target"] = columns_of(targets, labels)
        if schema.is_weighted:
            parts["weight"] = weights
        yield parts
