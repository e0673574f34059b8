"""What a model learned, in numbers: of rows, fields and categories; and pictures of those.

Everything here takes a table, a layout and how often categories were seen, rather than a model.
"""

from .._lazy import lazily

_WHERE = {
    "Bound": ".bound",
    "Calibration": ".calibration",
    "CategoryCard": ".categories",
    "CategoryModels": ".categories",
    "Comparison": ".categories",
    "Explanation": ".rows",
    "FieldImportance": ".fields",
    "Learned": ".learned",
    "Marginals": ".rows",
    "RowExplainer": ".rows",
    "bound_of": ".bound",
    "gap_by_field": ".bound",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
