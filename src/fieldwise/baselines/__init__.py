"""The paper's other methods, trained by the same loop as ours."""

from .._lazy import lazily

_WHERE = {
    "FFM": ".factorisation",
    "FM": ".factorisation",
    "IPNN": ".deep",
    "LLFM": ".factorisation",
    "LR": ".factorisation",
    "OPNN": ".deep",
    "Baseline": ".engine",
    "BaselineClassifier": ".classifier",
    "BaselineEngine": ".engine",
    "DeepFM": ".deep",
    "RaFM": ".factorisation",
}
__all__ = list(_WHERE)
__getattr__ = lazily(__name__, _WHERE)
