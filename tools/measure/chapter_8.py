"""Chapter 8: tiles, steps, ideas that don't help, short sequences, power and counters."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fa_tutorial import compiling, sass, tuned
from fa_tutorial.bench import chapter_8 as pages
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about, literature
from fa_tutorial.bench.chapter_8 import POINT, at_4096, flops_of, in_words, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import graph_of, randn, timed_in_turns
from fa_tutorial.exercises.chapter_8 import ex_5
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import ideas, steps
from measure.clocks import cycles_in_turns, powered_in_turns
from measure.profiler import counted, launched_twice, python, sampled
from measure.turns import by_shape, in_turns


def tile_cases() -> Iterator[Measurement]:
    """D = 64: all tiles that the page draws, in turns, S = 4,096: time, cycles, and what the compiler made of each."""
    shapes = [at_4096(64, is_causal) for is_causal in (False, True)]
    tiles = itertools.starmap(TileConfig, pages.TILES[64])
    return by_shape(8, "tile", _tiles_in_turns, shapes, tiles, in_words)


def _tiles_in_turns(shape: Shape) -> dict[TileConfig, dict[str, Any]]:
    made = {tile: pages.compiled_tile(tile, shape) for tile in itertools.starmap(TileConfig, pages.TILES[shape.D])}
    rows = counted_in_turns({tile: call for tile, (call, _) in made.items()}, flops=flops_of(shape))
    return {tile: facts | rows[tile] for tile, (_, facts) in made.items()}


def unseen_cases() -> Iterator[Measurement]:
    """D = 128: all tiles that the page draws, in one run, in turns, with what Triton makes of each loop here."""
    shapes = [at_4096(128, is_causal) for is_causal in (False, True)]
    tiles = itertools.starmap(TileConfig, pages.tiles_of(128))
    return by_shape(8, "unseen tile", _unseen_in_turns, shapes, tiles, in_words)


def _unseen_in_turns(shape: Shape) -> dict[TileConfig, dict[str, Any]]:
    tiles = list(itertools.starmap(TileConfig, pages.tiles_of(shape.D)))
    calls = {tile: pages.compiled_tile(tile, shape)[0] for tile in tiles}
    rows = counted_in_turns(calls, flops=flops_of(shape), rounds=5)
    return {tile: rows[tile] | facts for tile, facts in zip(tiles, machine_code(tiles, shape), strict=True)}


def alone_cases() -> Iterator[Measurement]:
    """Each of the tiles that the page draws with one program on each of 132 SMs, and 131,072 keys: cycles a block."""
    for D in pages.TILES:
        tiles = {tile: in_words(tile) for tile in itertools.starmap(TileConfig, pages.tiles_of(D))}
        abouts = {tile: about(8, "alone", words, D=D) for tile, words in tiles.items()}
        yield from in_turns(abouts, _alone_in_turns, D, list(tiles))


def _alone_in_turns(D: int, tiles: Sequence[TileConfig]) -> dict[TileConfig, dict[str, Any]]:
    S_k = 131_072
    k, v = randn(1, 4, S_k, D), randn(1, 4, S_k, D)
    calls = {}
    for tile in tiles:
        q = randn(1, 132, tile.block_m, D)
        calls[tile] = partial(tuned.flash_forward, q, k, v, False, D**-0.5, tile=tile)
        calls[tile]()  # compiles
    cycles = cycles_in_turns(calls, rounds=3)
    return {tile: {"block_cycles": round(cycles[tile] * tile.block_n / S_k)} for tile in tiles}


def machine_code(tiles: Sequence[TileConfig], shape: Shape) -> list[dict[str, Any]]:
    """What Triton makes here of the finished kernel's loop with each tile: sass.step_rows' numbers."""

    def of(tile: TileConfig) -> dict[str, Any]:
        kind = (shape.D, shape.is_causal, steps.LAST, astuple(tile))
        [row] = compiling.in_a_process(f"from fa_tutorial import sass; print(json.dumps(sass.step_rows([{kind!r}])))")
        return {key: row[key] for key in ("loop", "MUFU.EX2", "HGMMA", "LDL", "registers", "shared_bytes")}

    with ThreadPoolExecutor() as pool:
        return list(pool.map(of, tiles))


def step_cases() -> Iterator[Measurement]:
    """Chapter 8's forward, all that its account compares, in turns at S = 4,096: its steps with one tile and a larger
    one, and pages.WHOLE.
    """
    rows = partial(pages.steps_in_turns, in_turns=counted_in_turns)
    return by_shape(8, "step", rows, literature((4096,)), (*pages.STEP_OF, *pages.WHOLE))


def counted_in_turns(calls: dict[str, Callable[[], Any]], flops: int, rounds: int = 10) -> dict[str, dict[str, Any]]:
    """timed_in_turns' rows, with the SM cycles of each call."""
    cycles = cycles_in_turns(calls)
    rows = timed_in_turns(calls, flops=flops, rounds=rounds)
    return {name: row | {"cycles": cycles[name]} for name, row in rows.items()}


def order_cases() -> Iterator[Measurement]:
    """Step 2's forward in each of pages.ORDERS, with steps.TILE, where one sequence has few programs: causal, B = 1."""
    shapes = (Shape(1, H, H, S, S, 128, True) for H, S in pages.SHORT_GRIDS)
    return by_shape(8, "order", _orders_in_turns, shapes, pages.ORDERS)


def _orders_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """Rows of each order, in turns, from CUDA graphs: a launch from Python may take longer than a short call."""
    q, k, v = inputs(shape)
    common = partial(steps.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5, tile=steps.TILE)
    step_of = dict(zip(pages.ORDERS, ("descriptors", "order"), strict=True))
    replays = {order: graph_of(partial(common, step=step)).replay for order, step in step_of.items()}
    rows = timed_in_turns(replays, flops=flops_of(shape), rounds=5)
    return {order: row | {"tile": in_words(steps.TILE)} for order, row in rows.items()}


LOAD_V = "    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]\n"
# Exercise 8.5's loop, from what it begins with to step 3's: a row -> the edits that bring its waste into the solution,
# each row's those of the row after it, and one waste more.
WASTES = {
    "as given": [
        ("    if MASK:\n        offs_n", "    offs_n"),
        ("        s = tl.where(offs_n", "    s = tl.where(offs_n"),
    ],
    "mask": [
        ("    shift = m_new\n    if MASK:  # only here may a row have seen no key\n", ""),
        ('        shift = tl.where(m_new == -float("inf"), 0.0, m_new)\n', ""),
        ("tl.exp2(s - shift[:, None])", 'tl.where(s == -float("inf"), 0.0, tl.exp2(s - m_new[:, None]))'),
        ("tl.exp2(m - shift)", 'tl.where(m == -float("inf"), 0.0, tl.exp2(m - m_new))'),
    ],
    "mask, guard": [
        ("tl.trans(k_tile))  #", "tl.trans(k_tile)) * scale_log2  #"),
        ("tl.max(s, axis=1) * scale_log2)", "tl.max(s, axis=1))"),
        ("s * scale_log2 - shift", "s - shift"),
        ("l = alpha * l", "l = l * alpha"),
        (LOAD_V, ""),
        ("    s = dot(", LOAD_V + "    s = dot("),
        ("    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]\n", ""),
        ("v_tile, acc)", "v_tile, acc * alpha[:, None])"),
    ],
    "mask, guard, scale": [],  # as short as step 3
}  # fmt: skip


def wasteful(name: str) -> str:
    """The source of `attend` with the wastes of one of WASTES."""
    names = list(WASTES)
    edits = [edit for row in reversed(names[names.index(name) :]) for edit in WASTES[row]]
    return edited(source_of(ex_5.attend), *((*edit, 1) for edit in edits))


def waste_cases() -> Iterator[Measurement]:
    """Step 3 with each of WASTES, in turns, full, S = 4,096."""
    return by_shape(8, "waste", _wastes_in_turns, (at_4096(D, False) for D in (64, 128)), WASTES)


def _wastes_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """Rows with what Triton makes of each here, too: sass.counted's numbers."""
    tile, calls, made = steps.LARGER[shape.D], {}, {}
    q, k, v = inputs(shape)
    for name in WASTES:
        attend = defined(wasteful(name), vars(ex_5))["attend"]
        made[name] = next(row for row in sass.counted("order", steps.LARGER, attend=attend) if row["D"] == shape.D)
        text = steps.file_of("order").read_text(encoding="utf-8")
        steps.STEPS[name] = Path(tempfile.mkdtemp(), "waste.py")
        steps.STEPS[name].write_text(f"{text}\n\n{wasteful(name)}\n", encoding="utf-8")
        calls[name] = partial(steps.flash_forward, q, k, v, False, shape.D**-0.5, step=name, tile=tile)
        error = (calls[name]()[0] - tuned.flash_forward(q, k, v, False, shape.D**-0.5)[0]).abs().max().item()
        if not error < 2e-3:
            raise RuntimeError(f"{name}: off by {error}")
    kept = ("loop", "MUFU.EX2", "LDL", "registers", "shared_bytes")
    rows = counted_in_turns(calls, flops=flops_of(shape))
    return {name: row | {key: made[name][key] for key in kept} for name, row in rows.items()}


# With steps.LARGER, overlap spills or leaves room for a program fewer; with the other tile it does neither.
IDEA_TILES = {64: [steps.LARGER[64]], 128: [TileConfig(64, 64, 4, 2), steps.LARGER[128]]}


def experiment_cases() -> Iterator[Measurement]:
    """Warp specialisation, and softmax beside matmul by hand: full, S = 4,096, in turns with each of IDEA_TILES."""
    for D, tiles in IDEA_TILES.items():
        shape = at_4096(D, False)
        for tile in tiles:
            words = {idea: about(8, "idea", idea, **vars(shape)) | {"tile": in_words(tile)} for idea in ideas.IDEAS}
            yield from in_turns(words, _ideas_in_turns, shape, tile)


def _ideas_in_turns(shape: Shape, tile: TileConfig) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    right = tuned.flash_forward(q, k, v, False, shape.D**-0.5)[0]
    calls = {idea: partial(ideas.run, q, k, v, idea, tile) for idea in ideas.IDEAS}
    for idea, call in calls.items():
        if not (error := (call() - right).abs().max().item()) < 2e-3:
            raise RuntimeError(f"{idea}: off by {error}")
    return counted_in_turns(calls, flops=flops_of(shape), rounds=5)


def short_cases() -> Iterator[Measurement]:
    """Chapter 5's forwards one after another, replayed from a CUDA graph."""
    for shape in pages.SHORT:
        yield about(8, "short", "basic", **vars(shape)) | {"mode": "fwd"}, partial(_short_row, shape)


def _short_row(shape: Shape) -> dict[str, Any]:
    call = partial(peers.provider("basic"), *inputs(shape), shape.is_causal)
    return {"graph_us": repeated_us(graph_of(call).replay)}


def repeated_us(call: Callable[[], Any]) -> float:
    """Microseconds a call, of 100 in a row, the median of seven rounds: the host's time or the GPU's, whichever is
    longer."""
    for _ in range(20):
        call()
    found = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / 100 * 1e6)
    return round(statistics.median(found), 1)


POWERED = (*pages.CHAIN, pages.LARGER_TILE, "sdpa_cudnn")


def power_cases() -> Iterator[Measurement]:
    """Chapter 5's kernel, steps 1 to 3, the finished kernel and cuDNN, full, S = 4,096, in turns, each until its clock
    has settled: its cycles, power, clock and time."""
    shapes = [at_4096(D, False) for D in (128, 64)]
    yield from by_shape(8, "power", _powers_in_turns, shapes, POWERED)


def _powers_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    tiles = {name: steps.LARGER[shape.D] if name in pages.LARGER_STEP_OF else steps.TILE for name in POWERED[:-1]}
    calls = {
        name: partial(steps.flash_forward, q, k, v, False, shape.D**-0.5, step=step, tile=tiles[name])
        for name, step in pages.STEP_OF.items()
        if name in tiles
    }
    calls["sdpa_cudnn"] = partial(peers.provider("sdpa_cudnn"), q, k, v, False)
    return powered_in_turns({name: calls[name] for name in POWERED}, flops_of(shape))


def busy(unit: str) -> str:
    return f"{unit}.avg.pct_of_peak_sustained_elapsed"


# Of a launch's counters, as ncu names them: tensor cores, exponential units and L2, and its time; and HBM.
UNITS = [*map(busy, ("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_xu", "lts__throughput"))]
UNITS += ["gpu__time_duration.sum"]
MEMORY = ["dram__bytes_read.sum", busy("dram__throughput")]
PROFILED = {"tuned": "forward_kernel", "sdpa_flash": "flash_fwd_kernel", "sdpa_cudnn": "cudnn"}  # the kernel's name


def counter_cases() -> Iterator[Measurement]:
    """UNITS of each kernel of PROFILED, and MEMORY of chapter 5's, at POINT. Needs Nsight Compute (ncu), and the right
    to read counters.
    """
    for provider, kernel in PROFILED.items():
        words = about(8, "counters", provider, **vars(POINT)) | {"mode": "fwd"}
        yield words, partial(counter_row, provider, kernel, UNITS)
    yield about(8, "memory", "basic", **vars(POINT)), partial(counter_row, "basic", "flash_forward_kernel", MEMORY)


def counter_row(provider: str, kernel: str, metrics: list[str]) -> dict[str, Any]:
    """The metrics of one launch of the kernel whose name matches `kernel`."""
    options = "--launch-count", "1", "--print-units", "base", "--metrics", ",".join(metrics)
    try:
        values = counted(kernel, python("chapter_8", f"launch({provider!r})"), *options).iloc[0]
    except RuntimeError as error:
        return {"reason": str(error)}
    return {name: float(values[name]) for name in metrics}


def launch(provider: str) -> None:
    """What ncu profiles: the forward at POINT. The tuned one's tile is given: under ncu, which holds the clock lower,
    another one would win.
    """
    attend = peers.provider(provider)
    if provider == "tuned":
        attend = partial(tuned.flash_forward, scale=POINT.D**-0.5, tile=steps.LARGER[POINT.D])
    launched_twice([partial(attend, *inputs(POINT), False)])


class Capped(TileConfig):
    """A tile whose kernel may take 128 registers a thread."""

    def launch(self) -> dict[str, int]:
        return super().launch() | {"maxnreg": 128}


def capped_cases() -> Iterator[Measurement]:
    """Two steps with steps.TILE, as they are and with at most 128 registers, in turns: D = 64, full, S = 4,096."""
    names = itertools.product(("chapter 5", "base 2"), ("as it is", "maxnreg=128"))
    return by_shape(8, "capped", _capped_in_turns, [at_4096(64, False)], names, ", ".join)


def _capped_in_turns(shape: Shape) -> dict[tuple[str, str], dict[str, Any]]:
    tiles = {"as it is": steps.TILE, "maxnreg=128": Capped(*astuple(steps.TILE))}
    given = *inputs(shape), False, shape.D**-0.5
    both = itertools.product(("chapter 5", "base 2"), tiles)
    calls = {(step, how): partial(steps.launched, *given, step=step, tile=tiles[how]) for step, how in both}
    facts = {name: pages.room_of(call()[2]) for name, call in calls.items()}
    rows = counted_in_turns(calls, flops=flops_of(shape))
    return {name: row | facts[name] for name, row in rows.items()}


def wait_cases() -> Iterator[Measurement]:
    """The finished kernel with pages.WAITING's tiles, full, S = 4,096, by ncu: its cycles, and the shares of a warp's
    time in which it waits for tiles and for matmuls."""
    for D, of_D in pages.WAITING.items():
        tiles = list(itertools.starmap(TileConfig, of_D))
        abouts = {tile: about(8, "waits", in_words(tile), **vars(at_4096(D, False))) for tile in tiles}
        yield from in_turns(abouts, _waits_of, D, tiles)


def _waits_of(D: int, tiles: Sequence[TileConfig]) -> dict[TileConfig, dict[str, Any]]:
    launches = sampled("forward_kernel", python("chapter_8", f"launch_tiles({D})"))
    return {tile: _waits(*launch) for tile, launch in zip(tiles, launches, strict=True)}


def _waits(cycles: int, lines: pd.DataFrame) -> dict[str, Any]:
    """A warp that waits for a TMA's barrier stands at a branch, until shared memory answers (long scoreboard)."""
    branches = lines["Source"].str.contains("BRA")
    matmuls = lines["Source"].str.contains("WARPGROUP.DEPBAR")
    found = {"tiles": lines["stall_long_sb"][branches], "matmuls": lines["# Samples"][matmuls]}
    return {"cycles": cycles} | {name: round(at.sum() / lines["# Samples"].sum(), 4) for name, at in found.items()}


def launch_tiles(D: int) -> None:
    """What ncu samples."""
    given = *inputs(at_4096(D, False)), False, D**-0.5
    tiles = itertools.starmap(TileConfig, pages.WAITING[D])
    launched_twice([partial(tuned.flash_forward, *given, tile=tile) for tile in tiles])


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this module."""
    of_steps = itertools.chain(step_cases(), capped_cases(), order_cases(), waste_cases())
    tiles = itertools.chain(tile_cases(), unseen_cases(), alone_cases(), wait_cases())
    return itertools.chain(of_steps, tiles, experiment_cases(), short_cases(), power_cases(), counter_cases())
