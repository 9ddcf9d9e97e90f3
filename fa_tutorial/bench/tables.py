"""Results in words and Markdown: one case's rows as they come, and the comparison tables of a grid."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fa_tutorial.bench import results
from fa_tutorial.bench.cases import LABELS, MODES, SHAPE, Grid

NOTHING = "–"


def label(provider: str) -> str:
    return LABELS.get(provider, provider)


def mask(is_causal: bool) -> str:
    return "causal" if is_causal else "full"


def source(provenance: dict[str, Any]) -> str:
    """One line on where and when the numbers were measured."""
    return f"{provenance['gpu']}, torch {provenance['torch']}, Triton {provenance['triton']}, {provenance['date']}"


def markdown(head: Sequence[str], lines: Iterable[Iterable[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def case_head() -> str:
    return f"{'provider':16}{'ms':>10}  {'20 % … 80 %':>19}{'TFLOP/s':>10}{'peak MiB':>10}{'first call s':>14}"


def case_line(row: Mapping[str, Any]) -> str:
    """A row of one case, under case_head(): its numbers, or the reason why it has none."""
    if pd.isna(row["ms"]):
        return f"{row['provider']:16}{NOTHING:>10}  {row['reason']}"
    quantiles = f"{row['ms_20']:.4f} … {row['ms_80']:.4f}"
    others = f"{row['tflops']:10.1f}{row['peak_bytes'] / 2**20:10.1f}{row['first_call_s']:14.2f}"
    return f"{row['provider']:16}{row['ms']:10.4f}  {quantiles:>19}{others}"


def on_grid(rows: pd.DataFrame, grid: Grid, **wanted: Any) -> pd.DataFrame:
    """The rows of the grid's shapes whose fields equal `wanted`; ValueError if there is none."""
    found = pd.DataFrame(grid.shapes).merge(results.select(rows, **wanted), on=SHAPE)
    if found.empty:
        raise ValueError(f"no stored row is on this grid ({grid.about}): python -m fa_tutorial bench sweep measures it")
    return found


def parts(rows: pd.DataFrame, grid: Grid) -> list[tuple[str, str]]:
    """(dtype, mode) of every part of the grid that has rows."""
    return list(on_grid(rows, grid).groupby(["dtype", "mode"], sort=False).groups)


def table(rows: pd.DataFrame, grid: Grid, mode: str, dtype: str, number: str = "tflops") -> pd.DataFrame:
    """One number of every point (D, is_causal, S_q) of the grid, a column for each provider, those of LABELS first; NaN
    where there is none."""
    found = on_grid(rows, grid, mode=mode, dtype=dtype)
    point = ["D", "is_causal", "S_q"]  # what tells the shapes of one grid apart
    wide = found.pivot(index=point, columns="provider", values=number).astype(float)
    providers = [name for name in dict.fromkeys([*LABELS, *rows["provider"]]) if name in wide]
    return wide[providers].reindex(pd.MultiIndex.from_frame(pd.DataFrame(grid.shapes)[point]))


def compare(rows: pd.DataFrame, grid: Grid, mode: str, dtype: str, ours: str = "tuned") -> pd.DataFrame:
    """How many times as fast as each peer `ours` is: geometric mean, lowest and highest over the points where both were
    measured."""
    ms = table(rows, grid, mode, dtype, "ms")
    peers = [name for name in LABELS if name in ms and name != ours]
    ratios = ms[peers].div(ms.get(ours, np.nan), axis=0).dropna(axis=1, how="all")
    geometric = np.exp(np.log(ratios).mean())
    return pd.DataFrame({"mean": geometric, "lowest": ratios.min(), "highest": ratios.max(), "points": ratios.count()})


def comparison_table(rows: pd.DataFrame, grid: Grid, mode: str, dtype: str, ours: str = "tuned") -> str:
    """compare() in Markdown: above 1, `ours` is the faster one."""
    head = (f"{MODES[mode]}, {dtype}: {label(ours)} against", "geometric mean", "lowest", "highest", "points")
    found = compare(rows, grid, mode, dtype, ours).itertuples()
    lines = ([label(peer), *map("{:.2f}".format, ratios), str(points)] for peer, *ratios, points in found)
    return markdown(head, lines)


SPEED_COLUMNS = (("fwd", "hopper"), ("bwd", "hopper"), ("fwd", "tuned"), ("bwd", "tuned"))


def speed_table(rows: pd.DataFrame, grid: Grid, dtype: str = "fp16") -> str:
    """compare() of each (mode, ours) of SPEED_COLUMNS that is stored with every provider of LABELS, in Markdown: what
    the README shows."""
    columns, shown, stored = {}, [], parts(rows, grid)
    for mode, ours in [column for column in SPEED_COLUMNS if (dtype, column[0]) in stored]:
        # who has a column is not compared the other way round
        found = compare(rows, grid, mode, dtype, ours).drop(shown, errors="ignore")
        if len(found):
            spans = [f"{mean:.2f} ({low:.2f} to {high:.2f})" for _, mean, low, high, _ in found.itertuples()]
            columns[f"{MODES[mode]}, {label(ours)}"] = pd.Series(spans, found.index)
            shown.append(ours)
    table = pd.DataFrame(columns).reindex(list(LABELS)).dropna(how="all").fillna(NOTHING)
    return markdown(["against", *table], ((label(peer), *cells) for peer, *cells in table.itertuples()))


def tflops_table(rows: pd.DataFrame, grid: Grid, mode: str, dtype: str) -> str:
    """TFLOP/s of every provider of LABELS on every stored point of the grid, in Markdown; – where there is no
    number."""
    stored = table(rows, grid, mode, dtype).filter(LABELS).dropna(how="all").dropna(axis=1, how="all")
    tflops = stored.map(lambda number: NOTHING if np.isnan(number) else f"{number:.0f}")
    lines = ((str(D), mask(is_causal), f"{S:,}", *cells) for (D, is_causal, S), *cells in tflops.itertuples())
    return markdown(["D", "mask", "S", *map(label, tflops)], lines)
