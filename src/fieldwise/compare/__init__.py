"""Every method on one table: the same rows, the same search, one table of results."""

from .._lazy import lazily

_WHERE = {
    "compare_table": ".run",
    "reproduce": ".paper",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
