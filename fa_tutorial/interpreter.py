"""Triton's interpreter in half the time.

At every call of a @triton.jit function it looks through triton.language for the functions to replace by its own, and
for every block it makes the table of NumPy's dtypes anew. `hasten` lets it do the first once a launch, for each module,
and the second once for each dtype. Nothing else changes: the end of a launch is what takes the replacements back. Both
are private functions of Triton's: one that another version does not have is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def hasten() -> None:
    """Hasten every launch of a kernel in the interpreter from now on. A second call does nothing."""
    from triton.runtime import interpreter

    launch, find_dtype = interpreter.GridExecutor.__call__, getattr(interpreter, "_get_np_dtype", None)
    if not hasattr(interpreter, "_patch_lang") or find_dtype is None or launch.__module__ == __name__:
        return
    dtypes: dict[str, Any] = {}

    def np_dtype(of: Any) -> Any:
        name = of.scalar.name
        if name not in dtypes:
            dtypes[name] = find_dtype(of)
        return dtypes[name]

    def launch_with_one_replacement(executor: Any, *args: Any, **kwargs: Any) -> None:
        replace, seen = interpreter._patch_lang, set()

        def replace_once(function: Callable) -> Any:
            module = id(function.__globals__)
            if module in seen:
                return None
            seen.add(module)
            return replace(function)

        interpreter._patch_lang = replace_once
        try:
            launch(executor, *args, **kwargs)
        finally:
            interpreter._patch_lang = replace

    interpreter._get_np_dtype = np_dtype
    interpreter.GridExecutor.__call__ = launch_with_one_replacement
