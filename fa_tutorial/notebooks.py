"""Run a notebook as a reader does: in a fresh kernel, the figures in the page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fa_tutorial import hardware
from fa_tutorial.exercises.progress import STATE_VARIABLE

CELL_SECONDS = 120


def kernel_environment(**variables: str) -> dict[str, str]:
    """The environment of a kernel as a reader starts it, with these variables: figures go into the page, the backend
    isn't chosen yet.
    """
    environment = {**os.environ, **variables}
    environment.pop("MPLBACKEND", None)
    if hardware.switched_on_here():
        environment.pop(hardware.INTERPRETER_SWITCH)
    return environment


def execute(notebook, folder: Path, cell_seconds: int = CELL_SECONDS, allow_errors: bool = False,
            state: Path | None = None) -> None:  # fmt: skip
    """Run every cell of `notebook` in place, in a fresh kernel that works in `folder`. state: the folder of the
    progress that its checks add to; where none is given, no exercise is done, and none is kept.

    Raises CellExecutionError at a cell's error, unless allow_errors: then the error is an output, and the cells after
    it run.
    """
    from nbclient import NotebookClient

    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=cell_seconds, kernel_name="python3", record_timing=False, coalesce_streams=True,
        resources=where, allow_errors=allow_errors, extra_arguments=["--log-level=ERROR"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as empty:
        client.execute(env=kernel_environment(**{STATE_VARIABLE: str(state or empty)}))
