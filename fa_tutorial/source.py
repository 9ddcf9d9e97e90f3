"""Show the source of a function or kernel of the package in a notebook, whole or the part that the text is about."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any


def source_of(thing: Any) -> str:
    """Source text of a function, class or Triton kernel, with its decorators."""
    while hasattr(thing, "fn"):  # a kernel wraps its function, and autotuning wraps the kernel
        thing = thing.fn
    return textwrap.dedent(inspect.getsource(thing)).rstrip()


def excerpt(thing: Any, start: str, end: str | None = None) -> str:
    """The lines of `thing` from the first that contains `start` to the first from there on that contains `end`.

    Without `end`, that one line. ValueError where a text does not stand in the source.
    """
    lines = source_of(thing).splitlines()
    first = _find(lines, start, 0, thing)
    last = first if end is None else _find(lines, end, first, thing)
    return textwrap.dedent("\n".join(lines[first : last + 1]))


def _find(lines: list[str], text: str, begin: int, thing: Any) -> int:
    for number in range(begin, len(lines)):
        if text in lines[number]:
            return number
    raise ValueError(f"{text!r} does not stand in the source of {getattr(thing, '__name__', thing)}")


def display_source(thing: Any, start: str | None = None, end: str | None = None) -> None:
    """Show source with highlighting in a notebook, plain elsewhere. With `start`, only the lines from there to `end`."""
    text = source_of(thing) if start is None else excerpt(thing, start, end)
    try:
        from IPython import get_ipython
        from IPython.display import Markdown, display
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None:
        print(text)
    else:
        display(Markdown(f"```python\n{text}\n```"))
