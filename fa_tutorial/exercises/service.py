"""The four calls that a notebook makes: check, hint, solution, progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fa_tutorial.exercises import catalogue
from fa_tutorial.exercises import progress as record_of
from fa_tutorial.exercises.grader import NotAttempted, Wrong
from fa_tutorial.source import display_source

MARKS = {"correct": "✓", "wrong": "✗", "not attempted": "·"}
_hints_given: dict[str, int] = {}


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
    """Grade `answer`, show the verdict in one line, keep it, and return it."""
    exercise = catalogue.find(exercise_id)
    label = f"{exercise.id} {exercise.name}"
    try:
        exercise.grade(answer)
        result = Result(exercise.id, "correct", f"{label}: correct")
    except NotAttempted:
        result = Result(exercise.id, "not attempted", f"{label}: not attempted")
    except Wrong as diagnosis:
        result = Result(exercise.id, "wrong", f"{label}: {' '.join(str(diagnosis).split())}")
    record_of.record(exercise.id, result.status)
    print(result)
    return result


def hint(exercise_id: str) -> None:
    """Show the next hint of an exercise; after the last one, that one again."""
    exercise = catalogue.find(exercise_id)
    given = min(_hints_given.get(exercise.id, 0) + 1, len(exercise.hints))
    _hints_given[exercise.id] = given
    print(f"{exercise.id}, hint {given} of {len(exercise.hints)}: {exercise.hints[given - 1]}")
    if given == len(exercise.hints):
        print(f'That was the last one; solution("{exercise.id}") shows the answer.')


def solution(exercise_id: str) -> None:
    """Show the answer's source, with its reasoning."""
    exercise = catalogue.find(exercise_id)
    print(f"{exercise.id} {exercise.name}: {exercise.reasoning}")
    display_source(exercise.solution)


def progress() -> None:
    """Show, chapter by chapter, which exercises are done."""
    state = record_of.load()
    solved = total = 0
    for chapter in catalogue.chapters():
        try:
            exercises = catalogue.chapter_exercises(chapter)
        except ImportError:
            print(f"chapter {chapter}: needs Triton, which is not installed here")
            continue
        marks = "  ".join(f"{MARKS[state.get(exercise.id, 'not attempted')]} {exercise.id}" for exercise in exercises)
        done = sum(state.get(exercise.id) == "correct" for exercise in exercises)
        solved, total = solved + done, total + len(exercises)
        print(f"chapter {chapter}: {done} of {len(exercises)} done   {marks}")
    print(f"all chapters: {solved} of {total} done   (✓ correct, ✗ tried, · not attempted)")
