"""Chapter 8: what its pages show of the stored results, and what they measure where there is a GPU. tools/measure
measures what is stored.
"""

import functools
import heapq
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fa_tutorial import compiling, forward, hardware, tuned
from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import SHAPE, Case, Shape, about, literature
from fa_tutorial.bench.tables import mask
from fa_tutorial.bench.timing import randn, require_gpu, timed, timed_in_turns
from fa_tutorial.exercises.chapter_8 import ex_3
from fa_tutorial.figures import COLOURS
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import launching, steps

triton = hardware.require_triton("Chapter 8's measurements")
import triton.language as tl  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

POINT = Shape(4, 16, 16, 4096, 4096, 128, False)  # at which clocks settle and counters are read
SHORT = [Shape(1, 16, 16, S, S, 64, False) for S in (512, 1024, 2048)]  # of chapter 5's table, from CUDA graphs


def at_4096(D: int, is_causal: bool) -> Shape:
    """The point of tiles and steps: S = 4,096 of the literature's grid."""
    return next(shape for shape in literature((4096,)) if (shape.D, shape.is_causal) == (D, is_causal))


def inputs(shape: Shape) -> list[torch.Tensor]:
    """q, k and v, fp16."""
    keys = shape.H_k, shape.S_k
    return [randn(shape.B, H, S, shape.D) for H, S in ((shape.H_q, shape.S_q), keys, keys)]


def flops_of(shape: Shape) -> int:
    return Case("tuned", "fwd", "fp16", shape).flops()


# ---------------------------------------------------------------- clocks


@triton.jit
def clock_kernel(out_ptr):
    """out: (SMs, 2) int64, each SM's count of cycles and the GPU's nanoseconds. 1 warp.

    Grid: several programs an SM, so that each gets one.
    """
    nothing = tl.zeros((1,), dtype=tl.int32)
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid; // $1", "=r,r", [nothing], dtype=tl.int32, is_pure=False, pack=1
    )  # fmt: skip
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64; // $1", "=l,r", [nothing], dtype=tl.int64, is_pure=False, pack=1
    )
    ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer; // $1", "=l,r", [nothing], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out_ptr + 2 * sm, cycles)
    tl.store(out_ptr + 2 * sm + 1, ns)


def read_clocks() -> torch.Tensor:
    """(SMs, 2) int64, on the GPU: cycles and nanoseconds, when the launches before are done."""
    require_gpu()
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    counts = torch.zeros((multiprocessors, 2), dtype=torch.int64, device="cuda")
    clock_kernel[(8 * multiprocessors,)](counts, num_warps=1)
    return counts


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


# Of D = 128, measured in one run with TILES' in "unseen tile": they test the reader's rule.
UNSEEN = [
    (32, 64, 4, 2),
    (64, 32, 4, 3),
    (64, 64, 4, 1),
    (64, 64, 8, 2),
    (64, 128, 4, 1),
    (64, 128, 4, 2),
    (128, 32, 4, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 128, 4, 2),
]


TILE_RUN = {64: "tile", 128: "unseen tile"}  # by D: the rows of the run with the most tiles


def in_words(tile: TileConfig) -> str:
    stages = f"{tile.num_stages} stage{'s' * (tile.num_stages > 1)}"
    return f"{tile.block_m}x{tile.block_n}, {tile.num_warps} warps, {stages}"


def compiled_tile(tile: TileConfig, shape: Shape) -> tuple[Callable[[], Any], dict[str, Any]]:
    """tuned.flash_forward with this tile; registers and spilled registers a thread, bytes of shared memory a block."""
    q, k, v = inputs(shape)
    call = partial(tuned.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5, tile=tile)
    launching._prepared.clear()
    call()
    [launch] = launching._prepared.values()
    return call, room_of(launch.compiled)


def room_of(compiled: Any) -> dict[str, int]:
    """What the compiler made of a kernel: registers and spilled registers a thread, bytes of shared memory a block."""
    return {
        "registers": compiled.n_regs,
        "spilled_registers": compiled.n_spills,
        "shared_bytes": compiled.metadata.shared,
    }


def tile_row(tile: TileConfig, shape: Shape) -> dict[str, Any]:
    """compiled_tile's numbers, and the time."""
    call, facts = compiled_tile(tile, shape)
    return facts | timed(call, flops=flops_of(shape))


def tile_report(tile: TileConfig, D: int, is_causal: bool) -> dict[str, Any]:
    """What tile_row measures on this GPU; without one the H200's row of this tile. {"reason": why there is none}
    otherwise.
    """
    shape = at_4096(D, is_causal)
    wanted = about(8, TILE_RUN[D], in_words(tile), **vars(shape))
    try:
        if hardware.device().type == "cuda":
            return tile_row(tile, shape)
    except OutOfResources as error:
        return {"reason": f"does not fit: {error}"}
    found = (row for row in kernels_of_h200(TILE_RUN[D]) if wanted.items() <= row.items())
    return next(found, {"reason": "not one of those that were timed, so it takes a GPU"})


# ---------------------------------------------------------------- steps

# a step's row, with steps.TILE -> its name in steps
STEP_OF = {step or "chapter 5": step for step in steps.WITH_TILE}
# with steps.LARGER
LARGER_STEP_OF = {f"{step or 'chapter 5'}, larger tile": step for step in ("", *steps.STEPS)}
LARGER_TILE = "round up, larger tile"  # the finished kernel
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
    sizes = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    tile_of["tuned"] = TileConfig(*map(launch.constants.get, sizes))
    rows |= in_turns({name: call for name, call in calls.items() if name not in rows}, flops=flops_of(shape))
    return {name: row | ({"tile": in_words(tile_of[name])} if name in tile_of else {}) for name, row in rows.items()}


# Of causal programs: as they come; head after head, the longest row block of each first; heads side by side (8.5).
ORDERS = ("chapter 5", "one by one", "side by side")
SHORT_GRIDS = ((8, 4096), (2, 16_384), (8, 16_384))  # heads, S
HEADS_AT_ONCE = (1, 2, 4, 8)  # (8.5)'s A, of eight heads

MAXNREG = 128  # the registers of a thread with which four programs of four warps fit on an SM


POINTS = list(itertools.product((64, 128), (False, True)))  # D, is_causal
HEADLINE_FIRST = [(128, False), (128, True), (64, False), (64, True)]


def kernels_of_h200(kernel: str) -> list[dict[str, Any]]:
    """The H200's rows of one of this chapter's measurements."""
    rows = results.read(results.FOLDER / "h200.json")["kernels"]
    return [row for row in rows if (row["chapter"], row["kernel"]) == (8, kernel)]


@functools.cache
def stored_steps() -> dict[tuple[int, bool], dict[str, dict[str, Any]]]:
    """The H200's rows of steps_in_turns, with their SM cycles, (D, is_causal) -> provider -> row."""
    rows = kernels_of_h200("step")
    return {point: {row["provider"]: row for row in rows if (row["D"], row["is_causal"]) == point} for point in POINTS}


# stored_steps' rows that run the same instructions: always; in full attention, where an order of causal programs
# and their loads ahead change nothing
ALIKE = [("chapter 5", "basic"), (LARGER_TILE, "tuned")]
ALIKE_IF_FULL = [
    ("descriptors", "order"),
    ("descriptors, larger tile", "order, larger tile"),
    ("guard, larger tile", "load ahead, larger tile"),
]


def step_noise(number: str) -> float:
    """By how much `number`, "tflops" or "cycles", of two rows of the same instructions and tile differs at most,
    relatively.
    """
    pairs = [
        (found[a], found[b])
        for (_, is_causal), found in stored_steps().items()
        for a, b in ALIKE + ALIKE_IF_FULL * (not is_causal)
    ]
    return max(abs(b[number] / a[number] - 1) for a, b in pairs if a["tile"] == b["tile"])


def run_noise(number: str) -> float:
    """By how much `number`, "tflops" or "cycles", of the finished kernel with one tile differs at most between two runs
    of the H200, relatively.
    """
    found: dict[tuple[int, bool, str], list[float]] = {}
    steps = [row | {"provider": row["tile"]} for row in kernels_of_h200("step") if row["provider"] == LARGER_TILE]
    for row in itertools.chain(steps, *map(kernels_of_h200, TILE_RUN.values())):
        if number in row:
            found.setdefault((row["D"], row["is_causal"], row["provider"]), []).append(row[number])
    return max(max(numbers) / min(numbers) - 1 for numbers in found.values())


Programs = Callable[[int, int, int], int]  # (num_warps, registers, shared_bytes) -> programs on an SM, exercise 8.1


def tile_cycles(row: dict[str, Any], D: int, is_causal: bool) -> float:
    """The cycles that an SM takes for each 64 x 64 tile of scores of a row of stored_steps: its share of them, masked
    ones whole.
    """
    multiprocessors = results.read(results.FOLDER / "h200.json")["provenance"]["multiprocessors"]
    row_blocks = 4096 // 64
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


Predict = Callable[[dict[str, Any]], float]  # a row of machine code -> an SM's cycles for 64 x 64 scores


def mhz(row: dict[str, Any]) -> float:
    """The clock at which a row of stored_steps ran: its cycles by its time."""
    return row["cycles"] / row["ms"] / 1e3


def changed(before: float, after: float) -> str:
    """Two numbers, and the second's change in percent of the first."""
    return f"{change(before, after)} {f'({percent(after / before)})':>6}"


def rows_of(name: str, D: int, is_causal: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the compiler made of one of CHAIN, and its row of stored_steps."""
    tile = steps.LARGER[D] if name in LARGER_STEP_OF else steps.TILE
    made = compiled_steps()[(STEP_OF | LARGER_STEP_OF)[name], tile, D, is_causal]
    return made, stored_steps()[D, is_causal][name]


def counted(loop: int, step: str, D: int) -> str:
    """How many instructions a loop has that was compiled here, and how many the step that the H200 timed, with
    steps.TILE.
    """
    made = json.loads(steps.STORED.read_text())["triton"].removesuffix(".0")
    timed_loop = compiled_steps()[step, steps.TILE, D, False]["loop"]
    return f"{loop} instructions by Triton {triton.__version__} ({timed_loop} by {made}, which the H200 timed)"


def show_numbers(name: str, programs: Programs) -> None:
    """Print what the compiler made of one of CHAIN, and its cycles, clock and rate on the H200, beside those of the one
    before.

    cycles: an SM's for each 64 x 64 scores.
    """
    names = CHAIN[CHAIN.index(name) - 1], name
    print(f"{'H200':15} {'loop':>10} {'registers':>10} programs {'cycles':>19} {'MHz':>19} {'TFLOP/s':>17}")
    for D, is_causal in HEADLINE_FIRST:
        (old, before), (new, after) = (rows_of(one, D, is_causal) for one in names)
        fit = [programs(steps.TILE.num_warps, row["registers"], row["shared_bytes"]) for row in (old, new)]
        cycles = (tile_cycles(row, D, is_causal) for row in (before, after))
        print(
            f"D = {D:3}, {mask(is_causal):6}",
            *(f"{change(old[key], new[key]):>10}" for key in ("loop", "registers")),
            f"{change(*fit):>8} {changed(*cycles):>19} {changed(mhz(before), mhz(after)):>19}",
            f"{changed(before['tflops'], after['tflops']):>17}",
        )


def show_capped(name: str, programs: Programs) -> None:
    """Print what the H200 takes for "chapter 5" or "base 2" with steps.TILE and D = 64, as it is and with at most
    MAXNREG registers a thread.
    """
    print(f"{f'H200, {name}':16} registers  spilled  programs  cycles    MHz  TFLOP/s")
    for row in kernels_of_h200("registers"):
        if row["provider"] == name:
            fit = programs(steps.TILE.num_warps, row["registers"], row["shared_bytes"])
            cycles = tile_cycles(row, 64, row["is_causal"])
            print(f"D = 64, {mask(row['is_causal']):8} {row['registers']:9} {row['spilled_registers']:8}", end=" ")
            print(f"{fit:9} {cycles:7.0f} {mhz(row):6,.0f} {row['tflops']:8.0f}")


def descriptor_loops(kernel: Any) -> list[dict[str, Any]]:
    """compiling.descriptor_loops of exercise 8.3's kernel: a reader's, or the course's where that doesn't compile."""
    return compiling.descriptor_loops(kernel, ex_3.flash_forward_descriptor_kernel)


def show_power(kernels: pd.DataFrame) -> None:
    """Print the clock and the power at which three kernels settle on the H200. kernels: results.load's."""
    words = {"tuned": "the finished kernel", "sdpa_cudnn": "cuDNN", "sdpa_flash": "FlashAttention-2"}
    clocks = results.select(kernels, chapter=8, kernel="clock").set_index("provider")
    for name, told in words.items():
        row = clocks.loc[name]
        print(f"H200, D = 128, full, {told:19}: {row['watts']:.0f} W at {row['mhz']:,.0f} MHz,", end=" ")
        print(f"{row['tflops']:.0f} TFLOP/s")


def time_until_done(programs: Iterable[tuple[int, int]], places: int) -> int:
    """When all programs are done: each place takes the next one as soon as it is free, and row block n takes n + 1."""
    free = [0] * places
    for _, row_block in programs:
        heapq.heapreplace(free, free[0] + row_block + 1)
    return max(free)


def show_orders() -> None:
    """Print the H200's rates of one causal sequence in each of ORDERS."""
    print(f"{'H200, B = 1, causal, TFLOP/s':29} as they come     one by one   side by side")
    stored = kernels_of_h200("order")
    for (heads, S), D in itertools.product(SHORT_GRIDS, (64, 128)):
        found = (row for row in stored if (row["D"], row["H_q"], row["S_q"]) == (D, heads, S))
        rates = {row["provider"]: row["tflops"] for row in found}
        first, *others = (rates[name] for name in ORDERS)
        found = " ".join(f"{f'{rate:.0f} ({percent(rate / first)})':>14}" for rate in others)
        print(f"{f'D = {D:3}, {heads} heads, S = {S:6,}':29} {first:12.0f} {found}")


SHOWN_TILES = {64: [TILES[64][n] for n in (0, 2, 6, 7, 9, 10)], 128: TILES[128]}


def tiles_of_h200() -> pd.DataFrame:
    """Of each tile in TILE_RUN's run: what the compiler makes of the finished kernel's loop, and the H200's cycles for
    64 x 64 scores, its clock and its rates in full attention and under the causal mask.

    shown: six tiles for each D.
    """
    made = {(row["D"], in_words(TileConfig(*row["tile"]))): row for row in compiled_tiles()}
    tile_of = {in_words(TileConfig(*tile)): tile for tile in (*TILES[64], *TILES[128], *UNSEEN)}
    stored = [row for D, kernel in TILE_RUN.items() for row in kernels_of_h200(kernel) if row["D"] == D]
    causal = {(row["D"], row["provider"]): row["tflops"] for row in stored if row["is_causal"]}
    rows = []
    for full in (row for row in stored if not row["is_causal"]):
        D, words = full["D"], full["provider"]
        code = full if "loop" in full else made[D, words]
        rows.append(
            {"D": D, "name": words, "tile": tile_of[words], "stages": tile_of[words][3], "spills loaded": code["LDL"]}
            | {key: code[key] for key in ("loop", "MUFU.EX2", "HGMMA", "registers", "shared_bytes")}
            | {"shown": tile_of[words] in SHOWN_TILES[D], "cycles": round(tile_cycles(full, D, False))}
            | {"MHz": round(mhz(full)), "TFLOP/s": round(full["tflops"]), "causal": round(causal[D, words])}
        )
    return pd.DataFrame(rows)


Rule = Callable[[dict[str, Any]], bool]  # whether it keeps a row of tiles_of_h200


def choose(rules: dict[str, Rule], tiles: pd.DataFrame) -> pd.DataFrame:
    """Of each rule and each D: which of the tiles that it keeps has the fewest cycles "by (8.4)", and its place among
    all of `tiles`. Of equal ones it is that with the most "programs". rules: a rule's words -> the rule.
    """
    rows = []
    for (words, keep), (D, of) in itertools.product(rules.items(), tiles.groupby("D")):
        kept = of[[bool(keep(tile)) for tile in of.to_dict("records")]]
        row = {"rule": words, "D": D, "of": len(of), "its choice": "none: it keeps no tile"}
        places = dict.fromkeys(("place in cycles", "by rate", "causal"), "")
        if not kept.empty:
            best = kept.sort_values(["by (8.4)", "programs"], ascending=[True, False]).iloc[0]
            ahead = [(of["cycles"] < best["cycles"]), *(of[rate] > best[rate] for rate in ("TFLOP/s", "causal"))]
            row["its choice"] = best["name"]
            places = {name: f"{others.sum() + 1}" for name, others in zip(places, ahead, strict=True)}
        rows.append(row | places)
    return pd.DataFrame(rows)


PROGRAM_LOOKS = {1: ("^", "vermilion"), 2: ("o", "yellow"), 3: ("s", "sky"), 4: ("D", "blue")}  # by programs on an SM


def draw_tiles(tiles: pd.DataFrame) -> Figure:
    """Of each of tiles_of_h200's tiles, the fastest first: the cycles "by (8.4)" as a bar, the H200's as a mark that
    tells the "programs" on an SM, and how far the second is from the first.
    """
    figure = Figure(figsize=(10.5, 5.4))
    for ax, D in zip(figure.subplots(1, 2, width_ratios=(5, 6)), (64, 128), strict=True):
        of = tiles[tiles["D"] == D].sort_values("cycles").to_dict("records")
        for y, row in enumerate(of):
            block_m, _, warps, _ = row["tile"]
            marker, colour = PROGRAM_LOOKS[row["programs"]]
            ax.barh(y, row["by (8.4)"], color="0.82", height=0.62)
            ax.plot(row["cycles"], y, marker, color=COLOURS[colour], markeredgecolor="black", markersize=8)
            why = {"spills": row["spills loaded"], "HMMA": block_m == 32, "q kᵀ twice": (block_m, warps) == (64, 8)}
            words = ", ".join([percent(row["cycles"] / row["by (8.4)"]), *(word for word, so in why.items() if so)])
            ax.annotate(words, (row["cycles"], y), (9, 0), textcoords="offset points", fontsize=9, va="center")
        ends = {64: 2000, 128: 4000}[D]
        ax.set(title=f"D = {D}", xlabel="cycles for 64 x 64 scores", xlim=(0, ends), ylim=(len(of) - 0.4, -0.6))
        ax.set_xticks(range(0, ends, ends // 4))
        ax.set_yticks(range(len(of)), [row["name"].replace(", 4 warps", "") for row in of], fontsize=9)
        ax.grid(axis="y", visible=False)
    plain = {"linestyle": "", "markeredgecolor": "black", "markersize": 8}
    handles = [Patch(color="0.82", label="your model (8.4)")] + [
        Line2D([], [], marker=marker, color=COLOURS[colour], label=f"H200, {n} program{'s' * (n > 1)}", **plain)
        for n, (marker, colour) in PROGRAM_LOOKS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


WASTES = {  # what is stored -> its words
    "as given": "as given",
    "mask": "no mask",
    "mask, guard": "no guard, either",
    "mask, guard, scale": "one scaling less, too",
}


def show_wastes(predict: Predict) -> None:
    """Print what each repair of exercise 8.5's loop saves, full, with steps.LARGER: instructions, the cycles that
    `predict` gives, those that it gives without exponentials, and the H200's. cycles: for each 64 x 64 scores.
    """
    head = "by (8.4)  without exp  H200"
    print(f"{'cycles, full':21}", "   ".join(f"{f'D = {D}: loop':>13} {head}" for D in (64, 128)))
    stored = {(row["D"], row["provider"]): row for row in kernels_of_h200("waste")}
    for name, words in WASTES.items():
        told = []
        for D in (64, 128):
            row = stored[D, name] | {"tile": astuple(steps.LARGER[D])}
            model, issuing = predict(row), predict(row | {"MUFU.EX2": 0})
            cycles = tile_cycles(row, D, False)
            told.append(f"{row['loop']:13} {model:8,.0f} {issuing:12,.0f} {cycles:5,.0f}")
        print(f"{words:21}", "   ".join(told))


CHAIN = ("chapter 5", "base 2", "descriptors", "descriptors, larger tile", LARGER_TILE)
# the rows of the page's account -> their words
LADDER = {
    "chapter 5": "chapter 5",
    "base 2": "1: base 2",
    "descriptors": "2: descriptors",
    "descriptors, larger tile": "3: a larger tile",
    LARGER_TILE: "finished",
    "sdpa_cudnn": "cuDNN",
}


NOISE = 0.03  # a smaller change of a rate says nothing: step_noise


def show_ideas() -> None:
    """Print the H200's rates of the forward with an overlap by hand, and with warp_specialize, or why there is none."""
    stored = kernels_of_h200("idea")
    told = {
        (row["D"], row["tile"], row["provider"]): f"{row['tflops']:.0f}" if row["ms"] else row["reason"].split(":")[0]
        for row in stored
        if row["provider"] != "two_loops"
    }
    print("H200, TFLOP/s, full, S = 4,096, without masks and lse")
    print(f"{'tile':34} as it is  overlap  warp_specialize")
    for D, tile in dict.fromkeys((D, tile) for D, tile, _ in told):
        plain, overlap, specialised = (told[D, tile, idea] for idea in ("none", "overlap", "warp_specialize"))
        print(f"D = {D:3}: {tile:25} {plain:>8} {overlap:>8} {specialised:>16}")
    [two_loops] = (row["reason"] for row in stored if row["provider"] == "two_loops")
    print("two warp-specialised loops, as causal attention has:", two_loops)


# instructions of a loop, by what they are for -> their opcodes, a colour
KINDS = {
    "exp2": (("MUFU.EX2",), "vermilion"),
    "multiply-add, max, sum": (("FFMA", "FMNMX", "FADD"), "orange"),
    "multiply": (("FMUL",), "blue"),
    "compare": (("FSETP",), "purple"),
    "to fp16": (("F2FP",), "green"),
}


def draw_kinds(names: Sequence[str]) -> Figure:
    """After each step with steps.TILE, full: the loop's instructions by kind."""
    colours = {kind: COLOURS[colour] for kind, (_, colour) in KINDS.items()} | {"others": COLOURS["sky"]}
    figure = Figure(figsize=(10.5, 2.2 + 0.6 * len(names)))
    for ax, D in zip(figure.subplots(1, 2, sharey=True), (64, 128), strict=True):
        for y, name in enumerate(names):
            row = compiled_steps()[STEP_OF[name], steps.TILE, D, False]
            counts = {kind: sum(row[op] for op in ops) for kind, (ops, _) in KINDS.items()}
            counts["others"] = row["loop"] - sum(counts.values())
            left = 0
            for kind, width in counts.items():
                ax.barh(y, width, left=left, color=colours[kind], height=0.5)
                if width > 12:
                    ax.text(left + width / 2, y, f"{width}", ha="center", va="center", fontsize=9 if width > 20 else 7)
                left += width
            ax.text(left + 5, y, f"{row['loop']}", va="center")
        ax.set(title=f"D = {D}", ylim=(len(names) - 0.4, -0.5), xlabel="instructions of a warp's loop")
        ax.grid(axis="y", visible=False)
        ax.set_yticks(range(len(names)), [LADDER.get(name, name) for name in names])
    handles = [Patch(color=colour, label=kind) for kind, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


UNITS = "pipe_tensor_cycles_active", "inst_executed_pipe_xu"  # ncu's names of the tensor cores', the exponentials'
# where draw_clocks writes a dot's words: points from it, to its left where the first is negative
OFFSETS = {(LARGER_TILE, 64): (-8, 4), (LARGER_TILE, 128): (-8, -3), ("descriptors", 128): (-8, -3)}
OFFSETS[("descriptors, larger tile", 64)] = (8, -5)


def draw_clocks() -> Figure:
    """The two currencies: of each of CHAIN and cuDNN the H200's cycles and its clock, joined in the order of CHAIN;
    lines of equal rates, and the wall.
    """
    figure = Figure(figsize=(10.5, 7.6))
    points = [(D, is_causal) for D in (64, 128) for is_causal in (False, True)]
    for ax, (D, is_causal) in zip(figure.subplots(2, 2).flat, points, strict=True):
        found = {name: stored_steps()[D, is_causal][name] for name in (*CHAIN, "sdpa_cudnn")}
        at = {name: (tile_cycles(row, D, is_causal), mhz(row)) for name, row in found.items()}
        cycles, clocks = zip(*at.values(), strict=True)
        wide = max(cycles) - min(cycles)
        written = [0.48 * wide if OFFSETS.get((name, D), (8, 2))[0] < 0 else 0.1 * wide for name in at]
        left, right = min(x - room for x, room in zip(cycles, written, strict=True)), max(cycles) + 0.35 * wide
        low, high = min(clocks) - 30, max(clocks) + 30
        one = found["chapter 5"]["tflops"] * cycles[0] / clocks[0]  # TFLOP/s at one MHz and one cycle
        for rate in range(250, 700, 50):
            ax.plot(
                (left, right),
                (rate * left / one, rate * right / one),
                color="0.75",
                linestyle="-",
                linewidth=1,
                zorder=0,
            )
            x = min(right, high * one / rate)  # where the line leaves the axes, above or at the right
            if left < x and low < rate * x / one:
                beside = {"ha": "center", "va": "bottom"} if x < right else {"ha": "left", "va": "center"}
                ax.text(x, rate * x / one, f" {rate}", color="0.4", fontsize=9, **beside)
        chain = [at[name] for name in CHAIN]
        ax.plot(*zip(*chain, strict=True), color=COLOURS["blue"], linestyle="-", marker="o", markersize=7)
        ax.plot(*at["sdpa_cudnn"], "D", color=COLOURS["vermilion"], markersize=8)
        for name, place in at.items():
            offset = OFFSETS.get((name, D), (8, 2))
            side = "left" if offset[0] > 0 else "right"
            words = f"{LADDER[name]}, {found[name]['tflops']:.0f}"
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            look = {"ha": side, "va": "center", "fontsize": 9, "zorder": 3, "bbox": paper}
            ax.annotate(words, place, offset, textcoords="offset points", **look)
        if not is_causal:
            ax.axvline(4 * D + 256, color="black", linestyle=":", zorder=1)
            ax.text(4 * D + 256, low + 3, f" the wall, {4 * D + 256}", fontsize=9)
        ax.set(xlim=(left, right), ylim=(low, high), xlabel="cycles for 64 x 64 scores", ylabel="MHz")
        ax.set_title(f"D = {D}, {mask(is_causal)}", pad=16)
        ax.grid(visible=False)
    handles = [
        Line2D([], [], color=COLOURS["blue"], linestyle="-", marker="o", markersize=7, label="your kernel, TFLOP/s"),
        Line2D([], [], color=COLOURS["vermilion"], marker="D", linestyle="", markersize=8, label="cuDNN"),
        Line2D([], [], color="0.75", linestyle="-", label="equal TFLOP/s"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def show_wall(kernels: pd.DataFrame) -> None:
    """Print how far the finished kernel and cuDNN are from the wall, full, and how busy ncu found their units at D =
    128. kernels: results.load's.
    """
    print("H200, full         cycles  from the wall   tensor cores busy  exponentials' unit  together")
    for D, (name, provider) in itertools.product((64, 128), ((LARGER_TILE, "tuned"), ("sdpa_cudnn",) * 2)):
        cycles = tile_cycles(stored_steps()[D, False][name], D, False)
        print(f"D = {D:3}, {LADDER[name]:8} {cycles:7.0f} {percent(cycles / (4 * D + 256)):>14}", end="")
        if D == 128:  # at which ncu counted
            row = results.select(kernels, kernel="counters", provider=provider, mode="fwd").iloc[0]
            busy = [row[f"sm__{unit}.avg.pct_of_peak_sustained_active"] for unit in UNITS]
            print(f" {busy[0]:17.0f} % {busy[1]:17.0f} % {sum(busy):7.0f} %", end="")
        print()


def tflops_of(rows: pd.DataFrame, provider: str, mode: str, S: int, D: int, is_causal: bool) -> float:
    """The rate of the sweep's row in fp16 with 2,048 // D heads. rows: results.load's."""
    case = {"provider": provider, "mode": mode, "S_q": S, "D": D, "H_q": 2048 // D, "is_causal": is_causal}
    return results.select(rows, **case, dtype="fp16").iloc[0]["tflops"]


# ---------------------------------------------------------------- beyond the forward's loop

# the backward's steps: a row of the sweep -> its words; from the second on, each has its best tile
BACKWARD = {
    "basic": "chapter 7",
    "autotune": "chapter 7, best tiles",
    "exp2": "base 2",
    "descriptors": "descriptors",
    "order": "order",
}


def show_autotuning(kernels: pd.DataFrame) -> None:
    """Print what a call with a new length costs on the H200, and which tile was chosen. kernels: results.load's."""
    first = results.select(kernels, kernel="first_call").iloc[0]
    print(f"H200, a call with a new S: {first['bad_key_s'][1]:.3f} s if S itself is in the key,", end=" ")
    print(f"{first['same_bucket_again_s']:.3f} s if S rounded up to a power of two is")
    found = stored_steps()[64, True]
    chosen, best = (found[name] for name in ("tuned", LARGER_TILE))
    print(f"H200, D = 64, causal: it chose {chosen['tile']}, {chosen['tflops']:.0f} TFLOP/s")
    print(f"{'':15}also in its list: {best['tile']}, {best['tflops']:.0f} TFLOP/s")


def show_backward(rows: pd.DataFrame, kernels: pd.DataFrame) -> None:
    """Print the H200's gains of the backward's steps, S = 4,096: the least and the largest of POINTS; and how busy the
    units are in its two kernels. rows, kernels: results.load's."""
    rates = {
        words: [tflops_of(rows, kind, "bwd", 4096, *point) for point in POINTS] for kind, words in BACKWARD.items()
    }
    gains = []
    for before, words in itertools.pairwise(rates):
        ratios = [rate / old for old, rate in zip(rates[before], rates[words], strict=True)]
        gains.append(f"{words} {percent(min(ratios))} to {percent(max(ratios))}")
    print("H200, backward:", ", ".join(gains[1:]))
    at = POINTS.index((128, False))
    first, last = (rates[words][at] for words in ("chapter 7", "order"))
    cudnn = tflops_of(rows, "sdpa_cudnn", "bwd", 4096, 128, False)
    print(f"               D = 128, full: {change(first, last)} TFLOP/s in all, cuDNN {cudnn:.0f}")
    for mode in ("dk, dv", "dq"):
        row = results.select(kernels, kernel="counters", provider="tuned", mode=mode).iloc[0]
        busy = (row[f"sm__{unit}.avg.pct_of_peak_sustained_elapsed"] for unit in UNITS)
        print(f"               {mode}: tensor cores busy {next(busy):.0f} %, exponentials' unit {next(busy):.0f} %")


def show_short(rows: pd.DataFrame) -> None:
    """Print the H200's µs of chapter 5's forward as its table has them, and replayed from a CUDA graph. rows:
    results.load's."""
    graphs = {row["S_q"]: row for row in kernels_of_h200("short") if row["provider"] == "basic"}
    for S, row in graphs.items():
        wanted = {name: row[name] for name in ("provider", "mode", "dtype", *SHAPE)}
        table = results.select(rows, **wanted).iloc[0]["ms"] * 1e3
        print(f"H200, chapter 5, S = {S:5,}: {table:3.0f} µs in its table, {row['graph_us']:4.1f} from a CUDA graph")
