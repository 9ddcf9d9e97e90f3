"""The exercises of chapter 7, by the checks of exercise_checks."""

from exercise_checks import ExerciseChecks


class TestExercises(ExerciseChecks):
    chapters = (7,)
    again_every = 4
