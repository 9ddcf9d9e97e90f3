"""Runs a reader's mod, a jitted function of tiles, as a function of tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fa_tutorial.exercises.harness_kernel import blocks_without_truth
from fa_tutorial.exercises.running import Wrong, chain


class Aux(NamedTuple):
    """What mods read, as on the page: the window's left and shift, S_k − S_q, and the cap c. asked: where 10.3 notes that its mod is asked."""

    left: int = 0
    shift: int = 0
    c: float = 0.0
    asked: Any = 0


ADVICE = {  # a part of an error's words -> what to do
    "'Aux' object": ". aux has left, shift and c",
    "positional argument": ". A mask mod gets (b, h, i, j, aux), a score mod s before these",
    "to have shape": ". What comes in broadcasts to a tile already",
    "iterable": ". It must return two results",
}


def launched(launch: Callable[[], Any]) -> None:
    """Run the launch; Wrong with the innermost error where it stops, or where a mod asks for the truth value of a tile, as `and` does."""
    try:
        with blocks_without_truth(), np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns of every inf and NaN
            launch()
    except Exception as error:
        root = chain(error)[-1]
        words = str(root).strip().rpartition("\n")[2]  # the compiler quotes the code before its own words
        advice = next((advice for part, advice in ADVICE.items() if part in words), "")
        raise (root if isinstance(root, Wrong) else Wrong(f"stops with {type(root).__name__}: {words}{advice}")) from None
