"""One category's own model with everything else fixed: a row of the table, from a few rows of data.

Given all other rows of the table a score is linear in this one, so the best fit is a small convex
problem,

    minimise over r   sum_s w_s loss(z_s + x_s (D_s . r), y_s) / noise
                      + 1/2 sum_t ((r_t - mean_t) / spread_t)^2

where mean and spread are those of the field's rows: a category with little data stays close to the
others of its field. Newton's method solves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import maths
from .blas import one_blas_thread
from .errors import DataError, ModelError, SettingError
from .losses import LOSSES
from .objective import Head

if TYPE_CHECKING:
    from .model import FieldwiseModel

__all__ = ["Known", "best_row", "with_category"]

LEAST_SPREAD = 1e-3  # for a field whose rows are all alike
MOST_STEPS = 100
SHORTEST = 1e-9  # shortest step tried; if it is no better either, the search ends
PIECE = 2048  # rows processed at a time
GAIN = 1e-13  # of a step, relative to the objective; with less the search ends


@dataclass(frozen=True)
class Known:
    """Data to fit: design (n, k, P), scores without it (n, k), targets and weights (n,)"""

    design: np.ndarray
    base: np.ndarray
    y: np.ndarray
    w: np.ndarray


def best_row(
    known: Known, head: Head, mean: np.ndarray, spread: np.ndarray, noise: float = 1.0
) -> np.ndarray:
    """The row that fits best, (k, P) for the k outputs of a head; mean and spread (k, P)"""
    loss, (n, k, width) = LOSSES[head.loss], known.design.shape
    if loss.curvature is None:
        raise ModelError(f"one category alone cannot be learned with the loss {head.loss!r}")
    # In units of the spread around the mean: the penalty is v.v / 2, the problem well conditioned.
    design = (known.design * spread).reshape(n, k, width)
    base = known.base + np.einsum("nkp,kp->nk", known.design, mean)
    weight = known.w / noise

    def scores(v: np.ndarray) -> np.ndarray:
        z = base + np.einsum("nkp,kp->nk", design, v.reshape(k, width))
        return z if head.size > 1 else z[:, 0]

    def value(v: np.ndarray) -> float:
        return float(weight @ loss.value(scores(v), known.y, head.delta) + v @ v / 2)

    v = np.zeros(k * width)
    now = value(v)
    for _ in range(MOST_STEPS):
        z = scores(v)
        slope = loss.derivative(z, known.y, head.delta).reshape(n, k) * weight[:, None]
        bend = loss.curvature(z, known.y, head.delta).reshape(n, k, k) * weight[:, None, None]
        gradient = np.einsum("nk,nkp->kp", slope, design).reshape(-1) + v
        step = np.linalg.solve(_hessian(design, bend), gradient)
        size, gain = 1.0, float(gradient @ step)
        if not gain > 0:
            break
        while size >= SHORTEST and (after := value(v - size * step)) > now - 1e-4 * size * gain:
            size /= 2
        if size < SHORTEST:
            break
        v, now = v - size * step, after
        if gain <= GAIN * (1 + abs(now)):
            break
    return mean + spread * v.reshape(k, width)


def _hessian(design: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """(k P, k P) of the losses, plus the unit matrix of the penalty"""
    _, k, width = design.shape
    out = np.eye(k * width)
    for a in range(k):
        for b in range(a, k):
            part = design[:, a].T @ (bend[:, a, b, None] * design[:, b])
            rows, columns = (slice(o * width, (o + 1) * width) for o in (a, b))
            out[rows, columns] += part
            if b > a:
                out[columns, rows] += part.T
    return out


def with_category(model: FieldwiseModel, field: str, value: Any, data: Any) -> FieldwiseModel:
    """The model with one more category, learned from a table of rows that all have it."""
    words: Any = getattr(model.vocabulary, "opened", model.vocabulary)
    j, key, text = _checked(model, words, field, value)
    rows = _coded(model, words, j, key, text, data)
    # Small matrices: more threads would mostly wait for each other, long on a busy machine.
    with one_blas_thread():
        row = _learned_row(model, j, rows)
    layout, at, n = model.layout, int(model.layout.offsets[j + 1]), len(rows.x)
    sizes = list(layout.sizes)
    sizes[j] += 1
    moments = model.moments
    if moments is not None:
        total = model.settings.get("rows", 0) + n
        mine = [rows.x.sum() / total, (rows.x**2).sum() / total]
        moments = np.insert(moments, at, mine, axis=0)
    return replace(
        model,
        vocabulary=words.with_category(j, key, n),
        layout=replace(layout, sizes=tuple(sizes)),
        # The rows of unseen values (the means) stay too: nothing else may change.
        rows=np.insert(model.rows, at, row.astype(np.float32), axis=0),
        moments=moments,
        _told=set(model._told),
    )


def _checked(
    model: FieldwiseModel, words: Any, name: str, value: Any
) -> tuple[int, str | None, str | None]:
    """The field's index, and the key and text of the value, which must not have a row yet."""
    import polars as pl

    from .data.values import as_text, field_keys

    if model.boosted is not None or model.objective.is_vote:
        what = "trees combine" if model.boosted is not None else "votes decide on"
        raise ModelError(
            f"{what} the scores of this model, so they do not add up to the prediction, and one "
            "category alone cannot be learned; update the model instead"
        )
    field = model.schema[name]
    if not field.is_counted or field.cross:
        raise SettingError(
            f"field {name!r} has no categories of its own to add one to: it is made of "
            f"{'evidence' if field.cross else 'numbers'}"
        )
    text = as_text(pl.Series([value], strict=False))
    key = field_keys(field, text)[0]
    if key is None and value is not None:
        raise DataError(f"{value!r} is not a value that field {name!r} can take")
    known = words[name].entries.filter(pl.col("category").eq_missing(pl.lit(key, pl.String)))
    if known["code"].max():
        raise SettingError(
            f"category {value!r} of {name!r} has a model of its own, learned from "
            f"{known['count'].sum():,} rows; continue from there with update"
        )
    return model.schema.names.index(field.name), key, text[0]


@dataclass(frozen=True)
class _Rows:
    """Coded rows: codes and values (n, S) of all slots but those of the new category, whose value
    is x (n,); targets (n, heads) and weights (n,)"""

    codes: np.ndarray
    values: np.ndarray
    x: np.ndarray
    y: np.ndarray
    w: np.ndarray


def _coded(
    model: FieldwiseModel, words: Any, j: int, key: str | None, text: str | None, data: Any
) -> _Rows:
    """The rows of `data`, all of which have the key; `text` is the value if its column is
    missing."""
    import polars as pl

    from .data.labels import target_values, weight_values
    from .data.readers import open_source
    from .data.schema import check_names, slot_positions
    from .data.vocabulary import lone

    field, schema = model.schema.fields[j], model.schema
    source = open_source(data, schema=schema)
    # A column that only this field uses may be missing.
    given = field.column not in source.columns and field.part is None
    given &= [f.column for f in schema.fields if not f.cross].count(field.column) == 1
    needed = [*schema.columns, *schema.roles]
    check_names([c for c in needed if c != field.column or not given], source.columns, "column")
    alone, place = lone(field, key), slot_positions(schema.slots)[j]
    if field.unseen == "error":
        words = words.lenient()
    parts = []
    for chunk in source.chunks():
        if given:
            column = pl.lit(text, pl.String).alias(field.column)
            chunk = replace(chunk, frame=chunk.frame.with_columns(column))
        is_it = alone.encode(chunk)[0] == 1  # (n, slots of the field)
        if not is_it.any(axis=1).all():
            row = int(np.argmin(is_it.any(axis=1)))
            raise DataError(
                f"{chunk.locate(row)}: column {field.column!r} holds "
                f"{chunk.frame[field.column][row]!r}, not {key!r}; every row must have it"
            )
        codes, values = words.encode(chunk)
        wide = model._wide(codes, values)
        wide = np.ones(codes.shape) if wide is None else wide.astype(np.float64)
        own = wide[:, place.start : place.stop]
        x = (own * is_it).sum(axis=1)
        own[is_it] = 0.0
        codes[:, place.start : place.stop][is_it] = 0
        parts.append((codes, wide, x, target_values(chunk, schema), weight_values(chunk, schema)))
    return _Rows(*map(np.concatenate, zip(*parts, strict=True)))


def _learned_row(model: FieldwiseModel, j: int, rows: _Rows) -> np.ndarray:
    """(R + K,) the new category's row"""
    layout = model.layout
    base, slope = _design(model, j, rows)
    base += model.offsets - np.log(model.settings.get("sampling_rate", 1.0))
    own = model.table[layout.own(j)].astype(np.float64)
    mean = model.rows[layout.n_rows + j].astype(np.float64)
    share = maths.category_shares(layout, model.vocabulary.counts())[layout.own(j)]
    spread = np.sqrt(share @ (own - mean) ** 2).clip(LEAST_SPREAD)
    out = np.empty(layout.width)
    for (head, first, target), noise in zip(model.objective.copies, model._noise(), strict=True):
        columns = np.array(
            [
                [*np.flatnonzero(layout.output == o), layout.n_columns + o]
                for o in range(first, first + head.size)
            ]
        )
        design = np.stack([slope[:, one] for one in columns], axis=1) * rows.x[:, None, None]
        known = Known(design, base[:, first : first + head.size], rows.y[:, target], rows.w)
        squares = _noise(head, known, mean[columns], noise)
        out[columns] = best_row(known, head, mean[columns], spread[columns], squares)
    return out


def _design(model: FieldwiseModel, j: int, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Scores without the category (n, K), and the factors of its row's entries (n, R + K)"""
    layout, parts = model.layout, []
    at = layout.rows_or_unseen(rows.codes)
    for start in range(0, len(at), PIECE):
        piece = slice(start, start + PIECE)
        table, inside = maths.local(model.rows, at[piece])
        z, slope = maths.given_others(table, layout, inside, j, rows.values[piece])
        parts.append((z, np.concatenate([slope, np.ones_like(z)], axis=1)))
    base, slopes = map(np.concatenate, zip(*parts, strict=True))
    return base, slopes


def _noise(head: Head, known: Known, mean: np.ndarray, rmse: float | None) -> float:
    """The variance of a number around its score: the model's held-out one, or that of these rows
    around the field's mean. Losses of classes and counts imply their own."""
    if head.loss not in ("squared", "huber"):
        return 1.0
    if rmse is None:
        z = known.base[:, 0] + known.design[:, 0] @ mean[0]
        rmse = float(np.sqrt(np.average((known.y - z) ** 2, weights=known.w)))
    return max(rmse**2, 1e-12)
