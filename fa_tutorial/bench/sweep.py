"""Measure many cases into one file of results, row by row: what is done is not measured again, and an interruption loses no finished row."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Grid, cases_of
from fa_tutorial.bench.measure import check, measure
from fa_tutorial.bench.timing import measure_ceilings, require_gpu

About = dict[str, Any]
Measurement = tuple[About, Callable[[], dict[str, Any]]]  # what a row is about, and the call that measures it

SAME = ("gpu", "cuda", "torch", "triton")  # of the provenance, in all rows of one file


def opened(path: Path) -> dict[str, Any]:
    """The results in `path`, or new ones with this GPU's provenance and ceilings, written there.

    ValueError where the file holds rows of another GPU or other versions: numbers that must not stand side by side.
    """
    here = results.provenance()
    if path.exists():
        kept = results.read(path)
        others = [
            f"{field} {kept['provenance'].get(field)}, here {here[field]}" for field in SAME if kept["provenance"].get(field) != here[field]
        ]
        if others:
            raise ValueError(f"{path} holds results of {'; of '.join(others)}: choose another file")
        return kept
    kept = {"provenance": here | {"ceilings": measure_ceilings()}, "rows": [], "kernels": []}
    results.save(path, kept)
    return kept


def is_done(about: About, rows: Iterable[dict[str, Any]]) -> bool:
    """True where a row tells about the case all that this machine can; what was not installed then may be installed now."""
    return any(about.items() <= row.items() and row.get("reason") != peers.NOT_INSTALLED for row in rows)


def run(path: Path, kept: dict[str, Any], key: str, measurements: Iterable[Measurement], progress: Progress | None = None) -> list[About]:
    """Append a row to kept[key] for each measurement that is not done, and write `path` after each row.

    What raises is told on stderr and not kept: returns what those rows were about. Once the GPU's context is lost, nothing more can be
    measured by this process, and the error is raised.
    """
    rows = kept.setdefault(key, [])
    todo = [(about, call) for about, call in measurements if not is_done(about, rows)]
    progress = progress or Progress()
    progress.start(len(todo))
    failed = []
    for about, call in todo:
        torch.cuda.empty_cache()
        try:
            row = about | call()
        except Exception as error:
            progress.tell(f"failed: {in_words(about)}: {error_in_words(error)}")
            if isinstance(error, torch.AcceleratorError):
                raise
            failed.append(about)
            progress.step("failed", about)
        else:
            rows[:] = [old for old in rows if not about.items() <= old.items()] + [row]
            results.save(path, kept)
            progress.step(outcome(row), about)
    progress.end()
    return failed


def sweep(
    path: Path, grid: Grid, providers: Sequence[str], modes: Sequence[str] | None = None, dtypes: Sequence[str] | None = None
) -> list[About]:
    """Measure a grid's cases that are not in `path` yet; returns what failed. ValueError for a name that is not known, before anything runs."""
    cases = [check(case) for case in cases_of(grid, providers, modes, dtypes)]
    require_gpu()
    return run(path, opened(path), "rows", [(case.about(), functools.partial(measure, case)) for case in cases])


def in_words(about: About) -> str:
    return " ".join(f"{field}={value}" for field, value in about.items())


def outcome(row: dict[str, Any]) -> str:
    """A row's number, or the reason why it has none."""
    if row.get("ms") is not None:
        return f"{row['ms']:.4f} ms"
    return row.get("reason", "done")


def error_in_words(error: Exception) -> str:
    """An exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


class Progress:
    """How far a sweep is, on stderr: a bar that is redrawn in a terminal, a line a row elsewhere."""

    BAR, WIDTH = 24, 140

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.redraws = self.stream.isatty()

    def start(self, total: int) -> None:
        self.total, self.done, self.started = total, 0, time.monotonic()
        self.tell(f"{total} cases to measure" if total else "nothing to measure: every row is done")

    def step(self, text: str, about: About) -> None:
        """One more case is over, with the outcome `text`."""
        self.done += 1
        minutes = (time.monotonic() - self.started) / self.done * (self.total - self.done) / 60
        filled = self.BAR * self.done // self.total
        line = f"[{'#' * filled}{'.' * (self.BAR - filled)}] {self.done}/{self.total}, {minutes:.0f} min left: {text}: {in_words(about)}"
        if self.redraws:
            print(f"\r{line[: self.WIDTH]:{self.WIDTH}}", end="", file=self.stream, flush=True)
        else:
            print(line, file=self.stream, flush=True)

    def tell(self, text: str) -> None:
        """A line that stays."""
        print(f"\r{text:{self.WIDTH}}" if self.redraws else text, file=self.stream, flush=True)

    def end(self) -> None:
        if self.redraws and self.total:
            print(file=self.stream, flush=True)
