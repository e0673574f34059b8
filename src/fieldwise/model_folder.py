"""A model on disk: a folder, written completely or not at all, and read without pickle.

    model/
      model.json           format, schema, layout, objective, offsets, settings, metrics, history,
                           lineage, checksums
      table.safetensors    table (d + m, R + K) float32; the last m rows are the means of fields.
                           If compressed: table (d + m, R) int8 or float16, scale (d + m,) and
                           bias (d + m, K) float32
      vocabulary.parquet   field, category, code, count
      crosses.parquet      if there are crosses: cross, codes, count, total
      boosted.json         if trees combine the scores: their text by LightGBM
      moments.safetensors  if fields carry values: moments (d, 2) float64, the mean of every
                           category's value and of its square

The table is mapped, not copied, when a model is loaded.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import __version__
from .boosted import Boosted
from .data.schema import Schema
from .errors import FieldwiseError, ModelError, SchemaError
from .files import (
    checksum,
    disk_errors,
    put_back,
    read_sealed,
    replace_folder,
    sealed,
    sweep,
    sync_files,
    temporary_folder,
)
from .layout import Layout
from .model_checks import check_body, check_parts
from .objective import Head, Objective
from .packed import Packed
from .tensors import mapped, write_tensors

if TYPE_CHECKING:
    from .model import FieldwiseModel

__all__ = ["FORMAT", "HEADER", "check_replaceable", "model_id", "read_model", "write_model"]

FORMAT = 2  # a packed table; other models are written as 1, which older versions read
HEADER, TABLE, WORDS = "model.json", "table.safetensors", "vocabulary.parquet"
MOMENTS, CROSSES, BOOSTED = "moments.safetensors", "crosses.parquet", "boosted.json"
FILES = (HEADER, TABLE, WORDS, MOMENTS, CROSSES, BOOSTED)
# What a header with wrong types, missing entries or absurd numbers raises.
UNSOUND = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def model_id(path: Path) -> str:
    """Eight hex digits that identify a model on disk, from its header, which has the checksums of
    all its files."""
    return f"{zlib.crc32((path / HEADER).read_bytes()):08x}"


def write_model(model: FieldwiseModel, path: Path, *, overwrite: bool) -> Path:
    """Write the folder of a model, replacing an existing one if `overwrite`."""
    put_back(path)
    if path.exists() and not overwrite:
        raise ModelError(f"{path} is there already; set overwrite=True or choose another name")
    check_replaceable(path)
    temporary = temporary_folder(path)
    with disk_errors(path):
        sweep(path)
        try:
            temporary.mkdir(parents=True)
            _write_files(model, temporary)
            replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return path


def check_replaceable(path: Path) -> None:
    """Raise if `path` is not a model of ours, or a folder that holds more than a model."""
    if not path.exists():
        return
    names = [] if path.is_file() else sorted(p.name for p in path.iterdir())
    if path.is_file() or (names and not _is_ours(path)):
        raise ModelError(f"{path} is not a model; it is not replaced")
    others = [name for name in names if name not in FILES]
    if others:
        raise ModelError(
            f"{path} is not replaced: {others[0]!r}, which is not a file of a model, would be lost "
            "with it; move it elsewhere, or choose another name"
        )


def _is_ours(folder: Path) -> bool:
    """Whether this is a model, intact or not: other programs have a model.json too."""
    header = folder / HEADER
    is_named = header.is_file() and b'"fieldwise"' in header.read_bytes()
    return is_named or all((folder / name).is_file() for name in (TABLE, WORDS))


def _write_files(model: FieldwiseModel, folder: Path) -> None:
    """Write the files, the header last: it holds the checksums of the others."""
    _write_table(model, folder / TABLE)
    (folder / WORDS).write_bytes(model.vocabulary.to_bytes())
    names = [TABLE, WORDS]
    if model.moments is not None:
        write_tensors(folder / MOMENTS, {"moments": model.moments})
        names.append(MOMENTS)
    more = {}
    words: Any = model.vocabulary
    if words.evidence is not None:
        (folder / CROSSES).write_bytes(words.evidence.to_bytes())
        names.append(CROSSES)
        more["crossing"] = words.about
    if model.boosted is not None:
        (folder / BOOSTED).write_text(model.boosted.to_json())
        names.append(BOOSTED)
    if isinstance(model.stored, Packed):
        more["packed"] = {"kind": model.stored.kind, **model.compression}
    body = {
        "format": FORMAT if isinstance(model.stored, Packed) else 1,
        "fieldwise": __version__,
        "schema": model.schema.to_dict(),
        "sizes": list(model.layout.sizes),
        "ranks": list(model.layout.ranks),
        "slots": list(model.layout.slots),
        "component": model.layout.component,
        "objective": asdict(model.objective),
        "offsets": model.offsets.tolist(),
        "settings": model.settings,
        "metrics": model.metrics,
        "history": model.history,
        **({"lineage": model.lineage} if model.lineage else {}),
        **more,
        "checksums": {name: checksum(folder / name) for name in names},
    }
    (folder / HEADER).write_bytes(sealed(body))
    sync_files(folder)


def _write_table(model: FieldwiseModel, file: Path) -> None:
    table = model.stored
    if isinstance(table, Packed):
        entries = table.entries.view(np.dtype(table.kind))
        parts = {"scale": table.scale, "bias": table.bias, "table": entries}
    else:
        parts = {"table": table}
    write_tensors(file, parts)


def read_model(path: Path) -> dict[str, Any]:
    """The arguments of `FieldwiseModel`. A folder that is replaced meanwhile is read again."""
    if not path.exists():
        put_back(path)
    if not (path / HEADER).is_file():
        what = f"it has no {HEADER}" if path.exists() else "there is no such folder"
        raise ModelError(f"{path} is not a model: {what}. Make one with: fieldwise train")
    while True:
        before = (path / HEADER).stat()
        try:
            found: dict[str, Any] | ModelError | OSError = _read_files(path)
        except (ModelError, OSError) as error:
            found = error
        after = (path / HEADER).stat() if (path / HEADER).is_file() else before
        if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
            break
    if isinstance(found, dict):
        return found
    raise found


def _read_files(path: Path) -> dict[str, Any]:
    from .data.vocabulary import Vocabulary

    body = read_sealed(path / HEADER, newest=FORMAT, what="model", error=ModelError)
    try:
        check_body(body, (TABLE, WORDS, MOMENTS, CROSSES, BOOSTED))
        for name, said in body["checksums"].items():
            if not (path / name).is_file():
                raise ModelError(f"{path / name} is missing")
            if checksum(path / name) != said:
                raise ModelError(f"{path / name} is cut short or was altered")
        schema = Schema.from_dict(body["schema"])
        said = body["objective"]
        heads = tuple(Head(**head) for head in said["heads"])
        voices = tuple(said["voices"])
        objective = Objective(heads, said["n_members"], said["combine"], voices)
        sizes = (tuple(body["sizes"]), tuple(body["ranks"]), objective.n_outputs)
        layout = Layout(*sizes, tuple(body["slots"]), body["component"])
        content = (path / WORDS).read_bytes()
        vocabulary: Any
        if "crossing" in body:
            from .crosses.vocabulary import CrossedVocabulary

            crosses = (path / CROSSES).read_bytes()
            vocabulary = CrossedVocabulary.loaded(schema, content, crosses, body["crossing"])
        else:
            vocabulary = Vocabulary.from_bytes(schema, content)
        boosted = None
        if BOOSTED in body["checksums"]:
            boosted = Boosted.from_json((path / BOOSTED).read_text())
        shape = (layout.n_rows + layout.n_fields, layout.width)
        rows = _read_table(path / TABLE, shape, layout.n_columns, body.get("packed"))
        moments = None
        if MOMENTS in body["checksums"]:
            moments = mapped(path / MOMENTS, "moments", (layout.n_rows, 2), np.float64)
        parts = {
            "vocabulary": vocabulary,
            "layout": layout,
            "rows": rows,
            "objective": objective,
            "offsets": np.array(body["offsets"], dtype=np.float64),
            "settings": body["settings"],
            "metrics": body["metrics"],
            "history": body["history"],
            "moments": moments,
            "boosted": boosted,
            "lineage": body.get("lineage", []),
        }
        check_parts(parts)
        return parts
    except FieldwiseError as error:
        if isinstance(error, (ModelError, SchemaError)):
            raise
        raise ModelError(f"{path} is damaged: {error}") from error
    except UNSOUND as error:
        raise ModelError(f"{path / HEADER} is damaged: {error!r}") from error


def _read_table(
    file: Path, shape: tuple[int, int], n_columns: int, about: Mapping[str, Any] | None
) -> Any:
    """The table (d + m, R + K) of a model, mapped; packed if the header has `about` it."""
    if about is None:
        return mapped(file, "table", shape, np.float32)
    n, kind = shape[0], np.dtype(about["kind"])
    entries = mapped(file, "table", (n, n_columns), kind)
    scale = mapped(file, "scale", (n,), np.float32)
    bias = mapped(file, "bias", (n, shape[1] - n_columns), np.float32)
    known = {k: v for k, v in about.items() if k != "kind"}
    return Packed(entries if kind == np.int8 else entries.view(np.uint16), scale, bias, known)
