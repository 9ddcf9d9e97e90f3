"""Source shown in notebooks: whole, in part, and of kernels behind their decorators."""

import ast
import functools
import importlib
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


def test_source_of_a_function_a_class_and_an_inner_function():
    def inner():
        return 1

    assert source.source_of(sample) == inspect.getsource(sample).rstrip()
    assert source.source_of(Wrapper).startswith("class Wrapper:")
    assert source.source_of(inner) == "def inner():\n    return 1"


def test_source_behind_wrappers():
    assert source.source_of(Wrapper(sample)) == source.source_of(sample)
    assert source.source_of(Wrapper(Wrapper(sample))) == source.source_of(sample), "an autotuned kernel is wrapped twice"


def test_source_of_a_kernel_shows_its_decorator():
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
        ("total -= i", "total -= i", "total -= i"),
        ("total +=", "for i", "    total += i\nfor i in range(x):"),
        ("def sample", "return total", source.source_of(sample)),
    ],
)
def test_excerpt_takes_the_first_start_and_looks_for_the_end_from_there(start, end, shown):
    assert source.excerpt(sample, start, end) == shown


@pytest.mark.parametrize(
    ("start", "end"), [("no such line", None), ("no such line", "return"), ("return total", "total = 0"), ("def", "no such line")]
)
def test_excerpt_that_is_not_there(start, end):
    missing = end if start in source.source_of(sample) else start
    with pytest.raises(ValueError, match="sample") as caught:
        source.excerpt(sample, start, end)
    assert repr(missing) in str(caught.value)


def test_excerpt_of_a_thing_without_a_name():
    with pytest.raises(ValueError, match="'nowhere'"):
        source.excerpt(Wrapper(sample), "nowhere")


@pytest.mark.parametrize("thing", [len, functools.partial(sample, 1), 3])
def test_what_has_no_source(thing):
    with pytest.raises(TypeError):
        source.source_of(thing)


def test_display_prints_outside_a_notebook(capsys):
    source.display_source(ledger.visible_pairs)
    assert capsys.readouterr().out == source.fitted(source.source_of(ledger.visible_pairs)) + "\n"
    source.display_source(sample, "for i", "total +=")
    assert capsys.readouterr().out == "for i in range(x):\n    total += i\n"


# ---------------------------------------------------------------- lines that a page can show


def same_program(source_text: str, shown: str) -> bool:
    """True where both are one program: their trees are equal, however the texts in them are broken."""
    trees = [ast.parse(text) for text in (source_text, shown)]
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = " ".join(node.value.split())
    return ast.dump(trees[0]) == ast.dump(trees[1])


SHOWN = (
    *("softmax", "layout", "matmul", "algorithm", "forward", "backward", "tuned.autotuning", "tuned.forward", "tuned.backward"),
    *("hopper.pipeline", "hopper.softmax", "hopper.tile_scheduler", "hopper.forward", "bench.timing", "bench.training"),
)


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_the_same_program_in_lines_that_fit(name):
    pytest.importorskip("triton")
    module = importlib.import_module(f"fa_tutorial.{name}")
    things = [thing for thing in vars(module).values() if hasattr(thing, "fn") or inspect.isfunction(thing) or inspect.isclass(thing)]
    things = [thing for thing in things if getattr(source.unwrapped(thing), "__module__", "") == module.__name__]
    assert things
    for thing in things:
        text = source.source_of(thing)
        shown = source.fitted(text)
        assert same_program(text, shown), shown
        assert "fmt: skip" not in shown
        if hasattr(thing, "fn"):  # a kernel; elsewhere a message in one piece may be longer
            assert [line for line in shown.splitlines() if len(line) > source.WIDTH] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = f(a,\n      b)  # fmt: skip", "x = f(a,\n      b)"),
        ("x = f(aaaa, bbbb, g(c, d), eeee)", "x = f(aaaa, bbbb,\n      g(c, d), eeee)"),
        ("x = f(aa,\n      bbbbbbbbb, ccccccccc)", "x = f(aa,\n      bbbbbbbbb,\n      ccccccccc)"),
        ("x = long_enough + other  # what it is for", "# what it is for\nx = long_enough + other"),
        ("x = 'a, b, c, d, e, f, g, h, i, j'", "x = 'a, b, c, d, e, f, g, h, i, j'"),
        ("a, b = cccccccccccc, dddddddddd", "a, b = cccccccccccc, dddddddddd"),
        ('def f():\n    """One two three four five six.\n\n    Seven.\n    """', 'def f():\n    """One two three\n    four five six.\n\n    Seven.\n    """'),
    ],
)  # fmt: skip
def test_lines_break_where_python_allows_it(text, shown):
    assert source.fitted(text, width=24) == shown


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
