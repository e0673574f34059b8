"""Reading tables: readers, schema, encoder, store, datasets.

any table -> open_source -> infer_schema(profile(...)) -> encode -> Store -> Batches
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .datasets import load_flights
    from .encoder import FieldEncoder
    from .encoding import encode, load_vocabulary
    from .inferring import infer_schema
    from .planted import Synthetic, synthetic
    from .profiling import profile
    from .readers import avazu_schema, criteo_schema, open_source
    from .schema import Field, Schema, Target
    from .shuffle import Batches, Cursor
    from .store import Store, StoreWriter
    from .vocabulary import Vocabulary

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
    "infer_schema": ".inferring",
    "load_flights": ".datasets",
    "load_vocabulary": ".encoding",
    "open_source": ".readers",
    "profile": ".profiling",
    "synthetic": ".planted",
}

__all__ = [
    "Batches",
    "Cursor",
    "Field",
    "FieldEncoder",
    "Schema",
    "Store",
    "StoreWriter",
    "Synthetic",
    "Target",
    "Vocabulary",
    "avazu_schema",
    "criteo_schema",
    "encode",
    "infer_schema",
    "load_flights",
    "load_vocabulary",
    "open_source",
    "profile",
    "synthetic",
]

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
