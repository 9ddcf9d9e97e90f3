"""Chapter 8: what its pages show of the stored results, and what they measure where there is a GPU. tools/measure
measures what is stored."""

import functools
import heapq
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fa_tutorial import compiling, forward, hardware, sass, tuned
from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Case, Shape, about, literature
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
    """out: (SMs, 2) int64, each SM's count of cycles and the GPU's nanoseconds. 1 warp. Grid: several programs an SM,
    so that each gets one."""
    nothing = tl.zeros((1,), dtype=tl.int32)
    # Of each: what it takes, its dtype, that it's not pure, one element at a time.
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid; // $1", "=r,r", [nothing], tl.int32, False, 1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64; // $1", "=l,r", [nothing], tl.int64, False, 1)
    ns = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer; // $1", "=l,r", [nothing], tl.int64, False, 1)
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
TILES = {64: [(64, 64, 4, stages) for stages in (1, 2, 3, 4)], 128: [(64, 64, 4, 2), (64, 64, 4, 3)]}
TILES[64] += [(32, 64, 4, 3), (64, 64, 8, 3), (64, 128, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3)]
TILES[64] += [(128, 128, 4, 2), (128, 128, 8, 2)]
TILES[128] += [(128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 4, 1), (128, 128, 8, 2)]
# Of D = 128, measured in one run with TILES' in "unseen tile".
UNSEEN = [(32, 64, 4, 2), (64, 32, 4, 3), (64, 64, 4, 1), (64, 64, 8, 2), (64, 128, 4, 1), (64, 128, 4, 2)]
UNSEEN += [(128, 32, 4, 3), (128, 64, 4, 3), (128, 64, 8, 2), (128, 128, 4, 2)]
# Of D = 128: those among which the reader chooses.
SIX = [(64, 64, 4, 1), (64, 64, 4, 3), (64, 128, 4, 1), (128, 64, 4, 2), (128, 128, 4, 1), (128, 128, 8, 2)]
# By D: those whose waits are counted.
WAITING = {D: [(64, 64, 4, stages) for stages in (1, 2, 3)] for D in (64, 128)}
WAITING[64].append((128, 128, 4, 2))
WAITING[128] += [(64, 128, 4, 1), (128, 64, 4, 2)]


def tiles_of(D: int) -> list[tuple[int, int, int, int]]:
    """Those that the page draws."""
    return TILES[D] + UNSEEN * (D == 128)


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
    shared = compiled.metadata.shared
    return {"registers": compiled.n_regs, "spilled_registers": compiled.n_spills, "shared_bytes": shared}


def tile_row(tile: TileConfig, shape: Shape) -> dict[str, Any]:
    """compiled_tile's numbers, and the time."""
    call, facts = compiled_tile(tile, shape)
    return facts | timed(call, flops=flops_of(shape))


def tile_report(tile: TileConfig, D: int, is_causal: bool) -> dict[str, Any]:
    """What tile_row measures on this GPU, or the H200's row of this tile; {"reason": why there is none} otherwise."""
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

# a step's row with steps.LARGER -> its name in steps
LARGER_STEP_OF = {f"{step}, larger tile": step for step in steps.STEPS}
# also those with steps.TILE
STEP_OF = {step: step for step in steps.WITH_TILE} | LARGER_STEP_OF
LARGER_TILE = "round up, larger tile"  # the finished kernel
WHOLE = ("basic", "tuned", "sdpa_flash", "sdpa_cudnn")


@functools.cache
def steps_in_turns(shape: Shape, in_turns: Callable = timed_in_turns) -> dict[str, dict[str, Any]]:
    """Rows by provider: chapter 8's steps with one tile and a larger one, and WHOLE, measured by in_turns(calls,
    flops=…). A row of the course's own has its tile in words; {"ms": None, "reason"} for what has no kernel here."""
    q, k, v = inputs(shape)
    common = (q, k, v, shape.is_causal, shape.D**-0.5)
    tile_of = dict.fromkeys(STEP_OF, steps.TILE) | dict.fromkeys(LARGER_STEP_OF, steps.LARGER[shape.D])
    launch = partial(steps.flash_forward, *common)
    calls = {name: partial(launch, step=STEP_OF[name], tile=tile) for name, tile in tile_of.items()}
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


ORDERS = ("chapter 5", "side by side")  # of causal programs: as they come; heads side by side (8.6)
SHORT_GRIDS = ((8, 4096), (2, 16_384))  # heads, S


def kernels_of_h200(kernel: str) -> list[dict[str, Any]]:
    """The H200's rows of one of this chapter's measurements."""
    rows = results.read(results.FOLDER / "h200.json")["kernels"]
    return [row for row in rows if (row["chapter"], row["kernel"]) == (8, kernel)]


@functools.cache
def stored_steps() -> dict[tuple[int, bool], dict[str, dict[str, Any]]]:
    """The H200's rows of steps_in_turns, with their SM cycles, (D, is_causal) -> provider -> row."""
    found: dict = {}
    for row in kernels_of_h200("step"):
        found.setdefault((row["D"], row["is_causal"]), {})[row["provider"]] = row
    return found


def orders_of_h200() -> pd.DataFrame:
    """The H200's rows of ORDERS on SHORT_GRIDS, and on stored_steps' grid: the same kernels, D = 128, causal."""
    whole = stored_steps()[128, True]
    alike = zip(ORDERS, ("descriptors", "order"), strict=True)
    return pd.DataFrame(kernels_of_h200("order") + [whole[step] | {"provider": order} for order, step in alike])


# stored_steps' rows that run the same instructions: always; in full attention, where an order of causal programs
# and their loads ahead change nothing
ALIKE = [("chapter 5", "basic"), (LARGER_TILE, "tuned")]
ALIKE_IF_FULL = [("descriptors", "order"), ("descriptors, larger tile", "order, larger tile")]
ALIKE_IF_FULL += [("guard, larger tile", "load ahead, larger tile")]


def step_noise(number: str) -> float:
    """By how much `number`, "tflops" or "cycles", of two rows of the same instructions and tile differs at most,
    relatively."""
    differences = []
    for (_, is_causal), found in stored_steps().items():
        pairs = ((found[a], found[b]) for a, b in ALIKE + ALIKE_IF_FULL * (not is_causal))
        differences += [abs(b[number] / a[number] - 1) for a, b in pairs if a["tile"] == b["tile"]]
    return max(differences)


def tile_cycles(row: dict[str, Any], D: int, is_causal: bool) -> float:
    """The cycles that an SM takes for each 64 x 64 tile of scores of a row of stored_steps: its share of them, masked
    ones whole."""
    multiprocessors = results.read(results.FOLDER / "h200.json")["provenance"]["multiprocessors"]
    of_head = 64 * 65 // 2 if is_causal else 64**2  # S = 4,096 is 64 blocks of rows
    return row["cycles"] * multiprocessors / (4 * 2048 // D * of_head)


def percent(ratio: float) -> str:
    """ratio − 1 as a whole number of percent with its sign; 0 has none."""
    rounded = round(100 * (ratio - 1))
    return f"{rounded:+}%" if rounded else "0%"


def compiled_steps() -> dict[tuple[str, TileConfig, int, bool], dict[str, Any]]:
    """What is stored of the steps' machine code: (step, tile, D, is_causal) -> row."""
    rows = json.loads(steps.STORED.read_text())["rows"]
    return {(row["step"], TileConfig(*row["tile"]), row["D"], row["is_causal"]): row for row in rows}


def compiled_tiles() -> list[dict[str, Any]]:
    """What is stored of the finished kernel's machine code, full, with each of TILES."""
    return json.loads(steps.STORED.read_text())["tiles"]


def mhz(row: dict[str, Any]) -> float:
    """The clock at which a row of stored_steps ran: its cycles by its time."""
    return row["cycles"] / row["ms"] / 1e3


def print_room(name: str, programs: Callable[[int, int, int], int]) -> None:
    """Print a thread's registers, and how many programs fit on an SM, after the step before one of CHAIN and after it,
    with steps.TILE, and how the H200's causal cycles change. programs: exercise 8.1's, of (num_warps, registers,
    shared_bytes)."""
    for D in (64, 128):
        told, pair = [], (CHAIN[CHAIN.index(name) - 1], name)
        for is_causal in (False, True):
            made = [compiled_steps()[step, steps.TILE, D, is_causal] for step in pair]
            fit = (programs(steps.TILE.num_warps, row["registers"], row["shared_bytes"]) for row in made)
            told.append(" -> ".join(f"{row['registers']} ({n})" for row, n in zip(made, fit, strict=True)))
        print(f"D = {D:3}, registers (programs): full {told[0]}, causal {told[1]},", end=" ")
        before, after = (stored_steps()[D, True][step]["cycles"] for step in pair)
        print(f"cycles {percent(after / before)}")


# Of exercise 8.3's kernel: a reader's, or the course's where that doesn't compile.
descriptor_loops = compiling.of_a_kernel(ex_3.flash_forward_descriptor_kernel)(sass.descriptor_loops)


def time_until_done(programs: Iterable[tuple[int, int]], places: int) -> int:
    """When all programs are done: each place takes the next one as soon as it is free, and row block n takes n + 1."""
    free = [0] * places
    for _, row_block in programs:
        heapq.heapreplace(free, free[0] + row_block + 1)
    return max(free)


def tiles_of_h200() -> pd.DataFrame:
    """Of each tile in TILE_RUN's run whose warps have 16 rows or more, as Hopper's matmul takes them: what the compiler
    makes of the finished kernel's loop, and the H200's cycles for 64 x 64 scores, its clock and its rates in full
    attention and under the causal mask; "alone": for 64 x 64 scores of one program that has an SM for itself."""
    made = {(row["D"], in_words(TileConfig(*row["tile"]))): row for row in compiled_tiles()}
    tile_of = {in_words(TileConfig(*tile)): tile for D in TILES for tile in tiles_of(D)}
    stored = [row for D, kernel in TILE_RUN.items() for row in kernels_of_h200(kernel) if row["D"] == D]
    causal = {(row["D"], row["provider"]): row["tflops"] for row in stored if row["is_causal"]}
    alone = {(row["D"], row["provider"]): row["block_cycles"] for row in kernels_of_h200("alone")}
    rows = []
    for full in (row for row in stored if not row["is_causal"]):
        D, words = full["D"], full["provider"]
        code = full if "loop" in full else made[D, words]
        block_m, block_n, warps, _ = tile_of[words]
        if block_m < 16 * warps:
            continue
        rows.append(
            {"D": D, "name": words, "tile": tile_of[words], "spills loaded": code["LDL"]}
            | {key: code[key] for key in ("loop", "registers", "shared_bytes")}
            | {"cycles": round(tile_cycles(full, D, False)), "MHz": round(mhz(full))}
            | {"TFLOP/s": round(full["tflops"]), "causal": round(causal[D, words])}
            | {"alone": alone[D, words] * 4096 / (block_m * block_n)}
        )
    return pd.DataFrame(rows)


def print_waits(found: pd.DataFrame) -> None:
    """Print of WAITING's tiles, which are among tiles_of_h200's: their "programs" on an SM; the cycles of a program
    that is alone there, divided by the programs; an SM's cycles for 64 x 64 scores; and a program's, which are as many
    for each program, with how long, by ncu, it waits for k and v, and for its matmuls."""
    waits = {(row["D"], row["provider"]): row for row in kernels_of_h200("waits")}
    heads = "programs  alone / programs     SM  a program  waits for k and v  for matmuls"
    print(f"H200, full, cycles for 64 x 64 scores\n{'':26}{heads}")
    for row in found.sort_values(["D", "tile"]).to_dict("records"):
        D, name, programs = row["D"], row["name"], row["programs"]
        if row["tile"] in WAITING[D]:
            own = programs * row["cycles"]
            tiles, matmuls = (waits[D, name][key] * own for key in ("tiles", "matmuls"))
            told = f"{programs:8}{row['alone'] / programs:18,.0f}{row['cycles']:7,}{own:11,}{tiles:19,.0f}"
            print(f"{D:3}, {name.replace(', 4 warps', ''):21}{told}{matmuls:13,.0f}")


def print_capped(step: str, programs: Callable[[int, int, int], int]) -> None:
    """Print the kernel after a step, D = 64, full, as it is and with fewer registers. programs: exercise 8.1's."""
    print("H200, D = 64, full, 64x64   registers  programs  cycles  TFLOP/s")
    for row in kernels_of_h200("capped"):
        made_by, how = row["provider"].split(", ")
        if made_by != step:
            continue
        fit = programs(steps.TILE.num_warps, row["registers"], row["shared_bytes"])
        cycles = tile_cycles(row, 64, False)
        print(f"{how:28}{row['registers']:9}{fit:10}{cycles:8.0f}{row['tflops']:9.0f}")


BLACK_LINE: dict = {"marker": "|", "linestyle": "", "markersize": 12, "markeredgewidth": 2, "color": "black"}
TILE_LOOKS = {64: ("o", "sky", -1), 128: ("s", "vermilion", 1)}  # by D: marker, colour, side


def draw_tiles(tiles: pd.DataFrame) -> Figure:
    """The H200's cycles of each of tiles_of_h200's tiles over those "by (8.4)", by the "programs" on an SM. In words:
    SIX, and those that are further off than 20 %."""
    figure = Figure(figsize=(10.5, 5.2))
    ax = figure.subplots()
    ax.axhspan(0.8, 1.2, color="0.9")
    ax.axhline(1, color="black", linewidth=1)
    heights: dict = {}
    for row in tiles.assign(off=tiles["cycles"] / tiles["by (8.4)"]).sort_values("off").to_dict("records"):
        off, (marker, colour, side) = row["off"], TILE_LOOKS[row["D"]]
        at = row["programs"] + 0.06 * side, off
        ax.plot(*at, marker, color=COLOURS[colour], markeredgecolor="black", markersize=8)
        one_of_six = row["D"] == 128 and row["tile"] in SIX
        if one_of_six or off > 1.2:
            look: dict = {"weight": "bold" if one_of_six else "normal", "ha": "right" if side < 0 else "left"}
            look |= {"bbox": {"facecolor": "0.9" if abs(off - 1) < 0.05 else "none", "pad": 0, "linewidth": 0}}
            words = row["name"].replace(", 4 warps", "")
            place = row["programs"], side
            heights[place] = height = max(
                180 * math.log(off), heights.get(place, -99) + 11
            )  # in points; none on another
            up = height - 180 * math.log(off) if side > 0 else -9
            ax.annotate(words, at, (9 * side, up), textcoords="offset points", fontsize=9, va="center", **look)
    ax.set(
        yscale="log", ylim=(0.75, 3.9), xlim=(-0.1, 4.7), xlabel="programs on an SM", ylabel="cycles: H200 / your model"
    )
    ax.set_title("Alone on an SM, a tile takes a quarter more than the model, or worse")
    ax.set_xticks(range(1, 5))
    ticks = 0.8, 1, 1.2, 1.5, 2, 3
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.grid(axis="x", visible=False)
    for D, (marker, colour, side) in TILE_LOOKS.items():
        label = f"D = {D}, drawn to the {'left' if side < 0 else 'right'}"
        ax.plot([], [], marker, color=COLOURS[colour], markeredgecolor="black", markersize=8, label=label)
    ax.legend(loc="upper right", frameon=False)
    return figure


CHAIN = ("chapter 5", "base 2", "descriptors", "descriptors, larger tile")  # the chapter's steps
WORDS = ("chapter 5, 64x64", "1: base 2", "2: descriptors", "3: another tile")
LADDER = dict(zip(CHAIN, WORDS, strict=True)) | {LARGER_TILE: "finished", "sdpa_cudnn": "cuDNN"}
# Of exercise 8.5's loop, each on top of the one before.
REPAIRS = {"as given": "8.5, as given", "mask": "no mask", "mask, guard": "and no guard"}
REPAIRS |= {"mask, guard, scale": "and one scaling less"}


def print_power(*names: str) -> None:
    """Print the H200's cycles a call of some of LADDER, full, repeated until the clock settles, power, clock and rate
    meanwhile, and by how much these differ from the line before."""
    print(f"{'H200, full, repeated':28} {'million cycles':>15} {'watts':>7} {'MHz':>13} {'TFLOP/s':>12}")
    stored = {(row["D"], row["provider"]): row for row in kernels_of_h200("power")}
    for D in (128, 64):
        before = None
        for name in names:
            row = stored[D, name]
            keys = "cycles", "mhz", "tflops"
            changes = [f"({percent(row[key] / before[key])})" if before else "" for key in keys]
            told = f"{row['cycles'] / 1e6:.2f}", f"{row['mhz']:,.0f}", f"{row['tflops']:.0f}"
            cycles, clock, rate = (f"{it:>5} {change:>7}" for it, change in zip(told, changes, strict=True))
            print(f"D = {D:3}, {LADDER[name]:19} {cycles:>15} {row['watts']:7} {clock} {rate:>12}".rstrip())
            before = row


def print_steps(predicted: dict[str, dict[int, float]], whole: bool = False) -> None:
    """Print of the last two of LADDER or REPAIRS, or of all: the cycles for 64 x 64 scores, full, that are predicted,
    by D, those of the H200, how these change from line to line, and how far off the model is; clock and rate. Of
    LADDER also the rate under the causal mask."""
    print("H200, full: cycles for 64 x 64 scores, and TFLOP/s; model: of its Triton's code; off: cycles − model")
    repairs = {(row["D"], row["provider"]): row for row in kernels_of_h200("waste")}
    names = list(predicted) if whole else list(predicted)[-2:]
    for D in (64, 128):
        before = None
        for name in names:
            row = repairs[D, name] if name in REPAIRS else stored_steps()[D, False][name]
            cycles, model = tile_cycles(row, D, False), predicted[name].get(D)
            told = {"model": f"{model:,.0f}" if model else "–", "cycles": f"{cycles:,.0f}"}
            told["change"] = percent(cycles / before) if before else ""
            off = round(cycles) - round(model) if model else None
            told["off"] = "–" if off is None else f"{off:+}" if off else "0"
            told |= {"MHz": f"{mhz(row):,.0f}", "TFLOP/s": f"{row['tflops']:.0f}"}
            if name not in REPAIRS:
                told["causal"] = f"{stored_steps()[D, True][name]['tflops']:.0f}"
            if before is None:
                print(f"{f'D = {D:3}, the wall {4 * D + 256}':24}" + "".join(f"{head:>8}" for head in told))
            print(f"  {(LADDER | REPAIRS)[name]:22}" + "".join(f"{text:>8}" for text in told.values()))
            before = cycles


def draw_ladder(predicted: dict[str, dict[int, float]]) -> Figure:
    """The H200's cycles for 64 x 64 scores, full, of each of LADDER: 4 D of matmuls, 256 of exponentials,
    one after the other as far as the cycles allow, and the rest; the wall; and the cycles that are predicted, by D.
    """
    figure = Figure(figsize=(10.5, 3.8))
    both = {"facecolor": COLOURS["blue"], "edgecolor": COLOURS["yellow"], "hatch": "////", "linewidth": 0}
    for ax, D in zip(figure.subplots(1, 2, sharey=True), (64, 128), strict=True):
        found, wall = [stored_steps()[D, False][name] for name in LADDER], 4 * D + 256
        for y, row in enumerate(found):
            cycles = tile_cycles(row, D, False)
            end = min(cycles, wall)
            for left, right, look in (
                (0, 4 * D, {"color": COLOURS["blue"]}),
                (4 * D, end, {"color": COLOURS["yellow"]}),
                (end - 256, 4 * D, both),
                (wall, cycles, {"color": "0.8"}),
            ):
                if right > left:
                    ax.barh(y, right - left, left=left, height=0.55, **look)
            model = predicted[list(LADDER)[y]].get(D, 0)
            if model:
                ax.vlines(model, y - 0.4, y + 0.4, color="black", linewidth=2)
            ax.text(max(cycles, wall, model) + 15, y, f"{cycles:,.0f}", va="center", fontsize=9)
        ax.axvline(wall, color="black", linestyle=":")
        ax.text(wall + 15, -0.62, f"the wall, {wall}", va="center", fontsize=9)
        ends = {64: 830, 128: 1350}[D]
        ax.set(title=f"D = {D}", ylim=(len(found) - 0.5, -0.9), xlim=(0, ends), xlabel="cycles for 64 x 64 scores")
        ax.grid(axis="y", visible=False)
        ax.set_yticks(range(len(found)), LADDER.values())
    looks = {"4 D: matmuls": {"color": COLOURS["blue"]}, "256: exponentials": {"color": COLOURS["yellow"]}}
    looks |= {"both at once, at least": both, "the rest": {"color": "0.8"}}
    handles: list = [Patch(label=label, **look) for label, look in looks.items()]
    handles.append(Line2D([], [], **BLACK_LINE, label="your model"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure
