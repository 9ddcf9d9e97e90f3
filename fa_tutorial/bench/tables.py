"""Results in words and Markdown: one case's rows as they come, and the comparison tables of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fa_tutorial.bench.cases import LABELS, MODES, Grid, Shape, in_order, rows_of

MIB = 2**20
NOTHING = "–"


# ---------------------------------------------------------------- one case


def case_head() -> str:
    return f"{'provider':16}{'ms':>10}  {'20 % … 80 %':>19}{'TFLOP/s':>10}{'peak MiB':>10}{'first call s':>14}"


def case_line(row: dict[str, Any]) -> str:
    """A row of one case, under case_head(): its numbers, or the reason why it has none."""
    if row["ms"] is None:
        return f"{row['provider']:16}{NOTHING:>10}  {row['reason']}"
    quantiles = f"{row['ms_20']:.4f} … {row['ms_80']:.4f}"
    return f"{row['provider']:16}{row['ms']:10.4f}  {quantiles:>19}{row['tflops']:10.1f}{row['peak_bytes'] / MIB:10.1f}{row['first_call_s']:14.2f}"


# ---------------------------------------------------------------- a grid


@dataclass(frozen=True)
class Comparison:
    """How many times as fast as a peer one provider is, over the points where both were measured: geometric mean, lowest, highest."""

    peer: str
    mean: float
    lowest: float
    highest: float
    points: int


def compare(rows: list[dict[str, Any]], grid: Grid, mode: str, dtype: str, ours: str = "tuned") -> list[Comparison]:
    """`ours` against every other provider that has rows on the grid; peers without a common point are left out. ValueError if none is stored."""
    found = rows_of(rows, grid.shapes, mode=mode, dtype=dtype)
    comparisons = []
    for peer in in_order(provider for provider, _ in found):
        pairs = [(found.get((ours, shape)), found.get((peer, shape))) for shape in grid.shapes]
        ratios = [theirs["ms"] / mine["ms"] for mine, theirs in pairs if mine and theirs and mine["ms"] and theirs["ms"]]
        if peer != ours and ratios:
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            comparisons.append(Comparison(peer, mean, min(ratios), max(ratios), len(ratios)))
    return comparisons


def comparison_table(rows: list[dict[str, Any]], grid: Grid, mode: str, dtype: str, ours: str = "tuned") -> str:
    """compare() in Markdown: above 1, `ours` is the faster one."""
    lines = [f"| {MODES[mode]}, {dtype}: {label(ours)} against | geometric mean | lowest | highest | points |", "|---|---|---|---|---|"]
    for comparison in compare(rows, grid, mode, dtype, ours):
        numbers = (f"{ratio:.2f}" for ratio in (comparison.mean, comparison.lowest, comparison.highest))
        lines.append(f"| {label(comparison.peer)} | {' | '.join(numbers)} | {comparison.points} |")
    return "\n".join(lines)


SPEED_COLUMNS = (("fwd", "hopper"), ("fwd", "tuned"), ("bwd", "tuned"))


def speed_table(rows: list[dict[str, Any]], grid: Grid, dtype: str = "fp16") -> str:
    """compare() of each (mode, ours) of SPEED_COLUMNS that is stored with every provider of LABELS, in Markdown: what the README shows."""
    compared = {(mode, ours): compare(rows, grid, mode, dtype, ours) for mode, ours in SPEED_COLUMNS}
    columns = {column: {comparison.peer: comparison for comparison in found} for column, found in compared.items() if found}
    lines = [f"| against | {' | '.join(f'{MODES[mode]}, {label(ours)}' for mode, ours in columns)} |", "|---|" + "---|" * len(columns)]
    ours = [provider for _, provider in columns]
    for peer in LABELS:
        # Who has a column of its own is not compared the other way round in a later one.
        cells = [None if peer in ours[:i] else peers.get(peer) for i, peers in enumerate(columns.values())]
        if any(cells):
            lines.append(f"| {label(peer)} | {' | '.join(NOTHING if cell is None else _span(cell) for cell in cells)} |")
    return "\n".join(lines)


def _span(comparison: Comparison) -> str:
    return f"{comparison.mean:.2f} ({comparison.lowest:.2f} to {comparison.highest:.2f})"


def tflops_table(rows: list[dict[str, Any]], grid: Grid, mode: str, dtype: str) -> str:
    """TFLOP/s of every provider on every stored point of the grid, in Markdown; – where there is no number."""
    found = rows_of(rows, grid.shapes, mode=mode, dtype=dtype)
    providers = in_order(provider for provider, _ in found)
    measured = {shape for _, shape in found}
    lines = ["| D | mask | S | " + " | ".join(map(label, providers)) + " |", "|---|---|---|" + "---|" * len(providers)]
    for shape in grid.shapes:
        if shape in measured:
            numbers = (_tflops(found.get((provider, shape))) for provider in providers)
            lines.append(f"| {shape.D} | {mask(shape)} | {shape.S_q:,} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def _tflops(row: dict[str, Any] | None) -> str:
    return NOTHING if row is None or row["tflops"] is None else f"{row['tflops']:.0f}"


def label(provider: str) -> str:
    return LABELS.get(provider, provider)


def mask(shape: Shape) -> str:
    return "causal" if shape.is_causal else "full"


def source(provenance: dict[str, Any]) -> str:
    """One line on where and when the numbers were measured."""
    return f"{provenance['gpu']}, torch {provenance['torch']}, Triton {provenance['triton']}, {provenance['date']}"
