"""A model as one Python file that needs NumPy alone: `standalone.py` with the model in it.

The model is JSON (fields, vocabularies) and arrays (the table, evidence), compressed and written as
text: about 5 bytes per number of the table.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..data.text import NULL_WORDS
from ..errors import ModelError
from ..files import write_atomically
from ..losses import LARGEST
from ..model import FieldwiseModel
from .parts import Part, crosses_of, identity, outputs_of, parts_of, require_sum

__all__ = ["write"]

MOST = 1 << 28  # bytes of numbers: Python reads a larger file slowly, or not at all
EMPTY = 'DATA = ""  # the model: JSON and arrays, compressed\n'
LINE = 98


def write(model: FieldwiseModel, path: Path, *, model_id: str | None = None) -> None:
    """Write the file, completely or not at all."""
    require_sum(model, "Python")
    n_bytes = model.rows.size * 4
    if n_bytes > MOST:
        raise ModelError(
            f"the model's table has {n_bytes >> 20:,} MiB, and one Python file holds at most "
            f"{MOST >> 20:,}; export to ONNX, or compress the model first"
        )
    code = Path(__file__).with_name("standalone.py").read_text(encoding="utf-8")
    data = base64.b85encode(zlib.compress(_content(model))).decode()
    lines = "\n".join(data[k : k + LINE] for k in range(0, len(data), LINE))
    targets = json.dumps([target.column for target in model.schema.targets])
    columns = json.dumps(model.schema.columns)
    header = (
        f"# Written by fieldwise {__version__}, of the model {model_id or identity(model)}.\n"
        f"# It predicts {targets} from {columns}.\n"
        f"# The model itself is at the end, {len(lines):,} bytes of this file.\n\n"
    )
    before, after = code.split(EMPTY)
    filled = f'DATA = """\n{lines}\n"""\n'
    write_atomically(path, f"{header}{before}{filled}{after}".encode())


def _content(model: FieldwiseModel) -> bytes:
    """The length of the JSON, the JSON, and the concatenated arrays."""
    crosses = crosses_of(model)
    arrays = {"table": np.asarray(model.rows, "<f4")}
    if model.vocabulary.counts().any():
        arrays["means"] = np.asarray(model.learned.explainer.mean, "<f8")
    for k, cross in enumerate(crosses):
        arrays[f"codes_{k}"] = np.asarray(cross.codes, "<i4")
        arrays[f"evidence_{k}"] = np.asarray(cross.evidence, "<f4")
    targets = zip(model.objective.heads, model.schema.targets, strict=True)
    about = {
        "fields": [_facts(part) for part in parts_of(model)],
        "ranks": list(model.layout.ranks),
        "offsets": model.offsets.tolist(),
        "heads": [
            {"loss": head.loss, "size": head.size, "is_class": head.is_class,
             "target": target.column, "largest": LARGEST}
            for head, target in targets
        ],
        "shown": [output.prediction for output in outputs_of(model)],
        "null_words": ["", *NULL_WORDS],
        "crosses": [list(cross.fields) for cross in crosses],
        "n_targets": crosses[0].evidence.shape[1] if crosses else 0,
        "arrays": [(name, a.dtype.str, a.shape) for name, a in arrays.items()],
    }  # fmt: skip
    text = json.dumps(about).encode()
    pieces = [len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in arrays.values())]
    return b"".join(pieces)


def _facts(part: Part) -> dict[str, Any]:
    """The file's description of a field."""
    field = part.field
    return {
        "name": field.name,
        "column": field.column,
        "part": field.part,
        "dtype": field.dtype,
        "binning": field.binning,
        "edges": list(field.edges or ()),
        "center": field.center or 0.0,
        "scale": field.scale or 1.0,
        "separator": field.separator,
        "pooling": field.pooling,
        "n_slots": field.n_slots if field.is_list else 0,
        "cross": list(field.cross),
        "evidence": part.evidence,
        "size": part.size,
        "missing": part.missing,
        "unseen": part.unseen,
        "words": part.words["category"].to_list(),
        "codes": part.words["code"].to_list(),
    }
