"""The reader's copies in work/: never written over, told when the chapter is newer, run without a trace. On a course of two chapters."""

import json
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fa_tutorial import work
from fa_tutorial.__main__ import main

CHECK = "from fa_tutorial.exercises import check\n\ndef attention_flops(B, H, S, D, is_causal):\n    {body}"


def write(path, *sources, text="A chapter."):
    cells = [new_markdown_cell(text, id="text"), *(new_code_cell(source, id=f"cell{i}") for i, source in enumerate(sources))]
    nbformat.write(new_notebook(cells=cells), path)


def cells_of(path):
    return json.loads(path.read_bytes())["cells"]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of chapters 0 and 1: its notebooks/ and the reader's work/."""
    monkeypatch.setattr(work, "ROOT", tmp_path)
    monkeypatch.setattr(work, "CHAPTERS", tmp_path / "notebooks")
    monkeypatch.setattr(work, "COPIES", tmp_path / "work")
    (tmp_path / "notebooks").mkdir()
    write(tmp_path / "notebooks" / "00_first.ipynb")
    write(tmp_path / "notebooks" / "01_second.ipynb")
    return tmp_path


def change(path, **texts):
    """Give the cells of these ids other texts, or add them, as a reader or a new version of the chapter does."""
    notebook = nbformat.read(path, as_version=4)
    there = {cell["id"]: cell for cell in notebook.cells}
    for name, text in texts.items():
        if name in there:
            there[name]["source"] = text
        else:
            notebook.cells.append(new_code_cell(text, id=name))
    nbformat.write(notebook, path)


def test_take_brings_the_readers_cells_along(course, capsys):
    """Those that the reader changed in their places, those that the reader added, or the chapter no longer has, after the cells that they
    followed; the others are as the chapter has them now, and an empty cell stays behind."""
    chapter, copy = (course / folder / "01_second.ipynb" for folder in ("notebooks", "work"))
    write(chapter, "one", "gone", "two", "three")
    work.fill()
    change(copy, cell0="answer = 1", cell1="answer = 2", empty=" ", note="note = 0")
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells.insert(1, new_code_cell("helper = 1", id="helper"))
    nbformat.write(notebook, copy)
    write(chapter, "one, better", text="A better chapter.")
    change(chapter, cell2="two, better", cell3="three")
    work.take([1])
    sources = ["A better chapter.", "helper = 1", "answer = 1", "answer = 2", "two, better", "three", "note = 0"]
    assert [cell["source"] for cell in cells_of(copy)] == [[source] for source in sources]
    shown = capsys.readouterr().out
    assert "the cells that you changed (1) and added (3)" in shown
    assert "the course changed one of these, too: the cell that begins `answer = 1`" in shown and shown.count("too:") == 1
    work.fill()
    assert "all of the course's present text" in capsys.readouterr().out


def test_a_damaged_copy_is_named_and_set_aside(course, capsys):
    work.fill()
    copy = course / "work" / "00_first.ipynb"
    copy.write_text("{")
    work.fill()
    assert capsys.readouterr().out.endswith("work/00_first.ipynb is no notebook any more; to set it aside: make take CHAPTER=0\n")
    work.take([0])
    assert cells_of(copy)[0]["source"] == ["A chapter."] and [path.read_text() for path in copy.parent.glob("00.20*")] == ["{"]


def test_missing_copies_are_made_without_outputs_and_none_is_written_over(course):
    output = new_output("execute_result", {"text/plain": "2"}, execution_count=3)
    stored = new_notebook(cells=[new_code_cell("1 + 1", outputs=[output], execution_count=3)])
    nbformat.write(stored, course / "notebooks" / "00_first.ipynb")
    work.fill()
    copy = course / "work" / "00_first.ipynb"
    [cell] = cells_of(copy)
    assert (cell["source"], cell["outputs"], cell["execution_count"]) == (["1 + 1"], [], None)
    write(copy, "answer = 1")
    (course / "work" / "01_second.ipynb").unlink()
    work.fill()
    assert cells_of(copy)[1]["source"] == ["answer = 1"] and (course / "work" / "01_second.ipynb").exists()


def test_a_newer_chapter_is_told_and_take_keeps_the_old_copy_under_a_dated_name(course, capsys):
    """An answer is no newer chapter."""
    work.fill()
    other, copy = (course / "work" / name for name in ("00_first.ipynb", "01_second.ipynb"))
    change(other, mine="answer = 1")
    change(copy, mine="answer = 1")  # as JupyterLab does, which keeps the metadata
    write(course / "notebooks" / "01_second.ipynb", text="A better chapter.")
    capsys.readouterr()
    work.fill()
    told, how = capsys.readouterr().out.splitlines()
    assert told.startswith("chapter 1 is newer than your copy") and "make take CHAPTER=1" in told and "work take 1" in how
    assert main(["work", "take", "1"]) == 0
    [kept] = copy.parent.glob("01.20*.ipynb")
    assert cells_of(kept)[1]["source"] == ["answer = 1"] and cells_of(copy)[0]["source"] == ["A better chapter."]
    assert kept.name in capsys.readouterr().out
    work.fill()
    assert capsys.readouterr().out == "2 copies in work/, all of the course's present text\n"
    assert main(["work", "take", "1"]) == 0
    assert "has the course's present text already" in capsys.readouterr().out and len(list(copy.parent.glob("01*"))) == 2


def test_no_chapter_of_this_number_and_no_notebooks(course, capsys):
    work.fill()
    assert main(["work", "take", "0", "7"]) == 1
    assert "no chapter 7; the course has 0, 1" in capsys.readouterr().err
    assert len(list((course / "work").iterdir())) == 2, "nothing is taken where one of the numbers is wrong"
    for path in (course / "notebooks").iterdir():
        path.unlink()
    assert main(["work"]) == 1 and "run this in a clone of the course" in capsys.readouterr().err


def test_check_runs_the_copies_and_tells_verdicts_and_errors(course, capsys, monkeypatch):
    """A right answer, a wrong one, missing checks, and a cell that raises are told, verdicts are kept, and no copy is changed."""
    work.fill()
    right, wrong = "return 2 * B * H * D * (S * (S + 1) if is_causal else 2 * S * S)", "return B"
    two = CHECK.format(body=wrong).replace("attention_flops", "two")
    calls = 'check("0.1", attention_flops)', 'check("0.2", two)'
    write(course / "work" / "00_first.ipynb", CHECK.format(body=right), two, "1 / 0", *calls)
    before = [path.read_bytes() for path in sorted((course / "work").iterdir())]
    monkeypatch.setenv("FA_TUTORIAL_STATE", str(course / "state"))
    assert main(["work", "check", "0"]) == 1
    assert json.loads((course / "state" / "progress.json").read_text()) == {"0.1": "correct", "0.2": "wrong"}
    shown = capsys.readouterr().out
    assert "00_first: 1 of 5 right   ✓ 0.1  ✗ 0.2  ? 0.3  ? 0.4  ? 0.5\n  ✗ 0.2 " in shown
    assert "  the cell that begins `1 / 0` raises ZeroDivisionError" in shown
    assert [path.read_bytes() for path in sorted((course / "work").iterdir())] == before
    monkeypatch.setattr(work.notebooks, "execute", lambda *_, **__: None)
    assert main(["work", "check", "1"]) == 0 and "00_first" not in capsys.readouterr().out
    monkeypatch.setattr(work, "_outcome", lambda cells: ({"1.1": "✗ 1.1 safe_softmax: no"}, []))
    assert main(["work", "check", "1"]) == 1, "a wrong answer, and no error"


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_lab_opens_the_first_copy_from_the_courses_folder(user, allowed, course, monkeypatch):
    """So that ../images is found; root may, and the kernels choose their backend themselves."""
    started = []
    monkeypatch.setattr(work.os, "geteuid", lambda: user)
    monkeypatch.setattr(work.os, "execve", lambda *call: started.append(call))
    monkeypatch.setattr(work.importlib.util, "find_spec", lambda name: SimpleNamespace())
    assert main(["lab", "--no-browser", "--port=8889"]) == 0
    [(_, command, environment)] = started
    assert (course / "work" / "00_first.ipynb").exists()
    assert f"--ServerApp.root_dir={course}" in command and "--LabApp.default_url=/lab/tree/work/00_first.ipynb" in command
    assert command[-2:] == ["--no-browser", "--port=8889"] and ("--allow-root" in command) is allowed
    assert "MPLBACKEND" not in environment


def test_check_names_a_missing_or_damaged_copy_and_goes_on(course, capsys):
    write(course / "notebooks" / "02_third.ipynb")
    work.fill()
    (course / "work" / "00_first.ipynb").unlink()
    (course / "work" / "01_second.ipynb").write_text('{"cells": [')
    assert main(["work", "check"]) == 1
    shown = capsys.readouterr().out
    assert "00_first.ipynb is missing or damaged; to copy it anew: make take CHAPTER=0" in shown
    assert "01_second.ipynb is missing or damaged; to copy it anew: make take CHAPTER=1" in shown and "02_third: 0 of" in shown
