"""Checks that the parts of a loaded model fit together; each part by itself is checked before.
Kernels rely on it: with parts that do not fit they would read outside of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .layout import Layout
from .objective import Objective

__all__ = ["check_body", "check_parts"]

BODY = {"schema": dict, "objective": dict, "checksums": dict, "settings": dict, "metrics": dict}
LISTS = ("sizes", "ranks", "slots", "offsets", "history")
NUMBERS = (int, float)


def check_body(body: Mapping[str, Any], files: tuple[str, ...]) -> None:
    """Raise a ValueError if a header does not have the form of one."""
    for name, kind in {**BODY, **dict.fromkeys(LISTS, list)}.items():
        _require(isinstance(body[name], kind), f"{name} is {type(body[name]).__name__}")
    records = [*body["history"], *body.get("lineage", [])]
    _require(all(isinstance(r, dict) for r in records), "the history is not a list of records")
    metrics = body["metrics"].values()
    _require(all(type(x) in NUMBERS for x in metrics), "a metric is not a number")
    rate = body["settings"].get("sampling_rate", 1.0)
    _require(type(rate) in NUMBERS and 0 < rate <= 1, f"the sampling rate is {rate!r}")
    for name in ("sizes", "ranks", "slots"):
        _require(all(type(n) is int for n in body[name]), f"{name} are not whole numbers")
    unknown = sorted(set(body["checksums"]) - set(files))
    _require(not unknown, f"it names {unknown}, which no model has")
    missing = sorted(set(files[:2]) - set(body["checksums"]))
    _require(not missing, f"it has no checksum of {missing}")


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise a ValueError if the parts of a model do not fit together."""
    words, layout, objective = parts["vocabulary"], parts["layout"], parts["objective"]
    schema = words.schema
    _check_fields(words, layout)
    _check_objective(schema, layout, objective, parts["offsets"])
    _require(not schema.valued or parts["moments"] is not None, "moments of values are missing")
    if words.evidence is not None:
        _check_crosses(words)
    if parts["boosted"] is not None:
        _require(not objective.is_vote, "trees do not go with a vote")
        n_features = layout.n_outputs + len(getattr(words, "extra_parents", ()))
        parts["boosted"].check(n_features, layout.n_outputs)


def _check_fields(words: Any, layout: Layout) -> None:
    schema = words.schema
    _require(
        tuple(words.sizes) == layout.sizes and schema.slots == layout.slots,
        f"the fields' vocabularies have {words.sizes} rows and {schema.slots} slots, the table "
        f"{layout.sizes} and {layout.slots}",
    )


def _check_objective(schema: Any, layout: Layout, objective: Objective, offsets: Any) -> None:
    heads, targets = objective.heads, schema.targets
    _require(len(heads) == len(targets), f"{len(heads)} losses of {len(targets)} targets")
    for head, target in zip(heads, targets, strict=True):
        n = len(target.classes)
        fits = head.size == n if head.loss == "softmax" else n == 2 if head.is_class else n == 0
        fits |= head.loss == "logistic" and target.kind == "share"
        _require(fits, f"target {target.column!r} has {n} classes for {head}")
    _require(
        offsets.shape == (layout.n_outputs,) and bool(np.isfinite(offsets).all()),
        f"offsets {offsets} of {layout.n_outputs} outputs",
    )
    voices = np.array(objective.voices, np.float64)
    _require(
        voices.shape in ((0,), (layout.n_fields,))
        and bool((voices >= 0).all() and np.isfinite(voices).all())
        and (not len(voices) or voices.sum() > 0),
        f"voices {objective.voices} of {layout.n_fields} fields",
    )
    _require(objective.is_vote or objective.n_members == 1, "several members without a vote")


def _check_crosses(words: Any) -> None:
    evidence, n_slots = words.evidence, sum(words.base.schema.slots)
    shape = (len(evidence.crosses), evidence.n_targets)
    shrink, mean = evidence.shrink, evidence.mean
    members = [s for cross in evidence.crosses for s in cross]
    _require(
        all(type(s) is int and 0 <= s < n_slots for s in members) and all(evidence.crosses),
        f"crosses {evidence.crosses} of {n_slots} slots",
    )
    _require(
        shrink.shape == shape and shape[1] > 0 and bool((shrink >= 0).all()),
        f"shrinkage of shape {shrink.shape}, not {shape}",
    )
    _require(mean is None or mean.shape == shape[1:], "means of other targets")
    _require(type(words.floor) is int and words.floor >= 1, f"floor={words.floor!r}")
    _require(type(words.with_extras) is bool, f"with_extras={words.with_extras!r}")
    _require(not words.own or shape[0] > 0, "fields of evidence without crosses")
    known = set(words.base.schema.names)
    parents = {name for f in words.own for name in f.field.cross}
    _require(parents <= known, f"evidence of {sorted(parents - known)}, which are not fields")
    _require(all(not f.field.is_counted for f in words.own), "evidence in fields of categories")


def _require(holds: bool, told: str) -> None:
    if not holds:
        raise ValueError(told)
