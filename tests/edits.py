"""Answers that differ from an exercise's solution in a line or two: the solution with some of its text changed."""

import sys

from fa_tutorial.exercises import catalogue
from fa_tutorial.source import defined, edited, source_of, unwrapped


class Edit:
    """An answer that is made when it is needed."""

    def __init__(self, exercise_id: str, name: str, changes: tuple[tuple, ...], helpers: tuple):
        self.exercise_id, self.__name__, self.changes, self.helpers = exercise_id, name, changes, helpers

    def answer(self):
        solution = catalogue.find(self.exercise_id).solution
        functions = (*self.helpers, solution)
        names = {name: value for function in functions for name, value in namespace_of(function).items()}
        names["__name__"] = __name__  # the grader refuses what is the package's own
        once = [(old, new, *(times or (1,))) for old, new, *times in self.changes]
        return defined(edited("\n\n\n".join(map(source_of, functions)), *once), names)[solution.__name__]


def namespace_of(function) -> dict:
    function = unwrapped(function)
    return function.__globals__ if hasattr(function, "__globals__") else vars(sys.modules[function.__module__])


def edit(exercise_id: str, name: str, *changes: tuple, told: str = "", gpu: str | None = "", helpers: tuple = ()) -> tuple:
    """An entry of WRONG_ANSWERS or RIGHT_ANSWERS: the solution, changed, and what the reader is told.

    name: of the mistake, or of the other words. changes: (old, new), where the old text stands once, or (old, new, times).
    gpu: what is told on a GPU, where that differs; None where a compiled kernel cannot show it.
    helpers: functions that the solution calls, whose text is changed with its own.
    """
    words = (told, told if gpu == "" else gpu) if told else ()
    return exercise_id, Edit(exercise_id, name, changes, helpers), *words
