"""How the harness judges: the main case, then edges; a mistake that explains every result, else the rule; a kernel's lanes and programs."""

import dataclasses
import math
import re
import signal
import threading
import time

import pytest
import torch
from buffers import ON_GPU

from fa_tutorial.exercises import running
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.running import Wrong
from fa_tutorial.source import defined, edited, source_of

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

# ---------------------------------------------------------------- functions


def mean(x):
    return x.sum() / len(x) if len(x) else x.sum()


def mean_inputs():
    yield case(torch.tensor([1.0, 5.0]), otherwise="the mean is the sum over the count")
    yield case(torch.tensor([1.0, 2.0, 6.0]))
    yield case(torch.rand(9), on="nine numbers", fresh=True)
    yield case(torch.zeros(0), on="no numbers", edge="empty")
    yield case(torch.tensor([1 / 3, 1 / 3], dtype=torch.float64), edge="float64")


MEAN = Exercise(
    task="Average.", solution=mean, reasoning="It is the sum over the count.", hints=("Sum.", "Divide."), inputs=mean_inputs,
    truth=lambda x: x.double().sum() / max(len(x), 1), rule="the mean of n numbers is their sum over n",
    conditions={"empty": "nothing has the mean 0", "float64": "float64 stays float64"},
    mistakes={"nothing is divided": (" / len(x)", ""), "the count is fixed": ("/ len(x)", "/ 2"), "the count is one too small": ("len(x) if", "(len(x) - 1) if")},
)  # fmt: skip


def verdict(exercise, answer) -> str:
    try:
        exercise.grade(answer)
    except Wrong as wrong:
        return str(wrong)
    return "correct"


def size_and_word(x):
    return len(x), "even" if len(x) % 2 == 0 else "odd"


SIZE = dataclasses.replace(
    MEAN, solution=size_and_word, truth=lambda x: (len(x), "odd" if len(x) % 2 else "even"), parts=("size", "kind"), conditions={},
    inputs=lambda: [case(torch.ones(3)), case(torch.ones(4))], mistakes={"odd and even are exchanged": [('"even"', '"E"'), ('"odd"', '"even"'), ('"E"', '"odd"')]},
)  # fmt: skip


RULE, OWN_RULE = "the mean of n numbers is their sum over n", "the mean is the sum over the count: x = [1, 5]"
WORDS = dataclasses.replace(MEAN, exact=True, truth=lambda x: "even" if len(x) % 2 == 0 else "odd", mistakes={})
ONE_LEFT = "right on the main case; one edge is left"


def helper(x):
    raise NotImplementedError


def calls_it(x):
    """Finished, so it is not told that it isn't."""
    total = x.sum()
    return total / helper(x)


@pytest.mark.parametrize(("exercise", "answer", "told"), [
    pytest.param(exercise, answer, told, id=name) for name, (exercise, answer, told) in {
        "right": (MEAN, mean, "correct"),
        "a mistake is named with its input and both results": (MEAN, lambda x: x.sum(), "nothing is divided: x = [1, 5] gives 6, want 3"),
        "of two mistakes that agree on one input the others decide": (MEAN, lambda x: x.sum() / (len(x) - 1), "the count is one too small: …"),
        "a mistake that another input refutes": (MEAN, lambda x: x.sum() if len(x) == 2 else mean(x), f"{OWN_RULE} gives 6, want 3"),
        "a mistake, and another input does not run": (MEAN, lambda x: x.sum() if len(x) == 2 else x[3], f"{OWN_RULE} gives 6, want 3"),
        "the input's own rule": (MEAN, lambda x: 7 + 0 * x.sum(), f"{OWN_RULE} gives 7, want 3"),
        "the exercise's rule": (MEAN, lambda x: mean(x) + (len(x) == 3) * 4, f"{RULE}: x = [1, 2, 6] gives 7, want 3"),
        "an edge": (MEAN, lambda x: x.mean(), f"{ONE_LEFT}: nothing has the mean 0: no numbers gives nan, want 0"),
        "an edge raises": (MEAN, lambda x: mean(x) + 0 * x[0], f"{ONE_LEFT}: no numbers: raises IndexError…"),
        "edges are counted": (MEAN, lambda x: x.float().mean(), "right on the main case; two edges are left; the first: nothing has…"),
        "lost precision": (MEAN, lambda x: mean(x.float()), "…float64 goes in, and the result has less accuracy…"),
        "numbers that look the same": (MEAN, lambda x: mean(x) * 1.00006, "…x = [1, 5] gives 3, want 3 (they differ by 0.0001798)"),
        "fresh inputs show no numbers": (MEAN, lambda x: mean(x) + (len(x) == 9), f"{RULE}: nine numbers: the result is wrong"),
        "an empty helper": (MEAN, calls_it, "…helper, which your calls_it calls, is still empty: it raises NotImplementedError"),
        "what PyTorch lacks is no starter": (
            MEAN, lambda x: torch.autograd.Function.apply(x), "…raises NotImplementedError: You must implement the forward…"),
        "a text as it stands": (WORDS, lambda x: "odd", f"{OWN_RULE} gives odd, want even"),
        "parts are right": (SIZE, size_and_word, "correct"),
        "a text's mistake": (SIZE, lambda x: (len(x), "even" if len(x) % 2 else "odd"), "odd and even are exchanged…"),
        "another text": (SIZE, lambda x: (len(x), "even"), "…gives kind = even, want odd"),
        "no text": (SIZE, lambda x: (len(x), 1.0), "…gives kind = 1, want odd"),
        "a text for a number": (SIZE, lambda x: ("three", "odd"), "…gives size = three, want 3"),
        "nan for a number": (SIZE, lambda x: (math.nan, "odd"), "…gives size = nan, want 3"),
    }.items()
])  # fmt: skip
def test_verdict_on_a_function(exercise, answer, told):
    """told: with … for any words."""
    assert re.fullmatch(".*".join(map(re.escape, told.split("…"))), verdict(exercise, answer)), verdict(exercise, answer)


def test_an_answer_is_adapted_before_it_is_run():
    def adapt(answer):
        def mean_of_list(x):
            if not isinstance(result := answer(x), list):
                raise Wrong("returns no list")
            return result[0]

        return mean_of_list

    exercise = dataclasses.replace(MEAN, adapt=adapt, mistakes={})
    assert verdict(exercise, lambda x: [mean(x)]) == "correct"
    assert verdict(exercise, lambda x: [x.sum()]) == f"{OWN_RULE} gives 6, want 3"
    assert verdict(exercise, mean) == "x = [1, 5]: returns no list"
    assert "pass the function itself" in verdict(exercise, 3)


# ---------------------------------------------------------------- the time limit


@pytest.fixture
def short_limit(monkeypatch):
    """For each run of an answer."""
    monkeypatch.setattr(running, "TIME_LIMIT", 0.3)


def endless(x):
    start = 0
    while start < len(x):
        x = x + 1


def test_a_line_of_another_lambda_is_no_line_of_the_answer():
    divide = lambda x: x / 0  # noqa: E731
    answer = lambda x: divide(x)  # noqa: E731
    with pytest.raises(ZeroDivisionError) as error:
        answer(1.0)
    assert running.where_in(error.value, answer) == " (in <lambda>: `divide = lambda x: x / 0  # noqa: E731`)"


def test_a_function_that_never_ends_is_stopped_even_where_it_catches_exceptions(short_limit):
    def catches(x):
        while True:
            try:
                x.sum()
            except Exception:
                return x

    words = verdict(MEAN, catches)
    assert words.startswith("x = [1, 5]: is still running after 0.3 s (line ") and "of catches: `" in words
    assert verdict(MEAN, mean) == "correct"


def test_what_never_ends_is_run_once(short_limit):
    """Neither the search for a mistake's name nor another edge runs it again."""
    runs = []

    def ends_for_two_numbers(x):
        runs.append(len(x))
        return x.sum() if len(x) == 2 else endless(x)  # the sum: two mistakes give it, and three numbers would tell them apart

    assert verdict(MEAN, ends_for_two_numbers).startswith("x = [1, 2, 6]: is still running")
    assert runs == [2, 2, 3]
    runs.clear()

    def ends_for_numbers(x):
        runs.append(len(x))
        return mean(x) if len(x) else endless(torch.zeros(1))

    assert verdict(MEAN, ends_for_numbers).startswith("right on the main case; no numbers: is still running")
    assert runs == [2, 2, 3, 3, 9, 9, 0]


def test_torch_is_not_stopped_halfway(monkeypatch):
    """In the middle of len(x) the mode that fills torch.empty is set aside, and around no_grad there is no telling how it would end."""
    monkeypatch.setattr(running, "TIME_LIMIT", 0.03)

    def without_gradients(x):
        while True:
            with torch.no_grad():
                len(x)

    for _ in range(20):
        assert "is still running" in verdict(MEAN, without_gradients)
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(("delay", "comes"), [(60.0, False), (0.1, True)], ids=["later", "meanwhile"])
def test_an_outer_timer_goes_on(delay, comes, short_limit):
    """pytest-timeout's, say: it uses the same signal."""
    alarms = []
    handler, outer = signal.signal(signal.SIGALRM, lambda *_: alarms.append(1)), signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        assert "is still running" in verdict(MEAN, endless)
        time.sleep(0.01)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *outer)
    assert (alarms == [1] and left == 0) if comes else (alarms == [] and delay - 20 < left < delay - 0.3)


def test_in_another_thread_there_is_no_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(verdict(MEAN, mean)))
    thread.start()
    thread.join()
    assert found == ["correct"]


# ---------------------------------------------------------------- kernels


@triton.jit
def row_sums(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    """out[i] = the sum of row i of x."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * cols + offs, mask=offs < cols, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x, axis=0))


ROW_SUMS = Exercise(
    task="Add rows up.", solution=row_sums, reasoning="A row a program.", hints=("Load.", "Add."),
    truth=lambda x: x.double().sum(1), rule="out[i] is the sum of row i",
    inputs=lambda: [case(torch.arange(1.0, 7.0).view(2, 3), on="x of shape (2, 3)", otherwise="row i starts at i · cols", stray="mask the load")],
    launch=lambda x: Launch((len(x),), (In(x), Out((len(x),), x.dtype), x.shape[1]), {"BLOCK": 4}),
    mistakes={"only row 0 is written": [("+ tl.program_id(0) * cols", ""), ("out_ptr + tl.program_id(0)", "out_ptr")],
              "the lanes past the end are undefined": (", other=0.0", "")}, seen={"overlap": "a row is added twice"},
)  # fmt: skip


def changed(*changes):
    """row_sums with some of its text changed."""
    return defined(edited(source_of(row_sums), *changes), globals())["row_sums"]


@triton.jit
def every_row_in_every_program(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for row in range(2):
        tl.store(out_ptr + row, tl.sum(tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=0.0), axis=0))


@triton.jit
def never_moves(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    start = 0
    while start < cols:
        tl.load(x_ptr + start)


only_traced = pytest.mark.skipif(ON_GPU, reason="a compiled kernel is not traced, and the interpreter cannot run tl.sum in this process")


ON = "x of shape (2, 3)"


@pytest.mark.parametrize(("kernel", "words"), [
    pytest.param(row_sums, "correct", id="right"),
    pytest.param(changed(("+ tl.program_id(0) * cols", ""), ("out_ptr + tl.program_id(0)", "out_ptr")),
                 f"only row 0 is written: {ON}: it never writes out[1] of shape (2,)", id="first row only"),
    pytest.param(changed(("\n    tl.store(out_ptr + tl.program_id(0), tl.sum(x, axis=0))", "")),
                 f"nothing is stored: does your kernel call tl.store, and does its mask let any element through? ({ON})", id="no store"),
    pytest.param(changed((", other=0.0", "")), f"the lanes past the end are undefined: {ON} gives out = [nan, nan], want [6, 15]",
                 id="no other", marks=only_traced),
    pytest.param(every_row_in_every_program, f"a row is added twice (more than one program writes the same elements of out): {ON}",
                 id="every row in every program", marks=only_traced),
    pytest.param(changed((", mask=offs < cols, other=0.0", "")), f"mask the load: with {ON} it reads outside x", id="no mask", marks=only_traced),
])  # fmt: skip
def test_verdict_on_a_kernel(kernel, words):
    assert verdict(ROW_SUMS, kernel).startswith(words)


def test_a_kernels_truth_is_not_rounded_but_overflows_as_its_output_does():
    """fp16 has no 2,049: a store leads to 2,048 or 2,050, and each is half a step away."""
    rows = torch.tensor([[2048.0, 1.0, 0.0], [65504.0, 65504.0, 0.0]], dtype=torch.float16)
    halves = dataclasses.replace(ROW_SUMS, inputs=lambda: [case(rows, on="two rows")], tolerance=lambda *_: (1.05 * 2**-11, 0.0))
    for off, is_right in ((0.01, True), (0.1, False)):
        exercise = dataclasses.replace(halves, truth=lambda x, off=off: x.double().sum(1) + off)
        assert (verdict(exercise, row_sums) == "correct") is is_right


@triton.jit
def copy(x_ptr, out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


@pytest.mark.parametrize(("programs", "words"), [(2, "correct"), (1, "NaN and 1: it never writes out[1]")])
def test_nan_in_an_output_of_8_bits_is_written(programs, words):
    """NaN is also what such an output's memory begins with."""
    eight_bits = dataclasses.replace(
        ROW_SUMS,
        solution=copy,
        truth=lambda x: x.double(),
        inputs=lambda: [case(torch.tensor([math.nan, 1.0]).to(torch.float8_e4m3fn), on="NaN and 1")],
        launch=lambda x: Launch((programs,), (In(x), Out((2,), x.dtype)), {}),
        tolerance=lambda *_: (0.0, 0.0),
        mistakes={},
    )
    assert words in verdict(eight_bits, copy)


def test_a_kernel_that_never_ends_is_stopped(short_limit):
    """On a GPU it is stopped in the interpreter, before the launch."""
    words = verdict(ROW_SUMS, never_moves)
    assert words.startswith("x of shape (2, 3): is still running after 0.3 s (line ") and "of never_moves: `" in words
    assert verdict(ROW_SUMS, row_sums) == "correct"
