"""Rank all categories of one field for a context: which ad wins here?

Where fields are summed the score is affine in the category's row, z = row . g + rest, with g and
rest from the other fields of the context: one pass over the field's rows. With evidence, trees, a
vote or the component "fm", every candidate is scored, in blocks. Either way the context is encoded
once and the categories not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from . import maths
from .data.schema import slot_positions
from .data.shuffle import wide_values
from .data.vocabulary import FieldVocabulary
from .errors import DataError, SchemaError, SettingError
from .explain.learned import output_names, output_number
from .losses import LOSSES
from .packed import Packed

if TYPE_CHECKING:
    from .model import FieldwiseModel

__all__ = ["rank"]

BLOCK = 1 << 14  # candidates scored at a time


def rank(
    model: FieldwiseModel,
    context: Mapping[str, Any],
    *,
    over: str,
    k: int = 20,
    output: str | None = None,
) -> pl.DataFrame:
    """See `FieldwiseModel.rank`."""
    if not isinstance(context, Mapping):
        raise DataError(f"the context is {type(context).__name__}; it must be a dict of raw values")
    if not isinstance(k, Integral) or isinstance(k, bool) or k < 1:
        raise SettingError(f"k={k!r} must be a whole number of at least 1")
    words = _field(model, over)
    o = output_number(output_names(model.schema, model.objective), output)
    known = _categories(words)
    candidates = known["code"].to_numpy()
    codes, values = model.base_coder(context, without=words.field.name)
    score = _affine_scores if _is_affine(model) else _every_score
    with np.errstate(over="ignore", invalid="ignore"):  # reported below
        z = score(model, codes, values, words.field.name, candidates)
    if not np.isfinite(z).all():
        raise DataError(
            "the context has no finite scores: a number in it is far outside those of training"
        )
    chosen = _best(_order(model, z, o), int(k))
    return pl.DataFrame(
        {
            "category": known["category"].gather(chosen),
            "score": z[chosen, o].astype(np.float64),
            "prediction": _prediction(model, z[chosen], o),
        },
        schema={"category": pl.String, "score": pl.Float64, "prediction": pl.Float64},
    )


def _field(model: FieldwiseModel, name: str) -> FieldVocabulary:
    """The vocabulary of the field to rank, which must have one category in every row."""
    field = model.schema[name]
    if field.cross:
        parents = ", ".join(field.cross)
        raise SchemaError(f"field {name!r} is evidence of {parents}; rank over one of those")
    if field.is_linear:
        raise SchemaError(
            f"field {name!r} is linear, a number without categories; rank over another field, or "
            "train with it in bins"
        )
    if field.is_list:
        raise SchemaError(f"field {name!r} is a list, with several values a row; rank over another")
    found: FieldVocabulary = model.base_vocabulary[name]
    return found


def _categories(words: FieldVocabulary) -> pl.DataFrame:
    """Categories to rank: those with a row of their own, and those merged by compression."""
    merged = pl.col("count") >= words.field.min_count
    return words.entries.filter((pl.col("code") > 0) | merged).sort("code", maintain_order=True)


def _is_affine(model: FieldwiseModel) -> bool:
    """Whether scores are affine in the row of any one field."""
    return (
        model.vocabulary.evidence is None
        and model.boosted is None
        and not model.objective.is_vote
        and model.layout.component == "linear"
    )


def _every_score(
    model: FieldwiseModel, codes: np.ndarray, values: np.ndarray, field: str, of: np.ndarray
) -> np.ndarray:
    """(n, K) the scores of the context with each of the codes `of` in the field"""
    words: Any = model.vocabulary
    schema = model.base_vocabulary.schema
    slot = slot_positions(schema.slots)[schema.names.index(field)].start
    parts = []
    for low in range(0, len(of), BLOCK):
        some = of[low : low + BLOCK]
        block, numbers = codes.repeat(len(some), axis=0), values.repeat(len(some), axis=0)
        block[:, slot] = some
        if words.evidence is not None:
            block, numbers = words.extended(block, numbers, words.evidence.of(block))
        parts.append(model.score_codes(block, numbers).reshape(len(some), -1))
    return np.concatenate(parts) if parts else np.empty((0, model.layout.n_outputs))


def _affine_scores(
    model: FieldwiseModel, codes: np.ndarray, values: np.ndarray, field: str, of: np.ndarray
) -> np.ndarray:
    """The same where fields are summed: T[f_i] . g + rest, over the rows of field i."""
    from .engines.cpu import products, table_rows

    layout = model.layout
    i, R, K = model.schema.names.index(field), layout.n_columns, layout.n_outputs
    at = table_rows(layout, codes)[0]
    stored = model.stored
    taken = stored.decoded(at) if isinstance(stored, Packed) else stored[at]
    taken = taken.astype(np.float64)
    wide = wide_values(codes, values, model.schema.valued)
    if wide is not None:
        taken *= wide[0][:, None]
    brought = np.add.reduceat(taken, layout.slot_starts[:-1], axis=0)  # (m, R + K)
    brought[i] = 0
    slopes = maths.main_slopes(layout, brought, i)[np.arange(R), layout.output]
    own = brought[layout.owner, np.arange(R)]
    pairs = own * (brought[:, :R].sum(axis=0) - own)
    rest = np.bincount(layout.output, pairs, K) + brought[:, R:].sum(axis=0) + model.offsets
    edges = layout.starts[:: layout.n_fields]
    rows, weights = layout.own(i), slopes.astype(np.float32)
    if isinstance(stored, Packed):
        found = products(stored.entries, rows, weights, edges) * stored.scale[rows, None]
        found += stored.bias[rows]
    else:
        found = products(stored, rows, weights, edges)
        found += stored[rows, R:]
    found += rest.astype(np.float32)
    return found[of]


def _order(model: FieldwiseModel, z: np.ndarray, o: int) -> np.ndarray:
    """(n,) what candidates are ordered by: the score, or with more than two classes the log
    probability, which depends on all classes' scores"""
    h, _ = model.objective.place_of(o)
    if model.objective.heads[h].loss != "softmax":
        return z[:, o]
    every = z[:, model.objective.outputs[h]].astype(np.float64)
    top = every.max(axis=1, keepdims=True)
    total: np.ndarray = np.log(np.exp(every - top).sum(axis=1)) + top[:, 0]
    return z[:, o] - total


def _prediction(model: FieldwiseModel, z: np.ndarray, o: int) -> np.ndarray:
    """(n,) the probability, number or rate of the scores"""
    h, place = model.objective.place_of(o)
    meaning = LOSSES[model.objective.heads[h].loss].prediction
    found = meaning(model.objective.by_head(z)[h].astype(np.float64))
    return found[:, place] if found.ndim > 1 else found


def _best(z: np.ndarray, k: int) -> np.ndarray:
    """The positions of the k highest, highest first, ties in order"""
    if k < len(z):
        least = np.partition(z, len(z) - k)[len(z) - k]
        places = np.flatnonzero(z >= least)
    else:
        places = np.arange(len(z))
    return places[np.argsort(-z[places], kind="stable")[:k]]
