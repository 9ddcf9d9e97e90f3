"""Run a notebook as a reader does: in a fresh kernel, the figures in the page."""

import os
import tempfile
from pathlib import Path

from fa_tutorial import hardware
from fa_tutorial.exercises.progress import STATE_VARIABLE

CELL_SECONDS = 120


def kernel_environment(**variables: str) -> dict[str, str]:
    """The environment of a kernel as a reader starts it, with these variables: the backend isn't chosen yet."""
    environment = {**os.environ, **variables}
    environment.pop("MPLBACKEND", None)
    if hardware.switched_on_here():
        environment.pop(hardware.INTERPRETER_SWITCH)
    return environment


def execute(notebook, folder: Path, cell_seconds: int = CELL_SECONDS, *, state: Path | None = None, **options) -> None:
    """Run every cell of `notebook` in place, in a fresh kernel that works in `folder`. state: the folder of the
    progress that its checks add to; without one, no exercise is done, and none is kept. options: NotebookClient's.
    Raises CellExecutionError at a cell's error, unless allow_errors is True: then the error is an output."""
    from nbclient import NotebookClient

    options |= {"record_timing": False, "coalesce_streams": True, "extra_arguments": ["--log-level=ERROR"]}
    options |= {"timeout": cell_seconds, "kernel_name": "python3", "resources": {"metadata": {"path": str(folder)}}}
    with tempfile.TemporaryDirectory() as empty:
        environment = kernel_environment(**{STATE_VARIABLE: str(state or empty)})
        NotebookClient(notebook, **options).execute(env=environment)
