"""Run the notebooks and store their outputs again, in place.

Cell ids, tags and the text of cells stay as they are. Whatever differs from run to run without meaning anything is left
out, so that a second run changes nothing but what the code itself makes different.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError

from fa_tutorial import notebooks

# What JupyterLab writes, so that opening and saving a notebook leaves it as it is; of one version, whichever Python ran
# the notebook.
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


def store_outputs(path: Path) -> None:
    """Run the notebook at `path`, and write it back with its outputs, less what names this machine, run or Python."""
    notebook = nbformat.read(path, as_version=4)
    notebooks.execute(notebook, path.resolve().parent)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell, name in itertools.product(notebook.cells, ("execution", "collapsed")):
        cell.metadata.pop(name, None)
    nbformat.write(notebook, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named notebooks. Returns the exit status: 1 where a cell raised, with that notebook left as it was."""
    parser = argparse.ArgumentParser(prog="python tools/store_notebooks.py", description=__doc__)
    parser.add_argument("notebook", nargs="+", type=Path, help="notebooks to run, and to write back with their outputs")
    paths = parser.parse_args(arguments).notebook
    status = 0
    for path in paths:
        try:
            store_outputs(path)
            print(f"{path}: stored")
        except CellExecutionError as error:
            status = 1
            print(f"{path}: a cell failed, nothing is stored\n{error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
