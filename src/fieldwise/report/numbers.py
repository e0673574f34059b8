"""All numbers of a report, from which the page, the text and the plots are made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..data.labels import target_values, weight_values
from ..data.shuffle import wide_values
from ..errors import DataError, SettingError
from ..explain.calibration import Judge
from ..explain.fields import FieldImportance
from ..explain.learned import Learned
from ..losses import LOSSES
from ..metrics import measure
from ..model import FieldwiseModel
from ..progress import progress

__all__ = ["report_numbers"]

CARDS = 600  # full cards, at most; the page holds as many of them as fit
CARDS_A_FIELD = 3  # for the largest categories of every field, always
TYPICAL, EXTREME = 20, 10  # rows shown: spread over the table; highest, lowest and most wrong


def report_numbers(
    model: FieldwiseModel,
    data: Any = None,
    *,
    output: str | None = None,
    cards: int = CARDS,
    show: bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What a model learned and, with a table, how well it predicts there.

    `output` names a class, or one of several targets. Of a table without the target, rows are
    explained but the model is not evaluated.
    """
    learned = model.learned
    o = learned.output(output)
    output = learned.outputs[o]
    with progress("report", 3, show=show) as report:
        fields = learned.fields(output)
        report(1, "rows")
        judged = None if data is None else _judged(model, learned, data, o, options)
        report(2, "cards")
        chosen = _largest(learned, cards)
        shown = [learned.card(i, code, output=output).to_dict() for i, code in chosen]
        report(3)
    return {
        "title": ", ".join(target.column for target in model.schema.targets),
        "file": "" if judged is None else judged.pop("file"),
        "summary": _summary(model, o, output),
        "history": list(model.history),
        "fields": _fields(model, fields),
        "pairs": fields.pairs + np.diag(fields.share),
        "categories": _every_category(learned, output),
        "cards": shown,
        "odd": learned.odd(output=output),
        "bound": _bound(model),
        "data_metrics": None,
        "rows": None,
        "calibration": None,
        "slices": None,
        **(judged or {}),
    }


def _summary(model: FieldwiseModel, o: int, output: str) -> dict[str, Any]:
    """The model at a glance; `output` is the name of the score o that is explained."""
    t, _ = model.objective.place_of(o)
    layout, head = model.layout, model.objective.heads[t]
    return {
        "target": model.schema.targets[t].column,
        "output": output if layout.n_outputs > 1 or head.is_class else None,
        "task": "chance" if head.is_class else "number",
        "unit": "log-odds" if head.loss == "logistic" else "score",
        "rows": model.settings.get("rows"),
        "boosted": model.boosted is not None,
        "fields": layout.n_fields,
        "categories": layout.n_rows,
        "parameters": layout.n_parameters,
        "metrics": dict(model.metrics),
        "settings": dict(model.settings),
        "version": __version__,
    }


def _fields(model: FieldwiseModel, found: FieldImportance) -> list[dict[str, Any]]:
    """A row for each field, in the order of the table."""
    by_name = {row["name"]: row for row in found.to_dict()["fields"]}
    sizes = zip(model.schema.fields, model.layout.sizes, model.layout.ranks, strict=True)
    return [
        {
            "name": f.name,
            "kind": f.shown_kind,
            "categories": size,
            "rank": rank,
            **{k: by_name[f.name][k] for k in ("importance", "share", "pair_share")},
        }
        for f, size, rank in sizes
    ]


def _largest(learned: Learned, n: int) -> list[tuple[int, int]]:
    """Field and code of the most frequent categories, some of every field first."""
    layout, counts = learned.layout, learned.counts
    owner = np.repeat(np.arange(layout.n_fields), layout.sizes)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    place = np.empty(len(order), int)  # within its field
    for i in range(layout.n_fields):
        mine = owner[order] == i
        place[mine] = np.arange(np.count_nonzero(mine))
    first = np.argsort(place >= CARDS_A_FIELD, kind="stable")[:n]
    rows = order[first]
    return [(int(owner[r]), int(r - layout.offsets[owner[r]])) for r in rows]


def _every_category(learned: Learned, output: str) -> dict[str, Any]:
    """An array for each property of categories, by falling count."""
    layout, models = learned.layout, learned.models(output)
    fields = range(layout.n_fields)
    distance = np.concatenate([models.distances(i) for i in fields])
    owner = np.repeat(np.arange(layout.n_fields), layout.sizes)
    names = [label for i in fields for label in learned.labels(i)]
    order = np.argsort(-learned.counts, kind="stable")
    order = order[learned.counts[order] > 0]
    return {
        "total": len(order),
        "field": owner[order],
        "name": [names[r] for r in order],
        "count": learned.counts[order],
        "bias": models.bias[order],
        "main": models.main[order],
        "distance": distance[order],
    }


def _bound(model: FieldwiseModel) -> dict[str, Any] | None:
    if model.boosted is not None:  # the bound covers only the field-wise score
        return None
    try:
        return model.bound().to_dict()
    except SettingError:  # no bound for such a model
        return None


def _judged(
    model: FieldwiseModel, learned: Learned, data: Any, o: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Explanations of some rows and, if the table has the target, how good predictions are."""
    from ..data.readers import open_source

    source = open_source(data, schema=model.schema, **options)
    known = {target.column for target in model.schema.targets} <= set(source.columns)
    t, k = model.objective.place_of(o)
    head = model.objective.heads[t]
    judge, chosen, parts, n_rows = Judge(model.layout), _Chosen(), [], 0
    for chunk, (codes, values) in model.coded_chunks(data, **options):
        z = model.scores_by_target(codes, values)
        y = target_values(chunk, model.schema) if known else None
        w = weight_values(chunk, model.schema) if known else np.ones(len(codes))
        p = LOSSES[head.loss].prediction(z[t].astype(np.float64))
        mine = p[:, k] if head.size > 1 else p
        loss = None
        if y is not None:
            loss = LOSSES[head.loss].value(z[t].astype(np.float64), y[:, t], head.delta)
            outcome = (y[:, t] == k).astype(float) if head.size > 1 else y[:, t]
            valued = model.schema.valued
            wide = wide_values(codes, values[:, : len(valued)], valued)
            judge.add(codes, wide, mine, outcome, w, loss)
            parts.append((z, y, w))
        held = {"codes": codes, "values": values, "p": mine, "w": w}
        if y is not None and loss is not None:
            held |= {"y": y[:, t], "loss": loss}
        chosen.add(held)
        n_rows += len(codes)
    if not n_rows:
        named = source.name or "the table"
        raise DataError(f"{named} has no rows; leave it out for a report of the model alone")
    rows = _rows(model, learned, o, chosen.rows, t)
    out: dict[str, Any] = {"file": Path(source.name).name, "rows": rows}
    if known:
        found = judge.found(model.schema.names, lambda i, code: learned.labels(i)[code])
        every = [np.concatenate([z[h] for z, _, _ in parts]) for h in range(len(z))]
        y, w = (np.concatenate([part[j] for part in parts]) for j in (1, 2))
        names = [target.column for target in model.schema.targets]
        out["data_metrics"] = measure(model.objective.heads, every, y, w, names)
        out["calibration"] = {k: v for k, v in found.to_dict().items() if k != "slices"}
        out["slices"] = list(found.slices)
    return out


class _Chosen:
    """Rows to show: some from all over the table, the highest, the lowest, and the most wrong."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, np.ndarray]] = {}

    def add(self, held: dict[str, np.ndarray]) -> None:
        n = len(held["p"])
        counted = held["w"] > 0
        self._keep("typical", held, np.linspace(0, n - 1, min(TYPICAL, n)).astype(int))
        orders = {"highest": -held["p"], "lowest": held["p"]}
        if "loss" in held:
            orders["wrong"] = -held["loss"]
        for name, by in orders.items():
            both = self._keep(name, held, np.argsort(np.where(counted, by, np.inf))[:EXTREME])
            order = both["loss" if name == "wrong" else "p"]
            best = np.argsort(order if name == "lowest" else -order, kind="stable")[:EXTREME]
            self._kept[name] = {key: a[best] for key, a in both.items()}

    def _keep(
        self, name: str, held: dict[str, np.ndarray], at: np.ndarray
    ) -> dict[str, np.ndarray]:
        """What is kept under a name, with these rows added."""
        fresh = {key: a[at] for key, a in held.items()}
        before = self._kept.get(name)
        if before is not None:
            fresh = {key: np.concatenate([before[key], a]) for key, a in fresh.items()}
        self._kept[name] = fresh
        return fresh

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """All rows kept, each once."""
        typical = self._kept["typical"]
        n = len(typical["p"])
        some = np.linspace(0, n - 1, min(TYPICAL, n)).astype(int)
        self._kept["typical"] = {key: a[some] for key, a in typical.items()}
        every = list(self._kept.values())
        whole = {key: np.concatenate([part[key] for part in every]) for key in typical}
        columns = [whole[key].reshape(len(whole["p"]), -1) for key in ("codes", "values", "p")]
        _, first = np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True)
        at = np.sort(first)
        return {key: a[at] for key, a in whole.items()}


def _rows(
    model: FieldwiseModel, learned: Learned, o: int, held: dict[str, np.ndarray], t: int
) -> dict[str, Any]:
    """Rows as a page shows them: what they hold, as text, and what every field adds."""
    codes = held["codes"]
    found = model.explain_codes(codes, held["values"])
    single = model.layout.n_outputs == 1
    effects = found.shapley if single else found.shapley[:, o]
    base = float(found.base if single else found.base[o])
    texts = [_texts(model, learned, i, codes, found.values) for i in range(model.layout.n_fields)]
    rows = [
        {
            "values": list(text),
            "score": base + float(effects[n].sum()),
            "effects": effects[n].tolist(),
            "prediction": float(held["p"][n]),
            "target": _outcome(model, t, held["y"][n]) if "y" in held else None,
        }
        for n, text in enumerate(zip(*texts, strict=True))
    ]
    return {"base": base, "names": list(model.schema.names), "rows": rows}


def _texts(
    model: FieldwiseModel, learned: Learned, i: int, codes: np.ndarray, held: Any
) -> Iterable[str]:
    """What a field holds in every row, as text."""
    field = model.schema.fields[i]
    if field.is_list or field.is_linear:
        column = held[field.name].to_list()
        return [_text(value) for value in column]
    labels = learned.labels(i)
    first = int(model.layout.slot_starts[i])
    return ["(unseen)" if c < 0 else labels[c] for c in codes[:, first]]


def _text(value: Any) -> str:
    if value is None:
        return "(missing)"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _outcome(model: FieldwiseModel, t: int, y: float) -> str:
    classes = model.schema.targets[t].classes
    whole = classes and float(y).is_integer()
    return classes[int(y)] if whole else f"{y:.4g}"
