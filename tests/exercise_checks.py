"""What must hold of every exercise: the solution is right, each wrong answer is rejected for its own reason, and what a reader is shown is there.

Checked for some chapters in each of test_exercises_*.py, so that `pytest --dist loadfile` can run them beside each other.
"""

from __future__ import annotations

import importlib
from collections import Counter

from wrong_answers import WrongAnswer

from fa_tutorial import hardware
from fa_tutorial.exercises import catalogue, check
from fa_tutorial.source import WIDTH


def name_of(answer) -> str:
    return getattr(answer, "__name__", repr(answer))


class ExerciseChecks:
    """The tests of the exercises of `chapters`; a subclass named Test… sets those."""

    chapters: tuple[int, ...] = ()
    # In the interpreter a kernel's check takes seconds: there one wrong answer in so many is graded again, to see that its line stays the same.
    again_every: int = 1

    @classmethod
    def exercises(cls) -> list[catalogue.Exercise]:
        return [exercise for chapter in cls.chapters for exercise in catalogue.chapter_exercises(chapter)]

    @classmethod
    def wrong_answers(cls) -> list[WrongAnswer]:
        return [wrong for chapter in cls.chapters for wrong in importlib.import_module(f"wrong_answers.chapter_{chapter}").WRONG_ANSWERS]

    @classmethod
    def right_answers(cls) -> list[tuple]:
        """(id, answer) pairs."""
        return [pair for chapter in cls.chapters for pair in importlib.import_module(f"right_answers.chapter_{chapter}").RIGHT_ANSWERS]

    def pytest_generate_tests(self, metafunc):
        """A test for each exercise, wrong answer or right answer, by what a test's arguments name."""
        names = metafunc.fixturenames
        if "exercise" in names:
            metafunc.parametrize("exercise", self.exercises(), ids=lambda exercise: exercise.id)
        if "wrong" in names:
            metafunc.parametrize("wrong", self.wrong_answers(), ids=lambda wrong: f"{wrong.id}-{name_of(wrong.answer)}")
        if "right" in names:
            metafunc.parametrize("right", self.right_answers(), ids=lambda right: f"{right[0]}-{name_of(right[1])}")

    def test_solution_is_correct(self, exercise):
        result = check(exercise.id, exercise.solution)
        assert result.status == "correct", result.message

    def test_wrong_answer_is_rejected_for_its_reason(self, wrong, capsys):
        again = not hardware.interpreter_on() or self.wrong_answers().index(wrong) % self.again_every == 0
        results = [check(wrong.id, wrong.answer) for _ in range(1 + again)]
        first = results[0]
        assert first.status == "wrong", "a wrong answer passed"
        diagnosis = wrong.on_gpu if wrong.on_gpu and not hardware.interpreter_on() else wrong.diagnosis
        assert diagnosis in first.message
        assert first.message == results[-1].message, "the same mistake must get the same line"
        assert "\n" not in first.message and len(first.message) < 400
        lines = capsys.readouterr().out.splitlines()
        assert " ".join(line.strip() for line in lines) == " ".join(map(str, results)), "check shows its verdict, and nothing else"
        assert all(len(line) <= WIDTH for line in lines), "a page breaks a longer line inside a word"

    def test_right_answer_in_other_words_is_accepted(self, right):
        exercise_id, answer = right
        result = check(exercise_id, answer)
        assert result.status == "correct", result.message

    def test_every_exercise_has_wrong_and_right_answers(self):
        wrong = Counter(answer.id for answer in self.wrong_answers())
        right = Counter(exercise_id for exercise_id, _ in self.right_answers())
        for exercise in self.exercises():
            assert wrong[exercise.id] >= 5, f"{exercise.id} has {wrong[exercise.id]} wrong answers"
            assert right[exercise.id] >= 1, f"{exercise.id} has no right answer in other words"
        assert set(wrong) == set(right) == {exercise.id for exercise in self.exercises()}

    def test_exercise_has_hints_and_reasoning(self, exercise):
        assert len(exercise.hints) >= 2 and all(exercise.hints)
        assert exercise.reasoning and exercise.task
        assert exercise.solution.__name__ == exercise.name

    def test_diagnoses_of_one_exercise_differ(self, exercise):
        diagnoses = {wrong.diagnosis for wrong in self.wrong_answers() if wrong.id == exercise.id}
        assert len(diagnoses) >= 4, "too few different diagnoses"
