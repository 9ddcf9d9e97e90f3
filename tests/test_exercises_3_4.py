"""The exercises of chapters 3 and 4, by the checks of exercise_checks."""

from exercise_checks import ExerciseChecks


class TestExercises(ExerciseChecks):
    chapters = (3, 4)
