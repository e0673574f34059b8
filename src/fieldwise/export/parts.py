"""A model field by field, as exports need it: the codes of values, the rows of the table that a
field owns, and the evidence of crossed categories."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ..data.schema import Field
from ..data.vocabulary import UNSEEN_CODE
from ..errors import ModelError
from ..model import FieldwiseModel

__all__ = [
    "REFUSED_CODE",
    "Cross",
    "Output",
    "Part",
    "crosses_of",
    "identity",
    "outputs_of",
    "parts_of",
    "require_sum",
]

REFUSED_CODE = -2  # a value that the model refuses


@dataclass(frozen=True)
class Part:
    """One field. A code past `size`, of a category that only crosses distinguish, has row 0."""

    number: int
    field: Field
    size: int
    missing: int  # the code of no value
    unseen: int  # the code of a value never seen
    words: pl.DataFrame  # category, code; empty for a field of numbers
    evidence: int | None = None  # for a field made of evidence, the index of its column


@dataclass(frozen=True)
class Cross:
    """The fields of a cross, the codes (g, k) and evidence (g, T) of its crossed categories."""

    fields: tuple[int, ...]
    codes: np.ndarray
    evidence: np.ndarray


@dataclass(frozen=True)
class Output:
    """A score of the `head`-th head, and the names of it and of its prediction."""

    head: int
    score: str
    prediction: str


def require_sum(model: FieldwiseModel, to: str) -> None:
    """Raise if a model's prediction is more than a sum over fields and pairs of them."""
    if model.boosted is not None:
        raise ModelError(
            f"the model ends in boosted trees (preset 'best'), which {to} cannot carry; export "
            "to ONNX instead, or train with the preset 'glass'"
        )
    if model.objective.is_vote:
        raise ModelError(
            f"the model's fields vote (combine={model.objective.combine!r}), which {to} cannot "
            "carry; train with combine='sum'"
        )
    if model.layout.component != "linear":
        raise ModelError(
            f"the model's component is {model.layout.component!r}, which {to} cannot carry; train "
            "with component='linear'"
        )


def identity(model: FieldwiseModel) -> str:
    """A model's identity: 16 digits of a checksum of all that its predictions depend on."""
    found = hashlib.sha256(model.schema.to_json().encode())
    found.update(np.ascontiguousarray(model.rows).data)
    found.update(model.offsets.tobytes())
    found.update(model.vocabulary.to_bytes())
    return found.hexdigest()[:16]


def parts_of(model: FieldwiseModel) -> list[Part]:
    """Every field of the model, those of the table first, then those made of evidence."""
    words: Any = model.vocabulary
    base = model.base_vocabulary.fields
    out = []
    for i, (field, size) in enumerate(zip(model.schema.fields, model.layout.sizes, strict=True)):
        if field.cross:
            at = (i - len(base)) % words.evidence.shrink.size
            nothing = pl.DataFrame(schema={"category": pl.String, "code": pl.Int32})
            out.append(Part(i, field, size, UNSEEN_CODE, UNSEEN_CODE, nothing, at))
            continue
        unseen = {"mean": UNSEEN_CODE, "rare": 0, "error": REFUSED_CODE}[field.unseen]
        missing = 1 if field.is_linear else base[i].missing_code
        known = base[i].entries.drop_nulls("category").select("category", "code")
        known = known if field.is_counted else known.clear()
        out.append(Part(i, field, size, unseen if missing < 0 else missing, unseen, known))
    return out


def crosses_of(model: FieldwiseModel) -> list[Cross]:
    """The model's crosses, with the indices of their fields."""
    words: Any = model.vocabulary
    if words.evidence is None:
        return []
    names = model.schema.names
    pairs = zip(words.parents, words.evidence.codes, strict=True)
    return [
        Cross(tuple(map(names.index, fields)), codes, words.evidence.said(k))
        for k, (fields, codes) in enumerate(pairs)
    ]


def outputs_of(model: FieldwiseModel) -> list[Output]:
    """Every score, with the column names that written predictions have."""
    out = []
    several = len(model.objective.heads) > 1
    pairs = zip(model.objective.heads, model.schema.targets, strict=True)
    for number, (head, target) in enumerate(pairs):
        name = f"{target.column}_" if several else ""
        kind = "probability" if head.is_class else "prediction"
        labels = [f"_{c}" for c in target.classes] if head.size > 1 else [""]
        out += [Output(number, f"{name}score{x}", f"{name}{kind}{x}") for x in labels]
    return out
