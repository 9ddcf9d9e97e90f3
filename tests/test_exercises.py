"""The calls that a notebook makes: check, hint, solution, progress. The exercises themselves: test_exercises_*.py."""

import importlib
from pathlib import Path

import pytest

from fa_tutorial.exercises import catalogue, check, service
from fa_tutorial.source import WIDTH


def test_every_chapter_is_checked_in_one_file():
    files = [importlib.import_module(path.stem) for path in Path(__file__).parent.glob("test_exercises_*.py")]
    assert sorted(chapter for file in files for chapter in file.TestExercises.chapters) == list(catalogue.chapters())


def test_unknown_exercise():
    with pytest.raises(ValueError, match="chapters with exercises"):
        check("99.1", len)
    with pytest.raises(ValueError, match=r"chapter 0 has 0\.1"):
        check("0.99", len)


def test_a_function_for_a_class():
    pytest.importorskip("triton")
    assert check("7.4", lambda q: q).message.endswith("pass the class itself, not the function <lambda>")


def test_hints_come_one_after_another(capsys):
    service._hints_given.clear()
    hints = catalogue.find("0.1").hints
    for given in (*hints, hints[-1]):
        service.hint("0.1")
        assert given in " ".join(capsys.readouterr().out.split())


def test_solution_shows_source_and_reasoning(capsys):
    service.solution("0.4")
    shown = capsys.readouterr().out
    assert "def attainable_flops" in shown and catalogue.find("0.4").reasoning in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= WIDTH, "a page breaks a longer line inside a word"


def test_progress_of_no_chapter():
    with pytest.raises(ValueError, match="no exercises of chapter 42; chapters with exercises: 0, 1"):
        service.progress(42)


def test_progress_is_kept_and_survives_a_broken_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FA_TUTORIAL_STATE", str(tmp_path))
    check("0.4", lambda intensity, peak_flops, bandwidth: peak_flops)
    check("0.4", min_roof)
    check("0.4", lambda intensity, peak_flops, bandwidth: peak_flops)  # what was once correct stays so
    capsys.readouterr()
    service.progress()
    assert "chapter 0: 1 of 4 done" in capsys.readouterr().out
    for broken in ("{ broken", "[]", '{"0.4": "solved", "0.3": ["correct"]}'):
        (tmp_path / "progress.json").write_text(broken)
        service.progress(0)
        assert capsys.readouterr().out == "chapter 0: 0 of 4 done   · 0.1  · 0.2  · 0.3  · 0.4\n"


def min_roof(intensity, peak_flops, bandwidth):
    return min(peak_flops, intensity * bandwidth)
