"""What must hold of every notebook. Each rule takes a parsed notebook, runs nothing, and gives a list of faults in words."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nbformat

from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.source import source_of

OUTPUT_CALLS = {"print", "check", "progress", "display", "display_source", "show"}
COPIED_LINES = 4  # so many lines of a solution in a row are a copy of it
MACHINE_PATH = re.compile(r"""(?<![\w.])/(?:home|root|tmp|Users|work|opt|mnt|usr/lib)/|\b[A-Z]:\\|site-packages[/\\]|ipykernel_\d+""")
HOST = re.compile(r"\blocalhost\b|\b\d{1,3}(?:\.\d{1,3}){3}\b")
REGISTRY = re.compile(r"pypi\.org|pythonhoste[d]|anaconda\.(?:org|com)")
EQUATION = re.compile(r"(?<![\w\\)\]}])\(((?:1[0-4]|\d)\.[1-9]\d?)\)")


def load(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def markdown_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def name_of(notebook: dict, cell: dict) -> str:
    """How a fault names a cell: its place, and its first line."""
    place = next(number for number, other in enumerate(notebook["cells"]) if other is cell)
    return f"cell {place} ({cell['source'].strip().partition(chr(10))[0][:60]})"


def tree_of(cell: dict) -> ast.Module:
    """The cell's syntax tree; lines with a shell command or a magic are left out."""
    return parsed("\n".join("pass" if line.startswith(("!", "%")) else line for line in cell["source"].splitlines()))


parsed = functools.cache(ast.parse)  # each exercise's rules read every cell again


def output_texts(cell: dict) -> Iterator[str]:
    """Every text that the cell's outputs hold; pictures are left out."""
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        yield from (value for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


# ---------------------------------------------------------------- outputs


def shows_something(cell: dict) -> bool:
    """True where running the cell should leave an output: a statement prints, checks or plots, or the last is an expression's value."""
    statements = [node for node in tree_of(cell).body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    calls = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if any(getattr(call.func, "id", getattr(call.func, "attr", "")) in OUTPUT_CALLS for call in calls):
        return True
    return bool(statements) and isinstance(statements[-1], ast.Expr) and not isinstance(statements[-1].value, ast.Call)


def missing_outputs(notebook: dict) -> list[str]:
    """nbval compares nothing where nothing is stored, and skips what it is told to skip."""
    return [
        f"{name_of(notebook, cell)} has no stored output, or is skipped"
        for cell in code_cells(notebook)
        if (shows_something(cell) and not cell["outputs"]) or "nbval-skip" in cell["metadata"].get("tags", [])
    ]


def outputs_that_vary(notebook: dict) -> list[str]:
    """No error, no warning, no SVG, which holds its date."""
    return [
        f"{name_of(notebook, cell)} holds an error, a warning or an SVG picture"
        for cell in code_cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "error" or output.get("name") == "stderr" or "image/svg+xml" in output.get("data", {})
    ]


def machine_traces(notebook: dict) -> list[str]:
    """Nothing names a machine's path or host."""
    return [
        f"{name_of(notebook, cell)} names {match[0]!r}: a machine's path, or a host"
        for cell in notebook["cells"]
        for text in (cell["source"], json.dumps(cell["metadata"]), *output_texts(cell))
        if (match := MACHINE_PATH.search(text) or HOST.search(text) or REGISTRY.search(text))
    ]


def cells_not_run(notebook: dict) -> list[str]:
    """Every code cell was run, once each, from first to last."""
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    return [] if counts == list(range(1, len(counts) + 1)) else ["the cells were not run once each, from first to last: make notebooks"]


RULES = (missing_outputs, outputs_that_vary, machine_traces, cells_not_run)


# ---------------------------------------------------------------- exercises


def is_starter(function: ast.FunctionDef) -> bool:
    """True where the body raises NotImplementedError, before the lines of an earlier exercise, if it starts from these."""
    return any(isinstance(line, ast.Raise) and "NotImplementedError" in ast.unparse(line) for line in function.body)


def starter_cells(notebook: dict, exercise: Exercise) -> list[dict]:
    """The cells that define the exercise's function, and nothing else."""
    definitions = ast.FunctionDef | ast.ClassDef
    return [
        cell
        for cell in code_cells(notebook)
        if [node.name for node in tree_of(cell).body if isinstance(node, definitions)] == [exercise.name]
    ]


def check_cells(notebook: dict, exercise: Exercise) -> list[dict]:
    """The cells that are check("<id>", <name>) and nothing else."""
    wanted = ast.dump(ast.parse(f'check("{exercise.id}", {exercise.name})'))
    return [cell for cell in code_cells(notebook) if ast.dump(tree_of(cell)) == wanted]


def exercise_cells(notebook: dict, exercises: Iterable[Exercise]) -> list[str]:
    """Every exercise has one starter cell, with one check cell right after it."""
    cells, faults = code_cells(notebook), []
    for exercise in exercises:
        starters, checks = starter_cells(notebook, exercise), check_cells(notebook, exercise)
        if [len(starters), len(checks)] != [1, 1] or cells.index(checks[0]) != cells.index(starters[0]) + 1:
            faults.append(
                f"{exercise.id} {exercise.name} has {len(starters)} starters and {len(checks)} checks, want one right after the other"
            )
    return faults


HEADING = re.compile(r"^### Exercise (\d+\.\d+) \((★{1,3}), (\d+) minutes\)$", re.MULTILINE)
TIME = re.compile(r"\*\*Time\.\*\* About (\d+) minutes, (\d+) of them for the exercises")


def headings(notebook: dict) -> list[tuple[str, str, int]]:
    """(id, stars, minutes) of each exercise's heading, in order: ("5.5", "★★★", 30) for ### Exercise 5.5 (★★★, 30 minutes)."""
    return [
        (number, stars, int(minutes)) for cell in markdown_cells(notebook) for number, stars, minutes in HEADING.findall(cell["source"])
    ]


def exercise_headings(notebook: dict, exercises: Iterable[Exercise]) -> list[str]:
    """Every exercise has one heading, which is the last before its starter, and the chapter's first cell adds up their minutes."""
    exercises, found = list(exercises), headings(notebook)
    faults = [] if [number for number, *_ in found] == [one.id for one in exercises] else [f"headings of {found}, want one an exercise"]
    for exercise in exercises:
        last, starters = "", starter_cells(notebook, exercise)
        for cell in notebook["cells"]:
            if cell in starters:
                break
            lines = cell["source"].splitlines() if cell["cell_type"] == "markdown" else []
            last = next((line for line in reversed(lines) if re.match("#+ ", line)), last)
        if not last.startswith(f"### Exercise {exercise.id} ("):
            faults.append(f"{exercise.id} stands under {last!r}")
    time = TIME.search(notebook["cells"][0]["source"])
    if not time or int(time[2]) != sum(minutes for *_, minutes in found):
        faults.append(f"the first cell must say: About … minutes, {sum(minutes for *_, minutes in found)} of them for the exercises")
    return faults


@functools.cache
def copied_runs(text: str) -> set[tuple[str, ...]]:
    """Every COPIED_LINES lines of code in a row, without comments, docstrings and spaces."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", text)
    lines = [line for line in (re.sub(r"\s+", "", line.split("#")[0]) for line in text.splitlines()) if len(line) > 1]
    return {tuple(lines[start : start + COPIED_LINES]) for start in range(len(lines) - COPIED_LINES + 1)}


@functools.cache
def solution_runs(solution: Callable) -> set[tuple[str, ...]]:
    source = source_of(solution)
    return copied_runs(source[source.index(source.splitlines()[ast.parse(source).body[0].body[0].lineno - 1]) :])


def solutions_shown(notebook: dict, exercises: Iterable[Exercise], before: Iterable[Exercise] = ()) -> list[str]:
    """No exercise's function has a body, and up to its check no cell and no output holds lines of its solution, but for those that an
    earlier exercise's solution has, too: a starter may be made from it. before: exercises of earlier chapters."""
    faults, earlier = [], {run for exercise in before for run in solution_runs(exercise.solution)}
    for exercise in exercises:
        runs = solution_runs(exercise.solution)
        runs, earlier = runs - earlier, earlier | runs
        checks, checked = check_cells(notebook, exercise), False
        for cell in notebook["cells"]:
            checked = checked or cell in checks
            nodes = ast.walk(tree_of(cell)) if cell["cell_type"] == "code" else ()
            if any(isinstance(node, ast.FunctionDef) and node.name == exercise.name and not is_starter(node) for node in nodes):
                faults.append(f"{name_of(notebook, cell)} defines {exercise.name} with a body")
            if not checked and any(runs & copied_runs(text) for text in (cell["source"], *output_texts(cell))):
                faults.append(f"{name_of(notebook, cell)} shows lines of the solution of {exercise.id}")
    return faults


# ---------------------------------------------------------------- images, links and equations


def images_of(notebook: dict) -> set[str]:
    """The file names in images/ that the notebook refers to."""
    return {name for cell in notebook["cells"] for name in re.findall(r"images/([\w.-]+\.\w+)", cell["source"])}


def broken_links(markdown: str, folder: Path) -> list[str]:
    """The files that links and images of a text lead to from `folder`, and that are not there."""
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", re.sub(r"`[^`\n]*`", "", markdown))
    return [target for target in targets if "://" not in target and not (folder / target).exists()]


def equation_tags(notebook: dict) -> list[str]:
    """The numbers of the notebook's equations, "4.3" for \\tag{4.3}, in order."""
    return [tag for cell in markdown_cells(notebook) for tag in re.findall(r"\\tag\{([^}]*)\}", cell["source"])]


def equations_named(text: str) -> set[str]:
    """The equations that a text refers to, as (4.3)."""
    return set(EQUATION.findall(re.sub(r"\$[^$]*\$", "", text)))
