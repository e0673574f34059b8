"""Separated text (CSV, TSV and the like) as chunks of text columns; polars parses it.

Every cell stays text: what a column means is decided from all of it, never from its first hundred
rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl

from ..errors import DataError, NoRows, SchemaError, SettingError
from .blocks import (
    BOM,
    byte_blocks,
    explain_bytes,
    first_row_end,
    misplaced_quote,
    outside_quotes,
    row_name,
    text_head,
    total_size,
    without_blank_rows,
)
from .chunks import Chunk

__all__ = ["NULL_WORDS", "TextSource", "guess_separator"]

# Words that mean "no value" in text files, as an empty cell does.
NULL_WORDS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "\\N")

SEPARATORS = (",", "\t", ";", "|")
PACKED = (b"x", b"\x1f", b"\x28", b"\xef")  # first bytes of zlib, gzip, zstd, a byte order mark


def guess_separator(head: bytes) -> str:
    """The separator that the first two lines agree on, most frequent first; a comma if none."""
    lines = head.split(b"\n")
    first, second = lines[0], lines[1] if len(lines) > 2 else lines[0]
    scored = [(first.count(s.encode()), s) for s in SEPARATORS]
    scored = [(n, s) for n, s in scored if n]
    agreed = [(n, s) for n, s in scored if second.count(s.encode()) == n]
    best = max(agreed or scored, default=(0, ","), key=lambda pair: pair[0])
    return best[1]


def _checked_separator(separator: str | None) -> str | None:
    if separator == "\\t":  # as a shell passes it
        return "\t"
    if separator is not None and (len(separator) != 1 or not separator.isascii()):
        raise SettingError(f"separator={separator!r} must be one ASCII character, such as ';'")
    return separator


class TextSource:
    """A `Source` over files of separated text with the same columns."""

    target: str | None = None
    kinds: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        separator: str | None = None,
        columns: Sequence[str] | None = None,
        quote: bool = True,
        null_words: Sequence[str] = NULL_WORDS,
    ) -> None:
        """`columns` names the columns of files without a header."""
        self.paths = list(paths)
        self.name = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files"
        self._quote = quote
        self._null_words = list(null_words)
        self._header = columns is None
        head = text_head(self.paths[0])
        separator = _checked_separator(separator)
        self._separator = separator or guess_separator(head)
        self.columns = list(columns) if columns is not None else self._read_header(self.paths[0])
        self.total = total_size(self.paths)
        if separator is not None and len(self.columns) == 1:
            self._explain_separator(head)

    def _read_header(self, path: Path) -> list[str]:
        text_head(path)
        block = next(byte_blocks(path, quote=self._quote))[0].removeprefix(BOM)
        line = block[: first_row_end(block, self._quote)]
        if self._quote:
            self._check_quotes(line or block, path, -1)
        try:
            cells = _parsed(line, None, self._separator, self._quote, []).row(0)
        except pl.exceptions.PolarsError as error:
            explain_bytes(line, path, -1)
            raise DataError(f"{path}: the first line names no columns") from error
        names = [(c or "").strip() for c in cells]
        if not any(names):
            raise DataError(f"{path}: the first line names no columns")
        twice = sorted({n for n in names if n and names.count(n) > 1})
        if twice:
            raise SchemaError(
                f"{path}: column {twice[0]!r} appears twice in the header; rename one"
            )
        for i, name in enumerate(names):
            if not name:
                names[i] = _fresh(f"column_{i + 1}", names)
        return names

    def _explain_separator(self, head: bytes) -> None:
        better = guess_separator(head)
        if better != self._separator and better.encode() in head.split(b"\n", 1)[0]:
            raise DataError(
                f"{self.paths[0]}: only one column with separator {self._separator!r}; "
                f"the file seems to use {better!r}"
            )

    def chunks(self) -> Iterator[Chunk]:
        before, n_rows = 0.0, 0
        for path in self.paths:
            header = self._header
            if header and path is not self.paths[0]:
                self._same_header(path)
            row, done, is_first = 0, 0.0, True
            for block, done in byte_blocks(path, quote=self._quote):
                if is_first:
                    block, is_first = block.removeprefix(BOM), False
                if header:
                    block, header = block[first_row_end(block, self._quote) :], False
                frame = self._parse(block, path, row)
                if frame.height:
                    yield Chunk(frame, str(path), row, before + done)
                row += frame.height
            before += done
            n_rows += row
        if n_rows == 0:
            raise NoRows(f"{self.name} has no rows" + (", only a header" * self._header))

    def _same_header(self, path: Path) -> None:
        names = self._read_header(path)
        if names != self.columns:
            raise SchemaError(
                f"{path}: its columns differ from those of {self.paths[0]}: "
                f"{names[:8]} instead of {self.columns[:8]}"
            )

    def _parse(self, block: bytes, path: Path, row: int) -> pl.DataFrame:
        """The rows of a block. Blank lines are only looked for if it does not parse otherwise."""
        quoted = self._quote and b'"' in block
        if quoted:
            self._check_quotes(block, path, row)
        frame = self._read(block, quoted)
        if frame is None and len(self.columns) > 1:
            block = without_blank_rows(block, self._quote)
            frame = self._read(block, quoted)
        if frame is None:
            explain_bytes(block, path, row)
            self._explain_ragged(block, path, row)
            raise DataError(f"{path}: the text after row {row:,} cannot be parsed")
        if quoted and b'""' in block:  # an empty cell is missing, in quotes or not
            frame = frame.with_columns(pl.all().replace("", None))
        return frame

    def _read(self, block: bytes, quoted: bool) -> pl.DataFrame | None:
        """The rows of a block, or None if they are not all as long as the header."""
        try:
            frame = _parsed(block, self.columns, self._separator, self._quote, self._null_words)
        except pl.exceptions.PolarsError:
            return None
        # polars silently fills a short row with nulls; a null in the last column may be that.
        if len(self.columns) == 1 or not frame[self.columns[-1]].has_nulls():
            return frame
        marks = np.frombuffer(block, dtype=np.uint8) == ord(self._separator)
        if quoted:
            marks &= outside_quotes(block)
        full = frame.height * (len(self.columns) - 1)
        return frame if np.count_nonzero(marks) == full else None

    def _check_quotes(self, block: bytes, path: Path, row: int) -> None:
        where = misplaced_quote(block, self._separator)
        if where is not None:
            rows = np.frombuffer(block[:where], dtype=np.uint8) == ord("\n")
            number = row + int(np.count_nonzero(rows & outside_quotes(block[:where]))) + 1
            start = block.rfind(b"\n", 0, where) + 1
            shown = block[max(start, where - 20) : where + 20].decode("utf-8", "replace")
            raise DataError(
                f"{path}, {row_name(number)}: a quote where no quoted cell begins or ends, near "
                f"{shown!r}; double it inside a quoted cell, or read without quotes (quote=False)"
            )

    def _explain_ragged(self, block: bytes, path: Path, row: int) -> None:
        text = io.StringIO(block.decode("utf-8", "replace"), newline="")
        rows = (
            csv.reader(text, delimiter=self._separator)
            if self._quote
            else (line.rstrip("\r\n").split(self._separator) for line in text)
        )
        with suppress(csv.Error):  # a cell past csv's limit: then the row stays unnamed
            for i, cells in enumerate(rows):
                if len(cells) != len(self.columns):
                    raise DataError(
                        f"{path}, row {row + i + 1:,}: {len(cells)} values where there are "
                        f"{len(self.columns)} columns (separator {self._separator!r})"
                    )


def _parsed(
    block: bytes,
    columns: Sequence[str] | None,
    separator: str,
    quote: bool,
    null_words: Sequence[str],
) -> pl.DataFrame:
    """Parse text with polars, which takes text that begins like a compressed file for one ("x^" is
    enough, and gives no rows) and drops a byte order mark. After such a mark it does neither."""
    return pl.read_csv(
        BOM + block if block[:1] in PACKED else block,
        has_header=False,
        schema=None if columns is None else dict.fromkeys(columns, pl.String),
        infer_schema=False,
        separator=separator,
        quote_char='"' if quote else None,
        null_values=list(null_words),
        raise_if_empty=False,
    )


def _fresh(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
