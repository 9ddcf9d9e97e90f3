"""The rules of notebook_rules.py hold of every notebook, and each rule is seen to fail on a notebook that breaks it."""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import notebook_rules as rules
import pytest

from fa_tutorial import notebooks
from fa_tutorial.exercises import catalogue, check
from fa_tutorial.source import source_of

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "images"
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NOTEBOOKS = {int(path.name[:2]): rules.load(path) for path in PATHS}
TAGS = {chapter: rules.equation_tags(notebook) for chapter, notebook in NOTEBOOKS.items()}
MODULES = {
    0: "ledger",
    1: "softmax",
    2: "layout",
    3: "matmul",
    4: "algorithm",
    5: "forward",
    6: "algorithm",
    7: "backward",
    8: "tuned",
    9: "hopper",
}
APPENDIX = 10  # has no exercises, and may show no other chapter's solution


def exercises_of(chapter: int) -> tuple[catalogue.Exercise, ...]:
    return () if chapter == APPENDIX else catalogue.chapter_exercises(chapter)


EXERCISES = [exercise for chapter in NOTEBOOKS for exercise in exercises_of(chapter)]

each_notebook = pytest.mark.parametrize("chapter", NOTEBOOKS)


# ---------------------------------------------------------------- every notebook


@each_notebook
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule, chapter):
    assert rule(NOTEBOOKS[chapter]) == []


@each_notebook
def test_no_solution_is_shown(chapter):
    assert rules.solutions_shown(NOTEBOOKS[chapter], exercises_of(chapter) or EXERCISES) == []


@each_notebook
def test_exercise_cells(chapter):
    assert rules.exercise_cells(NOTEBOOKS[chapter], exercises_of(chapter)) == []


@each_notebook
def test_images(chapter):
    assert rules.images(NOTEBOOKS[chapter], IMAGES) == []


def test_every_image_is_used():
    named = set().union(rules.images_named((ROOT / "README.md").read_text()), *map(rules.images_of, NOTEBOOKS.values()))
    assert rules.unused_images(IMAGES, named) == []


@each_notebook
def test_equations(chapter):
    notebook = NOTEBOOKS[chapter]
    assert rules.equation_numbers(notebook, chapter) == []
    assert rules.unknown_equations(rules.prose_of(notebook), TAGS) == []
    assert rules.unknown_equations(prose_of_module(chapter), TAGS) == []
    texts = [*map(rules.prose_of, NOTEBOOKS.values()), *map(prose_of_module, MODULES)]
    assert rules.unused_equations(TAGS[chapter], texts) == []


def prose_of_module(chapter: int) -> str:
    if chapter not in MODULES:
        return ""
    path = ROOT / "fa_tutorial" / MODULES[chapter]
    files = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return "\n".join(rules.prose_of_code(file.read_text()) for file in files)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_starter_of_the_notebook_is_not_attempted(exercise, tmp_path):
    notebook = NOTEBOOKS[exercise.chapter]
    [starter] = rules.starter_cells(notebook, exercise)
    assert check(exercise.id, defined_by(notebook, starter, exercise.name, tmp_path)).status == "not attempted"


def defined_by(notebook: dict, cell: dict, name: str, folder: Path):
    """What a cell defines, with the imports that the notebook makes before it. From a file, as Triton wants to read a kernel's source."""
    cells = rules.code_cells(notebook)
    before = cells[: next(place for place, other in enumerate(cells) if other is cell)]
    imports = [line for earlier in before for line in imports_of(earlier)]
    path = folder / "starter.py"
    path.write_text("\n".join([*imports, "", cell["source"], ""]))
    spec = importlib.util.spec_from_file_location("starter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def imports_of(cell: dict) -> list[str]:
    ast = rules.ast
    return [ast.unparse(node) for node in rules.tree_of(cell).body if isinstance(node, ast.Import | ast.ImportFrom)]


# ---------------------------------------------------------------- a small notebook that keeps every rule


def markdown(source: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *outputs: dict, tags: tuple[str, ...] = ()) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": list(outputs), "execution_count": None}


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


def notebook_of(*cells: dict) -> dict:
    """A notebook of these cells, with ids and execution counts as a run leaves them."""
    cells = copy.deepcopy(list(cells))
    count = 0
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": copy.deepcopy(notebooks.METADATA), "cells": cells}


OPENING = """# 0 A chapter

**What you will be able to do.** Nothing.

**What you need to know.** Nothing.

**Time.** About 5 minutes.

**Where to run.** Anywhere."""

GOOD = notebook_of(
    markdown(OPENING),
    code("import fa_tutorial\n\nprint(fa_tutorial)", stream("…"), tags=("nbval-ignore-output",)),
    *(code(f"x = {number}\ny = x + 1\nprint(x, y)", stream(f"{number} {number + 1}\n")) for number in range(25)),
    markdown("## What we built"),
    code("progress(0)", stream("chapter 0: 0 of 4 done\n")),
    markdown("**What comes next.** More."),
)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_good_notebook_keeps_the_rule(rule):
    assert rule(GOOD) == []


# ---------------------------------------------------------------- each rule, broken


def with_cell(cell: dict, place: int = 3) -> dict:
    """The good notebook with one of its cells replaced."""
    cells = list(GOOD["cells"])
    cells[place] = cell
    return notebook_of(*cells)


def with_change(change) -> dict:
    notebook = copy.deepcopy(GOOD)
    change(notebook)
    return notebook


def opening_without(words: str) -> dict:
    return with_cell(markdown("\n".join(line for line in OPENING.splitlines() if words not in line)), place=0)


BROKEN = {
    "no-output-of-print": (rules.missing_outputs, with_cell(code("print(1)"))),
    "no-output-of-print-in-a-loop": (rules.missing_outputs, with_cell(code("for x in range(3):\n    print(x)"))),
    "no-output-of-check": (rules.missing_outputs, with_cell(code('check("0.1", f)'))),
    "no-output-of-plot": (rules.missing_outputs, with_cell(code("plt.plot(x)\nplt.show()"))),
    "no-output-of-expression": (rules.missing_outputs, with_cell(code("x = 1\nx + 1"))),
    "no-output-of-call": (rules.missing_outputs, with_cell(code("tuple(x)"))),
    "no-output-after-magic": (rules.missing_outputs, with_cell(code("%matplotlib inline\ndisplay(1)"))),
    "too-many-exempt": (
        rules.too_many_exempt,
        notebook_of(*(code("print(1)", stream("1\n"), tags=("nbval-ignore-output",)) for _ in range(2)), *(code("x = 1") for _ in range(7))),
    ),
    "too-many-exempt-by-comment": (
        rules.too_many_exempt,
        notebook_of(*(code("# NBVAL_IGNORE_OUTPUT\nprint(1)", stream("1\n")) for _ in range(2)), *(code("x = 1") for _ in range(7))),
    ),
    "skipped-by-tag": (rules.too_many_exempt, with_cell(code("x = 1", tags=("nbval-skip",)))),
    "skipped-by-comment": (rules.too_many_exempt, with_cell(code("# NBVAL_SKIP\nx = 1"))),
    "comment-that-nbval-ignores": (rules.too_many_exempt, with_cell(code("# NBVAL_IGNORE_OUTPUT: times\nx = 1"))),
    "error-output": (rules.error_outputs, with_cell(code("1 / 0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "", "traceback": []}))),
    "stderr-output": (rules.stderr_outputs, with_cell(code("x = 1", stream("a warning", name="stderr")))),
    "svg-output": (rules.svg_outputs, with_cell(code("x", {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": "<svg/>"}}))),
    "path-in-output": (rules.machine_traces, with_cell(code("print(p)", stream("File /home/reader/x.py\n")))),
    "path-in-code": (rules.machine_traces, with_cell(code('p = "/home/reader/course"'))),
    "path-in-markdown": (rules.machine_traces, with_cell(markdown("It lies in `/tmp/course`."))),
    "path-in-metadata": (rules.machine_traces, with_change(lambda notebook: notebook["cells"][3]["metadata"].update(file="/Users/reader/x"))),
    "path-of-windows": (rules.machine_traces, with_cell(code("print(p)", stream("C:\\course\n")))),
    "path-of-a-package": (rules.machine_traces, with_cell(code("print(p)", stream("lib/site-packages/torch\n")))),
    "path-of-a-kernel": (rules.machine_traces, with_cell(code("print(p)", stream("ipykernel_4711\n")))),
    "host": (rules.machine_traces, with_cell(code("print(p)", stream("served by localhost\n")))),
    "address": (rules.machine_traces, with_cell(code("print(p)", stream("served by 10.0.0.7\n")))),
    "this-host": (rules.machine_traces, with_cell(code("print(p)", stream("run on a-very-special-host\n")))),
    "notice-of-one-machine": (rules.machine_traces, with_cell(code("print(p)", stream("No CUDA GPU found: …\n")))),
    "old-format": (rules.file_format, with_change(lambda notebook: notebook.update(nbformat_minor=4))),
    "no-id": (rules.file_format, with_change(lambda notebook: notebook["cells"][3].pop("id"))),
    "one-id-twice": (rules.file_format, with_change(lambda notebook: notebook["cells"][3].update(id="cell-4"))),
    "other-kernel": (rules.file_format, with_change(lambda notebook: notebook["metadata"]["kernelspec"].update(name="course"))),
    "version-of-python": (rules.file_format, with_change(lambda notebook: notebook["metadata"]["language_info"].update(version="3.11.7"))),
    "times-of-execution": (rules.file_format, with_change(lambda notebook: notebook["cells"][3]["metadata"].update(execution={}))),
    "run-out-of-order": (rules.file_format, with_change(lambda notebook: notebook["cells"][3].update(execution_count=99))),
    "not-run": (rules.file_format, with_change(lambda notebook: notebook["cells"][3].update(execution_count=None))),
    "long-cell": (rules.sizes, with_cell(code("\n".join(["x = 1"] * 41)))),
    "few-cells": (rules.sizes, notebook_of(*(code("x = 1\nx = 2\nx = 3") for _ in range(24)))),
    "many-cells": (rules.sizes, notebook_of(*(code("x = 1\nx = 2\nx = 3") for _ in range(46)))),
    "short-median": (rules.sizes, notebook_of(*(code("x = 1\nx = 2") for _ in range(30)))),
    "long-median": (rules.sizes, notebook_of(*(code("\n".join(["x = 1"] * 9)) for _ in range(30)))),
    "semicolon": (rules.trailing_semicolons, with_cell(code('plt.title("a");\n'))),
    "import-before": (rules.first_import, with_cell(code("import torch\nimport fa_tutorial"), place=1)),
    "from-import-before": (rules.first_import, with_cell(code("from triton import language"), place=1)),
    "no-import": (rules.first_import, notebook_of(code("x = 1"))),
    "unknown-name": (rules.unknown_names, with_cell(code("from fa_tutorial.bench import chapters\n\nif False:\n    chapters.measure_ceilings()"))),
    "unknown-import": (rules.unknown_names, with_cell(code("from fa_tutorial import flesh_attention"))),
    "no-title": (rules.opening, opening_without("# 0")),
    "no-aim": (rules.opening, opening_without("able to do")),
    "no-prerequisites": (rules.opening, opening_without("need to know")),
    "no-time": (rules.opening, opening_without("Time")),
    "no-place": (rules.opening, opening_without("Where to run")),
    "nothing-built": (rules.closing, with_cell(markdown("## The end"), place=-3)),
    "no-progress": (rules.closing, with_cell(code("x = 1"), place=-2)),
    "nothing-next": (rules.closing, with_cell(markdown("Bye."), place=-1)),
    "end-out-of-order": (rules.closing, notebook_of(*GOOD["cells"][:-3], *reversed(GOOD["cells"][-3:]))),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "notebook"), BROKEN.values(), ids=BROKEN)
def test_rule_fails_on_a_broken_notebook(rule, notebook, monkeypatch):
    monkeypatch.setattr(rules.socket, "gethostname", lambda: "a-very-special-host")
    assert rule(notebook)


def test_every_rule_is_seen_to_fail():
    assert {rule for rule, _ in BROKEN.values()} == set(rules.RULES)


@pytest.mark.parametrize(
    "cell",
    [
        code("x = 1"),
        code("def f():\n    print(1)"),
        code("torch.testing.assert_close(x, y)"),
        code("%matplotlib inline"),
        code("import torch\n\ntorch.manual_seed(0)"),
        code("f = lambda: print(1)"),
    ],
    ids=lambda cell: cell["source"].splitlines()[-1],
)
def test_cell_that_need_not_show_anything(cell):
    assert rules.missing_outputs(notebook_of(cell)) == []


# ---------------------------------------------------------------- solutions and exercises

CHAPTER_0 = catalogue.chapter_exercises(0)
ROOF = catalogue.find("0.4")
STARTER = 'def attainable_flops(intensity, peak_flops, bandwidth):\n    """The roof."""\n    raise NotImplementedError'


def kernel_exercise():
    pytest.importorskip("triton")
    return catalogue.find("2.4")


def renamed_solution() -> str:
    """0.3's solution under another name and with other variables."""
    source = source_of(catalogue.find("0.3").solution)
    for old, new in (("naive_attention", "plain"), ("S_q", "rows"), ("S_k", "cols")):
        source = source.replace(old, new)
    return source


SHOWN = {
    "name-with-a-body": code("def attainable_flops(i, p, b):\n    return p"),
    "name-in-a-class": code("class A:\n    def attainable_flops(self, i, p, b):\n        return p"),
    "solution-under-another-name": code(renamed_solution()),
    "output-with-a-body": code("f()", stream(f"here it is:\n{source_of(ROOF.solution)}\nand more\n")),
    "markdown-output-with-a-body": code(
        "f()", {"output_type": "display_data", "metadata": {}, "data": {"text/markdown": f"```python\n{source_of(ROOF.solution)}\n```"}}
    ),
    "text-with-a-body": markdown(f"The answer:\n\n```python\n{source_of(ROOF.solution)}\n```"),
}


@pytest.mark.parametrize("cell", SHOWN.values(), ids=SHOWN)
def test_solution_that_is_shown_is_found(cell):
    assert rules.solutions_shown(notebook_of(cell), CHAPTER_0)


def test_lines_of_a_kernel_are_found():
    exercise = kernel_exercise()
    lines = [line for line in source_of(exercise.solution).splitlines() if line.strip()]
    body = "\n".join(lines[-5:])
    copied = f"@triton.jit\ndef other(x_ptr):\n    y = 0\n{body}\n    z = 1"
    for cell in (code(copied), code("f()", stream(copied)), markdown(f"```python\n{copied}\n```")):
        assert rules.solutions_shown(notebook_of(cell), [exercise])
    assert rules.solutions_shown(notebook_of(code(f"@triton.jit\ndef other(x_ptr):\n{lines[-1]}")), [exercise]) == []


@pytest.mark.parametrize(
    "cell",
    [
        code(STARTER),
        code("def attainable_flops(i, p, b):\n    raise NotImplementedError('write me')"),
        markdown(f"Begin with\n\n```python\n{STARTER}\n```"),
        markdown("Write `def attainable_flops(intensity, peak_flops, bandwidth):` and go on."),
        code("def other(x):\n    return x + 1", stream("attainable_flops(1, 2, 3) gives 1\n")),
    ],
    ids=range(5),
)
def test_what_is_no_solution(cell):
    assert rules.solutions_shown(notebook_of(cell), CHAPTER_0) == []


CHECK = 'check("0.4", attainable_flops)'


@pytest.mark.parametrize(
    "cells",
    [
        [code(STARTER)],
        [code(CHECK)],
        [code(STARTER), code(CHECK), code(STARTER), code(CHECK)],
        [code(STARTER), code("x = 1"), code(CHECK)],
        [code(STARTER + "\n\n" + CHECK)],
        [code(STARTER), code('check("0.4", min)')],
        [code(STARTER), code(CHECK), code('check("1.1", f)')],
        [code(STARTER), code(CHECK), code('solution("0.4")')],
    ],
    ids=["no-check", "no-starter", "twice", "apart", "in-one-cell", "another-answer", "another-chapter", "solution-called"],
)
def test_exercise_cells_that_do_not_fit(cells):
    assert rules.exercise_cells(notebook_of(*cells), [ROOF])


def test_exercise_cells_that_fit():
    assert rules.exercise_cells(notebook_of(code(STARTER), code(CHECK)), [ROOF]) == []


# ---------------------------------------------------------------- images


def test_images_that_are_missing_or_not_used(tmp_path):
    (tmp_path / "00_map.png").write_bytes(b"")
    one = markdown("![A map](../images/00_map.png)")
    assert rules.images(notebook_of(one, one), tmp_path) == []
    assert rules.images(notebook_of(one, markdown("![More](../images/00_more.png)")), tmp_path) == ["images/00_more.png does not exist"]
    assert rules.images(notebook_of(one, markdown("![](../images/00_map.png)")), tmp_path) == ["an image has no text in its place"]
    assert rules.images(notebook_of(one), tmp_path) == ["1 figures, want at least 2"]
    assert rules.unused_images(tmp_path, rules.images_of(notebook_of(one))) == []
    assert rules.unused_images(tmp_path, set()) == ["images/00_map.png is not referred to"]


# ---------------------------------------------------------------- equations


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("as in (1.3).", ["1.3"]),
        ("the pair (1.5, 1.6; Milakov and Gimelshein)", ["1.5", "1.6"]),
        ("one pass (1.10 to 1.12)", ["1.10", "1.12", "1.11"]),
        ("FLOPs (0.4), bytes (0.5)", ["0.4", "0.5"]),
        ("joined by (10.2), as (10.4) to (10.5); (11.2), (10.0)", ["10.2", "10.4", "10.5"]),
        ("exp(0.5), 4.3 TB/s, (4.3 TB/s), (0.125), (2.0), version 3.6 (2.1 and later)", []),
    ],
)
def test_equations_that_a_text_names(text, named):
    assert rules.equations_named(text) == named


def test_formulas_and_code_are_no_prose():
    text = rules.prose_of(
        notebook_of(markdown("a $x = (1.1)$ b `f (1.2)` c\n$$\n(1.3)\n$$\n```\n(1.4)\n```\n(1.5)"), code("x = (1.6)  # by (1.7)"))
    )
    assert rules.equations_named(text) == ["1.5", "1.7"]


def test_equations_that_do_not_fit():
    tagged = notebook_of(markdown(r"$$a \tag{1.1}$$ $$b \tag{1.2}$$"))
    assert rules.equation_numbers(tagged, 1) == []
    assert rules.equation_numbers(tagged, 2)
    assert rules.equation_numbers(notebook_of(markdown(r"$$a \tag{1.1}$$ $$b \tag{1.1}$$")), 1) == ["equation (1.1) is tagged twice"]
    assert rules.equation_numbers(notebook_of(markdown(r"$$a \tag{1.1}$$ $$b \tag{1.3}$$")), 1)
    assert rules.equation_numbers(notebook_of(markdown("none")), 1) == ["no equation is numbered"]
    assert rules.equation_numbers(notebook_of(markdown(r"$$a \tag{1.2}$$ $$b \tag{1.1}$$")), 1) == [
        "equations do not come in the order of their numbers: 1.2, 1.1"
    ]
    assert rules.unknown_equations("by (1.2) and (1.3)", {1: ["1.2"]}) == ["(1.3) is referred to, and no notebook has that equation"]
    assert rules.unused_equations(["1.1", "1.2"], ["by (1.2)"]) == ["equation (1.1) is never referred to"]


# ---------------------------------------------------------------- nbval, and storing outputs


def write(notebook: dict, path: Path) -> Path:
    path.write_text(json.dumps(notebook))
    return path


def test_nbval_sees_a_stored_output_that_was_changed(tmp_path):
    cells = [code("x = 6 * 7"), code("print(x)", stream("42\n"))]
    write(notebook_of(*cells), tmp_path / "unchanged.ipynb")
    cells[1]["outputs"] = [stream("43\n")]
    write(notebook_of(*cells), tmp_path / "changed.ipynb")
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=60", "-rf", "-p", "no:cacheprovider"]
    run = subprocess.run([sys.executable, "-m", "pytest", *options, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1 and "1 failed, 3 passed" in run.stdout, run.stdout
    assert "FAILED changed.ipynb::Cell 1" in run.stdout


def test_outputs_are_stored_the_same_each_time(tmp_path):
    source = notebook_of(
        markdown("# A title"),
        code("import fa_tutorial\nfrom fa_tutorial.exercises import progress", stream("stale\n")),
        code("import sys\nfor x in range(3):\n    print(x)\n    sys.stdout.flush()", tags=("kept",)),
        code("progress(0)"),
        code("import matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nplt.show()"),
    )
    source["metadata"]["language_info"]["version"] = "2.7"
    source["cells"][2]["metadata"]["execution"] = {"iopub.execute_input": "some time"}
    path = write(source, tmp_path / "small.ipynb")
    assert notebooks.main([str(path)]) == 0
    first = path.read_bytes()
    stored = rules.load(path)
    assert [cell["id"] for cell in stored["cells"]] == [cell["id"] for cell in source["cells"]]
    assert stored["cells"][2]["metadata"] == {"tags": ["kept"]}
    assert [len(cell["outputs"]) for cell in rules.code_cells(stored)][1:] == [1, 1, 1]
    assert "".join(rules.output_texts(stored["cells"][2])) == "0\n1\n2\n"
    assert "0 of" in "".join(rules.output_texts(stored["cells"][3])), "the reader's own progress is not stored"
    assert "image/png" in stored["cells"][4]["outputs"][0]["data"]
    assert rules.file_format(stored) == []
    assert notebooks.main([str(path)]) == 0
    assert path.read_bytes() == first


def test_a_notebook_that_fails_is_left_as_it_was(tmp_path, capsys):
    path = write(notebook_of(code("1 / 0")), tmp_path / "failing.ipynb")
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("here", [True, False])
def test_environment_of_a_kernel(here, monkeypatch):
    monkeypatch.setattr(notebooks.hardware, "switched_on_here", lambda: here)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    environment = notebooks.kernel_environment("folder")
    assert ("TRITON_INTERPRET" in environment) is not here
    assert environment["FA_TUTORIAL_STATE"] == "folder" and "MPLBACKEND" not in environment
