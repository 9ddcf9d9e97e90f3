"""What chapter 8 measures on a GPU: the ablation, tiles, steps, ideas that do not help, first calls, short sequences, clocks and counters.

`bench sweep` makes its sweep.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import forward, hardware, tuned
from fa_tutorial.attention import flash_attention
from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Case, Shape, about, literature
from fa_tutorial.bench.clocks import cycles_in_turns, mhz_between, read_clocks
from fa_tutorial.bench.measure import call_of, measure
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.tables import mask
from fa_tutorial.bench.timing import first_call_s, randn, timed, timed_in_turns
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import autotuning, experiments, launching, steps

hardware.require_triton("Chapter 8's measurements")
from triton.runtime.errors import OutOfResources  # noqa: E402

ABLATION = ("basic", *peers.TUNED_STEPS)
# B = 4, H = 8, D = 64, causal, S = 16,384, forward and backward: the setting of the published ablation that the chapter quotes.
PUBLISHED = Shape(4, 8, 8, 16_384, 16_384, 64, True)


def ablation_cases() -> Iterator[Measurement]:
    """Each step of the tuning, forward and backward, at S = 4,096; and in the published ablation's setting."""
    cases = [Case(step, mode, "fp16", shape) for shape in literature((4096,)) for mode in ("fwd", "bwd") for step in ABLATION]
    cases += [Case(step, "fwd_bwd", "fp16", PUBLISHED) for step in ("sdpa_flash", "sdpa_cudnn", *ABLATION)]
    for case in cases:
        yield case.about(), partial(measure, case)


# ---------------------------------------------------------------- tiles

TILES = {
    64: [(64, 64, 4, stages) for stages in (1, 2, 3, 4)]
    + [(32, 64, 4, 3), (64, 64, 8, 3), (64, 128, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 4, 2), (128, 128, 8, 2)],
    128: [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 4, 1), (128, 128, 8, 2)],
}


def tile_cases(is_causal: bool = False) -> Iterator[Measurement]:
    """forward_kernel with many tiles, S = 4,096: its time, and what the compiler made of it."""
    for D, tiles in TILES.items():
        shape = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, is_causal)
        for tile in itertools.starmap(TileConfig, tiles):
            yield about(8, "tile", in_words(tile), **vars(shape)), partial(_tile_row, tile, shape)


def in_words(tile: TileConfig) -> str:
    return f"{tile.block_m}x{tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stage{'s' * (tile.num_stages > 1)}"


def inputs(shape: Shape) -> list[torch.Tensor]:
    return [randn(shape.B, H, S, shape.D) for H, S in ((shape.H_q, shape.S_q), (shape.H_k, shape.S_k), (shape.H_k, shape.S_k))]


def flops_of(shape: Shape) -> int:
    return Case("tuned", "fwd", "fp16", shape).flops()


def _tile_row(tile: TileConfig, shape: Shape) -> dict[str, Any]:
    """Registers and spilled registers a thread, bytes of shared memory a block, and the time."""
    q, k, v = inputs(shape)
    call = partial(tuned.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5, tile=tile)
    launching._prepared.clear()
    call()
    [launch] = launching._prepared.values()
    compiled = launch.compiled
    facts = {"registers": compiled.n_regs, "spilled_registers": compiled.n_spills, "shared_bytes": compiled.metadata.shared}
    return facts | timed(call, flops=flops_of(shape))


def tile_report(tile: TileConfig, D: int, is_causal: bool) -> dict[str, Any]:
    """What _tile_row measures on this GPU; without one the H200's row of this tile. {"reason": why there is none} otherwise."""
    shape = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, is_causal)
    wanted = about(8, "tile", in_words(tile), **vars(shape))
    try:
        if hardware.device().type == "cuda":
            return _tile_row(tile, shape)
    except OutOfResources as error:
        return {"reason": f"does not fit: {error}"}
    stored = results.read(results.FOLDER / "h200.json")["kernels"]
    return next((row for row in stored if wanted.items() <= row.items()), {"reason": "not stored, it takes a GPU"})


# ---------------------------------------------------------------- steps

STEP_OF = {step or "chapter 5": step for step in ("", *steps.STEPS)}  # a step's row, with steps.TILE -> its name in steps
LARGER_STEP_OF = {f"{step or 'chapter 5'}, larger tile": step for step in ("", "round up", "order")}  # with steps.LARGER
WHOLE = ("basic", "tuned", "sdpa_flash", "sdpa_cudnn")


def step_cases() -> Iterator[Measurement]:
    """Chapter 8's forward, all that its account compares, in turns at S = 4,096: its steps with one tile and a larger one, and WHOLE."""
    for shape, name in itertools.product(literature((4096,)), (*STEP_OF, *LARGER_STEP_OF, *WHOLE)):
        yield about(8, "step", name, **vars(shape)), lambda shape=shape, name=name: _steps_in_turns(shape)[name]


@functools.cache
def _steps_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """step_cases' rows by provider. A row of the course's own has its tile in words; {"ms": None, "reason"} for what has no kernel here."""
    q, k, v = inputs(shape)
    common = (q, k, v, shape.is_causal, shape.D**-0.5)
    tile_of = dict.fromkeys(STEP_OF, steps.TILE) | dict.fromkeys(LARGER_STEP_OF, steps.LARGER[shape.D])
    step_of = STEP_OF | LARGER_STEP_OF
    calls = {name: partial(steps.flash_forward, *common, step=step_of[name], tile=tile) for name, tile in tile_of.items()}
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
    tile_of["tuned"] = TileConfig(*(launch.constants[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")))
    rows |= counted_in_turns({name: call for name, call in calls.items() if name not in rows}, flops_of(shape))
    return {name: row | ({"tile": in_words(tile_of[name])} if name in tile_of else {}) for name, row in rows.items()}


def counted_in_turns(calls: dict[str, Callable[[], Any]], flops: int) -> dict[str, dict[str, Any]]:
    """timed_in_turns' rows, with the SM cycles of each call."""
    cycles = cycles_in_turns(calls)
    return {name: row | {"cycles": cycles[name]} for name, row in timed_in_turns(calls, flops=flops).items()}


def steps_report(D: int, is_causal: bool) -> dict[str, dict[str, Any]]:
    """What step_cases measures at one point on this GPU, provider -> row, in one run; without a GPU the H200's stored rows."""
    if hardware.device().type == "cuda":
        return _steps_in_turns(Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, is_causal))
    return stored_steps()[D, is_causal]


LARGER_STEPS = ("descriptors", "load ahead", "order")
LONGEST_FIRST = ("load ahead", "order")  # causal programs as they come, and the longest first
SHORT_GRIDS = ((8, 4096), (2, 16_384), (8, 16_384))  # heads, S


def larger_cases() -> Iterator[Measurement]:
    """LARGER_STEPS with steps.LARGER, in turns, at S = 512 and 4,096."""
    for shape, step in itertools.product(literature((512, 4096)), LARGER_STEPS):
        yield (
            about(8, "larger", step, **vars(shape)),
            lambda shape=shape, step=step: _in_turns(shape, LARGER_STEPS, steps.LARGER[shape.D])[step],
        )


def order_cases() -> Iterator[Measurement]:
    """LONGEST_FIRST with steps.TILE, in turns, where one sequence has few programs: causal, B = 1."""
    for D, (H, S), step in itertools.product((64, 128), SHORT_GRIDS, LONGEST_FIRST):
        shape = Shape(1, H, H, S, S, D, True)
        yield about(8, "order", step, **vars(shape)), lambda shape=shape, step=step: _in_turns(shape, LONGEST_FIRST, steps.TILE)[step]


@functools.cache
def _in_turns(shape: Shape, names: tuple[str, ...], tile: TileConfig) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    calls = {step: partial(steps.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5, step=step, tile=tile) for step in names}
    return {step: row | {"tile": in_words(tile)} for step, row in timed_in_turns(calls, flops=flops_of(shape)).items()}


POINTS = list(itertools.product((64, 128), (False, True)))  # D, is_causal
COUNTS = ("loop", "registers", "programs")


@functools.cache
def stored_steps() -> dict[tuple[int, bool], dict[str, dict[str, Any]]]:
    """The H200's rows of step_cases, (D, is_causal) -> provider -> row."""
    stored = [row for row in results.read(results.FOLDER / "h200.json")["kernels"] if row["kernel"] == "step"]
    return {point: {row["provider"]: row for row in stored if (row["D"], row["is_causal"]) == point} for point in POINTS}


def step_noise(number: str) -> float:
    """By how much `number`, "tflops" or "cycles", of two of stored_steps' rows of the same machine code and tile differs at most, relatively."""
    pairs = [(found, twice) for found in stored_steps().values() for twice in (("chapter 5", "basic"), (LARGER_TILE, "tuned"))]
    pairs += [(found, ("descriptors", "load ahead")) for (_, is_causal), found in stored_steps().items() if not is_causal]
    alike = [(found[a][number], found[b][number]) for found, (a, b) in pairs if found[a]["tile"] == found[b]["tile"]]
    return max(abs(b / a - 1) for a, b in alike)


def run_noise(rows: pd.DataFrame, kernels: pd.DataFrame) -> float:
    """By how much a row of stored_steps and one of another run, of the same machine code and tile, differ at most. rows, kernels: results.load's."""
    apart = []
    for (D, is_causal), found in stored_steps().items():
        point = {"S_q": 4096, "D": D, "is_causal": is_causal}
        again = results.select(kernels, kernel="larger", provider="order", **point)["tflops"].item()
        apart += [again / found[LARGER_TILE]["tflops"], tflops_of(rows, "tuned", "fwd", 4096, D, is_causal) / found["tuned"]["tflops"]]
    return max(abs(ratio - 1) for ratio in apart)


Programs = Callable[[int, int, int], int]  # (num_warps, registers, shared_bytes) -> programs on an SM, exercise 8.1


def tile_cycles(row: dict[str, Any], D: int, is_causal: bool) -> float:
    """The cycles that an SM takes for each 64 x 64 tile of scores of a row of stored_steps: its share of them, masked ones whole."""
    row_blocks, multiprocessors = 4096 // 64, results.read(results.FOLDER / "h200.json")["provenance"]["multiprocessors"]
    tiles = 4 * 2048 // D * (row_blocks * (row_blocks + 1) // 2 if is_causal else row_blocks**2)
    return row["cycles"] * multiprocessors / tiles


def change(before: float, after: float) -> str:
    return f"{before:.0f} -> {after:.0f}"


def show_numbers(step: str, programs: Programs) -> None:
    """Print what the compiler made of `step` with steps.TILE, its cycles a tile and its rate on the H200, beside those of the step before.

    The gains: how many more tiles in as many cycles, in as many seconds.
    """
    compiled = {(row["step"], row["D"], row["is_causal"]): row for row in json.loads(steps.STORED.read_text())["rows"]}
    names = steps.before(step), step
    print(f"{step:16}", *(f"{name:>13}" for name in COUNTS), f"{'cycles a tile':>15} {'gain':>5} {'TFLOP/s':>12} {'gain':>5}")
    for D, is_causal in POINTS:
        old, new = (compiled[name, D, is_causal] for name in names)
        old, new = (row | {"programs": programs(steps.TILE.num_warps, row["registers"], row["shared_bytes"])} for row in (old, new))
        before, after = (stored_steps()[D, is_causal][name or "chapter 5"] for name in names)
        changes = [f"{old[name]} -> {new[name]}" for name in COUNTS]
        if old["loop"] == new["loop"]:
            changes[0] = f"{new['loop']}, {'same' if old['code'] == new['code'] else 'changed'}"
        cycles = change(*(tile_cycles(row, D, is_causal) for row in (before, after)))
        counted = f"{cycles:>15} {before['cycles'] / after['cycles'] - 1:+5.0%}"
        rates = f"{change(before['tflops'], after['tflops']):>12} {after['tflops'] / before['tflops'] - 1:+5.0%}"
        print(f"D = {D:3}, {mask(is_causal):7}", *(f"{x:>13}" for x in changes), counted, rates)


def show_larger_tiles(programs: Programs) -> None:
    """Print what the compiler made of three kernels with steps.LARGER, full, and their cycles and rates on the H200 beside those with steps.TILE.

    in the loop: loads of spilled registers in the loop without a mask. cycles: for each 64 x 64 scores.
    """
    print(f"{'':11} {'tile':>6} registers spilled in the loop programs {'cycles':>12} {'TFLOP/s, full':>18} {'causal':>18}")
    for row in json.loads(steps.STORED.read_text())["larger tiles"]:
        fit = programs(steps.LARGER[row["D"]].num_warps, row["registers"], row["shared_bytes"])
        name = row["step"] or "chapter 5"
        words = f"{row['tile']:>6} {row['registers']:9} {row['spilled_registers']:7} {row['LDL']:11} {fit:8}"
        rows = {causal: [stored_steps()[row["D"], causal][key] for key in (name, f"{name}, larger tile")] for causal in (False, True)}
        words += f" {change(*(tile_cycles(one, row['D'], False) for one in rows[False])):>12}"
        for small, large in rows.values():
            words += f" {change(small['tflops'], large['tflops']):>13}{large['tflops'] / small['tflops'] - 1:+5.0%}"
        print(f"{name:11} {words}")


LARGER_TILE = "order, larger tile"  # the last row of the account's chain: the finished kernel
NUMBERS = dict(zip(steps.STEPS, (1, 2, 3, 3, 4, 5, 6), strict=True))  # of the chapter's headings
WORDS = {step: f"{number}: {step}" for step, number in NUMBERS.items()} | {
    LARGER_TILE: "7: a larger tile",
    "basic": "chapter 5, its own tile",
    "tuned": "tuned",
    "sdpa_flash": "SDPA flash",
    "sdpa_cudnn": "cuDNN",
}


def draw_account(account: dict[tuple[int, bool], dict[str, dict[str, Any]]]) -> Figure:
    """A panel for each point of `account`, (D, is_causal) -> steps_report(D, is_causal), in TFLOP/s: what each step changes, and then WHOLE."""
    figure = Figure(figsize=(10, 5.2))
    panels = figure.subplots(1, len(account), sharex=True, sharey=True)
    chain = (*STEP_OF, LARGER_TILE)
    places = {name: y for y, name in enumerate(chain)} | {"basic": 9.6, "tuned": 10.6, "sdpa_flash": 12.2, "sdpa_cudnn": 13.2}
    for ax, ((D, is_causal), found) in zip(panels, account.items(), strict=True):
        rates = {name: found[name]["tflops"] for name in places if found[name].get("tflops")}  # without what has no kernel on this card
        before = rates["chapter 5"]
        for name, rate in rates.items():
            y, change = places[name], ""
            if name in chain:
                ax.barh(y, rate - before, left=before, color="tab:blue" if rate > before else "tab:orange", height=0.7)
                change = f" ({rate - before:+.0f})" if y else ""
            ax.plot(rate, y, "o" if name in chain else "s" if name in ("basic", "tuned") else "D", color="black", markersize=4)
            ax.annotate(f"  {rate:.0f}{change}", (max(rate, before) if name in chain else rate, y), va="center")
            before = rate if name in chain else before
        for y in (8.8, 11.4):
            ax.axhline(y, color="grey", linewidth=0.8)
        ax.set(title=f"D = {D}, {mask(is_causal)}", xlabel="TFLOP/s", xmargin=0.2)
        ax.grid(axis="y", visible=False)
    panels[0].set_yticks(list(places.values()), [WORDS.get(name, name) for name in places])
    panels[0].invert_yaxis()
    return figure


def tflops_of(rows: pd.DataFrame, provider: str, mode: str, S: int, D: int, is_causal: bool) -> float:
    """The rate of the sweep's row in fp16 with 2,048 // D heads. rows: results.load's."""
    wanted = {"provider": provider, "mode": mode, "S_q": S, "D": D, "H_q": 2048 // D, "is_causal": is_causal, "dtype": "fp16"}
    return results.select(rows, **wanted).iloc[0]["tflops"]


# ---------------------------------------------------------------- ideas that do not help


def experiment_cases() -> Iterator[Measurement]:
    """Warp specialisation, and softmax beside matmul by hand: full, S = 4,096, each with several tiles; and k transposed beforehand."""
    for D, tiles in ((64, ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 4, 2))), (128, ((64, 64, 4, 2), (128, 64, 4, 2)))):
        shape = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, False)
        for tile, idea in itertools.product(itertools.starmap(TileConfig, tiles), experiments.IDEAS):
            yield about(8, "idea", idea, **vars(shape)) | {"tile": in_words(tile)}, partial(_idea_row, idea, tile, shape)
    shape = Shape(4, 32, 32, 4096, 4096, 64, False)
    yield about(8, "idea", "two_loops", **vars(shape)), partial(_two_loops_row, shape)
    for how in ("as it is", "transposed", "transposed, its copy timed too"):
        yield about(8, "k transposed", how, **vars(shape)), partial(_transposed_row, how, shape)


def _idea_row(idea: str, tile: TileConfig, shape: Shape) -> dict[str, Any]:
    q, k, v = inputs(shape)
    error = (experiments.run(q, k, v, idea, tile) - tuned.flash_forward(q, k, v, False, shape.D**-0.5)[0]).abs().max().item()
    if not error < 2e-3:
        return {"ms": None, "reason": f"wrong result: off by {error}"}
    return timed(lambda: experiments.run(q, k, v, idea, tile), flops=flops_of(shape))


def _two_loops_row(shape: Shape) -> dict[str, Any]:
    """What becomes of a kernel with two warp-specialised loops."""
    try:
        experiments.run(*inputs(shape), "two_loops", TileConfig(64, 64, 4, 3))
    except RuntimeError as error:
        return {"reason": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"reason": "compiles"}


def _transposed_row(how: str, shape: Shape) -> dict[str, Any]:
    """The pointer path, which takes any strides, on k as (B, H, S, D), or on k copied to (B, H, D, S) beforehand."""
    q, k, v = inputs(shape)
    copied = k if how == "as it is" else k.mT.contiguous().mT

    def call() -> Any:
        keys = k.mT.contiguous().mT if how == "transposed, its copy timed too" else copied
        return tuned.flash_forward(q, keys, v, False, shape.D**-0.5, tile=TileConfig(64, 64, 4, 3), descriptors=False, in_order=False)

    return timed(call, flops=flops_of(shape))


# ---------------------------------------------------------------- first calls and the host


def _first_call_row() -> dict[str, Any]:
    """first_calls() in a process of its own whose cache is empty."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", "from fa_tutorial.bench import chapter_8; chapter_8.first_calls()"]
        run = subprocess.run(command, env=os.environ | {"TRITON_CACHE_DIR": cache}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def first_calls() -> None:
    """Print as JSON: seconds of first calls (D = 64, causal, 16 heads), microseconds of a call of many at S = 128, where
    the host takes longer than the GPU, and configurations tried."""

    def call(S: int, backward: bool) -> Callable[[], Any]:
        q, k, v = (randn(1, 16, S, 64).requires_grad_(backward) for _ in range(3))
        o = flash_attention(q, k, v, is_causal=True, kernel="tuned")
        return lambda: torch.autograd.grad(o, (q, k, v), torch.ones_like(o), retain_graph=True) if backward else None

    found = {"forward_s": first_call_s(lambda: call(4096, False)), "backward_s": first_call_s(call(4096, True))}
    found["same_bucket_s"] = first_call_s(lambda: call(3000, False))  # S no multiple of 16 is compiled for itself
    found["same_bucket_again_s"] = first_call_s(lambda: call(2999, False))
    found["next_bucket_s"] = first_call_s(lambda: call(8192, False))
    bucket, autotuning.bucket = autotuning.bucket, lambda S: S  # a bad key: the length itself
    found["bad_key_s"] = [round(first_call_s(lambda S=S: call(S, False)), 3) for S in (2997, 2995, 2993)]
    autotuning.bucket = bucket
    q, k, v = (randn(1, 1, 128, 64) for _ in range(3))
    found["host_fwd_us"] = repeated_us(lambda: flash_attention(q, k, v, is_causal=True, kernel="tuned"))
    found["host_bwd_us"] = repeated_us(call(128, True))
    limit = hardware.shared_memory_limit()
    found["configurations"] = {kernel: len(autotuning.candidates(kernel, 64, limit)) for kernel in ("forward", "dkdv", "dq")}
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}))


# ---------------------------------------------------------------- short sequences

SHORT = [Shape(8, 8, 8, S, S, 64, True) for S in (128, 512, 2048)]


def short_cases() -> Iterator[Measurement]:
    """Calls one after another, each launched by the host, and the same call replayed from a CUDA graph: causal, B = 8, H = 8, D = 64."""
    for shape, mode, provider in itertools.product(SHORT, ("fwd", "fwd_bwd"), ("sdpa_flash", "basic", "tuned", "hopper")):
        yield about(8, "short", provider, **vars(shape)) | {"mode": mode}, partial(_short_row, provider, mode, shape)


def _short_row(provider: str, mode: str, shape: Shape) -> dict[str, Any]:
    do = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    q, k, v = (x.requires_grad_(mode != "fwd") for x in inputs(shape))
    call = call_of(mode, partial(peers.provider(provider), q, k, v, shape.is_causal), (q, k, v), do)
    return {"call_us": repeated_us(call), "graph_us": repeated_us(graph_of(call).replay)}


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


def repeated_us(call: Callable[[], Any], calls: int = 500) -> float:
    """Microseconds a call, of many in a row: the host's time or the GPU's, whichever is longer."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return round((time.perf_counter() - start) / calls * 1e6, 1)


# ---------------------------------------------------------------- clocks and counters

CLOCK_SECONDS = 2.0
POINT = Shape(4, 16, 16, 4096, 4096, 128, False)


def clock_cases() -> Iterator[Measurement]:
    """The clock and the power at which each provider's forward settles: D = 128, full, S = 4,096, again and again for CLOCK_SECONDS."""
    for provider in ("sdpa_cudnn", "tuned", "sdpa_flash"):
        yield about(8, "clock", provider, **vars(POINT)), partial(_clock_row, provider)


def _clock_row(provider: str) -> dict[str, Any]:
    q, k, v = inputs(POINT)
    attend = peers.provider(provider)
    return settled(lambda: attend(q, k, v, False), Case(provider, "fwd", "fp16", POINT).flops())


def settled(call: Callable[[], Any], flops: int) -> dict[str, Any]:
    """MHz, W and TFLOP/s of a call of so many FLOPs that is repeated for CLOCK_SECONDS, in the second half of them.

    mhz: by the cycles that the SMs count; reported_mhz and watts: the medians of what nvidia-smi reports.
    """

    def repeat() -> int:
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < CLOCK_SECONDS / 2:
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            calls += 20
        return calls

    call()
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "100"]
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as sampler:
        repeat()
        before, start = read_clocks(), time.perf_counter()
        calls = repeat()
        after, took = read_clocks(), time.perf_counter() - start
        sampler.terminate()
        samples = [list(map(float, line.split(","))) for line in sampler.stdout if line.count(",") == 1]
    second_half = samples[len(samples) // 2 :]
    reported, watts = (round(statistics.median(values)) for values in zip(*second_half, strict=True))
    rate = round(flops * calls / took / 1e12, 2)
    return {"mhz": round(mhz_between(before, after)), "reported_mhz": reported, "watts": watts, "tflops": rate}


# Nsight Compute's sections, and which of their metrics are kept: time, how busy pipes, memories and schedulers are, warps that are there.
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "SchedulerStats", "Occupancy", "LaunchStats")
KEPT = re.compile(
    r"time_duration\.sum|pipe_(tensor|xu|fma|alu).*\.avg\.pct|(sm|lts|dram)__throughput\.avg\.pct|gpu__dram_throughput\.avg\.pct|dram__bytes_(read|write)\.sum|issue_active\.avg\.pct|warps_active\.avg\.pct"
)
MEMORY = "dram__bytes_read.sum,dram__bytes_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
PROFILED = {  # provider, mode -> the kernel's name
    ("tuned", "fwd"): "forward_kernel",
    ("hopper", "fwd"): "forward_kernel",
    ("hopper", "bwd"): "backward_kernel",
    ("sdpa_flash", "fwd"): "flash_fwd_kernel",
    ("sdpa_cudnn", "fwd"): "cudnn",
    ("tuned", "dk, dv"): "dkdv_kernel",
    ("tuned", "dq"): "dq_kernel",
}
# The tuned forward's tile at POINT: under ncu, which holds the clock lower, another one would win.
PROFILED_TILE = astuple(steps.LARGER[POINT.D])


def counter_cases() -> Iterator[Measurement]:
    """The counters of one launch of each kernel of PROFILED, at POINT. Needs Nsight Compute (ncu), and the right to read counters."""
    for (provider, what), kernel in PROFILED.items():
        tile = PROFILED_TILE if (provider, what) == ("tuned", "fwd") else ()
        yield about(8, "counters", provider, **vars(POINT)) | {"mode": what}, partial(counter_row, provider, what, kernel, tile=tile)


def counter_row(provider: str, what: str, kernel: str, shape: Shape = POINT, metrics: str = "", tile: tuple = ()) -> dict[str, Any]:
    """The counters of one launch of the kernel whose name matches `kernel`: those of SECTIONS, or `metrics`. what: "fwd", or any part of the backward."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {"reason": "ncu is not installed"}
    command = [ncu, "--csv", "--page", "raw", "--kernel-name", f"regex:{kernel}", "--profile-from-start", "off", "--launch-count", "1"]
    wanted = ["--print-units", "base", "--metrics", metrics] if metrics else [word for name in SECTIONS for word in ("--section", name)]
    call = f"{provider!r}, {what != 'fwd'}, {astuple(shape)}, {tile}"
    command += [*wanted, sys.executable, "-c", f"from fa_tutorial.bench import chapter_8; chapter_8.launch({call})"]
    run = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    if run.returncode or len(lines) < 3:
        return {"reason": f"ncu measured nothing: {(run.stdout + run.stderr).strip().splitlines()[-1:]}"}
    values = pd.read_csv(io.StringIO(f"{lines[0]}\n{lines[-1]}"), thousands=",").iloc[0]
    return {name: float(value) for name, value in values.items() if KEPT.search(name)}


def memory_cases() -> Iterator[Measurement]:
    """Bytes that chapter 5's forward and the tuned one, with its tile, read from HBM and write there, and how busy HBM is, at POINT. Needs ncu."""
    for provider, kernel, tile in (("basic", "flash_forward_kernel", ()), ("tuned", "forward_kernel", PROFILED_TILE)):
        yield about(8, "memory", provider, **vars(POINT)), partial(counter_row, provider, "fwd", kernel, metrics=MEMORY, tile=tile)


def launch(provider: str, backward: bool, shape: tuple, tile: tuple) -> None:
    """What ncu profiles: the forward or backward of Shape(*shape), once tiles are chosen; or the tuned forward with this tile."""
    q, k, v = (x.requires_grad_(backward) for x in inputs(Shape(*shape)))
    given = tile and partial(tuned.flash_forward, scale=q.shape[-1] ** -0.5, tile=TileConfig(*tile))
    for turn in range(4):
        if turn == 3:
            torch.cuda.profiler.start()
        o = (given or peers.provider(provider))(q, k, v, False)
        if backward:
            torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
    torch.cuda.synchronize()


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this module but the ablation, whose rows are attention's."""
    first_call = [(about(8, "first_call", "tuned"), _first_call_row)]
    tiles = itertools.chain(tile_cases(), tile_cases(is_causal=True))
    of_steps = itertools.chain(step_cases(), larger_cases(), order_cases())
    return itertools.chain(of_steps, tiles, experiment_cases(), first_call, short_cases(), clock_cases(), counter_cases(), memory_cases())
