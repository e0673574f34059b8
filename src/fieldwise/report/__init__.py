"""The report of a trained model: numbers first, then a page, a text and pictures of them."""

from .._lazy import lazily

_WHERE = {
    "markdown": ".text",
    "plain": ".text",
    "plot_calibration": ".figures",
    "plot_card": ".figures",
    "plot_history": ".figures",
    "plot_importance": ".figures",
    "plot_pairs": ".figures",
    "plot_waterfall": ".figures",
    "report_numbers": ".numbers",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
