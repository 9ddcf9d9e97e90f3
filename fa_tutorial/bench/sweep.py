"""Measure many cases into one file of results, row by row: what is done is not measured again, and an interruption
loses no finished row."""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Grid, cases_of
from fa_tutorial.bench.measure import check, measure
from fa_tutorial.bench.timing import measure_ceilings, require_gpu

About = dict[str, Any]
Measurement = tuple[About, Callable[[], dict[str, Any]]]  # what a row is about, and the call that measures it

SAME = ("gpu", "cuda", "torch", "triton")  # of the provenance, in all rows of one file


def opened(path: Path) -> dict[str, Any]:
    """The results in `path`, or new ones with this GPU's provenance and ceilings, written there. ValueError where the
    file holds rows of another GPU or other versions: numbers that must not stand side by side."""
    here = results.provenance()
    if path.exists():
        kept = results.read(path)
        there = kept["provenance"]
        if others := [f"{key} {there.get(key)}, here {here[key]}" for key in SAME if there.get(key) != here[key]]:
            raise ValueError(f"{path} holds results of {'; of '.join(others)}: choose another file")
        return kept
    kept = {"provenance": here | {"ceilings": measure_ceilings()}, "rows": [], "kernels": []}
    results.save(path, kept)
    return kept


def is_done(about: About, rows: Iterable[dict[str, Any]]) -> bool:
    """True where a row tells about the case all that this machine can; what was not installed then may be installed
    now."""
    return any(about.items() <= row.items() and row.get("reason") != peers.NOT_INSTALLED for row in rows)


def run(path: Path, kept: dict[str, Any], key: str, measurements: Iterable[Measurement]) -> list[About]:
    """Append a row to kept[key] for each measurement that is not done, and write `path` after each row. Where stderr is
    a terminal, a bar shows how far it is. What raises is told on stderr and not kept: returns what those rows were
    about. Once the GPU's context is lost, the error is raised."""
    rows, failed = kept[key], []
    missing = [(about, call) for about, call in measurements if not is_done(about, rows)]
    with tqdm(missing, unit="case", disable=None) as todo:
        for about, call in todo:
            words = " ".join(f"{field}={value}" for field, value in about.items())
            todo.set_postfix_str(words)
            torch.cuda.empty_cache()
            try:
                row = about | call()
            except Exception as error:
                todo.write(f"failed: {words}: {error_in_words(error)}", file=sys.stderr)
                if isinstance(error, torch.AcceleratorError):
                    raise
                failed.append(about)
            else:
                rows[:] = [old for old in rows if not about.items() <= old.items()] + [row]
                results.save(path, kept)
    return failed


def sweep(path: Path, grid: Grid, providers: Sequence[str], **which: Sequence[str] | None) -> list[About]:
    """Measure a grid's cases that are not in `path` yet; returns what failed. which: cases_of's modes and dtypes.
    ValueError for a name that is not known, before anything runs."""
    cases = [check(case) for case in cases_of(grid, providers, **which)]
    require_gpu()
    return run(path, opened(path), "rows", [(case.about(), functools.partial(measure, case)) for case in cases])


def error_in_words(error: Exception) -> str:
    """An exception's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
