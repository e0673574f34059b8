"""Tables from outside: text, compressed text, libffm, Parquet, Arrow, raw Criteo, globs.

What is read is compared with what a parser of a few plain lines reads.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl
import pyarrow as pa

from fieldwise.data import blocks
from fieldwise.data.readers import AVAZU_FIELDS, open_source, paths_of
from fieldwise.data.text import NULL_WORDS
from fieldwise.errors import DataError

from .draws import Draw

__all__ = ["TARGETS"]

SPACES = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f")
SEPARATORS = (None, ",", "\t", ";", "|", " ", '"', "\\t")


@cache
def scratch() -> Path:
    return Path(mkdtemp(prefix="tables-"))


def read(path: Any, **options: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows that fieldwise reads."""
    source = open_source(path, **options)
    parts = [chunk.frame for chunk in source.chunks()]
    assert all(part.columns == source.columns for part in parts)
    return source.columns, pl.concat(parts).rows()


# Separated text -----------------------------------------------------------------------------------


def plain_rows(text: str, separator: str, quote: bool) -> Iterator[list[str]]:
    """Rows end with LF or CR LF, and a CR before a separator is no part of the cell either; a cell
    that begins with a quote ends with one, and has two for each inside it."""
    cells, cell, at = [], "", 0
    while at < len(text):
        if quote and cell == "" and text[at] == '"':
            end = at + 1
            while end < len(text):
                if text[end] == '"':
                    if text[end + 1 : end + 2] != '"':
                        break
                    end += 1
                end += 1
            cell, at = text[at : end + 1], end + 1
            continue
        if text[at] == separator:
            cells, cell = [*cells, cell.removesuffix("\r")], ""
        elif text[at] == "\n":
            yield [*cells, cell.removesuffix("\r")]
            cells, cell = [], ""
        else:
            cell += text[at]
        at += 1
    if cells or cell:
        yield [*cells, cell.removesuffix("\r")]


def meaning(cell: str, quote: bool, null_words: tuple[str, ...]) -> str | None:
    if quote and cell[:1] == '"':
        cell = cell[1:-1].replace('""', '"')
    return None if cell == "" or cell in null_words else cell


def text_table(data: bytes, *, container: str = "") -> None:
    """One byte says how it is read, the rest is the file."""
    how, content = data[0] if data else 0, data[1:]
    quote, null_words = not how & 1, () if how & 2 else NULL_WORDS
    separator = SEPARATORS[how >> 2 & 7]
    path = scratch() / f"t.csv{container}"
    path.write_bytes(packed(content, container))
    options = {"separator": separator, "quote": quote, "null_words": null_words}
    size = 7 if how & 32 else blocks.BLOCK
    kept, blocks.byte_blocks.__kwdefaults__ = blocks.byte_blocks.__kwdefaults__, {"size": size}
    try:
        found = read(path, **options)
    finally:
        blocks.byte_blocks.__kwdefaults__ = kept
    used = open_source(path, **options)._separator
    text = content.removeprefix(blocks.BOM).decode()  # what is no UTF-8 must be refused
    if container == ".zst":  # which polars takes apart by lines
        text = "\n".join(line.removesuffix("\r") for line in text.split("\n"))
    header, *rows = plain_rows(text, used, quote)
    n = len(header)
    expected = [
        tuple(meaning(cell, quote, tuple(null_words)) for cell in row)
        for row in rows
        if n == 1 or len(row) > 1 or row[0].strip("\r")
    ]
    assert {len(row) for row in expected} <= {n}, "rows of different lengths are read as a table"
    names = [meaning(cell, quote, ()) for cell in header]
    names = [(name or "").strip() for name in names]
    assert all(a == b for a, b in zip(names, found[0], strict=True) if a), (names, found[0])
    assert found[1] == expected, (found[1], expected)


def packed(content: bytes, container: str) -> bytes:
    if container == ".gz":
        return gzip.compress(content, 1, mtime=0)
    if container == ".zst":
        return pa.compress(content, codec="zstd", asbytes=True)
    return content


def gzip_table(data: bytes) -> None:
    text_table(data, container=".gz")


def zstd_table(data: bytes) -> None:
    text_table(data, container=".zst")


def damaged_archive(data: bytes) -> None:
    """A compressed file of which some bytes are other: what is read of it is what was written,
    where it has a checksum."""
    draw = Draw(data)
    content = b"a,b\n" + b"".join(b"%d,x%d\n" % (k, k % 7) for k in range(40))
    kind = draw.pick((".gz", ".zst"))
    whole = packed(content, kind)
    path = scratch() / "damaged.csv"
    damaged = draw.altered(whole)
    path.write_bytes(damaged)
    _, found = read(path)
    assert damaged[:2] != blocks.GZIP or found == [(str(k), f"x{k % 7}") for k in range(40)], found


def written_table(data: bytes) -> None:
    """Any table of texts, written, reads as it was."""
    draw = Draw(data)
    n, m = 1 + draw.below(5), 1 + draw.below(4)
    kind = draw.pick(("csv", "tsv", "csv", "parquet", "arrow", "gz"))
    rows = [[draw.text().encode("utf-8", "ignore").decode() for _ in range(m)] for _ in range(n)]
    names = [f"c{j}" for j in range(m)]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    path = scratch() / f"written.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    elif kind == "arrow":
        frame.write_ipc(path)
    else:
        separator = "\t" if kind == "tsv" else ","
        text = separator.join(names) + "\n"
        for row in rows:
            text += separator.join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n"
        path.write_bytes(packed(text.encode(), ".gz" if kind == "gz" else ""))
    is_text = kind not in ("parquet", "arrow")
    try:
        options: dict[str, Any] = {"null_words": ()} if is_text else {}
        found = read(path, **options, **({"separator": "\t"} if kind == "tsv" else {}))
    except DataError:
        # Zero bytes are taken for a sign of what is no text.
        assert is_text
        assert any("\0" in cell for row in rows for cell in row), rows
        return
    assert found[0] == names
    if is_text:
        rows = [[cell or None for cell in row] for row in rows]
    assert found[1] == [tuple(row) for row in rows], (found[1], rows)


# libffm and libsvm --------------------------------------------------------------------------------


def libffm(data: bytes) -> None:
    """Every entry of a file is in its row's cell."""
    how, content = data[0] if data else 0, data[1:]
    kind = "libsvm" if how & 1 else "libffm"
    path = scratch() / f"t.{kind}"
    path.write_bytes(content)
    columns, rows = read(path, format=kind)
    text = content.removeprefix(blocks.BOM).decode()
    # To Python separators of records are spaces too.
    lines = [re.split(r"[^\S\x1c-\x1f]+", line.strip(SPACES)) for line in text.split("\n")]
    lines = [line for line in lines if line != [""]]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert line[0] == row[0]
        cells = dict(zip(columns[1:], row[1:], strict=True))
        if kind == "libffm":
            for entry in line[1:]:
                field, index, value = entry.split(":")
                cell = cells[f"f{int(field)}"]
                if isinstance(cell, list):
                    assert {"index": index, "value": float(value)} in cell, (entry, cell)
                else:
                    assert cell == index or float(cell) == float(value), (entry, cell)
        n = sum(len(c) if isinstance(c, list) else c is not None for c in cells.values())
        assert n == len(line) - 1 if kind == "libffm" else n >= len(line) - 1, (line, cells)


# Named formats ------------------------------------------------------------------------------------


def named_format(data: bytes) -> None:
    """Raw Criteo and Avazu: cells are what stands between the separators."""
    how, content = data[0] if data else 0, data[1:]
    name, separator = ("criteo", "\t") if how & 1 else ("avazu", ",")
    if how & 2 and name == "avazu":
        content = ("id,click," + ",".join(AVAZU_FIELDS) + "\n").encode() + content
    path = scratch() / "train.txt"
    path.write_bytes(content)
    columns, rows = read(path, format=name)
    text = content.removeprefix(blocks.BOM).decode()
    plain = [row for row in plain_rows(text, separator, False) if row != [""]]
    if name == "avazu":
        assert [cell.strip() or "?" for cell in plain[0]] == [
            c if cell.strip() else "?" for c, cell in zip(columns, plain[0], strict=True)
        ]
        plain = plain[1:]
    assert rows == [tuple(cell or None for cell in row) for row in plain], (rows, plain)


# Binary tables ------------------------------------------------------------------------------------


@cache
def binary_tables() -> list[bytes]:
    frame = pl.DataFrame(
        {
            "text": ["a", None, "é" * 40, "a"] * 5,
            "n": [1, -1, None, 2**40] * 5,
            "x": [0.5, float("nan"), None, -1e300] * 5,
            "b": [True, False, None, True] * 5,
            "when": pl.Series([0, 1, None, 10**15] * 5).cast(pl.Datetime("us")),
            "tags": [["t1", "t2"], [], None, ["t3"]] * 5,
            "kind": pl.Series(["u", "v", None, "u"] * 5).cast(pl.Categorical),
        }
    )
    files = []
    for packing in ("uncompressed", "zstd", "snappy"):
        out = io.BytesIO()
        frame.write_parquet(out, compression=packing)
        files.append(out.getvalue())
    for packing in ("uncompressed", "lz4"):
        out = io.BytesIO()
        frame.write_ipc(out, compression=packing)
        files.append(out.getvalue())
    return files


def binary_table(data: bytes) -> None:
    """Parquet and Arrow files of which some bytes are other."""
    draw = Draw(data)
    content = draw.pick(binary_tables())
    content = draw.altered(content) if draw.below(16) else draw.rest()
    path = scratch() / "t.bin"
    path.write_bytes(content)
    read(path, format=draw.pick(("auto", "parquet", "arrow")))


# Paths --------------------------------------------------------------------------------------------

NAMES = ("a.csv", "b.csv", "[x].csv", "sub/c.csv", "sub/deep/d.tsv", ".hidden.csv", "é.csv", "n.md")


@cache
def folder() -> Path:
    out = scratch() / "folder"
    for name in NAMES:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("a,b\n1,2\n")
    return out


def glob(data: bytes) -> None:
    """What a pattern finds lies in the folder, each file once, in order."""
    pattern = data.decode("utf-8", "surrogateescape").replace("..", "")
    found = paths_of(f"{folder()}/{pattern}")
    assert found == sorted(set(found))
    assert all(path.is_file() and path.is_relative_to(folder()) for path in found)
    if pattern in NAMES:
        assert found == [folder() / pattern]
    read(f"{folder()}/{pattern}")


TARGETS = {
    "text": text_table,
    "gzip": gzip_table,
    "zstd": zstd_table,
    "archive": damaged_archive,
    "written": written_table,
    "libffm": libffm,
    "named": named_format,
    "binary": binary_table,
    "glob": glob,
}
SEEDS: dict[str, list[bytes]] = {
    "text": [
        bytes([how]) + text
        for how, text in itertools.product(
            (0, 1, 2, 4, 32, 33),
            (
                b'name,note\n"a,b","two\nlines"\n"say ""hi""",\n x ,y\n',
                b"a;b\r\n1;2\r\n\r\n3;NA\r\n",
                b"\xef\xbb\xbfa\n1\n\n2",
            ),
        )
    ],
    "libffm": [
        b"\01 0:3:1 1:2:0.5\n0 0:4:1 1:2:0.25\n",
        b"\01 0:3:1 0:5:1\n0 1:a:2\n",
        b"\11 3:1 4:1\n0 5:1 6:1\n",
        b"\11 3:0.5\n0 5:1 6:1\n",
    ],
    "named": [
        b"\1" + b"\t".join([b"1", *[b"5"] * 13, *[b"ab"] * 26]) + b"\n",
        b"\2" + b",".join([b"9", b"1", *[b"x"] * 22]) + b"\n",
    ],
    "glob": [b"*.csv", b"**/*.csv", b"sub", b"[x].csv", b"", b"?.csv", b"a.csv"],
}
for name in ("gzip", "zstd"):
    SEEDS[name] = SEEDS["text"]
