"""The exercises of chapters 0 to 4, by the checks of exercise_checks."""

from exercise_checks import ExerciseChecks


class TestExercises(ExerciseChecks):
    chapters = (0, 1, 2, 3, 4)
