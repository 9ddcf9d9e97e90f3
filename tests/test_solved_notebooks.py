"""Each notebook with every solution put in runs to the end, with every check correct."""

from pathlib import Path

import notebook_rules as rules
import pytest

from fa_tutorial import notebooks
from fa_tutorial.exercises import catalogue

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_solved_notebook(path):
    notebook = rules.load(path)
    exercises = catalogue.chapter_exercises(int(path.name[:2]))
    for exercise in exercises:
        [starter] = rules.starter_cells(notebook, exercise)
        starter.source = f'from fa_tutorial.exercises import catalogue\n{exercise.name} = catalogue.find("{exercise.id}").solution'
    for cell in rules.code_cells(notebook):
        cell.outputs = []
    notebooks.execute(notebook, path.parent)
    for exercise in exercises:
        [cell] = rules.check_cells(notebook, exercise)
        note = " (18 s with 4 ranks: one second is left to save)" if exercise.id == "13.7" else ""
        assert "".join(rules.output_texts(cell)) == f"✓ {exercise.id} {exercise.name}: correct{note}\n"
    [state] = [cell for cell in rules.code_cells(notebook) if cell.source.startswith("progress(")]
    assert f"{len(exercises)} of {len(exercises)} done" in "".join(rules.output_texts(state))
