"""Runs a reader's mod, a jitted function of tiles, as a function of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fa_tutorial.exercises.harness import NotAttempted, Wrong, chain


def ready(mod: Any, arguments: int) -> None:
    """Wrong for what is no jitted function, NotAttempted for a starter. arguments: how many the mod takes."""
    if not hasattr(mod, "fn"):
        raise Wrong("is a plain function: put @triton.jit above it")
    try:
        mod.fn(*[None] * arguments)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception:
        pass


def launched(launch: Callable[[], Any]) -> None:
    """Run the launch; Wrong with the innermost error where it stops."""
    try:
        launch()
    except Exception as error:
        raise Wrong(f"stops with {type(chain(error)[-1]).__name__}: {chain(error)[-1]}") from None
