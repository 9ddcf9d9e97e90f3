"""Finds the exercises: each is an object EXERCISE in a file chapter_N/ex_M.py of its own."""

from __future__ import annotations

import importlib
import pkgutil

from fa_tutorial.exercises.harness import Exercise


def chapters() -> list[int]:
    """The numbers of the chapters that have exercises, in order."""
    import fa_tutorial.exercises as package

    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(int(name.removeprefix("chapter_")) for name in names if name.startswith("chapter_"))


def chapter_exercises(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of one chapter, in order. Imports that chapter alone, so that those without kernels work where Triton is missing."""
    package = importlib.import_module(f"fa_tutorial.exercises.chapter_{chapter}")
    numbers = sorted(
        int(module.name.removeprefix("ex_")) for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("ex_")
    )
    return tuple(importlib.import_module(f"{package.__name__}.ex_{number}").EXERCISE for number in numbers)


def find(exercise_id: str) -> Exercise:
    """The exercise called `exercise_id`; ValueError that lists the ids otherwise."""
    if not isinstance(exercise_id, str):
        if isinstance(exercise_id, int | float):
            raise TypeError(f'an exercise is named by a text, "{exercise_id}", not by {exercise_id!r}')
        raise TypeError(f'name the exercise first, as a text: check("1.2", answer); got a {type(exercise_id).__name__}')
    chapter = exercise_id.partition(".")[0]
    known = chapters()
    if not chapter.isdecimal() or int(chapter) not in known:
        raise ValueError(f"there is no exercise {exercise_id!r}; chapters with exercises: {', '.join(map(str, known))}")
    exercises = {exercise.id: exercise for exercise in chapter_exercises(int(chapter))}
    if exercise_id not in exercises:
        raise ValueError(f"there is no exercise {exercise_id!r}; chapter {chapter} has {', '.join(exercises)}")
    return exercises[exercise_id]
