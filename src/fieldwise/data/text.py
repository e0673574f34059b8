"""Separated text (CSV, TSV and the like, plain or compressed) read as text columns, in chunks.

polars parses; this file cuts the bytes between rows, so that memory is bounded, progress is known
and an error can name its row. Every cell stays text: what a column means is decided by looking at
all of it, never by its first hundred rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError
from .chunks import Chunk

__all__ = ["NULL_WORDS", "TextSource", "byte_blocks", "guess_separator", "text_head"]

# Words that mean "no value" in text files, beside the empty cell.
NULL_WORDS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "\\N")

BLOCK = 16 << 20  # bytes of text parsed at a time: fastest of 4..32 MiB
LONGEST_ROW = 256 << 20
SEPARATORS = (",", "\t", ";", "|")
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAGIC = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive (unzip it first)",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
    b"SQLite": "an SQLite database",
}


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4)
    return head[:2] == GZIP or head == ZSTD


def _decompressed(path: Path) -> Iterator[bytes]:
    """The lines of a gz or zst file, some at a time."""
    try:
        for frame in pl.scan_lines(path, name="line").collect_batches(chunk_size=1 << 16):
            yield ("\n".join(frame["line"].to_list()) + "\n").encode()
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: the compressed file cannot be read: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: the compressed file is damaged: {error}") from error


def _last_row_end(block: bytes, quote: bool) -> int:
    """Where the last whole row ends: after a newline that stands outside quotes; 0 if none does."""
    end = block.rfind(b"\n")
    if quote and end >= 0 and block.count(b'"', 0, end) % 2:
        # An odd number of quotes: this newline is inside a cell. So is every one after the last
        # quote before it; try the newline ahead of that quote.
        while end >= 0 and block.count(b'"', 0, end) % 2:
            opening = block.rfind(b'"', 0, end)
            end = block.rfind(b"\n", 0, opening)
    return end + 1


def byte_blocks(path: Path, *, quote: bool, size: int = BLOCK) -> Iterator[tuple[bytes, float]]:
    """The file's bytes in blocks of whole rows, each ending with a newline, and how far it is."""
    if _is_compressed(path):
        yield from _compressed_blocks(path, quote)
        return
    whole = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        wanted = size
        while block := file.read(wanted):
            cut = _last_row_end(block, quote)
            if cut == 0 and file.tell() < whole:
                _too_long(path, wanted)
                file.seek(-len(block), 1)
                wanted *= 2
                continue
            if cut and cut < len(block):
                file.seek(cut - len(block), 1)  # the rest is read again with the next block
                block = block[:cut]
            yield _closed(block), file.tell()
            wanted = size


def _compressed_blocks(path: Path, quote: bool) -> Iterator[tuple[bytes, float]]:
    rest, done = b"", 0
    for piece in _decompressed(path):
        block = rest + piece
        cut = _last_row_end(block, quote)
        _too_long(path, len(block) - cut)
        rest = block[cut:]
        done += len(piece)
        if cut:
            yield block[:cut], done
    if rest.rstrip(b"\r\n"):
        yield _closed(rest), done


def _closed(block: bytes) -> bytes:
    return block if block.endswith(b"\n") else block + b"\n"


def _too_long(path: Path, n_bytes: int) -> None:
    if n_bytes > LONGEST_ROW:
        raise DataError(
            f"{path}: no end of a row within {n_bytes >> 20} MiB; "
            "a quote may be left open, or this is no table of text"
        )


def text_head(path: Path) -> bytes:
    """The first 64 KiB, decompressed; raises where it is no text."""
    if _is_compressed(path):
        head = next(_decompressed(path), b"")[: 1 << 16]
    else:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    if not head.strip():
        raise DataError(f"{path} is empty")
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"{path} is not a text table: it looks like {what}")
    if b"\0" in head:
        raise DataError(
            f"{path} is not a text table: it holds zero bytes, so it is binary or UTF-16"
        )
    return head.removeprefix(b"\xef\xbb\xbf")


def guess_separator(head: bytes) -> str:
    """The separator that the first two lines agree on, most frequent first; a comma if none."""
    lines = head.split(b"\n")
    first, second = lines[0], lines[1] if len(lines) > 2 else lines[0]
    scored = [(first.count(s.encode()), s) for s in SEPARATORS]
    scored = [(n, s) for n, s in scored if n]
    agreed = [(n, s) for n, s in scored if second.count(s.encode()) == n]
    best = max(agreed or scored, default=(0, ","), key=lambda pair: pair[0])
    return best[1]


def _cells(line: bytes, separator: str, quote: bool) -> list[str]:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if not quote:
        return text.split(separator)
    return next(csv.reader([text], delimiter=separator), [])


class TextSource:
    """Files of separated text with the same columns."""

    is_text = True

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        separator: str | None = None,
        columns: Sequence[str] | None = None,
        quote: bool = True,
        null_words: Sequence[str] = NULL_WORDS,
    ) -> None:
        """`columns` names them where the files have no header."""
        self.paths = list(paths)
        self.name = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files"
        self._quote = quote
        self._null_words = list(null_words)
        self._header = columns is None
        head = text_head(self.paths[0])
        self._separator = separator or guess_separator(head)
        self.columns = list(columns) if columns is not None else self._read_header(self.paths[0])
        plain = not any(_is_compressed(p) for p in self.paths)
        self.total = float(sum(p.stat().st_size for p in self.paths)) if plain else None
        if separator is not None and len(self.columns) == 1:
            self._explain_separator(head)

    def _read_header(self, path: Path) -> list[str]:
        head = text_head(path)
        names = [c.strip() for c in _cells(head.split(b"\n", 1)[0], self._separator, self._quote)]
        if not any(names):
            raise DataError(f"{path}: the first line names no columns")
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise SchemaError(
                f"{path}: column {twice[0]!r} appears twice in the header; rename one"
            )
        if "" in names:
            names = [n or f"column_{i + 1}" for i, n in enumerate(names)]
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
            row, done = 0, 0.0
            for block, done in byte_blocks(path, quote=self._quote):
                if header or row == 0:
                    block = block.removeprefix(b"\xef\xbb\xbf")
                if header:
                    block, header = block[_first_line(block, self._quote) :], False
                frame = self._parse(block, path, row)
                if frame.height:
                    yield Chunk(frame, str(path), row, before + done)
                row += frame.height
            before += done
            n_rows += row
        if n_rows == 0:
            raise DataError(f"{self.name} has no rows" + (", only a header" * self._header))

    def _same_header(self, path: Path) -> None:
        names = self._read_header(path)
        if names != self.columns:
            raise SchemaError(
                f"{path}: its columns differ from those of {self.paths[0]}: "
                f"{names[:8]} instead of {self.columns[:8]}"
            )

    def _parse(self, block: bytes, path: Path, row: int) -> pl.DataFrame:
        """The rows of a block. Looking for blank lines costs, so it waits for a sign of them."""
        frame = self._read(block)
        if frame is None:
            block = _without_blank_rows(block, self._quote)
            frame = self._read(block)
        if frame is None:
            _explain_bytes(block, path, row)
            self._explain_ragged(block, path, row)
            raise DataError(f"{path}: the text after row {row:,} cannot be parsed")
        return frame

    def _read(self, block: bytes) -> pl.DataFrame | None:
        """The rows, or None where they are not all as long as the header."""
        try:
            frame = pl.read_csv(
                block,
                has_header=False,
                schema=dict.fromkeys(self.columns, pl.String),
                separator=self._separator,
                quote_char='"' if self._quote else None,
                null_values=self._null_words,
                raise_if_empty=False,
            )
        except pl.exceptions.PolarsError:
            return None
        # polars fills a short row with nulls without a word; a null at the end is the sign.
        if len(self.columns) == 1 or not frame[self.columns[-1]].has_nulls():
            return frame
        flat = np.frombuffer(block, dtype=np.uint8)
        marks = flat == ord(self._separator)
        if self._quote and b'"' in block:
            marks &= np.cumsum(flat == ord('"'), dtype=np.int32) % 2 == 0
        full = frame.height * (len(self.columns) - 1)
        return frame if np.count_nonzero(marks) == full else None

    def _explain_ragged(self, block: bytes, path: Path, row: int) -> None:
        text = io.StringIO(block.decode("utf-8", "replace"), newline="")
        rows = (
            csv.reader(text, delimiter=self._separator)
            if self._quote
            else (line.rstrip("\r\n").split(self._separator) for line in text)
        )
        for i, cells in enumerate(rows):
            if len(cells) != len(self.columns):
                raise DataError(
                    f"{path}, row {row + i + 1:,}: {len(cells)} values where there are "
                    f"{len(self.columns)} columns (separator {self._separator!r})"
                )


def _without_blank_rows(block: bytes, quote: bool) -> bytes:
    """Empty lines between rows dropped; those inside a quoted cell stay."""
    if b"\n\n" not in block and b"\n\r\n" not in block and block[:1] not in (b"\n", b"\r"):
        return block
    # Every other piece between quotes lies outside a cell.
    pieces = block.split(b'"') if quote else [block]
    pieces[::2] = [re.sub(rb"(\r?\n)(?:\r?\n)+", rb"\1", piece) for piece in pieces[::2]]
    return b'"'.join(pieces).lstrip(b"\r\n")


def _first_line(block: bytes, quote: bool) -> int:
    """Where the first row ends, after its newline."""
    end = block.find(b"\n")
    while quote and end >= 0 and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end + 1)
    return end + 1 if end >= 0 else len(block)


def _explain_bytes(block: bytes, path: Path, row: int) -> None:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = row + block.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, row {line:,}: byte {block[error.start]:#04x} is not UTF-8; "
            "convert the file first, for example: iconv -f latin1 -t utf-8"
        ) from error
