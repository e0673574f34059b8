"""Field-wise learning for tables of categories.

For every field of a table and every category of it there is one small linear model over the other
fields. Start with `fieldwise inspect` on the command line, or with `encode` and `FieldEncoder`.
"""

from ._lazy import lazily

__version__ = "0.1.0"

_WHERE = {
    "DataError": ".errors",
    "FieldwiseError": ".errors",
    "MissingExtra": ".errors",
    "SchemaError": ".errors",
    "SettingError": ".errors",
    "StoreError": ".errors",
    "Layout": ".layout",
    "Field": ".data",
    "FieldEncoder": ".data",
    "Schema": ".data",
    "Store": ".data",
    "Target": ".data",
    "encode": ".data",
    "load_flights": ".data",
    "synthetic": ".data",
}

__all__ = ["__version__", *sorted(_WHERE)]  # noqa: PLE0604

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
