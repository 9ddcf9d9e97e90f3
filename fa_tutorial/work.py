"""The reader's own copies of the notebooks, in work/, which git ignores: `make lab` fills and opens it.

A copy has no outputs, so that a reader can guess before running a cell, and is never written over. It keeps in its
metadata which text of the chapter it was made from, so a newer chapter is noticed, and `take` puts it in the place of
the old copy, with each cell that the reader changed or added; the old copy stays under a dated name.
"""

import datetime
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from fa_tutorial import hardware, notebooks
from fa_tutorial.exercises import catalogue
from fa_tutorial.exercises.progress import state_file

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS, COPIES = ROOT / "notebooks", ROOT / "work"
CELL_SECONDS = 600
VERDICT = re.compile(r"^([✓✗·]) (\d+\.\d+) .*(?:\n  .*)*", re.MULTILINE)


def chapters() -> dict[int, Path]:
    """The course's notebooks by their chapters' numbers. FileNotFoundError where there are none."""
    found = {int(path.name.partition("_")[0]): path for path in sorted(CHAPTERS.glob("[0-9]*.ipynb"))}
    if not found:
        raise FileNotFoundError(f"there are no notebooks in {CHAPTERS}: run this in a clone of the course")
    return found


def _chapter(number: int) -> Path:
    found = chapters()
    if number not in found:
        raise ValueError(f"there is no chapter {number}; the course has {', '.join(map(str, found))}")
    return found[number]


def text_of(notebook: dict) -> dict[str, str]:
    """A hash of each cell's text, by the cell's id."""
    return {cell["id"]: _hash("".join(cell["source"])) for cell in notebook["cells"]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fill() -> None:
    """Copy the chapters that work/ lacks, and say in a line which copies are of an older text."""
    older, damaged, made, found = [], 0, 0, chapters()
    COPIES.mkdir(exist_ok=True)
    for number, chapter in found.items():
        copy = COPIES / chapter.name
        if not copy.exists():
            _copy(chapter, copy)
            made += 1
        elif _read(copy) is None:
            damaged += 1
            print(f"{copy.relative_to(ROOT)} is no notebook any more; to set it aside: make take CHAPTER={number}")
        elif not _is_current(copy, chapter):
            older.append(number)
    if made:
        many = "chapters" if made > 1 else "chapter"
        print(f"{made} {many} copied into {COPIES.name}/, which is yours: solve the exercises there")
    for number in older:
        newer = f"chapter {number} is newer than your copy. To take it, and keep yours beside it:"
        print(f"{newer} make take CHAPTER={number}\n  (without make: python -m fa_tutorial work take {number})")
    if not made and not older and not damaged:
        print(f"{len(found)} copies in {COPIES.name}/, all of the course's present text")


def _read(copy: Path) -> dict | None:
    """The reader's copy; None where the file is damaged."""
    try:
        return json.loads(copy.read_bytes())
    except ValueError:
        return None


def _is_current(copy: Path, chapter: Path) -> bool:
    notebook = _read(copy)
    return notebook is not None and notebook["metadata"].get("fa_tutorial") == text_of(json.loads(chapter.read_bytes()))


def _copy(chapter: Path, copy: Path, old: Sequence[dict] = (), yours: Sequence[str] = ()) -> None:
    """Copy a chapter without its outputs, with the cells of `old` whose ids are in `yours`: a changed one in its place,
    an added one after the cell that it followed."""
    notebook = json.loads(chapter.read_bytes())
    notebook["metadata"]["fa_tutorial"] = text_of(notebook)
    cells, follows = notebook["cells"], 0
    for cell in old:
        place = next((place for place, other in enumerate(cells) if other["id"] == cell["id"]), None)
        if place is None and cell["id"] in yours:
            place = follows
            cells.insert(place, cell)
        elif cell["id"] in yours:
            cells[place]["source"] = cell["source"]
        follows = follows if place is None else place + 1
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    with copy.open("x", encoding="utf-8") as file:  # x: never over a file that is there
        json.dump(notebook, file, indent=1, ensure_ascii=False)
        file.write("\n")


def take(numbers: Sequence[int]) -> None:
    """Put the course's chapters in the place of the reader's copies, which stay, and into them what these changed."""
    for chapter in [_chapter(number) for number in numbers]:
        copy = COPIES / chapter.name
        if copy.exists() and _is_current(copy, chapter):
            words = "has the course's present text already. To begin it anew, rename it, and run make work"
            print(f"{copy.relative_to(ROOT)} {words}")
            continue
        COPIES.mkdir(exist_ok=True)
        taken = f"{copy.relative_to(ROOT)} is the course's chapter as it is now"
        if not copy.exists():
            _copy(chapter, copy)
            print(taken)
            continue
        old = _read(copy) or {"metadata": {}, "cells": []}
        # a copy that doesn't say it has no cell to take along
        made_from = old["metadata"].get("fa_tutorial") or text_of(old)
        there = text_of(json.loads(chapter.read_bytes()))
        changed = [cell for cell in old["cells"] if made_from.get(cell["id"]) != _hash("".join(cell["source"]))]
        yours = [cell for cell in changed if cell["id"] in there or "".join(cell["source"]).strip()]
        # the number and the date first: JupyterLab cuts names
        kept = copy.with_name(f"{copy.name[:2]}.{datetime.datetime.now():%Y-%m-%d_%H%M%S}.ipynb")
        copy.rename(kept)
        _copy(chapter, copy, old["cells"], [cell["id"] for cell in yours])
        added = sum(cell["id"] not in there for cell in yours)
        print(f"{taken}, with the cells that you changed ({len(yours) - added}) and added ({added})")
        print(f"your old copy is {kept.relative_to(ROOT)}")
        for cell in yours:
            if there.get(cell["id"], made_from.get(cell["id"])) != made_from.get(cell["id"]):
                begins = f"the cell that begins `{_first_line(cell)}`; compare it with the course's in notebooks/"
                print(f"  the course changed one of these, too: {begins}")


def _first_line(cell: dict) -> str:
    return "".join(cell["source"]).partition("\n")[0]


def check(numbers: Sequence[int]) -> bool:
    """Run the reader's copies, of all chapters if none is named, print what their checks say, and count it in the
    reader's progress. False where an answer is wrong, a cell raises, or a copy cannot be read."""
    import nbformat

    paths = {number: COPIES / _chapter(number).name for number in numbers or chapters()}
    is_right = True
    for number, path in tqdm(paths.items(), desc="running your copies", leave=False, disable=None):
        try:
            notebook = nbformat.read(path, as_version=4)
        except (FileNotFoundError, ValueError):
            tqdm.write(f"{path.relative_to(ROOT)} is missing or damaged; to copy it anew: make take CHAPTER={number}")
            is_right = False
            continue
        notebooks.execute(notebook, COPIES, CELL_SECONDS, allow_errors=True, state=state_file().parent)
        said, errors = _outcome(notebook.cells)
        verdicts = {one: said.get(one, "? no verdict") for one in catalogue.chapter_ids(number)}
        right = sum(verdict.startswith("✓") for verdict in verdicts.values())
        marks = "  ".join(f"{verdict[0]} {exercise}" for exercise, verdict in verdicts.items())
        lines = [f"{path.stem}: {right} of {len(verdicts)} right   {marks}"]
        lines += [f"  {verdict}" for verdict in verdicts.values() if verdict.startswith("✗")]
        tqdm.write("\n".join(lines + errors))
        is_right &= len(lines) == 1 and not errors
    print("(✓ correct, ✗ wrong, · not attempted, ? without a verdict)")
    return is_right


def _outcome(cells: Sequence[dict]) -> tuple[dict[str, str], list[str]]:
    """The last verdict of each exercise's check, and a line for each cell that raised."""
    verdicts, errors = {}, []
    for cell in cells:
        for output in cell.get("outputs", []):
            verdicts |= {match[2]: match[0] for match in VERDICT.finditer(output.get("text", ""))}
            if output["output_type"] == "error":
                raised = f"{output['ename']}: {output['evalue']}"
                errors.append(f"  the cell that begins `{_first_line(cell)}` raises {raised}")
    return verdicts, errors


def lab(arguments: Sequence[str]) -> None:
    """Fill work/ and open its first notebook in JupyterLab, with its own `arguments`, in the place of this process."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise RuntimeError(f"JupyterLab is not installed. {hardware.HOW_TO_INSTALL}")
    fill()
    first = next(iter(chapters().values())).name
    # The root is the course's folder: ../images is found from work/. As the default address, so --no-browser prints it.
    places = f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url=/lab/tree/{COPIES.name}/{first}"
    command = [sys.executable, "-m", "jupyterlab", *places]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # a rented machine's only user is often root
        command.append("--allow-root")
    sys.stdout.flush()
    # Without the question whether you want Jupyter's news, which lies over the first page.
    configs = str(Path(__file__).parent / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH")
    config = os.pathsep.join(filter(None, configs))
    os.execve(sys.executable, [*command, *arguments], notebooks.kernel_environment(JUPYTER_CONFIG_PATH=config))
