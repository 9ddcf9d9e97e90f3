"""Counters of kernels by Nsight Compute (ncu), which needs the right to read them."""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

TOOLS = str(Path(__file__).parents[1])


def python(module: str, call: str) -> list[str]:
    """The command that calls a function of a module of this folder in a process of its own."""
    code = f"import sys; sys.path.insert(0, {TOOLS!r}); from measure import {module}; {module}.{call}"
    return [sys.executable, "-c", code]


def launched_twice(calls: Iterable[Callable[[], Any]]) -> None:
    """What `command` runs: each of the calls once, which compiles, and once more for ncu."""
    calls = list(calls)
    for is_counted in (False, True):
        if is_counted:
            torch.cuda.profiler.start()
        for call in calls:
            call()
        torch.cuda.synchronize()


def counted(kernel: str, command: list[str], *options: str) -> pd.DataFrame:
    """What ncu, with these options, counts while `command` runs, from torch.cuda.profiler.start() on.

    One row for each launch of a kernel whose name matches `kernel`. RuntimeError, with its reason, where ncu counts
    nothing.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("ncu is not installed")
    words = ["--csv", "--page", "raw", "--kernel-name", f"regex:{kernel}", "--profile-from-start", "off"]
    run = subprocess.run([ncu, *words, *options, *command], capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    if run.returncode or len(lines) < 3:
        raise RuntimeError(f"ncu measured nothing: {(run.stdout + run.stderr).strip().splitlines()[-1:]}")
    return pd.read_csv(io.StringIO("\n".join([lines[0], *lines[2:]])), thousands=",")  # lines[1] holds the units
