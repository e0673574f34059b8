"""Triton's kernels where there is no GPU."""

from __future__ import annotations

import os

__all__ = ["mended"]


def mended() -> None:
    """Triton 3.6's interpreter takes int() of arrays of one element, which NumPy 2.4 refuses."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    def patched(tensor, scope, patch=interpreter._patch_lang_tensor):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
