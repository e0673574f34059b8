"""Tables in: readers, schema, encoder, store, datasets.

any table -> open_source -> infer_schema(profile(...)) -> encode -> Store -> Batches
"""

from .._lazy import lazily

_WHERE = {
    "Batches": ".shuffle",
    "Cursor": ".shuffle",
    "Field": ".schema",
    "FieldEncoder": ".encoder",
    "Schema": ".schema",
    "Store": ".store",
    "StoreWriter": ".store",
    "Synthetic": ".planted",
    "Target": ".schema",
    "Vocabulary": ".vocabulary",
    "avazu_schema": ".readers",
    "criteo_schema": ".readers",
    "encode": ".encoding",
    "infer_schema": ".profiling",
    "load_flights": ".datasets",
    "load_vocabulary": ".encoding",
    "open_source": ".readers",
    "profile": ".profiling",
    "synthetic": ".planted",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
