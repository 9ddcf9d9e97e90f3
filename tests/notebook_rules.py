"""What must hold of every notebook. Each rule takes a parsed notebook, and what else it needs, and gives a list of faults in words.

A notebook is the dict that its JSON holds, with each source and each text joined to one string (`load`). The rules read; they
run nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import re
import socket
import statistics
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.source import source_of

FEWEST_CODE_CELLS, MOST_CODE_CELLS = 25, 45
SHORTEST_MEDIAN, LONGEST_MEDIAN = 3, 8  # lines of a code cell
LONGEST_CELL = 40  # lines
LEAST_FIGURES = 2
CELLS_PER_EXEMPT = 5  # one code cell in so many may be exempt from comparison
COPIED_LINES = 4  # so many lines of a solution in a row are a copy of it

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
OUTPUT_CALLS = {"print", "check", "hint", "solution", "progress", "display", "display_source"}
SILENT_CALLS = re.compile(r"assert_\w+|manual_seed|seed|append|update|style|set_\w+")  # expressions that give None or are not shown
EXEMPT_TAG = "nbval-ignore-output"
NBVAL_COMMENT = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)(.*)$", re.MULTILINE)
MACHINE_PATH = re.compile(r"""(?<![\w.])/(?:home|root|tmp|Users|work|opt|mnt|usr/lib)/|\b[A-Z]:\\|site-packages[/\\]|ipykernel_\d+""")
HOST = re.compile(r"\blocalhost\b|\b\d{1,3}(?:\.\d{1,3}){3}\b")
REGISTRY = re.compile(r"pypi\.org|pythonhoste[d]|download\.pytorch|anaconda\.(?:org|com)")
BACKEND_NOTICE = "No CUDA GPU found"  # printed on some machines only


def load(path: Path) -> dict:
    """The notebook at `path`, with lists of lines joined."""
    return join_lines(json.loads(path.read_text(encoding="utf-8")))


def join_lines(notebook: dict) -> dict:
    """`notebook` with every source, text and MIME value that is a list of lines joined to one string, in place."""
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell["source"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            for kind, value in output.get("data", {}).items():
                output["data"][kind] = _joined(value)
    return notebook


def _joined(value):
    return "".join(value) if isinstance(value, list) else value


# ---------------------------------------------------------------- parts of a notebook


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def markdown_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def name_of(notebook: dict, cell: dict) -> str:
    """How a fault names a cell: its place, and its first line."""
    place = next(number for number, other in enumerate(notebook["cells"]) if other is cell)
    lines = cell["source"].strip().splitlines() or ["(empty)"]
    return f"cell {place} ({lines[0][:60]})"


def tree_of(cell: dict) -> ast.Module:
    """The cell's syntax tree; lines with a shell command or a magic are left out."""
    source = "\n".join("pass" if line.startswith(("!", "%")) else line for line in cell["source"].splitlines())
    return ast.parse(source)


def is_exempt(cell: dict) -> bool:
    """True where nbval does not compare the cell's outputs."""
    comments = {match[1] for match in NBVAL_COMMENT.finditer(cell["source"]) if not match[2].strip()}
    return EXEMPT_TAG in cell["metadata"].get("tags", []) or bool(comments & {"NBVAL_IGNORE_OUTPUT", "PYTEST_VALIDATE_IGNORE_OUTPUT"})


def output_texts(cell: dict) -> Iterator[str]:
    """Every text that the cell's outputs hold; pictures are left out."""
    for output in cell.get("outputs", []):
        if "text" in output:
            yield output["text"]
        yield from (value for kind, value in output.get("data", {}).items() if kind.startswith("text/"))
        yield from output.get("traceback", [])


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _called(node: ast.AST) -> str:
    """The name that a call calls: `show` for plt.show(); empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the cell does: bodies of functions and classes are left out."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            yield from _run_nodes(node)


# ---------------------------------------------------------------- outputs


def shows_something(cell: dict) -> bool:
    """True where running the cell should leave an output: it prints, checks, plots, or ends in an expression."""
    tree = tree_of(cell)
    for node in _run_nodes(tree):
        if _called(node) in OUTPUT_CALLS or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("plt.show", "pyplot.show")):
            return True
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return False
    return not (isinstance(last.value, ast.Call) and SILENT_CALLS.fullmatch(_called(last.value)))


def missing_outputs(notebook: dict) -> list[str]:
    """A cell that should show something has an output stored: nbval compares nothing where nothing is stored."""
    return [
        f"{name_of(notebook, cell)} has no stored output" for cell in code_cells(notebook) if shows_something(cell) and not cell["outputs"]
    ]


def too_many_exempt(notebook: dict) -> list[str]:
    """At most one code cell in five is exempt, none is skipped, and no comment asks for it in a form that nbval does not read."""
    cells = code_cells(notebook)
    exempt = sum(map(is_exempt, cells))
    faults = []
    if exempt * CELLS_PER_EXEMPT > len(cells):
        faults.append(f"{exempt} of {len(cells)} code cells are exempt from comparison, more than one in {CELLS_PER_EXEMPT}")
    for cell in cells:
        tags = set(cell["metadata"].get("tags", []))
        comments = list(NBVAL_COMMENT.finditer(cell["source"]))
        if "nbval-skip" in tags or any(match[1].endswith("_SKIP") for match in comments):
            faults.append(f"{name_of(notebook, cell)} is skipped by nbval")
        if any(match[2].strip() for match in comments):
            faults.append(f"{name_of(notebook, cell)}: nbval reads its comments only where they stand alone on their line")
    return faults


def error_outputs(notebook: dict) -> list[str]:
    """No output is an error: an exhibit catches its own and prints it."""
    return [
        f"{name_of(notebook, cell)} holds the error {output.get('ename')}"
        for cell in code_cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "error"
    ]


def stderr_outputs(notebook: dict) -> list[str]:
    """No output is on stderr: warnings differ from machine to machine."""
    return [
        f"{name_of(notebook, cell)} holds output on stderr"
        for cell in code_cells(notebook)
        for output in cell["outputs"]
        if output.get("name") == "stderr"
    ]


def svg_outputs(notebook: dict) -> list[str]:
    """No output is SVG: nbval compares it, and it holds the date."""
    return [
        f"{name_of(notebook, cell)} holds an SVG picture: show PNG"
        for cell in code_cells(notebook)
        for output in cell["outputs"]
        if "image/svg+xml" in output.get("data", {})
    ]


def machine_traces(notebook: dict) -> list[str]:
    """Nothing names a machine's path or host; what only some machines print stands in exempt cells."""
    faults = []
    hostname = socket.gethostname()
    for cell in notebook["cells"]:
        for text in (cell["source"], json.dumps(cell["metadata"]), *output_texts(cell)):
            if match := MACHINE_PATH.search(text) or HOST.search(text) or REGISTRY.search(text):
                faults.append(f"{name_of(notebook, cell)} names {match[0]!r}: a machine's path, or a host")
            elif len(hostname) > 4 and hostname != "localhost" and hostname in text:
                faults.append(f"{name_of(notebook, cell)} names the host {hostname!r}")
        if not is_exempt(cell) and any(BACKEND_NOTICE in text for text in output_texts(cell)):
            faults.append(f"{name_of(notebook, cell)} holds {BACKEND_NOTICE!r}, which a GPU host does not print, and is not exempt")
    return faults


# ---------------------------------------------------------------- the file


def file_format(notebook: dict) -> list[str]:
    """nbformat 4.5 with an id for each cell; metadata that name no version and no run; cells run once each, from first to last."""
    faults = []
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        faults.append(f"the format is {notebook['nbformat']}.{notebook['nbformat_minor']}, want 4.5")
    ids = [cell.get("id") for cell in notebook["cells"]]
    if None in ids or len(set(ids)) != len(ids):
        faults.append("a cell has no id, or two cells have one")
    metadata = notebook["metadata"]
    if metadata.get("kernelspec") != KERNELSPEC:
        faults.append(f"kernelspec is {metadata.get('kernelspec')}, want {KERNELSPEC}")
    if metadata.get("language_info") != {"name": "python"}:
        faults.append("language_info names more than the language")
    if any("execution" in cell["metadata"] for cell in notebook["cells"]):
        faults.append("a cell's metadata hold the times of its execution")
    cells = [cell for cell in code_cells(notebook) if cell["source"].strip()]
    if [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)):
        faults.append("the cells were not run once each, from first to last: make notebooks")
    return faults


# ---------------------------------------------------------------- code


def _lines(cell: dict) -> int:
    return len(cell["source"].strip("\n").splitlines())


def sizes(notebook: dict) -> list[str]:
    """25 to 45 code cells, none over 40 lines, the median 3 to 8."""
    cells = code_cells(notebook)
    faults = [
        f"{name_of(notebook, cell)} has {_lines(cell)} lines, more than {LONGEST_CELL}" for cell in cells if _lines(cell) > LONGEST_CELL
    ]
    if not FEWEST_CODE_CELLS <= len(cells) <= MOST_CODE_CELLS:
        faults.append(f"{len(cells)} code cells, want {FEWEST_CODE_CELLS} to {MOST_CODE_CELLS}")
    median = statistics.median(map(_lines, cells)) if cells else 0
    if not SHORTEST_MEDIAN <= median <= LONGEST_MEDIAN:
        faults.append(f"a code cell has {median} lines in the median, want {SHORTEST_MEDIAN} to {LONGEST_MEDIAN}")
    return faults


def trailing_semicolons(notebook: dict) -> list[str]:
    """No cell ends in a semicolon: under nbval it hides nothing."""
    return [f"{name_of(notebook, cell)} ends in ;" for cell in code_cells(notebook) if cell["source"].rstrip().endswith(";")]


def first_import(notebook: dict) -> list[str]:
    """The first import is fa_tutorial, which sets Triton's switch before anything imports Triton."""
    for cell in code_cells(notebook):
        for node in ast.walk(tree_of(cell)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
                return [] if module.split(".")[0] == "fa_tutorial" else [f"the first import is {module}, want fa_tutorial"]
    return ["nothing is imported"]


# ---------------------------------------------------------------- exercises


def unknown_names(notebook: dict) -> list[str]:
    """What a notebook takes from the package and the package does not have: also in branches that are not run here, on a GPU say."""
    found, modules = [], {}
    for cell in code_cells(notebook):
        nodes = list(ast.walk(tree_of(cell)))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fa_tutorial":
                for alias in node.names:
                    thing = _taken(node.module, alias.name)
                    modules[alias.asname or alias.name] = thing
                    if thing is None:
                        found.append(f"{name_of(notebook, cell)}: {node.module} has no {alias.name}")
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                    found.append(f"{name_of(notebook, cell)}: {module.__name__} has no {node.attr}")
    return found


def _taken(module: str, name: str) -> object | None:
    """What `from module import name` gives; None where it would fail."""
    with contextlib.suppress(AttributeError):
        return getattr(importlib.import_module(module), name)
    with contextlib.suppress(ImportError):
        return importlib.import_module(f"{module}.{name}")
    return None


def is_starter(function: ast.FunctionDef) -> bool:
    """True where the body is at most a docstring and then raises NotImplementedError."""
    body = _without_docstring(function.body)
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or body[0].exc is None:
        return False
    error = body[0].exc.func if isinstance(body[0].exc, ast.Call) else body[0].exc
    return getattr(error, "id", "") == "NotImplementedError"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if is_docstring else body


def normalised_body(function: ast.FunctionDef) -> str:
    """The body's syntax tree without docstring and argument checks, its own variables numbered in the order in which they appear."""
    own = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            name = numbers.setdefault(node.id, f"v{len(numbers)}") if node.id in own else node.id
            return ast.Name(id=name, ctx=node.ctx)

    body = [statement for statement in _without_docstring(function.body) if not _is_check(statement)]
    return "\n".join(ast.dump(Renamed().visit(ast.parse(ast.unparse(statement)))) for statement in body)


def _is_check(statement: ast.stmt) -> bool:
    """True for a call of check_int and its like, alone or assigned, and for an `if` that only raises."""
    if isinstance(statement, ast.If):
        return not statement.orelse and all(isinstance(inner, ast.Raise) for inner in statement.body)
    value = getattr(statement, "value", None) if isinstance(statement, ast.Expr | ast.Assign) else None
    calls = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(_called(call).startswith(("check_", "require_")) for call in calls)


def normalised_lines(text: str) -> list[str]:
    """The lines that hold code, without comments, docstrings and spaces."""
    text = re.sub(r'"""(?:.|\n)*?"""', "", text)
    lines = (re.sub(r"\s+", "", line.split("#")[0]) for line in text.splitlines())
    return [line for line in lines if len(line) > 1]  # a bracket alone is no line of code


def _runs_of(lines: list[str]) -> set[tuple[str, ...]]:
    return {tuple(lines[start : start + COPIED_LINES]) for start in range(len(lines) - COPIED_LINES + 1)}


def _solution_lines(exercise: Exercise) -> list[str]:
    """The normalised lines of a solution's body; the head is the starter's too."""
    source = source_of(exercise.solution)
    head = ast.parse(source).body[0].body[0].lineno - 1
    return normalised_lines("\n".join(source.splitlines()[head:]))


def is_kernel(exercise: Exercise) -> bool:
    return hasattr(exercise.solution, "fn")


def solutions_shown(notebook: dict, exercises: Iterable[Exercise]) -> list[str]:
    """No cell and no output holds a solution: an exercise's name with a body, a solution under another name, or lines copied from one.

    After an exercise's check an output may show the package's kernel of that name.
    """
    exercises = tuple(exercises)
    names = {exercise.name for exercise in exercises}
    checks = [(cell, exercise.name) for exercise in exercises for cell in check_cells(notebook, exercise)]
    unchecked = set(names)
    bodies = {normalised_body(next(functions(ast.parse(source_of(exercise.solution))))): exercise for exercise in exercises}
    runs = {exercise.id: _runs_of(_solution_lines(exercise)) for exercise in exercises}
    faults = []
    for cell in notebook["cells"]:
        where = name_of(notebook, cell)
        if cell["cell_type"] == "code":
            for function in functions(tree_of(cell)):
                if function.name in names and not is_starter(function):
                    faults.append(f"{where} defines {function.name} with a body")
                if (exercise := bodies.get(normalised_body(function))) is not None:
                    faults.append(f"{where}: the body of {function.name} is the solution of {exercise.id}")
            shown = normalised_lines(cell["source"])
            kernels = [exercise for exercise in exercises if is_kernel(exercise)]
            faults += [
                f"{where} holds lines of the solution of {exercise.id}" for exercise in kernels if runs[exercise.id] & _runs_of(shown)
            ]
        unchecked -= {name for check, name in checks if check is cell}
        is_text = cell["cell_type"] == "markdown"
        for text in [cell["source"]] if is_text else list(output_texts(cell)):
            faults += [f"{where} shows {name} with a body" for name in (names if is_text else unchecked) if _shows_body(text, name)]
            lines = _runs_of(normalised_lines(text))
            faults += [f"{where} shows lines of the solution of {exercise.id}" for exercise in exercises if runs[exercise.id] & lines]
    return faults


def _shows_body(text: str, name: str) -> bool:
    """True where a text holds `def name(…):` followed by anything but a docstring and raise NotImplementedError."""
    for match in re.finditer(rf"^([ \t]*)def {re.escape(name)}\(", text, re.MULTILINE):
        indent, rest = match[1], text[match.start() :].splitlines()
        end = next(
            (n for n, line in enumerate(rest[1:], 1) if line.strip() and not line.startswith((indent + " ", indent + ")"))), len(rest)
        )
        block = [line.removeprefix(indent) for line in rest[:end]]
        try:
            [function] = ast.parse("\n".join(block)).body
        except (SyntaxError, ValueError):
            continue  # a head without its body, as prose shows it
        if not is_starter(function):
            return True
    return False


def starter_cells(notebook: dict, exercise: Exercise) -> list[dict]:
    """The cells whose only top-level definition is the exercise's function."""
    return [
        cell
        for cell in code_cells(notebook)
        if [node.name for node in tree_of(cell).body if isinstance(node, ast.FunctionDef | ast.ClassDef)] == [exercise.name]
    ]


def check_cells(notebook: dict, exercise: Exercise) -> list[dict]:
    """The cells that are check("<id>", <name>) and nothing else."""
    wanted = ast.dump(ast.parse(f'check("{exercise.id}", {exercise.name})'))
    return [cell for cell in code_cells(notebook) if ast.dump(tree_of(cell)) == wanted]


def exercise_cells(notebook: dict, exercises: Iterable[Exercise]) -> list[str]:
    """Every exercise has one starter cell, with one check cell right after it, and nothing else is checked."""
    faults = []
    exercises = tuple(exercises)
    cells = code_cells(notebook)
    for exercise in exercises:
        starters, checks = starter_cells(notebook, exercise), check_cells(notebook, exercise)
        if len(starters) != 1:
            faults.append(f"{exercise.id} {exercise.name} has {len(starters)} starter cells, want 1")
        if len(checks) != 1:
            faults.append(f'{len(checks)} cells are check("{exercise.id}", {exercise.name}), want 1')
        if len(starters) == len(checks) == 1 and _place(cells, checks[0]) != _place(cells, starters[0]) + 1:
            faults.append(f"{exercise.id} is not checked in the code cell after its starter")
    ids = {exercise.id for exercise in exercises}
    for cell in cells:
        calls = [node for node in ast.walk(tree_of(cell)) if _called(node) in ("check", "hint", "solution") and node.args]
        asked = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
        faults += [
            f"{name_of(notebook, cell)} asks for exercise {other!r}, which is none of this chapter's"
            for other in sorted(asked - ids, key=str)
        ]
        if any(_called(call) == "solution" for call in calls):
            faults.append(f"{name_of(notebook, cell)} calls solution, whose output is the answer")
    return faults


def _place(cells: list[dict], wanted: dict) -> int:
    return next(number for number, cell in enumerate(cells) if cell is wanted)


# ---------------------------------------------------------------- text


def opening(notebook: dict) -> list[str]:
    """Before any code: a title, what you will be able to do, what you need to know, how long it takes, where to run it."""
    cells = notebook["cells"]
    first_code = next((number for number, cell in enumerate(cells) if cell["cell_type"] == "code"), len(cells))
    text = "\n".join(cell["source"] for cell in cells[:first_code])
    wanted = {
        "a title": r"^# \S",
        "what you will be able to do": r"will be able to",
        "what you need to know": r"(?i)what you need",
        "how long it takes": r"(?i)\btime\b.*\b(minutes|hours?)\b",
        "where to run it": r"(?i)where to run",
    }
    return [f"the opening does not say {what}" for what, words in wanted.items() if not re.search(words, text, re.MULTILINE)]


def closing(notebook: dict) -> list[str]:
    """At the end: what we built, the state of the exercises, what comes next, in this order."""
    tail = notebook["cells"][-6:]
    wanted = {
        "what we built": lambda cell: cell["cell_type"] == "markdown" and re.search(r"(?i)what we built", cell["source"]),
        "the exercises' progress": lambda cell: cell["cell_type"] == "code" and re.search(r"^progress\(", cell["source"], re.MULTILINE),
        "what comes next": lambda cell: cell["cell_type"] == "markdown" and re.search(r"(?i)what comes next", cell["source"]),
    }
    places = {what: next((n for n, cell in enumerate(tail) if holds(cell)), None) for what, holds in wanted.items()}
    faults = [f"the end does not have {what}" for what, place in places.items() if place is None]
    found = [place for place in places.values() if place is not None]
    return faults or ([] if found == sorted(found) else [f"the end is not in the order {', '.join(places)}"])


def images_named(text: str) -> set[str]:
    """The file names in images/ that a Markdown text, or the code of a cell, refers to."""
    return set(re.findall(r"images/([\w.-]+\.\w+)", text))


def images_of(notebook: dict) -> set[str]:
    return set().union(*(images_named(cell["source"]) for cell in notebook["cells"]))


def images(notebook: dict, folder: Path) -> list[str]:
    """Every image that is referred to exists, with a text in its place; at least two figures, drawn or plotted."""
    faults = [f"images/{name} does not exist" for name in sorted(images_of(notebook)) if not (folder / name).is_file()]
    drawn = [alt for cell in markdown_cells(notebook) for alt in re.findall(r"!\[([^\]]*)\]\(", cell["source"])]
    faults += ["an image has no text in its place" for alt in drawn if not alt.strip()]
    plotted = sum("image/png" in output.get("data", {}) for cell in code_cells(notebook) for output in cell["outputs"])
    if len(drawn) + plotted < LEAST_FIGURES:
        faults.append(f"{len(drawn) + plotted} figures, want at least {LEAST_FIGURES}")
    return faults


def unused_images(folder: Path, named: set[str]) -> list[str]:
    """Every image is referred to by a notebook or the README."""
    return [f"images/{path.name} is not referred to" for path in sorted(folder.glob("*")) if path.is_file() and path.name not in named]


# ---------------------------------------------------------------- equations

NUMBER = r"(?:10|\d)\.[1-9]\d?"
# (4.3), (1.5, 1.6; Milakov), (1.10 to 1.12); not exp(0.5), not (4.3 TB/s).
REFERENCE = re.compile(rf"(?<![\w\\)\]}}])\(({NUMBER}(?:(?:, and |, | and | or | to |–){NUMBER})*)(?=[);,:])")


def equation_tags(notebook: dict) -> list[str]:
    """The numbers of the notebook's equations, "4.3" for \\tag{4.3}, in order."""
    return [tag for cell in markdown_cells(notebook) for tag in re.findall(r"\\tag\{([^}]*)\}", cell["source"])]


def equations_named(text: str) -> list[str]:
    """The equations that a text refers to; "(1.10 to 1.12)" names three."""
    named = []
    for match in REFERENCE.finditer(text):
        named += re.findall(NUMBER, match[1])
        for first, last in re.findall(rf"({NUMBER})(?: to |–)({NUMBER})", match[1]):
            chapter, begin = first.split(".")
            named += [f"{chapter}.{number}" for number in range(int(begin) + 1, int(last.split(".")[1]))]
    return named


def prose_of(notebook: dict) -> str:
    """The Markdown without formulas and code in it, and the comments and docstrings of the code."""
    texts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(r"```(?:.|\n)*?```|\$\$(?:.|\n)*?\$\$", " ", cell["source"])
            texts.append(re.sub(r"`[^`\n]*`|\$[^$\n]*\$", " ", text))
        else:
            texts.append(prose_of_code("\n".join("" if line.startswith(("!", "%")) else line for line in cell["source"].splitlines())))
    return "\n".join(texts)


def prose_of_code(source: str) -> str:
    """The comments and docstrings of Python code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return "\n".join([*comments, *docstrings])


def equation_numbers(notebook: dict, chapter: int) -> list[str]:
    """The chapter's equations are numbered (c.1), (c.2), … in the order in which they come, with none twice and none left out."""
    tags = equation_tags(notebook)
    faults = [f"equation ({tag}) is tagged twice" for tag in sorted({tag for tag in tags if tags.count(tag) > 1})]
    wanted = {f"{chapter}.{number}" for number in range(1, len(set(tags)) + 1)}
    faults += [
        f"equation ({tag}) does not fit the numbers ({chapter}.1) to ({chapter}.{len(wanted)})" for tag in sorted(set(tags) - wanted)
    ]
    first = list(dict.fromkeys(tags))
    if first != sorted(first, key=lambda tag: [int(part) for part in tag.split(".")]):
        faults.append(f"equations do not come in the order of their numbers: {', '.join(first)}")
    return faults if tags else ["no equation is numbered"]


def unknown_equations(text: str, tags: Mapping[int, Iterable[str]]) -> list[str]:
    """Every equation that `text` refers to is tagged in its chapter's notebook. tags: those of each chapter."""
    known = {tag for numbers in tags.values() for tag in numbers}
    return [
        f"({number}) is referred to, and no notebook has that equation"
        for number in dict.fromkeys(equations_named(text))
        if number not in known
    ]


def unused_equations(tags: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Every equation of a chapter is referred to, by code or text."""
    named = {number for text in texts for number in equations_named(text)}
    return [f"equation ({tag}) is never referred to" for tag in dict.fromkeys(tags) if tag not in named]


# Rules that need the notebook alone.
RULES = (
    missing_outputs,
    too_many_exempt,
    error_outputs,
    stderr_outputs,
    svg_outputs,
    machine_traces,
    file_format,
    sizes,
    trailing_semicolons,
    first_import,
    unknown_names,
    opening,
    closing,
)
