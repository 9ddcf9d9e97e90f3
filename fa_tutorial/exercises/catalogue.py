"""Finds the exercises: each is an object EXERCISE in a file chapter_N/ex_M.py of its own."""

import functools
import importlib
import pkgutil
from pathlib import Path

from fa_tutorial.exercises.harness import Exercise

FOLDER = Path(__file__).parent


def chapters() -> list[int]:
    """The numbers of the chapters that have exercises, in order."""
    return _numbers("chapter_", FOLDER)


def chapter_ids(chapter: int) -> list[str]:
    """The ids of one chapter's exercises, in order. Imports none of them, so that it works where Triton is missing."""
    return [f"{chapter}.{number}" for number in _numbers("ex_", FOLDER / f"chapter_{chapter}")]


@functools.cache
def _numbers(prefix: str, folder: Path) -> list[int]:
    names = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))


def chapter_exercises(chapter: int) -> list[Exercise]:
    """The exercises of one chapter, in order."""
    return [find(exercise_id) for exercise_id in chapter_ids(chapter)]


def find(exercise_id: str) -> Exercise:
    """The exercise called `exercise_id`; ValueError that lists the ids otherwise."""
    if not isinstance(exercise_id, str):
        if isinstance(exercise_id, int | float):
            raise TypeError(f'an exercise is named by a text, "{exercise_id}", not by {exercise_id!r}')
        raise TypeError(f'name the exercise first, as a text: check("1.2", answer); got a {type(exercise_id).__name__}')
    chapter, _, number = exercise_id.partition(".")
    known = chapters()
    if not chapter.isdecimal() or int(chapter) not in known:
        raise ValueError(f"there is no exercise {exercise_id!r}; chapters with exercises: {', '.join(map(str, known))}")
    ids = chapter_ids(int(chapter))
    if exercise_id not in ids:
        raise ValueError(f"there is no exercise {exercise_id!r}; chapter {chapter} has {', '.join(ids)}")
    return importlib.import_module(f"fa_tutorial.exercises.chapter_{chapter}.ex_{number}").EXERCISE
