"""The exercises of chapter 5, by the checks of exercise_checks."""

from exercise_checks import ExerciseChecks


class TestExercises(ExerciseChecks):
    chapters = (5,)
    again_every = 4
