"""What must hold of every exercise: its solution is right, each of its mistakes is named, and what a reader is shown is there.

A mistake needs no code here: the solution with its change is graded as an answer. tests/wrong_answers has the mistakes that only running
shows, and tests/right_answers has answers that are right in other words.
"""

import ast
import importlib
import sys
from pathlib import Path

import pytest
import torch
from edits import Edit

from fa_tutorial import hardware
from fa_tutorial.exercises import catalogue, check
from fa_tutorial.exercises.harness import Exercise, slipped
from fa_tutorial.source import WIDTH, source_of

EXERCISES = [exercise for chapter in catalogue.chapters() for exercise in catalogue.chapter_exercises(chapter)]
CHAPTERS = sorted({exercise.chapter for exercise in EXERCISES})


# An answer to 4.5 or 14.9 is run on many kernels, 5.8 and 7.8 launch the package's, 8.2 and 8.5 compile, and 13.6 runs several rings.
TAKES_SECONDS = "4.5", "5.8", "7.8", "8.2", "8.5", "13.6", "14.9"


def marks(exercise: Exercise) -> list:
    """A verdict of seconds is left to make test-slow, and so is a kernel's in the interpreter."""
    return [pytest.mark.slow] if exercise.launch or exercise.id in TAKES_SECONDS else []


MISTAKES = [pytest.param(exercise, mistake, marks=marks(exercise)) for exercise in EXERCISES for mistake in exercise.mistakes]


def answers(kind: str, name: str) -> list[tuple]:
    return [answer for chapter in CHAPTERS for answer in getattr(importlib.import_module(f"{kind}.chapter_{chapter}"), name)]


def name_of(value) -> str:
    return value.id if isinstance(value, Exercise) else getattr(value, "__name__", str(value))


def made(answer):
    return answer.answer() if isinstance(answer, Edit) else answer


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Inputs are small: a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=name_of)


@each_exercise
def test_solution_is_right(exercise):
    assert check(exercise.id, exercise.solution).status == "correct"


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES, ids=name_of)
def test_mistake_is_named(exercise, mistake, capsys):
    """On a GPU programs that write one place race, so that two runs differ, and that is told instead."""
    result = check(exercise.id, slipped(exercise, mistake))
    assert result.status == "wrong", result.message
    if hardware.interpreter_on() or not exercise.launch:
        assert mistake in result.message, result.message
    assert all(len(line) <= WIDTH for line in capsys.readouterr().out.splitlines()), "a page breaks a longer line inside a word"


@pytest.mark.parametrize("wrong", [
    pytest.param(wrong, id=f"{wrong[0]}-{name_of(wrong[1])}", marks=marks(catalogue.find(wrong[0])))
    for wrong in answers("wrong_answers", "WRONG_ANSWERS")
])  # fmt: skip
def test_wrong_answer_is_told_why(wrong):
    exercise_id, answer, *words = wrong
    words = words[0 if hardware.interpreter_on() else -1]
    if words is None:
        pytest.skip("a compiled kernel does not show it")
    result = check(exercise_id, made(answer))
    assert result.status == "wrong" and words in result.message, result.message
    assert "\n" not in result.message


@pytest.mark.slow
@pytest.mark.filterwarnings("error:tl.make_block_ptr is deprecated")  # Triton's, which a reader would get many times
@pytest.mark.parametrize("right", answers("right_answers", "RIGHT_ANSWERS"), ids=lambda right: f"{right[0]}-{name_of(right[1])}")
def test_right_answer_in_other_words_is_accepted(right):
    exercise_id, answer, *words = right
    remark = words and words[0 if hardware.interpreter_on() else -1]
    result = check(exercise_id, made(answer))
    assert result.status == "correct" and result.message.endswith(": correct") != bool(remark), result.message
    assert not remark or remark in result.message


@each_exercise
def test_starter_is_not_attempted(exercise, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert check(exercise.id, starter_of(exercise, tmp_path)).message.endswith("not attempted")


def starter_of(exercise: Exercise, folder: Path):
    """The solution's head, or each method's, over `raise NotImplementedError`, in a file, because a kernel is compiled from its source."""
    tree = ast.parse(source_of(exercise.solution))
    answer = tree.body[0]
    for function in answer.body if isinstance(answer, ast.ClassDef) else [answer]:
        function.body = ast.parse("raise NotImplementedError").body
    module = f"starter_{exercise.id.replace('.', '_')}"
    imports = (
        "import torch\nimport triton\nimport triton.language as tl\nfrom triton.experimental import gluon\n" if exercise.chapter > 1 else ""
    )
    (folder / f"{module}.py").write_text(imports + ast.unparse(tree))
    try:
        return getattr(importlib.import_module(module), exercise.name)
    finally:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("exercise", [exercise for exercise in EXERCISES if exercise.launch], ids=name_of)
def test_a_plain_function_is_no_kernel(exercise):
    assert "is a plain function, not a kernel: put @triton.jit above it" in check(exercise.id, exercise.solution.fn).message


@each_exercise
def test_exercise_is_complete(exercise):
    assert catalogue.find(exercise.id) is exercise
    assert exercise.task and exercise.reasoning and len(exercise.hints) >= 2 and all(exercise.hints)
    assert {case.edge for case in exercise.inputs()} - {""} == set(exercise.conditions), "each condition is tested, and each edge is stated"
    assert max(map(len, source_of(exercise.solution).splitlines())) <= WIDTH, "a solution is shown as it stands"
