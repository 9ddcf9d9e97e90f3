"""Source shown in notebooks: whole, in part, and of kernels behind their decorators."""

import functools
import inspect
import textwrap

import pytest

from fa_tutorial import ledger, source


def sample(x):
    """A function to be shown."""
    total = 0
    for i in range(x):
        total += i
    for i in range(x):
        total -= i
    return total


class Wrapper:
    """What a decorator such as triton.jit leaves: an object that keeps the function as .fn."""

    def __init__(self, fn):
        self.fn = fn


def test_source_of_functions_classes_and_kernels():
    def inner():
        return 1

    assert source.source_of(sample) == inspect.getsource(sample).rstrip()
    assert source.source_of(Wrapper).startswith("class Wrapper:")
    assert source.source_of(inner) == "def inner():\n    return 1"
    assert source.source_of(Wrapper(Wrapper(sample))) == source.source_of(sample), "an autotuned kernel is wrapped twice"
    pytest.importorskip("triton")
    from fa_tutorial import layout, matmul

    assert source.source_of(layout.add_kernel).startswith("@triton.jit\ndef add_kernel(x_ptr")
    assert source.source_of(matmul.grouped_tile_device).startswith("def grouped_tile(")


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("total = 0", None, "total = 0"),
        ("for i", "total +=", "for i in range(x):\n    total += i"),
        ("total -=", "return", "    total -= i\nreturn total"),
        ("total +=", "for i", "    total += i\nfor i in range(x):"),
        ("def sample", "return total", source.source_of(sample)),
    ],
)
def test_excerpt_takes_the_first_start_and_looks_for_the_end_from_there(start, end, shown):
    assert source.excerpt(sample, start, end) == shown


@pytest.mark.parametrize(("start", "end"), [("no such line", None), ("return total", "total = 0"), ("def", "no such line")])
def test_excerpt_that_is_not_there(start, end):
    missing = end if start in source.source_of(sample) else start
    with pytest.raises(ValueError, match="sample") as caught:
        source.excerpt(sample, start, end)
    assert repr(missing) in str(caught.value)


@pytest.mark.parametrize("thing", [len, functools.partial(sample, 1), 3])
def test_what_has_no_source(thing):
    with pytest.raises(TypeError):
        source.source_of(thing)


def test_display_prints_outside_a_notebook(capsys):
    source.display_source(ledger.visible_pairs)
    assert capsys.readouterr().out == source.source_of(ledger.visible_pairs) + "\n"
    source.display_source("x = f(a,\n      b)  # fmt: skip")
    assert capsys.readouterr().out == "x = f(a,\n      b)\n", "the formatter's marks are not shown"
    source.display_source(sample, "for i", "total +=")
    assert capsys.readouterr().out == "for i in range(x):\n    total += i\n"
    source.display_diff("a\nb\nc", "a\nd\nc")
    assert capsys.readouterr().out == "  a\n- b\n+ d\n  c\n"


def test_specialised_takes_the_branches_that_compile():
    text = textwrap.dedent(
        """\
        def f(x, A: gl.constexpr, BIG: gl.constexpr, B: gl.constexpr = False):
            y = x if B else g(x, A)  # ᵀ
            if A and not B:
                if BIG:
                    y += 1
            else:
                y = 0
            if B:
                y = 2
            return h(y, 2 if A else 1)
        """
    )
    wanted = "def f(x, BIG: gl.constexpr):\n    y = g(x, True)  # ᵀ\n    if BIG:\n        y += 1\n    return h(y, 2)\n"
    assert source.specialised(text, A=True, B=False) == wanted
