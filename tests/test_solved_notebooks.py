"""Each notebook with every solution put in runs to the end, with every check correct."""

from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest

from fa_tutorial import notebooks
from fa_tutorial.exercises import catalogue

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))


def import_of(exercise: catalogue.Exercise) -> str:
    """The line that imports an exercise's finished answer under the exercise's name."""
    solution = getattr(exercise.solution, "fn", exercise.solution)
    return f"from {solution.__module__} import {solution.__name__}"


def put_in(notebook, exercises) -> None:
    """Replace each starter cell by the import of the solution, and drop the stored outputs."""
    for exercise in exercises:
        [starter] = rules.starter_cells(notebook, exercise)
        starter.source = import_of(exercise)
    for cell in rules.code_cells(notebook):
        cell.outputs = []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_solved_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    exercises = catalogue.chapter_exercises(int(path.name[:2]))
    put_in(notebook, exercises)
    notebooks.execute(notebook, path.parent)
    for exercise in exercises:
        [cell] = rules.check_cells(notebook, exercise)
        assert "".join(rules.output_texts(cell)) == f"✓ {exercise.id} {exercise.name}: correct\n"
    [state] = [cell for cell in rules.code_cells(notebook) if cell.source.startswith("progress(")]
    assert f"{len(exercises)} of {len(exercises)} done" in "".join(rules.output_texts(state))
