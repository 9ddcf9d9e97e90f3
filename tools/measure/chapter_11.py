"""Chapter 11: decoding by each provider and by what a new token reads; the chapter's own kernels by the number of
splits; and a plain read.

Every call is replayed from a CUDA graph, as a server does it: it takes the GPU tens of microseconds, and the host
longer to launch it.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch

from fa_tutorial import decode
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import graph_of, randn, timed, timed_in_turns
from fa_tutorial.exercises import catalogue
from fa_tutorial.hardware import device
from fa_tutorial.matmul import triton
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import heads
from measure.turns import Rows, graphs_in_turns, in_turns

Provider = tuple[str, int | None]  # and its splits
DECODE = ((32_768, "sdpa_flash"), (32_768, "sdpa_cudnn"), *itertools.product((131_072, 32_768), ("decode", "basic")))


def shape_of(B: int, S: int, S_q: int = 1) -> Shape:
    """64 query heads, 8 key heads, D = 128: the heads of many models of 70 billion parameters."""
    return Shape(B, 64, 8, S_q, S, 128, True)


def call_of(provider: str, shape: Shape) -> Callable[[], Any]:
    """A call of "decode", "fp8", "window 1024" for a window of the last 1,024 keys, or one of peers.PROVIDERS."""
    kind, _, number = provider.partition(" ")
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    cache_shape = shape.B, shape.H_k, shape.S_k, shape.D
    if kind == "fp8":  # any positive numbers of the format will do
        k, v = (
            torch.randint(0, 100, cache_shape, dtype=torch.uint8, device=q.device).view(decode.FP8) for _ in range(2)
        )
    else:
        k, v = randn(*cache_shape), randn(*cache_shape)
    if provider in peers.PROVIDERS:  # the one new token sees every key, as without a mask
        return partial(peers.provider(provider), q, k, v, False)
    lengths = torch.full((shape.B,), shape.S_k, dtype=torch.int32, device=device())
    options: dict[str, Any] = {}
    if kind == "window":
        options["window"] = (int(number) - 1, 0)  # the token's own key is one of them
    if kind == "fp8":
        options["k_scale"] = options["v_scale"] = torch.full((shape.H_k,), 0.01, device=device())
    return partial(decode.flash_decode, q, k, v, lengths, **options)


def decode_cases() -> Iterator[Measurement]:
    """One token for one sequence of S keys, by the course's kernel, chapter 5's and other attentions."""
    for S, provider in DECODE:
        shape = shape_of(1, S)
        yield about(11, "decode", provider, **vars(shape)), partial(_row, provider, shape)


def own_kernel_cases() -> Iterator[Measurement]:
    """The chapter's own kernels, split_kernel of 11.3 and merge_kernel of 11.2, beside chapter 5's, in turns."""
    yield from _by_splits("own_kernels", _own_kernels_in_turns, shape_of(1, 32_768), OWN_KERNELS)


def _by_splits(kernel: str, rows: Rows, shape: Shape, providers: Sequence[Provider]) -> Iterator[Measurement]:
    words = {(name, n): about(11, kernel, name, **vars(shape), splits=n) for name, n in providers}
    return in_turns(words, rows, shape, providers)


OWN_KERNELS: list[Provider] = [*(("11.3", n) for n in (1, 8, 16, 32)), ("11.3, 64 rows", 1), ("basic", None)]
STEPS: dict[tuple[int, int], list[Provider]] = {  # by sequences and keys
    (1, 32_768): [
        *(("11.3", n) for n in (8, 16)),
        *(("11.3, no merge, keys in L2", n) for n in (1, 8, 16)),
        ("11.3, keys in L2", 16),
        ("nothing", None),
    ],
    (1, 34_816): [("11.3", n) for n in (8, 12, 16, 17, 20, 24, 28, 32, 33, 34, 40, 46, 49, 50, 56, 64)],
    (8, 32_768): [
        *(("11.3", n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 12)),
        *(("11.3, no merge, keys in L2", n) for n in (2, 4, 6)),
        *((f"11.5, pages of 64{stages}", 4) for stages in ("", ", 5 stages")),
    ],
}
FEWER = (  # a provider, new tokens
    *(("decode", S_q) for S_q in (1, 8)), ("window 1024", 1), ("fp8", 1), ("decode, keys in L2", 1),
)  # fmt: skip


def step_cases() -> Iterator[Measurement]:
    """The chapter's step by the number of splits, what it consists of, and a launch that does nothing; clean_us: see
    _clean_us."""
    for (B, S), providers in STEPS.items():
        yield from _by_splits("steps", _steps_in_turns, shape_of(B, S), providers)


def _steps_in_turns(shape: Shape, providers: Sequence[Provider]) -> dict[Any, dict[str, Any]]:
    return _timed_and_clean({which: _own_call(shape, *which) for which in providers})


def _timed_and_clean(calls: dict[Any, Callable[[], Any]]) -> dict[Any, dict[str, Any]]:
    graphs = {which: graph_of(call) for which, call in calls.items()}
    found = timed_in_turns({which: graph.replay for which, graph in graphs.items()}, rounds=2)
    return {which: row | {"clean_us": _clean_us(graphs[which].replay)} for which, row in found.items()}


def fewer_cases() -> Iterator[Measurement]:
    """The package's step of eight sequences, by what each new token reads, all in one run; clean_us: see _clean_us."""
    words = {(name, S_q): about(11, "fewer", name, **vars(shape_of(8, 32_768, S_q))) for name, S_q in FEWER}
    return in_turns(words, _fewer_in_turns)


def _fewer_in_turns() -> dict[Any, dict[str, Any]]:
    return _timed_and_clean({(name, S_q): _package_call(name, shape_of(8, 32_768, S_q)) for name, S_q in FEWER})


NEAR = "start + (start_n - start) % (2 * BLOCK_N),"  # in place of start_n: two tiles in turn


def _package_call(name: str, shape: Shape) -> Callable[[], Any]:
    """call_of; with "keys in L2" each program reads two tiles again and again, which is another result."""
    name, near, _ = name.partition(", keys in L2")
    call = call_of(name, shape)
    if not near:
        return call
    loads = "block_table, b, h_k, start_n,", f"block_table, b, h_k, {NEAR}", 2
    split_kernel = defined(edited(source_of(decode.split_kernel), loads), vars(decode))["split_kernel"]

    def near_call() -> Any:
        with mock.patch.object(decode, "split_kernel", split_kernel):
            return call()

    return near_call


@triton.jit
def nothing(o_ptr):
    """A kernel that does nothing."""


def _own_kernels_in_turns(shape: Shape, providers: Sequence[Provider]) -> dict[Any, dict[str, Any]]:
    calls = {
        (name, splits): _own_call(shape, name, splits) if name.startswith("11") else call_of(name, shape)
        for name, splits in providers
    }
    return graphs_in_turns(calls, rounds=6)


def _own_call(shape: Shape, name: str, splits: int) -> Callable[[], torch.Tensor]:
    """split and merge as the chapter launches them, checked once. With "keys in L2" a program reads two tiles again and
    again, and with "no merge" nothing is merged, which are other results. With "nothing" a kernel does
    nothing."""
    if name == "nothing":
        return partial(nothing[(128,)], torch.empty(1, device=device()))
    split_kernel, merge_kernel = (catalogue.find(number).solution for number in (name[:4], "11.2"))
    kind, names = split_kernel.fn.__name__, split_kernel.fn.__globals__
    if "L2" in name:
        split_kernel = defined(edited(source_of(split_kernel), ("h_k, start_n,", f"h_k, {NEAR}")), names)[kind]
    q, (k, v) = randn(shape.B, shape.H_q, 1, shape.D), randn(2, shape.B, shape.H_k, shape.S_k, shape.D)
    rows, programs = shape.H_q // shape.H_k, shape.B * shape.H_k
    seqlens = torch.tensor([shape.S_k] * shape.B, dtype=torch.int32, device=q.device)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    o_parts = torch.empty(splits, programs, rows, shape.D, device=q.device)
    lse_parts = torch.empty(splits, programs, rows, device=q.device)
    sizes, scale = (shape.H_k, 1, rows), shape.D**-0.5
    meta = {
        "BLOCK_M": 64 if "64 rows" in name else 16,
        "BLOCK_N": 64,
        "BLOCK_D": shape.D,
        "num_stages": 5 if "5 stages" in name else 3,
    }
    cache, tables, length = (k, v), (), shape.S_k
    if "pages" in name:
        meta["PAGE_SIZE"] = size = int(name.split("pages of ")[1].split(",")[0])
        length = shape.S_k // size  # pages a sequence
        table = torch.arange(shape.B * length, dtype=torch.int32, device=q.device).view(shape.B, length)
        cache = [x.unflatten(2, (length, size)).transpose(1, 2).flatten(0, 1).contiguous() for x in (k, v)]
        tables = table, seqlens
    tensors = [heads(x) for x in (q.view(shape.B, shape.H_k, rows, shape.D), *cache)]
    arguments = (*tensors, *tables, heads(o_parts), lse_parts, *sizes, length, shape.D, scale)

    def call() -> torch.Tensor:
        split_kernel[(programs, splits)](*arguments, **meta)
        if "no merge" not in name:
            parts = (o_parts, lse_parts, o, lse, q.numel() // shape.D, splits, shape.D)
            merge_kernel[(q.numel() // shape.D,)](*parts, BLOCK_S=triton.next_power_of_2(splits), BLOCK_D=shape.D)
        return o

    if "L2" not in name and "no merge" not in name:
        torch.testing.assert_close(call(), decode.flash_decode(q, k, v, seqlens), rtol=1e-2, atol=1e-3)
    return call


def read_cases() -> Iterator[Measurement]:
    """PyTorch's sum of as many numbers as the keys and values of one sequence have; clean_us: see _clean_us."""
    shape = shape_of(1, 32_768)
    yield about(11, "read", "torch", **vars(shape)), partial(_read_row, shape)


def _read_row(shape: Shape) -> dict[str, Any]:
    replay = graph_of(randn(2, shape.B, shape.H_k, shape.S_k, shape.D).sum).replay
    return timed(replay) | {"clean_us": _clean_us(replay)}


def _clean_us(call: Callable[[], Any]) -> float:
    """The median time of 200 calls, where 512 MB that are read empty L2 before it.

    do_bench writes 256 MiB, whose last part is still to be written back.
    """
    filler = torch.zeros(2**27, device=device())
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(200)]
    for start, end in events:
        filler.sum()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return round(1000 * statistics.median(start.elapsed_time(end) for start, end in events), 2)


def _row(provider: str, shape: Shape) -> dict[str, Any]:
    try:
        return timed(graph_of(call_of(provider, shape)).replay)
    except (torch.cuda.OutOfMemoryError, peers.Unsupported) as error:
        return {"ms": None, "reason": str(error).splitlines()[0]}


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    return itertools.chain(decode_cases(), read_cases(), own_kernel_cases(), step_cases(), fewer_cases())
