"""Run the notebooks and store their outputs again: `python -m fa_tutorial.notebooks NOTEBOOK …`, or `make notebooks`.

Cell ids, tags and the text of cells stay as they are; whatever differs from run to run without meaning anything is left out,
so that a second run changes nothing but what the code itself makes different.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fa_tutorial import hardware
from fa_tutorial.exercises.progress import STATE_VARIABLE

CELL_SECONDS = 120
# What JupyterLab writes, so that opening and saving a notebook leaves it as it is; of one version, whichever Python ran the notebook.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3.11.7",
    },
}


def kernel_environment(**variables: str) -> dict[str, str]:
    """The environment of a kernel as a reader starts it, with these variables: figures go into the page, the backend isn't chosen yet."""
    environment = {**os.environ, **variables}
    environment.pop("MPLBACKEND", None)
    if hardware.switched_on_here():
        environment.pop(hardware.INTERPRETER_SWITCH)
    return environment


def execute(notebook, folder: Path, cell_seconds: int = CELL_SECONDS, allow_errors: bool = False) -> None:
    """Run every cell of `notebook` in place, in a fresh kernel that works in `folder`, with no exercise done.

    Raises CellExecutionError at a cell's error, unless allow_errors: then the error is an output, and the cells after it run.
    """
    from nbclient import NotebookClient

    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=cell_seconds,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources=where,
        allow_errors=allow_errors,
        extra_arguments=["--log-level=ERROR"],
    )
    with tempfile.TemporaryDirectory() as state_folder:
        client.execute(env=kernel_environment(**{STATE_VARIABLE: state_folder}))


def store_outputs(path: Path) -> None:
    """Run the notebook at `path` and write it back with the outputs of this run, less what names this machine, this run or this Python."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    execute(notebook, path.resolve().parent)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("collapsed", None)
    nbformat.write(notebook, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named notebooks. Returns the exit status: 1 where a cell raised, with that notebook left as it was."""
    parser = argparse.ArgumentParser(prog="python -m fa_tutorial.notebooks", description="Run notebooks and store their outputs again.")
    parser.add_argument("notebook", nargs="+", type=Path, help="notebooks to run, and to write back with their outputs")
    paths = parser.parse_args(arguments).notebook
    from nbclient.exceptions import CellExecutionError

    failed = 0
    for path in paths:
        try:
            store_outputs(path)
        except CellExecutionError as error:
            failed += 1
            print(f"{path}: a cell failed, nothing is stored\n{error}", file=sys.stderr)
        else:
            print(f"{path}: stored")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
