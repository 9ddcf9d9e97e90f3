"""Chapter 11: decoding by each provider, by the number of splits and of new tokens, by what its programs load, by the
page's own kernels, a window, and plain reads.

Every call is replayed from a CUDA graph, as a server does it: it takes the GPU tens of microseconds, and the host
longer to launch it. gb_s counts the bytes of the live keys and values, each once.
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
from fa_tutorial.bench.chapter_11 import call_of, shape_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import graph_of, randn, timed, timed_in_turns
from fa_tutorial.exercises import catalogue
from fa_tutorial.hardware import device
from fa_tutorial.matmul import triton
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import heads
from measure.turns import Rows, by_shape, graphs_in_turns, in_turns

Provider = tuple[str, int | None]  # and its splits
PROVIDERS = ("decode", "paged 16", "fp8", "basic", "sdpa_flash", "sdpa_cudnn")


def decode_cases() -> Iterator[Measurement]:
    """One token for each of B sequences, S keys each, by the course's kernel and its variants, and by other attentions.

    The largest cache comes first, while memory is in one piece, as a server's is: after the others, pages read at 64
    sequences took a quarter longer. So this chapter is best measured in a process of its own.
    """
    for B, S, provider in itertools.product((64, 8, 1), (131_072, 32_768, 4096), PROVIDERS):
        if provider == "basic" and B > 1 and S == 131_072:
            continue  # no page shows it
        shape = shape_of(B, S)
        yield about(11, "decode", provider, **vars(shape)), partial(_decode_row, provider, shape)


def split_cases() -> Iterator[Measurement]:
    """The same token by the number of splits. 34,816 keys are 544 tiles: 34 parts of 16, or 32 of 17."""
    one, longer = (1, 2, 4, 8, 16, 32, 33, 34, 48, 64), (1, 16, 17, 32, 34, 64, 68)
    for B, S, counts in ((1, 32_768, one), (1, 34_816, longer), (8, 32_768, (1, 2, 3, 4, 8))):
        shape = shape_of(B, S)
        words = {splits: about(11, "splits", "decode", **vars(shape), splits=splits) for splits in counts}
        yield from in_turns(words, _splits_in_turns, shape, counts)


def _splits_in_turns(shape: Shape, counts: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    calls = {splits: call_of("decode", shape, splits) for splits in counts}
    found = graphs_in_turns({splits: call for splits, (call, _) in calls.items()}, rounds=6)
    return {splits: row | {"gb_s": round(calls[splits][1] / row["ms"] / 1e6, 1)} for splits, row in found.items()}


def page_cases() -> Iterator[Measurement]:
    """A token of each of 8 sequences, by the size of their caches' pages; without pages by "decode"."""
    return by_shape(11, "pages", _pages_in_turns, [shape_of(8, 32_768)], PAGED)


PAGED = ("decode", "paged 16", "paged 64", "paged 128", "paged 256")


def _pages_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    return graphs_in_turns({provider: call_of(provider, shape)[0] for provider in PAGED}, rounds=6)


def page_kernel_cases() -> Iterator[Measurement]:
    """The page's own kernels, split_kernel of 11.3 or paged_split_kernel of 11.5 and merge_kernel of 11.2, beside
    chapter 5's and the package's, in turns for each number of sequences."""
    for B, providers in PAGE_KERNELS.items():
        yield from _by_splits("page_kernels", _page_kernels_in_turns, shape_of(B, 32_768), providers)


def _by_splits(
    kernel: str, rows: Rows, shape: Shape, providers: Sequence[Provider], *more: Any
) -> Iterator[Measurement]:
    words = {(name, n): about(11, kernel, name, **vars(shape), splits=n) for name, n in providers}
    return in_turns(words, rows, shape, providers, *more)


PAGE_KERNELS: dict[int, list[Provider]] = {  # by sequences
    1: [
        *(("11.3", n) for n in (1, 8, 16, 32)),
        *(("11.3, keys in L2", n) for n in (1, 16)),
        ("11.3, 64 rows", 1),
        ("basic", None),
        ("decode", None),
    ],
    8: [("11.3", 2), ("11.3", 4), *((f"11.5, pages of {size}", 4) for size in (64, 256)), ("decode", None)],
}


def _page_kernels_in_turns(shape: Shape, providers: Sequence[Provider]) -> dict[Any, dict[str, Any]]:
    calls = {
        (name, splits): _page_call(shape, name, splits) if name.startswith("11") else call_of(name, shape, splits)[0]
        for name, splits in providers
    }
    return graphs_in_turns(calls, rounds=6)


def _page_call(shape: Shape, name: str, splits: int, lengths: tuple[int, ...] = ()) -> Callable[[], torch.Tensor]:
    """split and merge as the page launches them, checked once. With "keys in L2" a program reads two tiles again and
    again, and with "no merge" nothing is merged, which are other results. lengths: of the sequences, S_k of each unless
    given. With "parts of 5" a part has 5 tiles, and splits of them cover the longest sequence."""
    split_kernel, merge_kernel = (catalogue.find(number).solution for number in (name[:4], "11.2"))
    kind, names = split_kernel.fn.__name__, split_kernel.fn.__globals__
    if "L2" in name:
        split_kernel = defined(edited(source_of(split_kernel), ("h_k, start_n,", f"h_k, {NEAR[1]}")), names)[kind]
    if "parts" in name:
        part = "tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1))", name.split()[-1]
        split_kernel = defined(edited(source_of(split_kernel), part), names)[kind]
    q, (k, v) = randn(shape.B, shape.H_q, 1, shape.D), randn(2, shape.B, shape.H_k, shape.S_k, shape.D)
    rows, programs = shape.H_q // shape.H_k, shape.B * shape.H_k
    seqlens = torch.tensor(lengths or [shape.S_k] * shape.B, dtype=torch.int32, device=q.device)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    o_parts = torch.empty(splits, programs, rows, shape.D, device=q.device)
    lse_parts = torch.empty(splits, programs, rows, device=q.device)
    sizes, scale = (shape.H_k, 1, rows), shape.D**-0.5
    meta = {"BLOCK_M": 64 if "64 rows" in name else 16, "BLOCK_N": 64, "BLOCK_D": shape.D, "num_stages": 3}
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


def fixed_cost_cases() -> Iterator[Measurement]:
    """The page's step of one sequence by the tiles of a program, with and without the merge, from memory and from L2;
    clean_us: see _clean_us."""
    shape = shape_of(1, 32_768)
    providers = [
        (f"11.3{merge}{keys}", n) for merge in ("", ", no merge") for keys in ("", ", keys in L2") for n in (1, 8, 16)
    ]
    return _by_splits("fixed_cost", _fixed_in_turns, shape, providers)


def _fixed_in_turns(shape: Shape, providers: Sequence[Provider]) -> dict[Any, dict[str, Any]]:
    calls = {which: _page_call(shape, *which) for which in providers}
    graphs = {which: graph_of(call) for which, call in calls.items()}
    found = timed_in_turns({which: graph.replay for which, graph in graphs.items()}, rounds=4)
    return {which: row | {"clean_us": _clean_us(graphs[which].replay)} for which, row in found.items()}


def tile_row_cases() -> Iterator[Measurement]:
    """The page's step with tiles of 16 rows and of 64."""
    for B, counts in {1: (1, 16, 32), 8: (4,)}.items():
        providers = [(name, n) for name in ("11.3", "11.3, 64 rows") for n in counts]
        yield from _by_splits("tile_rows", _page_kernels_in_turns, shape_of(B, 32_768), providers)


REQUESTS = (130, 3_900, 712, 57, 1_500, 260, 2_048, 33)  # the page's


def request_cases() -> Iterator[Measurement]:
    """The page's eight requests, and eight times as long ones, in pages of 64: with one number of splits, and in parts
    of one length, as many as a sequence needs."""
    for times, counts, parts in ((1, (4, 8, 16), (5,)), (8, (4, 16, 32), (33,))):
        lengths = tuple(times * n for n in REQUESTS)
        tiles = -(-max(lengths) // 64)
        providers = [("11.5, pages of 64", n) for n in counts]
        providers += [(f"11.5, pages of 64, parts of {n}", -(-tiles // n)) for n in parts]
        yield from _by_splits("requests", _requests_in_turns, shape_of(8, 64 * tiles), providers, lengths)


def _requests_in_turns(shape: Shape, providers: Sequence[Provider], lengths: tuple[int, ...]) -> dict[Any, Any]:
    return graphs_in_turns({which: _page_call(shape, *which, lengths) for which in providers}, rounds=4)


KEYS, VALUES = (
    f"{x}_tile = load_keys({x}, block_table, b, h_k, start_n, seqlen, D, PAGE_SIZE, BLOCK_N, BLOCK_D)\n" for x in "kv"
)
NEAR = ("start_n,", "start + (start_n - start) % (2 * BLOCK_N),")
LOADS = {  # changes of split_kernel
    "every tile": (),
    "two tiles": ((KEYS, KEYS.replace(*NEAR)), (VALUES, VALUES.replace(*NEAR))),
}


def kernel_that_loads(tiles: str) -> Any:
    """split_kernel whose programs load these tiles: all, or two again and again, which L2 keeps."""
    return defined(edited(source_of(decode.split_kernel), *LOADS[tiles]), vars(decode))["split_kernel"]


def load_cases() -> Iterator[Measurement]:
    """Eight sequences, by what the programs load."""
    shape = shape_of(8, 32_768)
    words = {tiles: about(11, "loads", "decode", **vars(shape), splits=None, tiles=tiles) for tiles in LOADS}
    return in_turns(words, _loads_in_turns, shape)


def _loads_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    graphs, (call, _) = {}, call_of("decode", shape)
    for tiles in LOADS:
        with mock.patch.object(decode, "split_kernel", kernel_that_loads(tiles)):
            graphs[tiles] = graph_of(call)
    return timed_in_turns({tiles: graph.replay for tiles, graph in graphs.items()}, rounds=6)


def token_cases() -> Iterator[Measurement]:
    """More new tokens at once: 8 sequences of 32,768 keys."""
    for tokens in (1, 2, 4, 8, 16):
        shape = shape_of(8, 32_768, tokens)
        yield about(11, "tokens", "decode", **vars(shape)), partial(_decode_row, "decode", shape)


def window_cases() -> Iterator[Measurement]:
    """A window of 1,024 keys in a cache of 32,768, beside all keys, a mask that hides the others, and a cache of the
    window's keys alone: 8 sequences.
    """
    for S, provider in ((32_768, "decode"), (32_768, "masked 1024"), (32_768, "window 1024"), (1024, "decode")):
        shape = shape_of(8, S)
        yield about(11, "window", provider, **vars(shape)), partial(_decode_row, provider, shape)


def read_cases() -> Iterator[Measurement]:
    """One sequence's keys and values, as many numbers summed by PyTorch, and as many bytes moved by a copy; clean_us:
    see _clean_us.
    """
    for S, provider in itertools.product((4096, 32_768, 131_072), ("decode", "torch", "copy")):
        shape = shape_of(1, S)
        yield about(11, "read", provider, **vars(shape)), partial(_read_row, provider, shape)


def _read_row(provider: str, shape: Shape) -> dict[str, Any]:
    x = randn(2, shape.B, shape.H_k, shape.S_k, shape.D)
    halves = x.view(-1).chunk(2)
    calls = {"decode": call_of("decode", shape)[0], "torch": x.sum, "copy": partial(halves[0].copy_, halves[1])}
    return _row(calls[provider], x.nbytes) | {"clean_us": _clean_us(graph_of(calls[provider]).replay)}


def _clean_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """The median time of a call, where 512 MB that are read empty L2 before it.

    do_bench writes 256 MiB, whose last part is still to be written back.
    """
    filler = torch.zeros(2**27, device=device())
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        filler.sum()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return round(1000 * statistics.median(start.elapsed_time(end) for start, end in events), 2)


def _decode_row(provider: str, shape: Shape, splits: int | None = None) -> dict[str, Any]:
    return _row(*call_of(provider, shape, splits))


def _row(call: Callable[[], Any], live_bytes: int) -> dict[str, Any]:
    try:
        graph = graph_of(call)
    except (torch.cuda.OutOfMemoryError, peers.Unsupported) as error:
        return {"ms": None, "reason": str(error).splitlines()[0]}
    return timed(graph.replay, bytes_moved=live_bytes)


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    return itertools.chain(
        decode_cases(), split_cases(), token_cases(), window_cases(), read_cases(), load_cases(), page_cases(),
        page_kernel_cases(), fixed_cost_cases(), tile_row_cases(), request_cases(),
    )  # fmt: skip
