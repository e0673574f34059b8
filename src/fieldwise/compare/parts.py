"""The training, validation and test rows of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.schema import slot_positions
from ..data.shuffle import Seen, wide_values
from ..data.store import Store, is_store
from ..data.words import StoredWords
from ..errors import SettingError
from ..files import write_atomically
from ..fitting import objective_of
from ..held_out import held_out_rows
from ..layout import Layout
from ..problem import Problem

__all__ = ["Parts", "encoded", "parted"]

PIECE = 1 << 18  # rows counted at a time
NAMES = ("training", "validation", "test")


@dataclass(frozen=True)
class Parts:
    """A problem, with the validation part as its judge, and the mask of the test rows."""

    problem: Problem
    test: np.ndarray
    about: dict[str, Any]


def encoded(
    data: Any,
    folder: Path,
    reading: Mapping[str, Any],
    others: Mapping[str, Any],
    *,
    show: bool | None,
) -> tuple[Store, list[int]]:
    """The store of a comparison, made now or kept from before, and where its given parts end.

    `others` are tables for validation and test, encoded with the vocabulary of `data`.
    """
    path, ends = folder / "store", folder / "parts.json"
    if ends.is_file():
        return Store(path), json.loads(ends.read_text())
    if is_store(data):
        if others:
            raise SettingError("a store must hold all rows; leave the other tables out")
        return Store(data), []
    from ..data.encoding import encode

    cuts: list[int] = []
    store = encode(data, path, overwrite=True, show=show, **reading)
    text = {k: reading[k] for k in ("format", "separator", "quote") if k in reading}
    for other in others.values():
        cuts.append(store.n_rows)
        store = encode(other, path, append=True, show=show, **text)
    write_atomically(ends, json.dumps(cuts).encode())
    return store, cuts


def parted(
    store: Store, cuts: list[int], split: str, validation: float, test: float, seed: int
) -> Parts:
    """Split a store where given tables end, or by a rule: test rows first, then validation rows.

    Only categories that occur in the training rows are known; all others are unseen.
    """
    words, schema = StoredWords(store), store.schema
    if len(schema.targets) != 1:
        raise SettingError("a comparison has one target; name the column to learn")
    objective = objective_of(schema)
    if not objective.heads[0].is_class:
        raise SettingError(
            f"a comparison is of classes, and {schema.targets[0].column!r} is numbers; "
            "for two classes use a column that holds 0 and 1"
        )
    masks = _masks(store, words, cuts, split, validation, test, seed)
    target = store.array("target")[:, 0]
    _check_masks(masks, target, schema.targets[0].classes)
    layout = Layout.of(
        words.sizes,
        overrides=dict.fromkeys(schema.linear, 0),
        n_outputs=objective.n_outputs,
        slots=schema.slots,
    )
    counts = _counts(store, layout, masks[0])
    pairs = zip(schema.fields, slot_positions(schema.slots), strict=True)
    rare = [s for field, slots in pairs if field.unseen == "rare" for s in slots]
    problem = Problem(
        layout=layout,
        rows=Seen(store, layout, counts, rare),
        counts=counts,
        only=masks[0],
        held_out=masks[1],
        valued=schema.valued,
        ordered=schema.ordered,
        objective=objective,
    )
    about = {
        "rows": {name: int(mask.sum()) for name, mask in zip(NAMES, masks, strict=True)},
        "fields": layout.n_fields,
        "categories": layout.n_rows,
        "target": schema.targets[0].column,
        "classes": max(2, objective.heads[0].size),
        "share": float(target.mean()),
        "split": "given" if cuts else split,
    }
    return Parts(problem, masks[2], about)


def _masks(
    store: Store,
    words: StoredWords,
    cuts: list[int],
    split: str,
    validation: float,
    test: float,
    seed: int,
) -> list[np.ndarray]:
    """(n_rows,) true for the rows of a part, for each of `NAMES`"""
    if cuts:
        number = np.searchsorted(cuts, np.arange(store.n_rows), side="right")
        return [number == k for k in range(3)]
    if not (validation > 0 and test > 0 and validation + test < 1):
        raise SettingError(
            f"validation={validation} and test={test} must be more than 0 and less than 1 together"
        )
    last = held_out_rows(store, words, split, test, seed)
    both = held_out_rows(store, words, split, test + validation, seed)  # includes `last`
    return [~both, both & ~last, last]


def _check_masks(masks: list[np.ndarray], target: np.ndarray, classes: Sequence[str]) -> None:
    """Raise if a part is empty or lacks classes."""
    for name, mask in zip(NAMES, masks, strict=True):
        if not mask.any() or target[mask].min() == target[mask].max():
            what = "is empty" if not mask.any() else "has one class only"
            raise SettingError(f"the {name} part {what}; choose another split or larger shares")
    lacking = set(range(len(classes))) - set(np.unique(target[masks[0]]).tolist())
    if len(classes) > 2 and lacking:
        raise SettingError(
            f"the training part has no row of class {classes[min(lacking)]!r}; choose another split"
        )


def _counts(store: Store, layout: Layout, only: np.ndarray) -> np.ndarray:
    """(d,) how often each category occurs in these rows; empty slots of lists have the value 0"""
    out = np.zeros(layout.n_rows, np.int64)
    first = layout.offsets[layout.slot_owner]
    schema = store.schema
    in_lists = np.isin(np.arange(layout.n_slots), [*set(schema.valued) - set(schema.ordered)])
    for start in range(0, store.n_rows, PIECE):
        found = store.read(start, min(start + PIECE, store.n_rows))
        codes, here = found["codes"], only[start : start + PIECE, None]
        there = here & (codes >= 0)
        wide = wide_values(codes, found.get("values"), schema.valued)
        if wide is not None:
            there &= ~in_lists | (wide != 0)
        out += np.bincount((codes + first)[there], minlength=layout.n_rows)
    return out
