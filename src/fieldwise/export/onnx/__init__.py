"""A model as one ONNX file: raw values in, one input per column; predictions, scores and what every
field adds to them out. docs/exporting.md says what inputs and outputs look like.

    columns.py    raw columns to numbers for what fields hold
    times.py      calendar parts of a column of times
    evidence.py   the evidence of crossed categories
    scores.py     the field-wise score and its contributions
    trees.py      boosted trees over it
    graph.py      how a graph is made
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ...explain.rows import credit_shares
from ...files import write_atomically
from ...losses import LARGEST
from ...model import FieldwiseModel
from ...objective import Head
from ..parts import REFUSED_CODE, Part, parts_of, require_sum
from . import scores
from .columns import Numbering, read_columns
from .evidence import crossed
from .graph import Graph
from .trees import tree_scores

__all__ = ["write"]

ABOUT = "What a fieldwise model predicts of the raw values of a row."


def write(
    model: FieldwiseModel,
    path: Path,
    *,
    missing: str = "",
    contributions: bool | None = None,
) -> None:
    """Write the file. `missing` is the text that means no value; `contributions` adds an output of
    what every field adds to the score; None: if the model is a sum that knows how often its
    categories were seen."""
    require_sum(replace(model, boosted=None), "ONNX")  # which can carry trees
    explained = _may_explain(model, contributions)
    parts = parts_of(model)
    words: Any = model.vocabulary
    own = [part for part in parts if part.evidence is None]
    graph = Graph(model.schema.columns)
    numbering = Numbering(model.layout.sizes)
    held = numbering if words.evidence is None else Numbering(words.base.sizes)
    graph.check_room(4 * model.rows.size)
    found = read_columns(graph, own, held, missing)
    extras: list[str] = []
    if words.evidence is not None:
        found, extras = crossed(graph, model, parts, found, held, numbering)
    of = scores.centred(model, around_means=explained)
    rows = scores.brought(graph, of, numbering, found)
    sums = scores.summed(graph, of, rows)
    if model.boosted is None:
        z = scores.score(graph, of, sums, "score")
    else:
        z = _boosted(graph, model, scores.score(graph, of, sums, "fieldwise_score"), extras, own)
    about: dict[str, Any] = {"missing": missing, **_outputs(graph, model, z)}
    if explained:
        about |= _contributions(graph, model, of, rows, sums)
    metadata = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    write_atomically(path, graph.finished(ABOUT, metadata))


def _may_explain(model: FieldwiseModel, wanted: bool | None) -> bool:
    """Whether to output contributions; raises if they are wanted but impossible."""
    why = ""
    if model.boosted is not None:
        why = "boosted trees combine the fields' scores (preset 'best'); 'glass' has them"
    elif not model.vocabulary.counts().any():
        why = "the model does not know how often its categories were seen; train it again"
    if why and wanted:
        raise ModelError(f"ONNX cannot carry the contributions of this model: {why}")
    return not why and wanted is not False


def _boosted(
    graph: Graph, model: FieldwiseModel, z: str, extras: list[str], own: list[Part]
) -> str:
    """The trees' score, (n,) or (n, K), given the field-wise score z."""
    assert model.boosted is not None
    single = model.layout.n_outputs == 1
    column = graph("Unsqueeze", z, np.array([1])) if single else z
    found = tree_scores(graph, graph("Concat", column, *extras, axis=1), model.boosted)
    if any(part.unseen == REFUSED_CODE for part in own):  # trees would score NaN, too
        found = graph("Add", found, graph("Mul", column, np.array(0, np.float32)))
    return graph("Reshape", found, np.array([-1] if single else [0, -1]), name="score")


def _outputs(graph: Graph, model: FieldwiseModel, z: str) -> dict[str, Any]:
    """Output the score and the prediction of every target; returns metadata on them."""
    heads, targets = model.objective.heads, model.schema.targets
    n_scores = sum(head.size for head in heads)
    each = [z]
    if len(heads) > 1:
        sizes = np.array([head.size for head in heads])
        each = graph.several("Split", z, sizes, n=len(heads), axis=1)
    for head, target, own in zip(heads, targets, each, strict=True):
        kind = "probability" if head.is_class else "prediction"
        name = kind if len(heads) == 1 else f"{target.column}_{kind}"
        if len(heads) > 1 and head.size == 1:
            own = graph("Squeeze", own, np.array([1]))
        what = f"of {target.column}" + (f" being {target.classes[-1]}" if target.classes else "")
        shape: list[str | int] = ["N"]
        if head.size > 1:
            shape, what = ["N", head.size], f"of {target.column} being {', '.join(target.classes)}"
        graph.output(_prediction(graph, head, own, name), shape, f"{kind} {what}")
    graph.output(z, ["N"] if n_scores == 1 else ["N", n_scores], "score")
    return {
        "targets": [target.column for target in targets],
        "classes": [list(target.classes) for target in targets],
    }


def _prediction(graph: Graph, head: Head, z: str, name: str) -> str:
    if head.loss == "logistic":
        return graph("Sigmoid", z, name=name)
    if head.loss == "softmax":
        return graph("Softmax", z, axis=-1, name=name)
    if head.loss == "poisson":
        return graph("Exp", graph("Min", z, np.array(LARGEST, np.float32)), name=name)
    return graph("Identity", z, name=name)


def _contributions(
    graph: Graph,
    model: FieldwiseModel,
    of: scores.Centred,
    rows: scores.Brought,
    sums: scores.Summed,
) -> dict[str, Any]:
    """Output what every field of the table adds to the score; returns metadata on it."""
    crosses = {f.name: f.cross for f in model.schema.fields if f.cross}
    names, share = credit_shares(model.schema.names, crosses)
    made = scores.contributions(graph, of, rows, sums, share, "contributions")
    K = model.layout.n_outputs
    shape: list[str | int] = ["N", len(names)] if K == 1 else ["N", K, len(names)]
    graph.output(made, shape, "what every field adds to the score")
    base = of.base.tolist()
    return {"fields": names, "base": base[0] if K == 1 else base}
