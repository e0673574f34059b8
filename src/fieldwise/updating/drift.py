"""Check that new rows come from the table a model knows: the same columns, of the same kinds, with
values mostly seen before, and known targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..data.labels import target_values, weight_values
from ..data.schema import Schema
from ..data.vocabulary import FieldVocabulary, Vocabulary
from ..errors import DataError, NoRows, SchemaError, unknown_column

if TYPE_CHECKING:
    from ..data.chunks import Chunk, Source

__all__ = ["Finding", "check_drift", "find_drift"]

USUAL = 0.2  # share of rows with a value never seen that is not suspicious
TIMES = ("date", "year", "month")  # parts of times whose values are naturally new


@dataclass(frozen=True)
class Finding:
    """What has drifted in a column; `may_go_on`: the rows can still be learned from."""

    column: str
    what: str
    may_go_on: bool = False


def check_drift(words: Vocabulary, source: Source, *, allow: bool = False) -> None:
    """Raise an error that says what has drifted, except what `allow` lets through."""
    findings = find_drift(words, source)
    stops = [f for f in findings if not (allow and f.may_go_on)]
    if stops:
        lines = "\n".join(f"  {f.column}: {f.what}" for f in stops)
        advice = "fix the table, or train a new model"
        if all(f.may_go_on for f in stops):
            advice = "if that is as it should be, continue with --allow-drift (allow_drift=True)"
        raise SchemaError(
            f"{source.name} has drifted from what the model was trained on:\n{lines}\n"
            f"Nothing was changed; {advice}"
        )


def find_drift(words: Vocabulary, source: Source) -> list[Finding]:
    """What has drifted in a table. `words` are the model's, without crosses."""
    schema, columns = words.schema, list(source.columns)
    missing = [c for c in [*schema.columns, *schema.roles] if c not in columns]
    if missing:
        return [Finding(c, str(unknown_column(c, columns))) for c in missing]
    looks = [_Look(f) for f in words.fields]
    targets: dict[str, Finding] = {}
    n_rows = 0
    for chunk in source.chunks():
        n_rows += chunk.frame.height
        for look in looks:
            look.add(chunk)
        _look_at_targets(schema, chunk, targets)
    if not n_rows:
        raise NoRows(f"{source.name} has no rows")
    found = [finding for look in looks for finding in look.findings(n_rows)]
    return [*_once(found), *targets.values()]


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per column: a number may be there at several resolutions."""
    return list({f.column: f for f in reversed(list(findings))}.values())[::-1]


def _look_at_targets(schema: Schema, chunk: Chunk, found: dict[str, Finding]) -> None:
    for target in schema.targets:
        one = replace(schema, targets=(target,))
        if target.column not in found:
            try:
                target_values(chunk, one)
            except DataError as error:
                found[target.column] = Finding(target.column, str(error))
    if schema.weight is not None and schema.weight not in found:
        try:
            weight_values(chunk, schema)
        except DataError as error:
            found[schema.weight] = Finding(schema.weight, str(error))


class _Look:
    """Collects one field's new values, chunk by chunk."""

    def __init__(self, words: FieldVocabulary) -> None:
        self._words = words
        self._alone = replace(words, field=replace(words.field, unseen="mean")).alone()
        self._n_unseen = 0
        self._n_missing = 0
        self._examples: list[str] = []
        self._broken: str | None = None

    def add(self, chunk: Chunk) -> None:
        if self._broken is not None:
            return
        column = chunk.frame[self._words.field.column]
        try:
            codes, _ = self._alone.encode(chunk)
        except (DataError, SchemaError) as error:
            self._broken = str(error)
            return
        missing = (column.fill_nan(None) if column.dtype.is_float() else column).is_null()
        self._n_missing += int(missing.sum())
        unseen = pl.Series((codes < 0).any(axis=1))
        self._n_unseen += int(unseen.sum())
        if len(self._examples) < 3 and not column.dtype.is_nested():
            some = column.filter(unseen & ~missing).unique(maintain_order=True).head(3)
            self._examples += [repr(v)[:40] for v in some.to_list()]

    def findings(self, n_rows: int) -> list[Finding]:
        field = self._words.field
        if self._broken is not None:
            return [Finding(field.column, self._broken)]
        if self._n_missing == n_rows and not self._had_missing():
            what = f"all {n_rows:,} values are missing, and none was before"
            return [Finding(field.column, what, may_go_on=True)]
        n, usual = self._n_unseen, self._usual()
        if field.part in TIMES or n <= usual * n_rows + 3 * np.sqrt(usual * n_rows):
            return []
        shown = ", ".join(self._examples[:3])
        what = (
            f"{n:,} of {n_rows:,} rows ({n / n_rows:.1%}) hold values never seen"
            + (f", such as {shown}" if shown else "")
            + f"; up to {usual:.0%} would be usual"
        )
        return [Finding(field.column, what, may_go_on=True)]

    def _had_missing(self) -> bool:
        entries = self._words.entries
        return bool(entries.filter(pl.col("category").is_null())["count"].sum())

    def _usual(self) -> float:
        """The share of rows that may hold new values: the share of values that training saw once,
        as Good and Turing estimate it, plus some margin."""
        count = self._words.entries["count"]
        once, total = int((count == 1).sum()), int(count.sum())
        return min(1.0, USUAL + (once / total if total else 1.0))
