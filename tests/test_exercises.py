"""For every exercise: the solution is right, the starter is not attempted, each wrong answer is rejected for its own reason."""

import importlib
from collections import Counter

import pytest

from fa_tutorial import hardware
from fa_tutorial.exercises import catalogue, check, service

CHAPTERS = catalogue.chapters()
EXERCISES = [exercise for chapter in CHAPTERS for exercise in catalogue.chapter_exercises(chapter)]
WRONG_ANSWERS = [wrong for chapter in CHAPTERS for wrong in catalogue.wrong_answers(chapter)]
RIGHT_ANSWERS = [pair for chapter in CHAPTERS for pair in importlib.import_module(f"right_answers.chapter_{chapter}").RIGHT_ANSWERS]


def name_of(answer) -> str:
    return getattr(answer, "__name__", repr(answer))


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_solution_is_correct(exercise):
    result = check(exercise.id, exercise.solution)
    assert result.status == "correct", result.message


@pytest.mark.parametrize("wrong", WRONG_ANSWERS, ids=lambda wrong: f"{wrong.id}-{name_of(wrong.answer)}")
def test_wrong_answer_is_rejected_for_its_reason(wrong, capsys):
    first, second = check(wrong.id, wrong.answer), check(wrong.id, wrong.answer)
    assert first.status == "wrong", "a wrong answer passed"
    diagnosis = wrong.on_gpu if wrong.on_gpu and not hardware.interpreter_on() else wrong.diagnosis
    assert diagnosis in first.message
    assert first.message == second.message, "the same mistake must get the same line"
    assert "\n" not in first.message and len(first.message) < 400
    assert capsys.readouterr().out.count("\n") == 2, "check shows one line"


@pytest.mark.parametrize(("exercise_id", "answer"), RIGHT_ANSWERS, ids=lambda value: value if isinstance(value, str) else name_of(value))
def test_right_answer_in_other_words_is_accepted(exercise_id, answer):
    result = check(exercise_id, answer)
    assert result.status == "correct", result.message


def test_every_exercise_has_wrong_and_right_answers():
    wrong = Counter(answer.id for answer in WRONG_ANSWERS)
    right = Counter(exercise_id for exercise_id, _ in RIGHT_ANSWERS)
    for exercise in EXERCISES:
        assert wrong[exercise.id] >= 5, f"{exercise.id} has {wrong[exercise.id]} wrong answers"
        assert right[exercise.id] >= 1, f"{exercise.id} has no right answer in other words"
    assert set(wrong) == set(right) == {exercise.id for exercise in EXERCISES}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_exercise_has_hints_and_reasoning(exercise):
    assert len(exercise.hints) >= 2 and all(exercise.hints)
    assert exercise.reasoning and exercise.task
    assert exercise.solution.__name__ == exercise.name


def test_diagnoses_of_one_exercise_differ():
    for exercise in EXERCISES:
        diagnoses = [wrong.diagnosis for wrong in WRONG_ANSWERS if wrong.id == exercise.id]
        assert len(set(diagnoses)) >= 4, f"{exercise.id}: too few different diagnoses"


def test_unknown_exercise():
    with pytest.raises(ValueError, match="chapters with exercises"):
        check("99.1", len)
    with pytest.raises(ValueError, match=r"chapter 0 has 0\.1"):
        check("0.99", len)


def test_hints_come_one_after_another(capsys):
    service._hints_given.clear()
    hints = catalogue.find("0.1").hints
    for given in (*hints, hints[-1]):
        service.hint("0.1")
        assert given in capsys.readouterr().out


def test_solution_shows_source_and_reasoning(capsys):
    service.solution("0.4")
    shown = capsys.readouterr().out
    assert "def attainable_flops" in shown and catalogue.find("0.4").reasoning in shown


def test_progress_is_kept_and_survives_a_broken_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FA_TUTORIAL_STATE", str(tmp_path))
    check("0.4", lambda intensity, peak_flops, bandwidth: peak_flops)
    check("0.4", min_roof)
    check("0.4", lambda intensity, peak_flops, bandwidth: peak_flops)  # what was once correct stays so
    capsys.readouterr()
    service.progress()
    assert "chapter 0: 1 of 4 done" in capsys.readouterr().out
    (tmp_path / "progress.json").write_text("{ broken")
    service.progress()
    assert "chapter 0: 0 of 4 done" in capsys.readouterr().out


def min_roof(intensity, peak_flops, bandwidth):
    return min(peak_flops, intensity * bandwidth)
