"""Show the source of a function or kernel of the package in a notebook, whole or the part that the text is about."""

from __future__ import annotations

import ast
import builtins
import difflib
import dis
import inspect
import linecache
import re
import textwrap
from typing import Any

WIDTH = 105  # characters that a page of JupyterLab shows in one line with its side bar open


def unwrapped(thing: Any) -> Any:
    """The function of a kernel, which wraps it, and which autotuning wraps once more; anything else as it is."""
    while hasattr(thing, "fn"):
        thing = thing.fn
    return thing


def globals_of(thing: Any) -> dict[str, Any]:
    """The globals that a function or kernel names, without built-in ones."""
    function = unwrapped(thing)
    names = dict.fromkeys(one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL")
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def source_of(thing: Any) -> str:
    """Source text of a function, class or Triton kernel, with its decorators; a text as it is."""
    if isinstance(thing, str):
        return thing
    return textwrap.dedent(inspect.getsource(unwrapped(thing))).rstrip()


def edited(text: str, *edits: tuple) -> str:
    """`text` after `edits`: (old, new), made wherever the old text stands, or (old, new, times). ValueError where the
    old text is not found, or not so often."""
    for old, new, *times in edits:
        found = text.count(old)
        if found not in (times or range(1, len(text))):
            raise ValueError(f"the text to be changed stands {found} times: {old!r}")
        text = text.replace(old, new)
    return text


def defined(text: str, names: dict[str, Any], file: str | None = None) -> dict[str, Any]:
    """The names after `text`, the source of functions or kernels, has run among `names`. Triton finds the source where
    inspect does."""
    file = file or f"<text {hash(text):x}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), names := dict(names))
    return names


def excerpt(thing: Any, start: str, end: str | None = None) -> str:
    """The lines of `thing` from the first that contains `start` to the first from there on that contains `end`. Without
    `end`, that one line. ValueError where a text does not stand in the source."""
    lines = source_of(thing).splitlines()
    first = _find(lines, start, 0, thing)
    last = first if end is None else _find(lines, end, first, thing)
    return textwrap.dedent("\n".join(lines[first : last + 1]))


def specialised(thing: Any, **constants: Any) -> str:
    """The source as these constexprs compile it: of each choice that they decide the branch that is taken, and no such
    parameters."""
    text = source_of(thing)
    for name in constants:
        text = re.sub(rf",\s*{name}: gl\.constexpr(?: = \w+)?(?=[,)])", "", text)
    while (changed := _decided(text, constants)) is not None:
        text = changed
    return text


def _decided(text: str, constants: dict[str, Any]) -> str | None:
    """`text` with the first choice that `constants` decide, or their first name, replaced; None where there is none."""
    lines = text.encode().splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in constants:
            start, end, new = node.col_offset, node.end_col_offset, repr(constants[node.id]).encode()
        elif isinstance(node, ast.If | ast.IfExp) and _names(node.test) <= constants.keys():
            part = node.body if eval(ast.unparse(node.test), dict(constants)) else node.orelse
            if isinstance(node, ast.If):
                kept = lines[part[0].lineno - 1 : part[-1].end_lineno] if part else []
                lines[node.lineno - 1 : node.end_lineno] = [one[part[0].col_offset - node.col_offset :] for one in kept]
                return b"".join(lines).decode()
            start, end, new = node.col_offset, node.end_col_offset, ast.unparse(part).encode()
        else:
            continue
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[:start] + new + line[end:]
        return b"".join(lines).decode()
    return None


def _names(test: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}


def _find(lines: list[str], text: str, begin: int, thing: Any) -> int:
    if (place := next((place for place in range(begin, len(lines)) if text in lines[place]), None)) is None:
        raise ValueError(f"{text!r} does not stand in the source of {getattr(thing, '__name__', thing)}")
    return place


def display_source(thing: Any, start: str | None = None, end: str | None = None) -> None:
    """Show source with highlighting in a notebook, plain elsewhere. With `start`, only from there to `end`."""
    text = source_of(thing) if start is None else excerpt(thing, start, end)
    _display(text.replace("  # fmt: skip", ""), "python")


def display_diff(old: str, new: str) -> None:
    """Show two texts as one, with - before a line of the old one alone, and + before one of the new."""
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    _display("\n".join(line.rstrip() for line in lines if not line.startswith("?")), "diff")


def _display(text: str, language: str) -> None:
    if hasattr(builtins, "__IPYTHON__"):
        from IPython.display import Markdown, display

        display(Markdown(f"```{language}\n{text}\n```"))
    else:
        print(text)
