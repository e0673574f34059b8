"""libffm text (`label field:index:value ...`) and libsvm text (`label index:value ...`).

libffm: one column per field. If every value is 1 the index is the category; a field with a single
index and changing values is a number; a field that appears several times in a row, or has several
indices with values other than 1, is a list of indices weighted by their values.
libsvm: rows of the same length whose values are all 1 (one-hot fields in a fixed order, as libFM
writes them) have one column per position; anything else one numeric column per index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from ..errors import DataError, NoRows
from .blocks import byte_blocks, explain_bytes, text_head, total_size
from .chunks import Chunk
from .schema import Schema

__all__ = ["LibffmSource"]

MOST_COLUMNS = 4096


class LibffmSource:
    """A `Source` over files; the first column is `label`. A first pass finds the columns."""

    target: str | None = "label"

    def __init__(
        self, paths: Sequence[Path], *, with_fields: bool, schema: Schema | None = None
    ) -> None:
        """`schema`, of a table read before, decides what the columns are."""
        self.paths = list(paths)
        self.name = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files"
        self._with_fields = with_fields
        for path in self.paths:
            text_head(path)
        self.total = total_size(self.paths)
        self._numeric: set[int]
        self._lists: set[int] = set()
        self._dropped: set[int] = set()
        self._names: dict[int, str]
        self.kinds: Mapping[str, str]
        if schema is None:
            self._survey()
        else:
            known = [*schema.columns, *schema.dropped]
            self._dropped = {int(c[1:]) for c in schema.dropped if c[1:].isdigit()}
            self._names = {int(c[1:]): c for c in known if c[1:].isdigit()}
            fields = {f.column: f for f in schema.fields}
            self._numeric = {
                k for k, c in self._names.items() if c in fields and fields[c].kind == "numeric"
            }
            self._lists = {k for k, c in self._names.items() if c in fields and fields[c].is_list}
            self._positional = not with_fields and not self._numeric
        self.kinds = {n: self._kind(k) for k, n in self._names.items()}
        if len(self._names) > MOST_COLUMNS:
            raise DataError(
                f"{self.name}: {len(self._names):,} columns; at most {MOST_COLUMNS:,} are read. "
                "Write it as libffm with one field per column, or as CSV"
            )
        self.columns = ["label", *self._names.values()]

    def _kind(self, key: int) -> str:
        if key in self._lists:
            return "list"
        return "numeric" if key in self._numeric else "category"

    def _survey(self) -> None:
        """Find the columns, and which of them are numbers or lists."""
        groups = []
        widths: set[int] = set()
        for entries, n_rows, *_ in self._entries():
            widths |= set(entries.group_by("row").len()["len"].to_list())
            if entries["row"].n_unique() < n_rows:
                widths.add(0)
            first = pl.col("index").first()
            groups.append(
                entries.group_by("field").agg(
                    pl.col("value").ne(1.0).any().alias("valued"),
                    pl.col("index").n_unique().eq(1).alias("single"),
                    pl.col("row").is_duplicated().any().alias("repeated"),
                    first.alias("index"),
                )
            )
        if not groups:
            raise NoRows(f"{self.name} has no rows")
        found = (
            pl.concat(groups)
            .group_by("field")
            .agg(
                pl.col("valued", "repeated").any(),
                pl.col("single").all() & pl.col("index").n_unique().eq(1),
            )
            .sort("field")
        )
        valued = bool(found["valued"].any())
        self._positional = not self._with_fields and not valued and len(widths) == 1
        if self._positional:
            width = widths.pop()
            self._names = {j: f"f{j}" for j in range(width)}
            self._numeric = set()
            return
        if self._with_fields:
            several = pl.col("repeated") | (pl.col("valued") & ~pl.col("single"))
            self._lists = set(found.filter(several)["field"].to_list())
            self._numeric = set(found.filter("valued")["field"].to_list()) - self._lists
        else:
            self._numeric = set(found["field"].to_list())
        self._names = {f: f"f{f}" for f in found["field"].to_list()}

    def _entries(self) -> Iterator[tuple[pl.DataFrame, int, pl.Series, Path, int, float]]:
        """Yield (row, field, index, value) of every entry, a block at a time, with the number of
        rows, their labels, the path, the first row's number and the bytes read."""
        before = 0.0
        for path in self.paths:
            first, done = 0, 0.0
            for block, done in byte_blocks(path, quote=False):
                explain_bytes(block, path, first)
                # Only \n ends a row; Python's splitlines would split at more.
                text = pl.Series("line", block.decode("utf-8").split("\n"), dtype=pl.String)
                text = text.str.replace_all(r"\s+", " ").str.strip_chars()
                lines = text.filter(text != "").to_frame()
                if lines.height == 0:
                    continue
                parts = lines.select(pl.col("line").str.split(" ")).with_row_index("row")
                label = parts.select(pl.col("line").list.first())["line"]
                bare = label.str.contains(":").arg_true()
                if len(bare):
                    raise DataError(
                        f"{path}, row {first + bare[0] + 1:,}: the line has no label before "
                        f"{label[bare[0]]!r}"
                    )
                entries = (
                    parts.select("row", pl.col("line").list.slice(1))
                    .explode("line", empty_as_null=False)
                    .filter(pl.col("line") != "")
                )
                yield (
                    self._split(entries, path, first),
                    lines.height,
                    label,
                    path,
                    first,
                    before + done,
                )
                first += lines.height
            before += done

    def _split(self, entries: pl.DataFrame, path: Path, first: int) -> pl.DataFrame:
        parts = pl.col("line").str.splitn(":", 3 if self._with_fields else 2)
        names = ["field", "index", "value"] if self._with_fields else ["field", "value"]
        split = entries.select("row", parts.struct.rename_fields(names)).unnest("line")
        if not self._with_fields:
            split = split.with_columns(index=pl.col("field"))
        typed = split.with_columns(
            pl.col("field").cast(pl.Int64, strict=False),
            pl.col("value").cast(pl.Float64, strict=False),
        )
        bad = typed.select(
            pl.any_horizontal(pl.col("field", "index", "value").is_null())
        ).to_series()
        if bad.any():
            row = typed["row"].gather(bad.arg_true())[0]
            shape = "field:index:value" if self._with_fields else "index:value"
            raise DataError(
                f"{path}, row {first + row + 1:,}: {entries['line'].gather(bad.arg_true())[0]!r} "
                f"is not {shape}"
            )
        return typed

    def chunks(self) -> Iterator[Chunk]:
        for entries, n_rows, label, path, first, done in self._entries():
            if self._positional:
                entries = entries.with_columns(field=pl.int_range(pl.len()).over("row"))
            self._check(entries, n_rows, path, first)
            if self._dropped:  # they may hold anything
                entries = entries.filter(~pl.col("field").is_in(list(self._dropped)))
            # Where each entry goes: one table of positions, then a gather per column.
            columns = {key: j for j, key in enumerate(self._names)}
            at = entries["field"].replace_strict(columns, return_dtype=pl.Int64).to_numpy()
            place = np.full((len(columns), n_rows), -1, dtype=np.int64)
            rows = entries["row"].to_numpy()
            place[at, rows] = np.arange(len(rows))
            single = ~entries["field"].is_in(list(self._lists)).to_numpy()
            if (again := single & (place[at, rows] != np.arange(len(rows)))).any():
                entry = entries.row(int(np.argmax(again)), named=True)
                raise DataError(
                    f"{path}, row {first + entry['row'] + 1:,}: field {entry['field']} appears "
                    "twice, which it did not before"
                )
            index, value = entries["index"], entries["value"].cast(pl.String)
            frame = {"label": label}
            for (key, name), slot in zip(self._names.items(), place, strict=True):
                if key in self._lists:
                    frame[name] = _lists(entries.filter(pl.col("field") == key), n_rows, name)
                    continue
                where = pl.Series(slot)
                source = value if key in self._numeric else index
                frame[name] = source.gather(where.set(where < 0, None)).alias(name)
                if not self._with_fields and not self._positional:
                    frame[name] = frame[name].fill_null("0.0")  # sparse: 0
            yield Chunk(pl.DataFrame(frame), str(path), first, done)

    def _check(self, entries: pl.DataFrame, n_rows: int, path: Path, first: int) -> None:
        """Raise for entries that do not fit the columns, found in a first pass or in a schema."""
        loose = self._numeric | self._lists | self._dropped
        categories = [k for k in self._names if k not in loose]
        unknown = ~pl.col("field").is_in(list(self._names))
        valued = pl.col("field").is_in(categories) & (pl.col("value") != 1)
        for wrong, what in ((unknown, "is none of the fields"), (valued, "is a category")):
            found = entries.filter(wrong)
            if found.height:
                entry = found.row(0, named=True)
                raise DataError(
                    f"{path}, row {first + entry['row'] + 1:,}: field {entry['field']} with value "
                    f"{entry['value']:g} {what} known before"
                )
        if self._positional and entries.height != n_rows * len(self._names):
            raise DataError(f"{path}: not all rows have {len(self._names)} entries")


def _lists(entries: pl.DataFrame, n_rows: int, name: str) -> pl.Series:
    """A list of (index, value) for every row; null if the field is absent."""
    rows = pl.DataFrame({"row": np.arange(n_rows, dtype=np.uint32)})
    found = entries.group_by("row").agg(pl.struct("index", "value").alias(name))
    return rows.join(found, on="row", how="left", maintain_order="left")[name]
