"""Chapters 0 to 7: attention as S grows, and the kernels of each chapter beside PyTorch's."""

import contextlib
import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch

from fa_tutorial import backward, forward, hardware, layout, matmul, reference
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import DTYPES, Case, Shape, about
from fa_tutorial.bench.chapter_8 import flops_of, in_words, inputs, room_of
from fa_tutorial.bench.measure import measure
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, time_call, timed, timed_in_turns
from fa_tutorial.exercises import catalogue
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import TileConfig, heads, padded_d
from measure import changed_kernels, profiler
from measure.clocks import cycles_in_turns
from measure.turns import by_shape, graphs_in_turns, in_turns

hardware.require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402


def attention_cases() -> Iterator[Measurement]:
    """Chapters 0, 5 and 7: time and peak memory as S grows.

    Of naive attention, PyTorch's flash kernel, and the course's basic ones.
    """
    for mode, power, provider in itertools.product(
        ("fwd", "bwd", "fwd_bwd"), range(9, 18), ("naive", "sdpa_flash", "basic")
    ):
        case = Case(provider, mode, "fp16", Shape(1, 16, 16, 2**power, 2**power, 64, False))
        yield case.about(), partial(measure, case)


def naive_step_cases() -> Iterator[Measurement]:
    """Chapter 0: naive attention, its operations by themselves, what torch.compile makes of it, and flash attention.

    They are measured in turns, on the shape of attention_cases.
    """
    size = {"B": 1, "H": 16, "S": 4096, "D": 64}
    yield from in_turns(
        {step: about(0, "naive_step", step, **size) for step in NAIVE_STEPS}, _naive_steps_in_turns, **size
    )


def _naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As chapter 0 writes it."""
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(s, dim=-1) @ v


def _naive_scaled_q(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    return torch.softmax(s, dim=-1) @ v


def _naive_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)  # True where a key is after the query
    return torch.softmax(s.masked_fill(hidden, -math.inf), dim=-1) @ v


NAIVE = {"naive": _naive, "naive, q scaled": _naive_scaled_q, "naive, causal": _naive_causal}
FULL = ("q kᵀ", "divide", "softmax", "p v")
COMPILED = {f"{name}, compiled": NAIVE[name] for name in ("naive", "naive, q scaled")}
NAIVE_STEPS = (*FULL, "flash", "flash, causal", *NAIVE, *COMPILED)


def _step_calls(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Each kernel of naive attention, and flash attention."""
    B, H, S, D = q.shape
    s = randn(B, H, S, S)
    return {
        "q kᵀ": lambda: q @ k.transpose(-1, -2),
        "divide": lambda: s / math.sqrt(D),
        "softmax": lambda: torch.softmax(s, dim=-1),
        "p v": lambda: s @ v,
        "flash": partial(peers.provider("sdpa_flash"), q, k, v, False),
    }


def _naive_steps_in_turns(B: int, H: int, S: int, D: int) -> dict[str, dict[str, Any]]:
    """The rows of one shape; flash attention's with SM cycles, those of COMPILED with what they launch."""
    q, k, v = randn(B, H, S, D), randn(B, H, S, D), randn(B, H, S, D)
    possible = _step_calls(q, k, v) | {name: partial(call, q, k, v) for name, call in NAIVE.items()}
    possible["flash, causal"] = partial(peers.provider("sdpa_flash"), q, k, v, True)
    calls, found = {}, {}
    for name in NAIVE_STEPS:
        if name in COMPILED:
            calls[name], found[name] = _compiled(COMPILED[name], q, k, v)
        else:
            calls[name] = possible[name]
    more = {name: {"launches": names} for name, names in found.items()}
    more["flash"] = {"cycles": cycles_in_turns({"flash": calls["flash"]})["flash"]}
    return {name: row | more.get(name, {}) for name, row in timed_in_turns(calls).items()}


def naive_traffic_cases() -> Iterator[Measurement]:
    """Chapter 0: the bytes of naive attention's kernels and of flash attention, on the shape of naive_step_cases.

    Those that HBM delivers, and those that the SMs get from L2. Needs ncu.
    """
    names = (*FULL, "flash")
    words = {name: about(0, "naive_traffic", name, B=1, H=16, S=4096, D=64) for name in names}
    yield from in_turns(words, _traffic, ".", "launch_naive_steps()", names, NAIVE_TRAFFIC)


NAIVE_TRAFFIC = ("dram__bytes_read.sum", "l1tex__m_xbar2l1tex_read_bytes.sum")


def launch_naive_steps() -> None:
    """What ncu looks at: each kernel of naive attention, then flash attention."""
    profiler.launched_twice(_step_calls(*(randn(1, 16, 4096, 64) for _ in range(3))).values())


def _compiled(call: Callable, *args: torch.Tensor) -> tuple[Callable, list[str]]:
    """`call` as torch.compile makes it, on `args`, and the names of what its generated code launches."""
    from torch._inductor.utils import run_and_get_code

    compiled = torch.compile(call, dynamic=False)
    _, (code, *_) = run_and_get_code(compiled, *args)
    body = code[code.index("def call(") :]
    launches = r"extern_kernels\.\w+(?=\()|triton_\w+(?=\.run\()|torch\.ops\.aten\.\w+(?=[\w.]*\()"
    return partial(compiled, *args), re.findall(launches, body)


def first_kernel_cases() -> Iterator[Measurement]:
    """Chapter 2: add, transpose with several tiles, row softmax; each beside PyTorch. 2**26 elements."""
    n, side = 2**26, 8192
    for provider, add in (("course", layout.add), ("torch", torch.add)):
        yield about(2, "add", provider, "fp32", n=n), partial(_add_row, add, n)
    for r, c in ((1, 1024), (1024, 1), (16, 16), (32, 32), (64, 64), (128, 32), (None, None)):
        words = about(2, "transpose", "course" if r else "torch", "fp32", rows=side, cols=side, block_r=r, block_c=c)
        yield words, partial(_transpose_row, side, r, c)
    words = about(2, "transpose", "torch, compiled", "fp32", rows=side, cols=side)
    yield words, partial(_transpose_row, side, None, None, torch.compile(_transposed_by_torch, dynamic=False))
    words = {(r, c): about(2, "transpose_traffic", "course", "fp32", block_r=r, block_c=c) for r, c in COUNTED_TILES}
    yield from in_turns(words, _traffic, "transpose_kernel", "launch_transposes()", COUNTED_TILES, TRANSPOSE_TRAFFIC)
    words = about(2, "transpose_warps", "course", "fp32", rows=side, cols=side, block_r=16, block_c=16)
    yield from in_turns({warps: words | {"warps": warps} for warps in (1, 2, 4, 8)}, _transposes_in_turns, side)
    softmaxes = {
        "course": layout.softmax,
        "torch": partial(torch.softmax, dim=-1),
        "torch, five calls": _five_call_softmax,
        "torch, five calls, compiled": torch.compile(_five_call_softmax, dynamic=False),
    }
    for cols, (provider, softmax) in itertools.product((256, 1024, 4096, 16_384, 65_536), softmaxes.items()):
        words = about(2, "softmax", provider, "fp32", rows=n // cols, cols=cols)
        yield words, partial(_softmax_row, softmax, n // cols, cols)
    for warps in (1, 8):
        yield about(2, "start", "nothing", programs=2**18, warps=warps), partial(_start_row, 2**18, warps)
    words = about(2, "softmax_rows", "course", "fp32", rows=n // 256, cols=256)
    cases = {(each, warps): words | {"rows_each": each, "warps": warps} for each, warps in SHORT_ROWS}
    yield from in_turns(cases, _short_rows_in_turns, n // 256)


SHORT_ROWS = ((1, 1), (2, 1), (2, 4), (4, 1), (4, 4))  # rows and warps a program


def _add_row(add: Callable, n: int) -> dict[str, Any]:
    x, y = (randn(n, dtype=torch.float32) for _ in range(2))
    return timed(lambda: add(x, y), bytes_moved=3 * x.nbytes)


def _transposed_by_torch(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def _transpose_row(
    side: int, block_r: int | None, block_c: int | None, by_torch: Callable = _transposed_by_torch
) -> dict[str, Any]:
    x = randn(side, side, dtype=torch.float32)
    call = partial(by_torch, x) if block_r is None else partial(layout.transpose_copy, x, block_r, block_c)
    return timed(call, bytes_moved=2 * x.nbytes)


COUNTED_TILES = ((1, 1024), (1024, 1), (64, 64))
# Bytes between HBM and L2, and between L2 and the SMs, each read and written.
TRANSPOSE_TRAFFIC = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
)


def launch_transposes() -> None:
    """What ncu looks at: a transpose by each of COUNTED_TILES."""
    x = randn(8192, 8192, dtype=torch.float32)
    profiler.launched_twice(partial(layout.transpose_copy, x, *tile) for tile in COUNTED_TILES)


def _transposes_in_turns(side: int) -> dict[int, dict[str, Any]]:
    """A tile of 16 × 16 with several numbers of warps."""
    x = randn(side, side, dtype=torch.float32)
    out = torch.empty_like(x)
    grid = (side // 16, side // 16)

    def launch(warps: int) -> None:
        strides = (*x.stride(), *out.stride())
        layout.transpose_kernel[grid](x, out, side, side, *strides, BLOCK_R=16, BLOCK_C=16, num_warps=warps)

    rows = timed_in_turns({warps: partial(launch, warps) for warps in (1, 2, 4, 8)})
    return {warps: row | {"gb_s": round(2 * x.nbytes / row["ms"] / 1e6, 1)} for warps, row in rows.items()}


def _five_call_softmax(x: torch.Tensor) -> torch.Tensor:
    """max, subtract, exp, sum, divide: each a kernel of its own, as eager PyTorch runs them."""
    shifted = x - x.amax(dim=-1, keepdim=True)
    p = torch.exp(shifted)
    return p / p.sum(dim=-1, keepdim=True)


def _start_row(programs: int, warps: int) -> dict[str, Any]:
    return timed(lambda: changed_kernels.nothing_kernel[(programs,)](num_warps=warps))


def _softmax_row(softmax: Callable, rows: int, cols: int) -> dict[str, Any]:
    x = randn(rows, cols, dtype=torch.float32)
    # the least that any softmax moves: x read once, y written once
    return timed(lambda: softmax(x), bytes_moved=2 * x.nbytes)


def _short_rows_in_turns(rows: int) -> dict[tuple[int, int], dict[str, Any]]:
    x = randn(rows, 256, dtype=torch.float32)
    out, kernel = torch.empty_like(x), catalogue.find("2.9").solution

    def launch(each: int, warps: int) -> None:
        kernel[(rows // each,)](x, out, 256, 256, 256, ROWS=each, BLOCK=256, num_warps=warps)

    found = timed_in_turns({case: partial(launch, *case) for case in SHORT_ROWS})
    return {case: row | {"gb_s": round(2 * x.nbytes / row["ms"] / 1e6, 1)} for case, row in found.items()}


SIDE = 4096
TILES = [
    matmul.MatmulConfig(m, n, 64, warps, 3)
    for m, n, warps in ((16, 16, 1), (32, 32, 4), (64, 64, 4), (128, 64, 4), (128, 128, 8), (128, 256, 8))
]
ORDERS = {"course": 8, "course, bands of 16": 16, "course, row order": 1}  # the group
# What ncu counts: bytes that HBM delivers, bytes that the SMs get from L2, and how busy L2 is.
TRAFFIC = (
    "dram__bytes_read.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
)


def matmul_cases() -> Iterator[Measurement]:
    """Chapter 3: square matmul beside PyTorch, in each order of programs; and the bytes that the kernel reads."""
    for n in (1024, 2048, 4096, 8192, 16_384):
        words = {provider: about(3, "matmul", provider, M=n, N=n, K=n) for provider in (*ORDERS, "torch")}
        yield from in_turns(words, _matmul_in_turns, n)
    launches = {}
    for n, order, tile in _counted_launches():
        sides = {"block_m": tile.block_m, "block_n": tile.block_n, "block_k": tile.block_k}
        launches[n, order, tile] = about(3, "matmul_traffic", order, M=n, N=n, K=n, **sides)
    yield from in_turns(launches, _traffic, "matmul_", "launch_matmuls()", launches)


def _matmul_in_turns(n: int) -> dict[str, dict[str, Any]]:
    """Both orders of programs and PyTorch, in fp16, by provider."""
    a, b = randn(n, n), randn(n, n)
    config = matmul.choose_config(torch.float16, hardware.shared_memory_limit())
    calls = {
        order: partial(matmul.matmul, a, b, config=dataclasses.replace(config, group=group))
        for order, group in ORDERS.items()
    }
    return timed_in_turns(calls | {"torch": partial(torch.matmul, a, b)}, flops=2 * n**3)


def _counted_launches() -> list[tuple[int, str, matmul.MatmulConfig]]:
    """n, order and tile of each launch that ncu looks at: every tile in row order, and the last one in each order, with
    larger n, too."""
    tiles = [(SIDE, "course, row order", tile) for tile in TILES]
    others = itertools.product((SIDE, 2 * SIDE, 4 * SIDE), ORDERS)
    return tiles + [launch for n, order in others if (launch := (n, order, TILES[-1])) not in tiles]


def _traffic(
    kernels: str, call: str, launches: Iterable[Any], metrics: tuple[str, ...] = TRAFFIC
) -> dict[Any, dict[str, Any]]:
    """The metrics of each of `launches`: what `call` launches of the kernels whose names match, in its order.

    Needs ncu.
    """
    options = ("--clock-control", "none", "--print-units", "base", "--metrics", ",".join(metrics))
    found = profiler.counted(kernels, profiler.python("chapters_0_to_7", call), *options)
    rows = [{name: float(row[name]) for name in metrics} for _, row in found.iterrows()]
    return dict(zip(launches, rows, strict=True))


def launch_matmuls() -> None:
    """What ncu looks at: _counted_launches."""
    sides = {n: (randn(n, n), randn(n, n)) for n in (SIDE, 2 * SIDE, 4 * SIDE)}
    profiler.launched_twice(
        partial(matmul.matmul, *sides[n], config=dataclasses.replace(tile, group=ORDERS[order]))
        for n, order, tile in _counted_launches()
    )


SCORES = ("scores_values", "two products")
FUSED = [(4096, 4096), (16_384, 1024), (4096, 16_384), (16_384, 4096), (16_384, 16_384)]  # S_q, S_k


def fusion_cases() -> Iterator[Measurement]:
    """Chapter 3: (q kᵀ) v of one head in both ways, with few programs or many, and with s that fits into L2 or not."""
    for S_q, S_k in FUSED:
        words = {provider: about(3, "fusion", provider, S_q=S_q, S_k=S_k, D=64) for provider in SCORES}
        yield from in_turns(words, _fusion_in_turns, S_q, S_k)


def _fusion_in_turns(S_q: int, S_k: int) -> dict[str, dict[str, Any]]:
    q, k, v = (randn(S, 64) / S_k**0.25 for S in (S_q, S_k, S_k))
    calls = (lambda: matmul.scores_times_values(q, k, v, block_m=128, block_n=64), lambda: (q @ k.t()) @ v)
    require_alike([calls[0]()], [calls[1]()])
    return graphs_in_turns(dict(zip(SCORES, calls, strict=True)), flops=4 * S_q * S_k * 64)


ONE_LOOP = (
    ("    for start_n in range(0, full_n, BLOCK_N):\n"
     "        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,\n"
     "                           False, BLOCK_N, BLOCK_D)  # fmt: skip\n", ""),
    ("tl.range(full_n, end_n, BLOCK_N, num_stages=1)", "range(0, end_n, BLOCK_N)"),
)  # fmt: skip


def one_loop() -> Any:
    """flash_forward_kernel with every tile masked, in one loop that loads ahead."""
    return defined(edited(source_of(forward.flash_forward_kernel), *ONE_LOOP), vars(forward))["flash_forward_kernel"]


def loop_cases() -> Iterator[Measurement]:
    """Chapter 5: its two loops, and one loop that masks every tile, of one sequence."""
    points = itertools.product((64, 128), (False, True))
    shapes = (Shape(1, 2048 // D, 2048 // D, 16_384, 16_384, D, is_causal) for D, is_causal in points)
    return by_shape(5, "loops", _loops_in_turns, shapes, ("two", "one"))


def _loops_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)

    def run(kernel) -> tuple[torch.Tensor, torch.Tensor]:
        with mock.patch.object(forward, "flash_forward_kernel", kernel):
            return forward.flash_forward(q, k, v, shape.is_causal, shape.D**-0.5)

    kernels = {"two": forward.flash_forward_kernel, "one": one_loop()}
    require_alike(*map(run, kernels.values()))
    return timed_in_turns({loops: partial(run, kernel) for loops, kernel in kernels.items()}, flops=flops_of(shape))


# A tile differs from the one before it in one thing: stages, rows, warps or keys. The last is the page's tile with so
# many stages that an SM has room for one program.
FORWARD_TILES = {
    64: [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 8, 7)],
    128: [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 4)],
}


def forward_tile_cases() -> Iterator[Measurement]:
    """Chapter 5: its forward with several tiles, full, S = 4,096: its time and cycles, and what the compiler made of
    it."""
    for D, tiles in FORWARD_TILES.items():
        shape, tiles = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, False), itertools.starmap(TileConfig, tiles)
        yield from by_shape(5, "forward_tile", _forward_tiles_in_turns, [shape], tiles, in_words)


def _forward_tiles_in_turns(shape: Shape) -> dict[TileConfig, dict[str, Any]]:
    q, k, v = inputs(shape)
    scale = shape.D**-0.5
    tiles = [*itertools.starmap(TileConfig, FORWARD_TILES[shape.D])]
    calls = {tile: partial(forward.flash_forward, q, k, v, shape.is_causal, scale, config=tile) for tile in tiles}
    cycles = cycles_in_turns(calls)
    rows = timed_in_turns(calls, flops=flops_of(shape))
    o, lse = next(iter(calls.values()))()
    for tile in tiles:
        rows[tile] |= room_of(launched((q, k, v, o, lse), tile)) | {"cycles": cycles[tile]}
    return rows


def launched(tensors: tuple[torch.Tensor, ...], tile: TileConfig, **options: Any) -> Any:
    """Chapter 5's kernel on q, k, v, o and lse, full; returns what was compiled."""
    q, k, v, o, lse = tensors
    B, H, S, D = q.shape
    return forward.flash_forward_kernel[(-(-S // tile.block_m) * B * H,)](
        *map(heads, (q, k, v, o)), lse, H, H, S, S, D, D**-0.5,
        IS_CAUSAL=False, BLOCK_D=padded_d(D), **tile.launch(), **options,
    )  # fmt: skip


def _backward_arguments(shape: Shape) -> tuple[Any, ...]:
    """q, k, v, o, do, lse, dlse, is_causal and scale."""
    q, k, v = inputs(shape)
    o, lse = forward.flash_forward(q, k, v, shape.is_causal, shape.D**-0.5)
    return q, k, v, o, torch.randn_like(q), lse, None, shape.is_causal, shape.D**-0.5


SIXTEEN_HEADS = {D: Shape(1, 16, 16, 4096, 4096, D, False) for D in (64, 128)}
NOW, LATER = TRANSPOSED = ("as computed", "transposed later")
# 32 queries are too few rows for the wgmma of products that are transposed later; 64 are enough for both ways. At
# D = 128 each way has its faster tile: with 32 queries and three stages, Triton 3.6 gives a wrong dk where p and ds are
# transposed later, and with 64 queries and three stages a program would be alone on its SM.
FEW = TileConfig(32, 64, 4, 3)
TRANSPOSED_TILES = {
    Shape(4, 32, 32, 4096, 4096, 64, False): list(itertools.product(TRANSPOSED, (FEW, TileConfig(64, 64, 4, 3)))),
    Shape(4, 16, 16, 4096, 4096, 128, False): [(NOW, FEW), (LATER, TileConfig(64, 64, 4, 2))],
}
TRANSPOSED_LATER = (
    ("dot(k_tile, tl.trans(q_tile))", "dot(q_tile, tl.trans(k_tile))"),
    ("lse[None, :]", "lse[:, None]"),
    ("offs_m[None, :] >= first_seeing[:, None]", "offs_m[:, None] >= first_seeing[None, :]"),
    ("dot(p_t.to(do_tile.dtype)", "dot(tl.trans(p_t.to(do_tile.dtype))"),
    ("dot(v_tile, tl.trans(do_tile))", "dot(do_tile, tl.trans(v_tile))"),
    ("delta[None, :]", "delta[:, None]"),
    ("dot(ds_t.to(q_tile.dtype)", "dot(tl.trans(ds_t.to(q_tile.dtype))"),
)


def transposed_later() -> Any:
    """dkdv_kernel with tiles [BLOCK_M, BLOCK_N], of which p and ds are transposed for dv and dk."""
    text = edited(source_of(backward.add_to_dkdv), *TRANSPOSED_LATER)
    return defined(f"{text}\n\n\n{source_of(backward.dkdv_kernel)}", vars(backward))["dkdv_kernel"]


def transposed_cases() -> Iterator[Measurement]:
    """Chapter 7: dk and dv from transposed tiles of scores, and from the forward's tiles, transposed later."""
    for shape, ways in TRANSPOSED_TILES.items():
        words = {way: about(7, "transposed", way[0], tile=in_words(way[1]), **vars(shape)) for way in ways}
        yield from in_turns(words, _transposed_in_turns, shape)


def _transposed_in_turns(shape: Shape) -> dict[tuple[str, TileConfig], dict[str, Any]]:
    """The times are those of dkdv_kernel alone. With what the compiler made of it."""
    q, k, v, o, do, lse, *_ = _backward_arguments(shape)
    delta = backward.row_delta(o, do)
    kernels = dict(zip(TRANSPOSED, (backward.dkdv_kernel, transposed_later()), strict=True))
    launches, compiled, right = {}, {}, None
    for way in TRANSPOSED_TILES[shape]:
        how, tile = way
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        launches[way] = launch = partial(
            kernels[how][(-(-shape.S_k // tile.block_n) * shape.B * shape.H_k,)],
            *map(heads, (q, k, v, do, dk, dv)), lse, delta, shape.H_k, shape.S_q, shape.S_k, shape.D, shape.D**-0.5,
            IS_CAUSAL=shape.is_causal, GROUP=shape.H_q // shape.H_k, BLOCK_D=padded_d(shape.D), **tile.launch(),
        )  # fmt: skip
        compiled[way] = launch()
        right = right or (dk, dv)
        require_alike((dk, dv), right)
    rows = graphs_in_turns(launches, rounds=6)
    return {way: row | room_of(compiled[way]) for way, row in rows.items()}


def masked_loop_cases() -> Iterator[Measurement]:
    """Chapter 7: dkdv_kernel, causal, with its masked loop last, as it is, and first."""
    return by_shape(
        7,
        "masked_loop",
        _masked_loops_in_turns,
        [dataclasses.replace(SIXTEEN_HEADS[128], is_causal=True)],
        ("last", "first"),
    )


def masked_loop_first() -> Any:
    """dkdv_kernel with its two loops exchanged."""
    text = source_of(backward.dkdv_kernel)
    full, masked, end = (
        text.index(line)
        for line in ("        for start_m in tl.range(full_m", "        if IS_CAUSAL:  # last", "    store_tile(dk")
    )
    moved = text[:full] + text[masked:end].rstrip() + "\n" + text[full:masked] + text[end:]
    return defined(moved, vars(backward))["dkdv_kernel"]


def _masked_loops_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    arguments = _backward_arguments(shape)
    delta, alone = backward.row_delta(arguments[3], arguments[4]), {"dq_kernel": mock.MagicMock()}

    def run(kernel: Any) -> tuple[torch.Tensor, ...]:
        with mock.patch.multiple(backward, row_delta=lambda *_: delta, dkdv_kernel=kernel, **alone):
            return backward.flash_backward(*arguments)[1:]

    calls = {"last": partial(run, backward.dkdv_kernel), "first": partial(run, masked_loop_first())}
    require_alike(calls["first"](), calls["last"]())
    return graphs_in_turns(calls, rounds=6)


# What the kernel with atomics is tried with; the fastest counts.
ATOMIC_TILES = [
    TileConfig(m, n, warps, stages)
    for m, n, warps in ((32, 64, 4), (64, 64, 4), (64, 64, 8), (64, 128, 8))
    for stages in (2, 3)
]


def naive_backward_cases() -> Iterator[Measurement]:
    """Chapter 6: the kernels of naive attention's backward in their order, each the median of five calls."""
    size = {"B": 1, "H": 16, "S": 16_384, "D": 64}
    words = {step: about(6, "naive_backward", step, **size) for step in NAIVE_BACKWARD}
    return in_turns(words, _naive_backward_kernels, **size)


NAIVE_BACKWARD = ("dv", "dp", "p ∘ dp", "ds", "scale · ds", "dq", "dk")


def _naive_backward_kernels(B: int, H: int, S: int, D: int) -> dict[str, dict[str, Any]]:
    q, k, v, do = (randn(B, H, S, D).requires_grad_() for _ in range(4))
    o = _naive(q, k, v)

    def call() -> None:
        torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    call()
    times = []
    for _ in range(5):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        kernels = [event for event in found.events() if event.device_time > 0 and "Memset" not in event.name]
        kernels.sort(key=lambda event: event.time_range.start)
        # PyTorch cuts an elementwise operation of so many elements into several launches
        steps = itertools.groupby(kernels, lambda event: "elementwise" if "elementwise" in event.name else event.name)
        times.append([sum(event.device_time for event in step) / 1e3 for _, step in steps])
    medians = [round(statistics.median(step), 3) for step in zip(*times, strict=True)]
    return {step: {"ms": ms} for step, ms in zip(NAIVE_BACKWARD, medians, strict=True)}


STEPS = (
    "two loops", "dkdv_kernel", "in the one loop's tile", "with a fifth matmul", "of transposed ds", "with dq's matmul",
    "one loop", "dq's zeros and rounding",
)  # fmt: skip
# Of changed_kernels.add_to_all: dq is added nowhere, which is known only when the kernel runs; its lines give way to
# nothing, or to a matmul whose factors lie as it takes them, or to dq's own. The last two add to dv, which makes it
# wrong and takes no registers; dq's fits there where the tile is square, as the fastest of D = 64 is.
NO_ADDS = ("mask=(offs_m[:, None] < S_q)", "mask=(offs_m[:, None] < -S_q)")
DQ_LINES = ("    dq_part = ", "    return dk, dv")
FIFTH = {
    STEPS[3]: "    dv += scale * dot(ds_t, do_tile)\n",
    STEPS[4]: "    dv += scale * dot(tl.trans(ds_t), k_tile)\n",
}


def one_loop_cases() -> Iterator[Measurement]:
    """Chapter 7: from dkdv_kernel to the backward in one loop, a change at a time, beside two loops."""
    for D, shape in SIXTEEN_HEADS.items():
        yield from by_shape(
            7, "one_loop", _steps_in_turns, [shape], [name for name in STEPS if D == 64 or name not in FIFTH]
        )


def changed_one_loop(*edits: tuple[str, str], instead: str | None = None) -> Any:
    """changed_kernels.atomic_kernel after `edits` of add_to_all; instead: of the lines that compute and add dq."""
    text = edited(source_of(changed_kernels.add_to_all), *edits)
    if instead is not None:
        start, end = map(text.index, DQ_LINES)
        text = text[:start] + instead + text[end:]
    names = vars(changed_kernels) | {"__name__": "step"}
    return defined(f"{text}\n\n\n{source_of(changed_kernels.atomic_kernel)}", names)["atomic_kernel"]


def _steps_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """The times are those without delta; those of one loop include the zeros of dq and its conversion to fp16.

    dq_differ: the largest number of elements of dq, in float32 for one loop, that differ from the first of ten runs;
    dq16_differ likewise, converted to fp16. The tile is the fastest of ATOMIC_TILES.
    """
    arguments = _backward_arguments(shape)
    q, k, v, o, do, lse, _, is_causal, scale = arguments
    delta = backward.row_delta(o, do)
    dk, dv = torch.empty_like(k), torch.empty_like(v)

    def two_loops(**replaced: Any) -> tuple[torch.Tensor, ...]:
        with mock.patch.multiple(backward, row_delta=lambda *_: delta, **replaced):
            return backward.flash_backward(*arguments)

    def launch(kernel: Any, tile: TileConfig, dq: torch.Tensor) -> Any:
        return kernel[(-(-shape.S_k // tile.block_n) * shape.B * shape.H_k,)](
            *map(heads, (q, k, v, do, dq, dk, dv)), lse, delta, shape.H_k, shape.S_q, shape.S_k, shape.D, scale,
            IS_CAUSAL=is_causal, RAGGED=shape.S_k % tile.block_n != 0, BLOCK_D=padded_d(shape.D), **tile.launch(),
        )  # fmt: skip

    def one_loop(tile: TileConfig) -> torch.Tensor:
        """dq in float32."""
        dq = torch.zeros_like(q, dtype=torch.float32)
        launch(changed_kernels.atomic_kernel, tile, dq)
        return dq

    right, tiles = two_loops(), {}
    for tile in ATOMIC_TILES:
        with contextlib.suppress(OutOfResources):
            require_alike((one_loop(tile), dk, dv), right)
            tiles[tile] = time_call(partial(one_loop, tile)).ms
    best = min(tiles, key=tiles.get)
    kernels = {STEPS[2]: changed_one_loop(instead=""), STEPS[5]: changed_one_loop(NO_ADDS)}
    if shape.D == 64:
        kernels |= {name: changed_one_loop(instead=line) for name, line in FIFTH.items()}
    rooms, dq = {}, torch.zeros_like(q, dtype=torch.float32)
    for name, kernel in kernels.items():
        dk.fill_(torch.nan), dv.fill_(torch.nan)
        rooms[name] = room_of(launch(kernel, best, dq)) | {"tile": in_words(best)}
        if name not in FIFTH:
            require_alike((dk, dv), right[1:])
    calls = {STEPS[0]: two_loops, STEPS[1]: partial(two_loops, dq_kernel=mock.MagicMock())}
    calls |= {name: partial(launch, kernel, best, dq) for name, kernel in kernels.items()}
    calls |= {STEPS[6]: lambda: one_loop(best).to(q.dtype), STEPS[7]: lambda: torch.zeros_like(dq).to(q.dtype)}
    rows = graphs_in_turns(calls, rounds=6)
    runs = {STEPS[0]: [two_loops()[0] for _ in range(10)], STEPS[6]: [one_loop(best) for _ in range(10)]}
    for name, (first, *others) in runs.items():
        rows[name] |= {
            "dq_differ": max((first != other).sum().item() for other in others),
            "dq16_differ": max((first.half() != other.half()).sum().item() for other in others),
        }
    return {name: row | rooms.get(name, {}) for name, row in rows.items()}


def require_alike(results: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
    """Raise ValueError where two versions of a kernel differ by more than the order of a sum can make them."""
    for x, y in zip(results, others, strict=True):
        if not (difference := (x - y).abs().max().item()) <= 4e-3 * y.abs().max().item():
            raise ValueError(f"two versions of one kernel differ by {difference}, of {y.abs().max().item()}")


def gradient_error_cases() -> Iterator[Measurement]:
    """Chapter 7: the largest error of dq, dk and dv against float64, of the course's kernels and of PyTorch's, and what
    rounding the exact gradients costs. The same with the root mean square error.
    """
    for dtype, D, is_causal, provider in itertools.product(
        ("fp16", "bf16"), (64, 128), (False, True), ("naive", "sdpa_flash", "basic", "rounding")
    ):
        words = about(7, "gradient_error", provider, dtype, B=1, H=8, S=2048, D=D, is_causal=is_causal)
        yield words, partial(_gradient_error_row, provider, DTYPES[dtype], D, is_causal)


def _gradient_error_row(provider: str, dtype: torch.dtype, D: int, is_causal: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k, v, do = (randn(1, 8, 2048, D, dtype=dtype) for _ in range(4))
    got = truth = reference.gradients(q, k, v, do, is_causal)
    if provider != "rounding":
        inputs = [x.requires_grad_() for x in (q, k, v)]
        got = torch.autograd.grad(peers.provider(provider)(*inputs, is_causal=is_causal), inputs, do)
    errors = {name: x.to(dtype).double() - t for name, x, t in zip(("dq", "dk", "dv"), got, truth, strict=True)}
    largest = {name: float(f"{x.abs().max().item():.3g}") for name, x in errors.items()}
    return largest | {f"{name}_rms": float(f"{x.square().mean().sqrt().item():.3g}") for name, x in errors.items()}
