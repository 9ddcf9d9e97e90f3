"""The exercises of chapters 8 and 9, by the checks of exercise_checks."""

from exercise_checks import ExerciseChecks


class TestExercises(ExerciseChecks):
    chapters = (8, 9)
    again_every = 4
