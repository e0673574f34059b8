"""Field-wise learning for tables of categories.

Every category of every field of a table has one small linear model over the other fields. Start
with `fieldwise inspect` on the command line, or with `encode` and `FieldEncoder`.
"""

from typing import TYPE_CHECKING

from ._lazy import lazily

if TYPE_CHECKING:  # for type checkers and editors; the names themselves are imported on first use
    from .baselines.classifier import BaselineClassifier
    from .data import (
        Field,
        FieldEncoder,
        Schema,
        Store,
        Target,
        encode,
        load_flights,
        synthetic,
    )
    from .errors import (
        DataError,
        FieldwiseError,
        MissingExtra,
        ModelError,
        SchemaError,
        SettingError,
        StoreError,
        TrainingError,
    )
    from .estimators import FieldwiseClassifier, FieldwiseRegressor
    from .features import FieldwiseFeatures
    from .layout import Layout
    from .model import FieldwiseModel
    from .updating import update

__version__ = "1.0.0"

_WHERE = {
    "DataError": ".errors",
    "FieldwiseError": ".errors",
    "MissingExtra": ".errors",
    "ModelError": ".errors",
    "SchemaError": ".errors",
    "SettingError": ".errors",
    "StoreError": ".errors",
    "TrainingError": ".errors",
    "BaselineClassifier": ".baselines.classifier",
    "FieldwiseClassifier": ".estimators",
    "FieldwiseRegressor": ".estimators",
    "FieldwiseFeatures": ".features",
    "FieldwiseModel": ".model",
    "Layout": ".layout",
    "Field": ".data",
    "FieldEncoder": ".data",
    "Schema": ".data",
    "Store": ".data",
    "Target": ".data",
    "encode": ".data",
    "load_flights": ".data",
    "synthetic": ".data",
    "update": ".updating",
}

__all__ = [
    "BaselineClassifier",
    "DataError",
    "Field",
    "FieldEncoder",
    "FieldwiseClassifier",
    "FieldwiseError",
    "FieldwiseFeatures",
    "FieldwiseModel",
    "FieldwiseRegressor",
    "Layout",
    "MissingExtra",
    "ModelError",
    "Schema",
    "SchemaError",
    "SettingError",
    "Store",
    "StoreError",
    "Target",
    "TrainingError",
    "__version__",
    "encode",
    "load_flights",
    "synthetic",
    "update",
]

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
