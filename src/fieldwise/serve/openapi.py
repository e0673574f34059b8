"""The OpenAPI description of the endpoints: written by hand, because the endpoints read and answer
bytes. What a row may hold is filled in from the model that is served."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .. import __version__
from .tables import KINDS

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .scoring import Served

__all__ = ["PAGE_FILES", "ROUTES", "described"]

WHY = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    408: "The request took too long.",
    413: "More bytes or rows than one call may have.",
    415: "A content type that is no table's.",
    422: "What was sent does not fit the model.",
    503: "No model is loaded yet.",
}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
MAYBE_TEXT, MAYBE_NUMBER = {"type": ["string", "null"]}, {"type": ["number", "null"]}
FREE = {"type": "object"}

CONTRIBUTION = _object({"field": TEXT, "value": MAYBE_TEXT, "contribution": NUMBER})
EXPLANATION = _object({"base": NUMBER, "contributions": _list(CONTRIBUTION)})
CHANCES = {"type": "object", "additionalProperties": NUMBER}
ONE = _object(
    {"prediction": NUMBER, "score": NUMBER},
    {"class": TEXT, "probabilities": CHANCES, "explanation": _ref("Explanation")},
)
SEVERAL = _object({"targets": {"type": "object", "additionalProperties": _ref("Prediction")}})
CATEGORY = _object({"value": MAYBE_TEXT, "count": WHOLE})
COLUMN = _object(
    {
        "name": TEXT,
        "column": TEXT,
        "kind": {"enum": ["category", "number", "time", "list"]},
        "dtype": TEXT,
        "fields": _list(TEXT),
        "n_categories": {"type": ["integer", "null"]},
        "usual": {"type": ["string", "number", "array", "null"], "items": TEXT},
        "top": _list(_ref("Category")),
        "separator": MAYBE_TEXT,
    },
    {"least": MAYBE_NUMBER, "most": MAYBE_NUMBER},
)
MODEL = _object(
    {
        "id": TEXT,
        "target": MAYBE_TEXT,
        "targets": _list(TEXT),
        "task": {"enum": ["classes", "number", "share"]},
        "loss": TEXT,
        "classes": _list(TEXT),
        "combine": TEXT,
        "crosses": WHOLE,
        "rows": {"type": ["integer", "null"]},
        "parameters": WHOLE,
        "metrics": CHANCES,
    }
)
HEALTH = _object(
    {
        "status": {"enum": ["ok", "degraded"]},
        "model": MAYBE_TEXT,
        "loaded_at": MAYBE_NUMBER,
        "problem": MAYBE_TEXT,
        "refused": WHOLE,
        "fieldwise": TEXT,
    }
)
RANKED = _object({"category": MAYBE_TEXT, "score": NUMBER, "prediction": NUMBER})
SCHEMAS: dict[str, Any] = {
    "Error": _object({"error": TEXT}),
    "Explanation": EXPLANATION,
    "Prediction": ONE,
    "Category": CATEGORY,
    "Predictions": _object(
        {"model": TEXT, "predictions": _list({"anyOf": [_ref("Prediction"), SEVERAL]})}
    ),
    "Ranking": _object({"model": TEXT, "over": TEXT, "ranking": _list(RANKED)}),
    "Schema": _object({"model": MODEL, "fields": _list(COLUMN)}),
    "Categories": _object({"field": TEXT, "categories": _list(_ref("Category"))}),
    "Health": HEALTH,
    "Ready": _object({"model": TEXT}),
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _about(
    summary: str,
    content: dict[str, Any],
    errors: tuple[int, ...] = (),
    *,
    body: dict[str, Any] | None = None,
    query: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    """FastAPI's arguments of a route, besides its path and method."""
    responses: dict[int | str, dict[str, Any]] = {
        code: {"description": WHY[code], "content": _json(_ref("Error"))} for code in errors
    }
    responses[200] = {"description": "As it should be.", "content": content}
    extra: dict[str, Any] = {"parameters": list(query)} if query else {}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": body}
    if 401 in errors:  # where the server has a token
        extra["security"] = [{"token": []}, {}]
    return {"summary": summary, "responses": responses, "openapi_extra": extra}


def _query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "required": required}


BINARY = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in KINDS}
USUAL = (401, 408, 503)
FLAG = {"type": "boolean", "default": False}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}
K = {"type": "integer", "minimum": 1, "default": 20}
# path: method, the endpoint's name, arguments for FastAPI
ROUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "/predict": (
        "POST",
        "predict",
        _about(
            "Predict rows of raw values",
            _json(_ref("Predictions")),
            (*USUAL, 400, 413, 422),
            body=_json(_object({"rows": _list(_ref("Row"))})),
            query=(_query("explain", FLAG),),
        ),
    ),
    "/predict/batch": (
        "POST",
        "predict_batch",
        _about("Predict a table", BINARY, (*USUAL, 413, 415, 422), body=BINARY),
    ),
    "/rank": (
        "POST",
        "rank",
        _about(
            "Rank all categories of a field",
            _json(_ref("Ranking")),
            (*USUAL, 400, 413, 422),
            body=_json(_ref("RankRequest")),
        ),
    ),
    "/schema": ("GET", "schema", _about("The model's columns", _json(_ref("Schema")), USUAL)),
    "/categories": (
        "GET",
        "categories",
        _about(
            "Categories of a field",
            _json(_ref("Categories")),
            (*USUAL, 422),
            query=(
                _query("field", _ref("Field"), required=True),
                _query("q", TEXT),
                _query("limit", LIMIT),
            ),
        ),
    ),
    "/health": ("GET", "health", _about("Is it alive?", _json(_ref("Health")))),
    "/ready": ("GET", "is_ready", _about("Is there a model?", _json(_ref("Ready")), (503,))),
    "/metrics": (
        "GET",
        "metrics",
        _about("For Prometheus", {"text/plain": {"schema": TEXT}}, (401, 408)),
    ),
    "/openapi.json": ("GET", "openapi", _about("This description", _json(FREE), USUAL)),
}


def _page_files() -> dict[str, tuple[str, str]]:
    """The page and what belongs to it: path -> the file's name and its content type."""
    names = sorted(file.name for file in resources.files(__package__).iterdir())
    kinds = {".js": "text/javascript", ".css": "text/css"}
    own = {f"/{name}": (name, kinds[PurePath(name).suffix]) for name in names
           if PurePath(name).suffix in kinds}  # fmt: skip
    return {"/": ("page.html", "text/html"), **own}


PAGE_FILES = _page_files()
ROUTES |= {
    path: ("GET", "page", _about(f"The page: {name}", {kind: {"schema": TEXT}}))
    for path, (name, kind) in PAGE_FILES.items()
}


def described(app: FastAPI, served: Served) -> dict[str, Any]:
    """The OpenAPI description of an application that serves this model."""
    from fastapi.openapi.utils import get_openapi

    row = served.description.row_schema()
    names = dict.fromkeys((*served.model.schema.columns, *(f.name for f in served.fields)))
    out: dict[str, Any] = get_openapi(
        title="fieldwise",
        version=__version__,
        description=f"Predictions of model {served.id}.",
        routes=app.routes,
    )
    out["components"] = {
        "schemas": {
            **SCHEMAS,
            "Row": row,
            "Field": {"enum": list(names)},
            "RankRequest": _rank_request(served, row),
        },
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return out


def _rank_request(served: Served, row: dict[str, Any]) -> dict[str, Any]:
    """One form for every field that can be ranked: the context may lack its column if no other
    field reads it."""
    columns = [f.column for f in served.fields]
    forms = []
    for f in served.fields:
        if f.is_linear or f.is_list:
            continue
        spared = f.column if columns.count(f.column) == 1 else None
        context = {**row, "required": [c for c in row["required"] if c != spared]}
        forms.append(_object({"context": context, "over": {"enum": [f.name]}}, {"k": K}))
    return {"anyOf": forms} if forms else FREE
