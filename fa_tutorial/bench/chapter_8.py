"""Chapter 8: what its pages show of the stored results, and what they measure where there is a GPU. tools/measure
measures what is stored.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import forward, hardware, tuned
from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Case, Shape, about, literature
from fa_tutorial.bench.tables import mask
from fa_tutorial.bench.timing import randn, timed, timed_in_turns
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import launching, steps

hardware.require_triton("Chapter 8's measurements")
from triton.runtime.errors import OutOfResources  # noqa: E402

POINT = Shape(4, 16, 16, 4096, 4096, 128, False)  # at which clocks settle and counters are read
SHORT = [Shape(8, 8, 8, S, S, 64, True) for S in (128, 512, 2048)]  # of single calls and of CUDA graphs


def at_4096(D: int, is_causal: bool) -> Shape:
    """The point of tiles and steps: S = 4,096 of the literature's grid."""
    return next(shape for shape in literature((4096,)) if (shape.D, shape.is_causal) == (D, is_causal))


def inputs(shape: Shape) -> list[torch.Tensor]:
    """q, k and v, fp16."""
    return [
        randn(shape.B, H, S, shape.D)
        for H, S in ((shape.H_q, shape.S_q), (shape.H_k, shape.S_k), (shape.H_k, shape.S_k))
    ]


def flops_of(shape: Shape) -> int:
    return Case("tuned", "fwd", "fp16", shape).flops()


# ---------------------------------------------------------------- tiles


TILES = {
    64: [(64, 64, 4, stages) for stages in (1, 2, 3, 4)]
    + [
        (32, 64, 4, 3),
        (64, 64, 8, 3),
        (64, 128, 4, 2),
        (128, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 128, 4, 2),
        (128, 128, 8, 2),
    ],
    128: [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 4, 1), (128, 128, 8, 2)],
}


def in_words(tile: TileConfig) -> str:
    return (
        f"{tile.block_m}x{tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stage{'s' * (tile.num_stages > 1)}"
    )


def tile_row(tile: TileConfig, shape: Shape) -> dict[str, Any]:
    """Registers and spilled registers a thread, bytes of shared memory a block, and the time."""
    q, k, v = inputs(shape)
    call = partial(tuned.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5, tile=tile)
    launching._prepared.clear()
    call()
    [launch] = launching._prepared.values()
    compiled = launch.compiled
    facts = {
        "registers": compiled.n_regs,
        "spilled_registers": compiled.n_spills,
        "shared_bytes": compiled.metadata.shared,
    }
    return facts | timed(call, flops=flops_of(shape))


def tile_report(tile: TileConfig, D: int, is_causal: bool) -> dict[str, Any]:
    """What tile_row measures on this GPU; without one the H200's row of this tile. {"reason": why there is none}
    otherwise.
    """
    shape = at_4096(D, is_causal)
    wanted = about(8, "tile", in_words(tile), **vars(shape))
    try:
        if hardware.device().type == "cuda":
            return tile_row(tile, shape)
    except OutOfResources as error:
        return {"reason": f"does not fit: {error}"}
    stored = results.read(results.FOLDER / "h200.json")["kernels"]
    return next((row for row in stored if wanted.items() <= row.items()), {"reason": "not stored, it takes a GPU"})


# ---------------------------------------------------------------- steps

# a step's row, with steps.TILE -> its name in steps
STEP_OF = {step or "chapter 5": step for step in steps.WITH_TILE}
# with steps.LARGER
LARGER_STEP_OF = {f"{step or 'chapter 5'}, larger tile": step for step in ("", *steps.STEPS)}
WHOLE = ("basic", "tuned", "sdpa_flash", "sdpa_cudnn")


@functools.cache
def steps_in_turns(shape: Shape, in_turns: Callable = timed_in_turns) -> dict[str, dict[str, Any]]:
    """Rows by provider: chapter 8's steps with one tile and a larger one, and WHOLE, measured by in_turns(calls,
    flops=…).

    A row of the course's own has its tile in words; {"ms": None, "reason"} for what has no kernel here.
    """
    q, k, v = inputs(shape)
    common = (q, k, v, shape.is_causal, shape.D**-0.5)
    tile_of = dict.fromkeys(STEP_OF, steps.TILE) | dict.fromkeys(LARGER_STEP_OF, steps.LARGER[shape.D])
    step_of = STEP_OF | LARGER_STEP_OF
    calls = {
        name: partial(steps.flash_forward, *common, step=step_of[name], tile=tile) for name, tile in tile_of.items()
    }
    calls |= {"basic": partial(forward.flash_forward, *common), "tuned": partial(tuned.flash_forward, *common)}
    calls |= {name: partial(peers.provider(name), q, k, v, shape.is_causal) for name in WHOLE[2:]}
    tile_of["basic"] = forward.choose_config(shape.D, q.dtype, hardware.card_of(q).shared_memory)
    rows: dict[str, dict[str, Any]] = {}
    launching._prepared.clear()
    for name, call in calls.items():
        try:
            call()  # compiles, and chooses the tuned kernel's tile
        except (OutOfResources, peers.Unsupported) as error:
            rows[name] = {"ms": None, "reason": str(error)}
    [launch] = launching._prepared.values()
    tile_of["tuned"] = TileConfig(
        *(launch.constants[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"))
    )
    rows |= in_turns({name: call for name, call in calls.items() if name not in rows}, flops=flops_of(shape))
    return {name: row | ({"tile": in_words(tile_of[name])} if name in tile_of else {}) for name, row in rows.items()}


def steps_report(D: int, is_causal: bool) -> dict[str, dict[str, Any]]:
    """What steps_in_turns measures at one point on this GPU, provider -> row, in one run; without a GPU the H100's
    stored rows.
    """
    if hardware.device().type == "cuda":
        return steps_in_turns(at_4096(D, is_causal))
    return stored_steps()[D, is_causal]


ORDERS = ("as they come", "longest first")  # of causal programs
SHORT_GRIDS = ((8, 4096), (2, 16_384), (8, 16_384))  # heads, S


POINTS = list(itertools.product((64, 128), (False, True)))  # D, is_causal


@functools.cache
def stored_steps(gpu: str = "h100") -> dict[tuple[int, bool], dict[str, dict[str, Any]]]:
    """A card's rows of steps_in_turns, with their SM cycles, (D, is_causal) -> provider -> row. The H200's are of the
    kernels alone that the chapter's last section compares.
    """
    stored = [row for row in results.read(results.FOLDER / f"{gpu}.json")["kernels"] if row["kernel"] == "step"]
    return {
        point: {row["provider"]: row for row in stored if (row["D"], row["is_causal"]) == point} for point in POINTS
    }


def step_noise(number: str) -> float:
    """By how much `number`, "tflops" or "cycles", of two of stored_steps' rows of the same machine code and tile
    differs at most, relatively.
    """
    pairs = [
        (found, twice)
        for found in stored_steps().values()
        for twice in (("chapter 5", "basic"), (LARGER_TILE, "tuned"))
    ]
    pairs += [
        (found, ("guard, larger tile", "load ahead, larger tile"))
        for (_, is_causal), found in stored_steps().items()
        if not is_causal
    ]
    alike = [(found[a][number], found[b][number]) for found, (a, b) in pairs if found[a]["tile"] == found[b]["tile"]]
    return max(abs(b / a - 1) for a, b in alike)


def run_noise(rows: pd.DataFrame, kernels: pd.DataFrame) -> float:
    """By how much a row of stored_steps("h200") and one of another run, of the same machine code and tile, differ at
    most. rows, kernels: results.load's.
    """
    apart = []
    for (D, is_causal), found in stored_steps("h200").items():
        tile = {"provider": in_words(steps.LARGER[D]), "D": D, "is_causal": is_causal}
        again = results.select(kernels, kernel="tile", **tile)["tflops"].item()
        apart += [
            again / found[LARGER_TILE]["tflops"],
            tflops_of(rows, "tuned", "fwd", 4096, D, is_causal) / found["tuned"]["tflops"],
        ]
    return max(abs(ratio - 1) for ratio in apart)


Programs = Callable[[int, int, int], int]  # (num_warps, registers, shared_bytes) -> programs on an SM, exercise 8.1


def tile_cycles(row: dict[str, Any], D: int, is_causal: bool) -> float:
    """The cycles that an SM takes for each 64 x 64 tile of scores of a row of stored_steps: its share of them, masked
    ones whole.
    """
    row_blocks, multiprocessors = (
        4096 // 64,
        results.read(results.FOLDER / "h200.json")["provenance"]["multiprocessors"],
    )
    tiles = 4 * 2048 // D * (row_blocks * (row_blocks + 1) // 2 if is_causal else row_blocks**2)
    return row["cycles"] * multiprocessors / tiles


def percent(ratio: float) -> str:
    """ratio − 1 as a whole number of percent with its sign; 0 has none."""
    rounded = round(100 * (ratio - 1))
    return f"{rounded:+}%" if rounded else "0%"


def change(before: float, after: float) -> str:
    return f"{before:.0f} -> {after:.0f}"


def compiled_steps() -> dict[tuple[str, TileConfig, int, bool], dict[str, Any]]:
    """What is stored of the steps' machine code: (step, tile, D, is_causal) -> row."""
    rows = json.loads(steps.STORED.read_text())["rows"]
    return {(row["step"], TileConfig(*row["tile"]), row["D"], row["is_causal"]): row for row in rows}


def compiled_tiles() -> list[dict[str, Any]]:
    """What is stored of the finished kernel's machine code, full, with each of TILES."""
    return json.loads(steps.STORED.read_text())["tiles"]


HEAD = f"{'':14} {'loop':>11} {'registers':>11} {'programs':>9} {'cycles':>12} {'/cycle':>6} {'TFLOP/s':>11} {'/s':>6}"


def show_numbers(step: str, programs: Programs, tile: TileConfig | None = None) -> None:
    """Print what the compiler made of `step`, its cycles and its rate on the H100, beside those of the step before.
    tile: steps.LARGER of each D unless given.

    cycles: an SM's for each 64 x 64 scores. /cycle, /s: how many more scores in as many cycles, in as many seconds.
    """
    names = steps.before(step), step
    print(f"{step:14} {HEAD[15:]}")
    for D, is_causal in POINTS:
        of = tile or steps.LARGER[D]
        suffix = "" if of == steps.TILE else ", larger tile"
        old, new = (compiled_steps()[name, of, D, is_causal] for name in names)
        fit = [programs(of.num_warps, row["registers"], row["shared_bytes"]) for row in (old, new)]
        before, after = (stored_steps()[D, is_causal][f"{name or 'chapter 5'}{suffix}"] for name in names)
        cycles = change(*(tile_cycles(row, D, is_causal) for row in (before, after)))
        print(
            f"D = {D:3}, {mask(is_causal):6} {change(old['loop'], new['loop']):>11}",
            f"{change(old['registers'], new['registers']):>11} {change(*fit):>9}",
            f"{cycles:>12} {percent(before['cycles'] / after['cycles']):>6}",
            f"{change(before['tflops'], after['tflops']):>11} {percent(after['tflops'] / before['tflops']):>6}",
        )


def counts_of(step: str) -> list[dict[str, Any]]:
    """What is stored of a step with steps.TILE, full, for D = 64 and 128: as sass.counted gives it."""
    return [compiled_steps()[step, steps.TILE, D, False] for D in (64, 128)]


def show_counts(kernels: dict[str, list[dict[str, Any]]]) -> None:
    """Print where the instructions of each kernel's loop go, for D = 64 and 128. kernels: name -> sass.counted's."""
    kinds = {"MUFU.EX2": "exp2", "FFMA": "s·c−m", "FMNMX": "max", "FADD": "sum", "FMUL": "scale", "F2FP": "fp16"}
    print(f"{'':20} loop =", " + ".join(f"{word:>5}" for word in kinds.values()), "+ others  registers   shared")
    for rows in zip(*kernels.values(), strict=True):
        for name, row in zip(kernels, rows, strict=True):
            counts = [row[kind] for kind in kinds]
            parts = " + ".join(f"{count:5}" for count in counts)
            others = row["loop"] - sum(counts)
            point = f"D = {row['D']:3}, {name}"
            print(f"{point:20} {row['loop']:4} = {parts} + {others:6} {row['registers']:10} {row['shared_bytes']:8,}")


def show_larger_tiles(programs: Programs) -> None:
    """Print what the compiler made of four kernels with steps.LARGER, full, and their cycles and rates on the H100
    beside those with steps.TILE.

    in the loop: loads of spilled registers in the loop without a mask. cycles: for each 64 x 64 scores.
    """
    print(f"full, 64x64 -> larger tile  registers spilled in the loop programs {'cycles':>13} {'TFLOP/s':>11} faster")
    for D, tile in steps.LARGER.items():
        for step in steps.WITH_TILE:
            row, name = compiled_steps()[step, tile, D, False], step or "chapter 5"
            fit = programs(tile.num_warps, row["registers"], row["shared_bytes"])
            small, large = (stored_steps()[D, False][key] for key in (name, f"{name}, larger tile"))
            cycles = change(*(tile_cycles(one, D, False) for one in (small, large)))
            print(
                f"D = {D:3}, {name:11} {tile.block_m:4}x{tile.block_n:<3} {row['registers']:7}",
                f"{row['spilled_registers']:7} {row['LDL']:11} {fit:8} {cycles:>13}",
                f"{change(small['tflops'], large['tflops']):>11} {percent(large['tflops'] / small['tflops']):>6}",
            )


LARGER_TILE = "round up, larger tile"  # the finished kernel
# the account's chain, in the chapter's order -> its words
CHAIN = {
    "chapter 5": "chapter 5",
    "base 2": "1: base 2",
    "descriptors": "2: descriptors",
    "order": "3: order",
    "order, larger tile": "4: a larger tile",
    "one division, larger tile": "one division",
    "guard, larger tile": "guard",
    "load ahead, larger tile": "load ahead",
    LARGER_TILE: "the digit's repair",
}
WORDS = CHAIN | {
    "basic": "chapter 5, its own tile",
    "tuned": "tuned",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "cuDNN",
}


def draw_account(account: dict[tuple[int, bool], dict[str, dict[str, Any]]]) -> Figure:
    """A panel for each point of `account`, (D, is_causal) -> steps_report(D, is_causal), in TFLOP/s: what each step
    changes, and then WHOLE.
    """
    figure = Figure(figsize=(10, 5.2))
    panels = figure.subplots(1, len(account), sharex=True, sharey=True)
    places = {name: y for y, name in enumerate(CHAIN)} | {
        "basic": 9.6,
        "tuned": 10.6,
        "sdpa_flash": 12.2,
        "sdpa_cudnn": 13.2,
    }
    for ax, ((D, is_causal), found) in zip(panels, account.items(), strict=True):
        # without what has no kernel on this card
        rates = {name: found[name]["tflops"] for name in places if found[name].get("tflops")}
        before = rates["chapter 5"]
        for name, rate in rates.items():
            y, change = places[name], ""
            if name in CHAIN:
                ax.barh(y, rate - before, left=before, color="tab:blue" if rate > before else "tab:orange", height=0.7)
                change = f" ({gained:+})" if (gained := round(rate - before)) else ""
            ax.plot(
                rate,
                y,
                "o" if name in CHAIN else "s" if name in ("basic", "tuned") else "D",
                color="black",
                markersize=4,
            )
            ax.annotate(f"  {rate:.0f}{change}", (max(rate, before) if name in CHAIN else rate, y), va="center")
            before = rate if name in CHAIN else before
        for y in (8.8, 11.4):
            ax.axhline(y, color="grey", linewidth=0.8)
        ax.set(title=f"D = {D}, {mask(is_causal)}", xlabel="TFLOP/s", xmargin=0.2)
        ax.grid(axis="y", visible=False)
    panels[0].set_yticks(list(places.values()), [WORDS[name] for name in places])
    panels[0].invert_yaxis()
    return figure


def draw_model(predict: Callable[[dict[str, Any]], float]) -> Figure:
    """The cycles that the H100 took for each of the course's kernels in stored_steps, over those that `predict` gives
    for its row of machine code. A panel for each D.
    """
    figure = Figure(figsize=(10, 4.8))
    for ax, D in zip(figure.subplots(1, 2), (64, 128), strict=True):
        ends = [1.0e9, 0.0]
        for (of, is_causal), (name, step) in itertools.product(POINTS, (STEP_OF | LARGER_STEP_OF).items()):
            if of != D:
                continue
            large = name in LARGER_STEP_OF
            row = compiled_steps()[step, steps.LARGER[D] if large else steps.TILE, D, is_causal]
            x, y = predict(row), tile_cycles(stored_steps()[D, is_causal][name], D, is_causal)
            marker = "^" if row["LDL"] else "X" if large and step in ("", "base 2") else "o"
            colour = "tab:orange" if is_causal else "tab:blue"
            ax.plot(x, y, marker, markersize=8, markeredgecolor=colour, markerfacecolor=colour if large else "none")
            if marker != "o" or (name == "descriptors, larger tile" and (D, is_causal) == (64, False)):
                ax.annotate(f"{y:,.0f}", (x, y), (7, 0), textcoords="offset points", va="center")
            ends = [min(ends[0], x), max(ends[1], x)]
        ax.plot(ends, ends, "-", color="grey", zorder=0)
        ax.axhline(4 * D + 256, color="grey", linestyle=":", zorder=0)
        ax.annotate(f"4 D + 256 = {4 * D + 256}", (ends[1], 4 * D + 256), va="bottom", ha="right", color="grey")
        ax.set_yscale("log")
        ticks = [500, 600, 700, 800, 900] if D == 64 else [750, 1000, 1500, 2000, 2500]
        ax.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
        ax.set(title=f"D = {D}", xlabel="cycles by (8.5)", ylabel="cycles measured", xmargin=0.12)
    figure.suptitle(
        "64 x 64 scores; blue: full, orange: causal; hollow: 64x64, filled: larger tile; grey: as predicted"
    )
    return figure


def tflops_of(rows: pd.DataFrame, provider: str, mode: str, S: int, D: int, is_causal: bool) -> float:
    """The rate of the sweep's row in fp16 with 2,048 // D heads. rows: results.load's."""
    wanted = {
        "provider": provider,
        "mode": mode,
        "S_q": S,
        "D": D,
        "H_q": 2048 // D,
        "is_causal": is_causal,
        "dtype": "fp16",
    }
    return results.select(rows, **wanted).iloc[0]["tflops"]


# ---------------------------------------------------------------- short sequences


def graph_of(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Record the launches of one call. replay() sends them again, on the same memory, without Python.

    Three calls before it compile and tune, on a stream of their own, as CUDA requires.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
