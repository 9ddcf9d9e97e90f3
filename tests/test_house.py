"""What must hold of the repository as a whole: versions, imports, links, and what no file may say."""

import ast
import functools
import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import notebook_rules as rules
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fa_tutorial import doctor

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for line in (*PROJECT["dependencies"], *itertools.chain.from_iterable(EXTRAS.values()))]


def constraints(name: str) -> list[Requirement]:
    return [Requirement(line) for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


CONSTRAINTS = constraints("constraints.txt")
PINNED = {canonicalize_name(constraint.name): constraint for constraint in CONSTRAINTS}


def pinned_version(name: str) -> str:
    [specifier] = PINNED[canonicalize_name(name)].specifier
    return specifier.version


# ---------------------------------------------------------------- versions


def test_every_constraint_is_one_exact_public_version():
    assert len(PINNED) == len(CONSTRAINTS)
    for constraint in CONSTRAINTS:
        [specifier] = constraint.specifier
        assert specifier.operator == "==" and Version(specifier.version).local is None, str(constraint)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_requirement_has_a_constraint_inside_its_range(requirement):
    assert requirement.specifier.contains(pinned_version(requirement.name))


def test_the_oldest_constraints_are_where_the_ranges_begin():
    begins = {canonicalize_name(r.name): spec.version for r in REQUIREMENTS for spec in r.specifier if spec.operator == ">="}
    oldest = {canonicalize_name(r.name): spec.version for r in constraints("constraints-oldest.txt") for spec in r.specifier}
    assert {name: Version(version) for name, version in oldest.items()} == {name: Version(version) for name, version in begins.items()}


def test_doctor_names_the_ranges_of_pyproject():
    for name, (first, past) in doctor.SUPPORTED.items():
        specifier = next(requirement for requirement in REQUIREMENTS if requirement.name == name).specifier
        bounds = {str(part) for part in specifier}
        assert bounds == {f">={'.'.join(map(str, first))}", f"<{'.'.join(map(str, past))}"}


def test_environment_takes_everything_but_python_from_pip():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert dependencies[-1] == {"pip": ["-c constraints.txt", "-e .[lab,test]"]}
    python, pip = dependencies[:-1]
    assert pip == "pip"
    name, version = python.split("=")
    assert name == "python" and PROJECT["requires-python"] == ">=3.11" and Version(version) >= Version("3.11")


# ---------------------------------------------------------------- imports


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """The package's files, parsed."""
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "fa_tutorial").rglob("*.py"))}


ORDER = (
    *("arguments", "interpreter", "hardware", "tiles", "reference", "ledger", "figures", "source", "operators"),
    *("softmax", "layout", "matmul", "algorithm", "forward", "backward", "tuned", "warpgroups", "barriers", "hopper", "variants", "decode"),
    "fp8",
    *("attention", "hugging_face", "reading", "ring", "processes", "compiling", "sass"),
    *("exercises", "bench", "doctor", "notebooks", "work", "__main__"),
)


def imported_modules(tree: ast.AST, folder: str) -> set[str]:
    """The first parts of the fa_tutorial modules that the code imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{folder} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "fa_tutorial" else [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fa_tutorial.")}
    return found


def imports_against_the_order(trees: dict[str, list[ast.AST]]) -> list[str]:
    """Each import of a module that comes later. trees: those of each module's files."""
    faults = []
    for module, parsed in trees.items():
        for imported in set().union(*(imported_modules(tree, module) for tree in parsed)) - {module}:
            if imported not in ORDER or ORDER.index(imported) > ORDER.index(module):
                faults.append(f"{module} imports {imported}")
    return faults


def private_imports(tree: ast.AST) -> list[str]:
    """Names with a leading underscore that code takes from another module of the package."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fa_tutorial"))
    return [alias.name for node in nodes for alias in node.names if alias.name.startswith("_")]


def test_what_is_private_stays_in_its_module():
    assert private_imports(ast.parse("from fa_tutorial.tuned.autotuning import _fastest, fastest")) == ["_fastest"]
    assert {path.name: found for path, tree in trees().items() if (found := private_imports(tree))} == {}


def test_imports_run_one_way():
    of_modules: dict[str, list[ast.AST]] = {}
    for path, tree in trees().items():
        if path != ROOT / "fa_tutorial" / "__init__.py":
            module = path.relative_to(ROOT / "fa_tutorial").parts[0].removesuffix(".py")  # "exercises" for exercises/harness.py
            of_modules.setdefault(module, []).append(tree)
    assert set(of_modules) <= set(ORDER), "a new module needs its place in ORDER"
    assert imports_against_the_order(of_modules) == []


def test_an_import_against_the_order_is_seen():
    source = ast.parse("import fa_tutorial.softmax\ndef f():\n    from fa_tutorial.matmul import dot")
    assert imports_against_the_order({"layout": [source]}) == ["layout imports matmul"]


# ---------------------------------------------------------------- texts


def readme_blocks(heading: str = "") -> list[str]:
    """The fenced blocks of README.md after a heading."""
    return re.findall(r"```\w+\n(.*?)```", (ROOT / "README.md").read_text().partition(heading)[2], re.DOTALL)


def test_the_readmes_example_runs():
    """The block under "The kernels by themselves": grouped heads, causal, more keys than queries, and a gradient."""
    names = {}
    exec(compile(readme_blocks("## The kernels by themselves\n")[0], "README.md", "exec"), names)
    assert names["o"].shape == names["q"].shape and all(names[name].grad.isfinite().all() for name in "qkv")


def test_the_readmes_first_check_prints_what_stands_there(capsys):
    code, printed, *_ = readme_blocks("# FlashAttention")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == printed.strip()


def test_the_readmes_table_has_the_chapters_own_numbers():
    """Minutes from each chapter's first cell; the number of its exercises and the hardest one's stars from their headings."""
    rows = re.findall(r"\| \[\d+ .*?\]\(notebooks/(.*?)\) \|.*?\| (\d+) \| (\d+), (★+) \|", (ROOT / "README.md").read_text())
    chapters = {path.name: rules.load(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    said = []
    for name, notebook in chapters.items():
        exercises = rules.headings(notebook)
        minutes = rules.TIME.search(notebook["cells"][0]["source"])[1]
        said.append((name, minutes, str(len(exercises)), max(stars for _, stars, _ in exercises)))
    assert rows == said
    assert f"about {round(sum(int(minutes) for _, minutes, *_ in said) / 60)} hours" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "GLOSSARY.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    assert rules.broken_links((ROOT / name).read_text(), ROOT) == []


# These name the patterns themselves, or make paths and hosts up to break the rules with.
ABOUT_PATHS = {"tests/notebook_rules.py", "tests/test_notebooks.py", "tests/test_house.py"}


def test_nothing_names_a_registry_or_a_machine():
    """In the files of the repository, and new ones that are not ignored."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    found = {}
    for name in listing.stdout.splitlines():
        # A notebook's pictures are base64; machine_traces reads the rest of it.
        if name in ABOUT_PATHS or name.endswith((".png", ".gif", ".ico", ".ipynb")) or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        if match := rules.REGISTRY.search(text) or rules.MACHINE_PATH.search(text):
            found[name] = match[0]
    assert found == {}
