"""The report of a trained model: numbers first, then a page and a text of them."""

from .._lazy import lazily

_WHERE = {
    "markdown": ".text",
    "plain": ".text",
    "report_numbers": ".numbers",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
