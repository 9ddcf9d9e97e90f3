"""Each notebook with every solution put in runs to the end, with every check correct."""

import re
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
        assert "".join(rules.output_texts(cell)) == f"✓ {exercise.id} {exercise.name}: correct\n"
    [state] = [cell for cell in rules.code_cells(notebook) if cell.source.startswith("progress(")]
    assert f"{len(exercises)} of {len(exercises)} done" in "".join(rules.output_texts(state))


@pytest.mark.parametrize("guard", [True, False])
def test_chapter_8s_free_edit_needs_its_guard(guard):
    """Rows without keys tell a loop without a guard from a right one."""
    notebook = rules.load(FOLDER / "08_tuning.ipynb")
    cells = {cell.id: cell for cell in notebook.cells}
    notebook.cells = [cells[f"c08-{name}"] for name in ("01", "02", "28d", "mine", "mine-run")]
    draw, loop, run = notebook.cells[2:]
    draw.source = draw.source.split("\nstep = ")[0]
    run.source = run.source.split("\nours, mine = ")[0]
    if not guard:
        loop.source, found = re.subn(r"shift = tl.where.*", "shift = m_new", loop.source)
        assert found == 1
    notebooks.execute(notebook, FOLDER)
    told = "".join(rules.output_texts(run))
    assert re.search("100 keys: .*: right", told)
    assert re.search(f" 60 keys: .*: {'right' if guard else 'WRONG'}", told)
