"""What a model learned about rows, fields and categories, in numbers and plots.

Everything here takes a table, a layout and counts of categories, rather than a model.
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
    "plot_calibration": ".figures",
    "plot_card": ".figures",
    "plot_history": ".figures",
    "plot_importance": ".figures",
    "plot_pairs": ".figures",
    "plot_waterfall": ".figures",
    "bound_of": ".bound",
    "gap_by_field": ".bound",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
