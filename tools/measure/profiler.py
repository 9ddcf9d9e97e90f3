"""Counters of kernels by Nsight Compute (ncu), which needs the right to read them."""

import io
import shutil
import subprocess
import sys
import tempfile
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
    return _raw(_ncu("--page", "raw", *_launches_of(kernel), *options, *command))


def sampled(kernel: str, command: list[str]) -> list[tuple[int, pd.DataFrame]]:
    """Of each launch that `counted` would count: its cycles, and its instructions ("Source") with how often ncu found a
    warp about to issue each ("# Samples"), and why that warp didn't ("stall_…")."""
    with tempfile.TemporaryDirectory() as folder:
        report = str(Path(folder, "samples.ncu-rep"))
        wanted = "--section", "SourceCounters", "--metrics", CYCLES
        _ncu("--export", report, *_launches_of(kernel), *wanted, *command)
        cycles = _raw(_ncu("--import", report, "--page", "raw"))[CYCLES]
        listings = _ncu("--import", report, "--page", "source").split('"Kernel Name"')[1:]
    tables = [pd.read_csv(io.StringIO(listing), skiprows=1) for listing in listings]
    return list(zip(cycles.astype(int), tables, strict=True))


CYCLES = "sm__cycles_elapsed.max"


def _launches_of(kernel: str) -> list[str]:
    return ["--kernel-name", f"regex:{kernel}", "--profile-from-start", "off"]


def _ncu(*words: str) -> str:
    """What ncu prints. RuntimeError where it fails."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("ncu is not installed")
    run = subprocess.run([ncu, "--csv", *words], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"ncu measured nothing: {(run.stdout + run.stderr).strip().splitlines()[-1:]}")
    return run.stdout


def _raw(printed: str) -> pd.DataFrame:
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        raise RuntimeError(f"ncu measured nothing: {printed.strip().splitlines()[-1:]}")
    return pd.read_csv(io.StringIO("\n".join([lines[0], *lines[2:]])), thousands=",")  # lines[1] holds the units
