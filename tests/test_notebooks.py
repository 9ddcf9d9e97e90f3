"""The rules of notebook_rules.py hold of every notebook, and each rule is seen to fail on a notebook that breaks it."""

import copy
import re
from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import store_notebooks
from fa_tutorial import hardware, notebooks
from fa_tutorial.exercises import catalogue
from fa_tutorial.source import source_of

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {path.name: rules.load(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
CODE = sorted([*(ROOT / "fa_tutorial").rglob("*.py"), *(ROOT / "images" / "draw").glob("*.py")])

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def exercises_of(name: str) -> tuple[catalogue.Exercise, ...]:
    chapter = int(name[:2])
    return catalogue.chapter_exercises(chapter) if chapter in catalogue.chapters() else ()


# ---------------------------------------------------------------- every notebook


@each_notebook
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule, name):
    assert rule(NOTEBOOKS[name]) == []


@each_notebook
def test_exercises_have_their_cells_and_no_solution(name):
    assert rules.exercise_cells(NOTEBOOKS[name], exercises_of(name)) == []
    assert rules.exercise_headings(NOTEBOOKS[name], exercises_of(name)) == []
    before = [exercise for chapter in catalogue.chapters() if chapter < int(name[:2]) for exercise in catalogue.chapter_exercises(chapter)]
    assert rules.solutions_shown(NOTEBOOKS[name], exercises_of(name), before) == []


@each_notebook
def test_links_and_images_lead_somewhere(name):
    texts = [cell["source"] for cell in rules.markdown_cells(NOTEBOOKS[name])]
    assert [target for text in texts for target in rules.broken_links(text, ROOT / "notebooks")] == []


def test_every_image_is_used():
    pages = [{"cells": [{"source": path.read_text(encoding="utf-8")}]} for path in ROOT.glob("*.md")]
    used = set().union(*map(rules.images_of, (*NOTEBOOKS.values(), *pages)))
    assert {path.name for path in (ROOT / "images").glob("*.*")} - used == set()


def test_equations_have_one_number_each_and_are_there_when_they_are_named():
    tags = [tag for notebook in NOTEBOOKS.values() for tag in rules.equation_tags(notebook)]
    assert len(tags) == len(set(tags))
    texts = {name: "\n".join(cell["source"] for cell in notebook["cells"]) for name, notebook in NOTEBOOKS.items()}
    texts |= {str(path.relative_to(ROOT)): path.read_text() for path in CODE}
    assert {name: unknown for name, text in texts.items() if (unknown := rules.equations_named(text) - set(tags))} == {}


# ---------------------------------------------------------------- each rule, broken


def code(source: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


def stream(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return new_output("stream", name=name, text=text)


def notebook_of(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook of these cells, with execution counts as a run leaves them."""
    notebook = new_notebook(cells=copy.deepcopy(list(cells)), metadata=copy.deepcopy(store_notebooks.METADATA))
    for count, cell in enumerate(rules.code_cells(notebook), 1):
        cell.execution_count = count
    return notebook


BROKEN = {
    "print without output": (rules.missing_outputs, notebook_of(code("for x in y:\n    print(x)"))),
    "value without output": (rules.missing_outputs, notebook_of(code("x = 1\nx + 1"))),
    "skipped": (rules.missing_outputs, notebook_of(code("x = 1", tags=("nbval-skip",)))),
    "error": (rules.outputs_that_vary, notebook_of(code("1 / 0", new_output("error", ename="ZeroDivisionError")))),
    "warning": (rules.outputs_that_vary, notebook_of(code("x = 1", stream("a warning", name="stderr")))),
    "SVG": (rules.outputs_that_vary, notebook_of(code("x", new_output("display_data", {"image/svg+xml": "<svg/>"})))),
    "path in an output": (rules.machine_traces, notebook_of(code("print(p)", stream("File /home/reader/x.py\n")))),
    "path in the text": (rules.machine_traces, notebook_of(new_markdown_cell("It lies in `/tmp/course`."))),
    "host": (rules.machine_traces, notebook_of(code("print(p)", stream("served by 10.0.0.7\n")))),
    "registry": (rules.machine_traces, notebook_of(new_markdown_cell("from anaconda.org"))),
    "not run": (rules.cells_not_run, new_notebook(cells=[code("x = 1")])),
}
GOOD = notebook_of(
    new_markdown_cell("# 0"), code("import torch\n\ntorch.manual_seed(0)"), code("def f():\n    print(1)"), code("print(1)", stream("1\n"))
)


@pytest.mark.parametrize(("rule", "notebook"), BROKEN.values(), ids=BROKEN)
def test_rule_fails_on_a_broken_notebook(rule, notebook):
    assert rule(notebook)
    assert rule(GOOD) == []


PEAK = catalogue.find("0.3")
STARTER = 'def most_memory(events):\n    """The peak."""\n    raise NotImplementedError'
CHECK = 'check("0.3", most_memory)'
KERNEL = catalogue.find("2.4")


TIME = new_markdown_cell("# 0\n\n**Time.** About 60 minutes, 5 of them for the exercises.")
HEADING = new_markdown_cell("The peak.\n\n### Exercise 0.3 (★, 5 minutes)\n\nWrite it.")


@pytest.mark.parametrize(
    ("rule", "cells", "fits"),
    [
        (rules.exercise_cells, [code(STARTER), code(CHECK)], True),
        (rules.exercise_cells, [code(STARTER)], False),
        (rules.exercise_cells, [code(STARTER), code("x = 1"), code(CHECK)], False),
        (rules.exercise_cells, [code(STARTER), code(CHECK), code(STARTER), code(CHECK)], False),
        (rules.exercise_headings, [TIME, HEADING, code(STARTER)], True),
        (rules.exercise_headings, [TIME, code(STARTER)], False),
        (rules.exercise_headings, [TIME, HEADING, new_markdown_cell("## Another section"), code(STARTER)], False),
        (rules.exercise_headings, [TIME, new_markdown_cell("### Exercise 0.3 (5 minutes)"), code(STARTER)], False),
    ],
)
def test_an_exercise_has_its_cells_and_its_heading(rule, cells, fits):
    assert (rule(notebook_of(*cells), [PEAK]) == []) is fits


def test_a_solution_that_is_shown_is_found():
    answer = source_of(KERNEL.solution)
    for cell in (code(answer), new_markdown_cell(f"```python\n{answer}\n```"), code("f()", stream(answer))):
        assert rules.solutions_shown(notebook_of(cell, code(f'check("2.4", {KERNEL.name})')), [KERNEL])
    after = [code(STARTER), code(CHECK), code("display_source(f)", stream(source_of(PEAK.solution)))]
    assert rules.solutions_shown(notebook_of(*after), [PEAK]) == []
    assert rules.solutions_shown(notebook_of(code("def most_memory(e):\n    return e")), [PEAK])


def test_a_starter_may_be_made_from_the_exercise_before_and_no_further():
    before, after = catalogue.find("5.3"), catalogue.find("5.4")
    cells = [code("def key_loop_kernel(q):\n    raise NotImplementedError"), code('check("5.3", key_loop_kernel)')]
    for shown, fits in ((before, True), (after, False)):
        lines = "\n".join(source_of(shown.solution).partition('"""\n')[2].splitlines()[3:])
        starter = code(f"def any_length_kernel(q):\n    raise NotImplementedError\n{lines}")
        notebook = notebook_of(*cells, starter, code('check("5.4", any_length_kernel)'))
        assert (rules.solutions_shown(notebook, [before, after]) == []) is fits


def test_nothing_disturbed_the_run_that_chapter_0_stores():
    """It teaches floors on the reader's CPU, so nothing may be stored below one, or contradict the text that follows."""
    cells = rules.code_cells(NOTEBOOKS["00_why_attention_is_slow.ipynb"])
    stored = next(text for cell in cells for text in rules.output_texts(cell) if "used memory, ms" in text)
    rows = re.findall(r"^ *(\S.*?)((?: +[\d.]+){4})$", stored, re.MULTILINE)
    ms = {kernel: [float(number) for number in numbers.split()] for kernel, numbers in rows}
    assert all(used > 0.9 * max(counts) for *counts, _, used in ms.values()), "no kernel is faster than its floor"
    assert int(re.search(r"flash: (\d+)", stored)[1]) >= ms["q kᵀ"][0] + ms["p v"][0], "nor is flash attention"
    _, copied, new, used = ms["divide"]
    assert used < 1.4 * copied and new > 2 * used
    assert ms["p v"][3] < 1.2 * ms["p v"][2]


def test_metadata_are_those_that_jupyterlab_writes():
    assert {name: notebook["metadata"] for name, notebook in NOTEBOOKS.items() if notebook["metadata"] != store_notebooks.METADATA} == {}


def test_links_and_equations_are_found():
    text = "[there](README.md) [not](gone.md#part) ![](images/gone.png) [out](https://example.org/a) by (4.3), not exp(0.5) or $(4.4)$"
    assert rules.broken_links(text, ROOT) == ["gone.md", "images/gone.png"]
    assert rules.equations_named(text) == {"4.3"}


# ---------------------------------------------------------------- nbval, and storing outputs


@pytest.mark.parametrize("chosen_here", [True, False])
def test_a_kernel_starts_as_a_readers_does(chosen_here, monkeypatch):
    """No exercise is done, figures go into the page, and the backend is not chosen yet, unless the reader chose it."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv(hardware.INTERPRETER_SWITCH, "1")
    monkeypatch.setattr(hardware, "switched_on_here", lambda: chosen_here)
    environment = notebooks.kernel_environment(FA_TUTORIAL_STATE="a folder")
    assert environment["FA_TUTORIAL_STATE"] == "a folder" and "MPLBACKEND" not in environment
    assert (hardware.INTERPRETER_SWITCH in environment) == (not chosen_here)


def test_a_notebook_that_fails_is_left_as_it_was(tmp_path, capsys):
    path = tmp_path / "failing.ipynb"
    nbformat.write(notebook_of(code("1 / 0")), path)
    before = path.read_bytes()
    assert store_notebooks.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert "ZeroDivisionError" in capsys.readouterr().err
