"""The five calls that a notebook makes: check, hint, solution, progress, answer."""

import textwrap
from dataclasses import dataclass
from typing import Any

from fa_tutorial.exercises import catalogue
from fa_tutorial.exercises import progress as record_of
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.running import NotAttempted, Wrong
from fa_tutorial.source import WIDTH, display_source

MARKS = {"correct": "✓", "wrong": "✗", "not attempted": "·"}
_hints_given: dict[str, int] = {}
_judged: dict[str, tuple[Any, str]] = {}  # exercise id -> the object that was judged last, and its status


@dataclass(frozen=True)
class Result:
    """What check found. status: "correct", "wrong" or "not attempted". message: why, in one line."""

    id: str
    status: str
    message: str

    def __str__(self) -> str:
        return f"{MARKS[self.status]} {self.message}"

    def _ipython_display_(self) -> None:
        """Nothing: check has printed the line, and a cell that ends in check(...) would show it twice."""


def check(exercise_id: str, answer: Any) -> Result:
    """Grade `answer`, show the verdict, keep it, and return it. As in hint and solution, TypeError or ValueError for an unknown id."""
    result = _judge(catalogue.find(exercise_id), answer)
    _say(str(result) if result.status == "correct" else f'{result} → hint("{result.id}")')
    return result


def answer(exercise_id: str, yours: Any) -> Any:
    """`yours` if it is right, else the solution, so that the notebook goes on with an object that works. Prints which it is, and of
    what check hasn't seen why it is wrong."""
    exercise = catalogue.find(exercise_id)
    judged, status = _judged.get(exercise.id, (None, ""))
    if judged is not yours or not status:
        result = _judge(exercise, yours)
        status = result.status
        if status == "wrong":
            _say(str(result))
    if status == "correct":
        _say(f"{exercise.id} {exercise.name}: this is yours")
        return yours
    why = "yours is not right yet" if status == "wrong" else "not attempted"
    _say(f"{exercise.id} {exercise.name}: this is the course's solution ({why})")
    return exercise.solution


def _judge(exercise: Exercise, answer: Any) -> Result:
    """Grade an answer and keep the verdict, in the reader's progress and for `answer`."""
    try:
        if _is_the_packages(answer):
            raise NotAttempted("this is the package's own; write yours")
        exercise.grade(answer)
        status, words = "correct", exercise.note(answer) if exercise.note and callable(answer) else ""
    except NotAttempted as left_over:
        status, words = "not attempted", str(left_over)
    except Wrong as diagnosis:
        status, words = "wrong", " ".join(str(diagnosis).split())
    record_of.record(exercise.id, status)
    _judged[exercise.id] = (answer, status)
    message = words if status == "wrong" else f"{status} ({words})" if words else status
    return Result(exercise.id, status, f"{exercise.id} {exercise.name}: {message}")


def _is_the_packages(answer: Any) -> bool:
    """True for a function or kernel of fa_tutorial; the exercises' solutions are allowed, for whoever puts them in a notebook."""
    module = getattr(getattr(answer, "fn", answer), "__module__", None) or ""
    return module.startswith("fa_tutorial.") and not module.startswith("fa_tutorial.exercises.")


def hint(exercise_id: str) -> None:
    """Show the next hint of an exercise; after the last one, that one again."""
    exercise = catalogue.find(exercise_id)
    given = min(_hints_given.get(exercise.id, 0) + 1, len(exercise.hints))
    _hints_given[exercise.id] = given
    _say(f"{exercise.id}, hint {given} of {len(exercise.hints)}: {exercise.hints[given - 1]}")
    if given == len(exercise.hints):
        print(f'That was the last one; solution("{exercise.id}") shows the answer.')


def solution(exercise_id: str) -> None:
    """Show the answer's source, with its reasoning and what the package's version does besides."""
    exercise = catalogue.find(exercise_id)
    _say(f"{exercise.id} {exercise.name}: {exercise.reasoning}")
    display_source(exercise.solution)
    if exercise.more:
        _say(exercise.more)


def _say(text: str) -> None:
    """Print a text, broken at spaces where it is longer than a page shows in one line: JupyterLab would break it inside a word."""
    print(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def progress(chapter: int | None = None) -> None:
    """Show which exercises are done, of one chapter or of all; ValueError for a chapter that has none."""
    known, state = catalogue.chapters(), record_of.load()
    if chapter is not None and chapter not in known:
        raise ValueError(f"no exercises of chapter {chapter!r}; chapters with exercises: {', '.join(map(str, known))}")
    done = 0
    for number in known if chapter is None else [chapter]:
        statuses = {one: state.get(one, "not attempted") for one in catalogue.chapter_ids(number)}
        solved = [*statuses.values()].count("correct")
        done += solved
        marks = "  ".join(f"{MARKS[status]} {one}" for one, status in statuses.items())
        print(f"chapter {number}: {solved} of {len(statuses)} done   {marks}")
    if chapter is None:
        exercises = sum(len(catalogue.chapter_ids(number)) for number in known)
        print(f"all chapters: {done} of {exercises} done   (✓ correct, ✗ tried, · not attempted)")
