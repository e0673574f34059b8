"""Text files, plain or compressed, as blocks of bytes that end between rows.

Cutting the bytes ourselves bounds memory, shows progress, and lets an error name its row.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from ..errors import DataError
from .chunks import UNREADABLE

__all__ = [
    "byte_blocks",
    "explain_bytes",
    "first_row_end",
    "is_compressed",
    "misplaced_quote",
    "outside_quotes",
    "read_errors",
    "row_name",
    "text_head",
    "total_size",
    "without_blank_rows",
]

BLOCK = 16 << 20  # bytes of text parsed at a time: fastest of 4..32 MiB
UNPACKED = 4 << 20  # bytes decompressed at a time
LONGEST_ROW = 256 << 20
BOM = b"\xef\xbb\xbf"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAGIC = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive (unzip it first)",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
    b"SQLite": "an SQLite database",
}


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn errors of opening or reading a file into a DataError of one line."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte, or not UTF-8
        raise DataError(f"{str(path)!r} is not a path: {error}") from error


def is_compressed(path: Path) -> bool:
    with read_errors(path), path.open("rb") as file:
        head = file.read(4)
    return head[:2] == GZIP or head == ZSTD


def total_size(paths: Sequence[Path]) -> float | None:
    """The total bytes of files; None if one is compressed: its content's size is unknown."""
    if any(map(is_compressed, paths)):
        return None
    return float(sum(path.stat().st_size for path in paths))


def row_name(number: int) -> str:
    """The name of a row for error messages, counted from 1; 0 is the header."""
    return f"row {number:,}" if number else "the header"


def _decompressed(path: Path) -> Iterator[bytes]:
    """Yield the content of a gz or zst file in pieces."""
    try:
        with path.open("rb") as file:
            head = file.read(2)
        if head == GZIP:  # polars does not check its checksums
            with gzip.open(path) as content:
                while piece := content.read(UNPACKED):
                    yield piece
            return
        lines = pl.scan_lines(path, name="line", glob=False)
        for frame in lines.collect_batches(chunk_size=1 << 16):
            yield ("\n".join(frame["line"].to_list()) + "\n").encode()
    except (*UNREADABLE, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed file is damaged: {error}") from error


def _last_row_end(block: bytes, quote: bool) -> int:
    """Where the last whole row ends: after the last newline outside quotes; 0 if there is none."""
    end = block.rfind(b"\n")
    # After an odd number of quotes a newline is inside a cell, and so are those back to the quote
    # that opened it.
    while quote and end >= 0 and block.count(b'"', 0, end) % 2:
        end = block.rfind(b"\n", 0, block.rfind(b'"', 0, end))
    return end + 1


def first_row_end(block: bytes, quote: bool) -> int:
    """Where the first row ends, after its newline; 0 if it does not end."""
    end = block.find(b"\n")
    while quote and end >= 0 and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end + 1)
    return end + 1


def byte_blocks(path: Path, *, quote: bool, size: int = BLOCK) -> Iterator[tuple[bytes, float]]:
    """Yield a file's bytes in blocks of whole rows, each ending with a newline, and bytes read."""
    if is_compressed(path):
        yield from _compressed_blocks(path, quote)
        return
    with read_errors(path):
        whole = path.stat().st_size
        file = path.open("rb", buffering=0)
    with file:
        wanted = size
        while True:
            with read_errors(path):
                block = file.read(wanted)
            if not block:
                return
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
            "a quote may be left open, or this is not a text table"
        )


def text_head(path: Path) -> bytes:
    """The first 64 KiB, decompressed; raises if they are not text."""
    if is_compressed(path):
        head = next(_decompressed(path), b"")[: 1 << 16]
    else:
        with read_errors(path), path.open("rb") as file:
            head = file.read(1 << 16)
    head = head.removeprefix(BOM)
    if not head.strip():
        raise DataError(f"{path} is empty")
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"{path} is not a text table: it looks like {what}")
    if b"\0" in head:
        raise DataError(
            f"{path} is not a text table: it holds zero bytes, so it is binary or UTF-16"
        )
    if b"\n" not in head and b"\r" in head:
        raise DataError(f"{path} ends its lines with CR alone; convert it: tr '\\r' '\\n'")
    return head


def outside_quotes(block: bytes) -> np.ndarray:
    """For every byte whether the number of quotes up to and including it is even."""
    flat = np.frombuffer(block, dtype=np.uint8)
    outside: np.ndarray = np.cumsum(flat == ord('"'), dtype=np.int32) % 2 == 0
    return outside


def misplaced_quote(block: bytes, separator: str) -> int | None:
    """Where a quote is inside an unquoted cell, or before a quoted cell's end; None if nowhere.

    Such a quote swaps inside and outside for all that follows.
    """
    flat = np.frombuffer(b"\n" + block + b"\n", dtype=np.uint8)
    where = np.flatnonzero(flat == ord('"'))
    opening, closing = where[::2], where[1::2]
    around = np.array([ord(separator), *b'\n\r"'], dtype=np.uint8)
    wrong = [
        *opening[~np.isin(flat[opening - 1], around)],
        *closing[~np.isin(flat[closing + 1], around)],
    ]
    if len(where) % 2:
        wrong.append(where[-1])
    return int(min(wrong)) - 1 if wrong else None


def without_blank_rows(block: bytes, quote: bool) -> bytes:
    """The block without empty lines between rows; those inside a quoted cell stay."""
    # Every other piece between quotes is outside quoted cells.
    pieces = block.split(b'"') if quote else [block]
    pieces[::2] = [re.sub(rb"(\r?\n)(?:\r?\n)+", rb"\1", piece) for piece in pieces[::2]]
    return re.sub(rb"\A(?:\r*\n)+", b"", b'"'.join(pieces))


def explain_bytes(block: bytes, path: Path, row: int) -> None:
    """Raise if a block is not UTF-8, naming the row; `row` rows precede it, -1 is the header."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = row + block.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, {row_name(line)}: byte {block[error.start]:#04x} is not UTF-8; "
            "convert the file first, for example: iconv -f latin1 -t utf-8"
        ) from error
