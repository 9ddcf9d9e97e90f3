"""Graders, hints and reasoning of chapter 8: TFLOP/s, tiles that fit, tensor descriptors, and delta once for the whole backward."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from fa_tutorial import backward, hardware, ledger, reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises import chapter_5, solutions
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.chapter_5 import BHDS, BHSD, BSHD, attend, draw_qkv, scaled_scores, strides_of, walk_tiles, weigh
from fa_tutorial.exercises.grader import (
    OTHERS,
    PoisonedEmpty,
    Wrong,
    expect,
    fresh,
    input_buffer,
    output_buffer,
    run,
    run_kernel,
    show,
    unpack,
)
from fa_tutorial.exercises.pieces import triton
from fa_tutorial.forward import softmax_step
from fa_tutorial.tiles import TileConfig, dot, heads, padded_d

# After fa_tutorial, which says what to do where Triton is missing.
from triton.tools.tensor_descriptor import TensorDescriptor  # isort: skip

Tensor = torch.Tensor

# ---------------------------------------------------------------- 8.1

MATMULS = {"fwd": 2, "bwd": ledger.BACKWARD_MATMULS, "fwd_bwd": 2 + ledger.BACKWARD_MATMULS}


def _flops(B: int, H: int, S_q: int, S_k: int, D: int, is_causal: bool, mode: str) -> int:
    return ledger.backward_flops(B, H, S_q, S_k, D, is_causal, MATMULS[mode])


def grade_tflops(answer) -> None:
    """float32 is enough, and rounds a few times: rtol 1e-6."""

    def compare(*args: Any, otherwise: str, suspects: Mapping[str, float]) -> None:
        """suspects: diagnosis -> how many times too many."""
        want = _flops(*args[:7]) / args[7] / 1e12
        text = ", ".join(f'"{arg}"' if isinstance(arg, str) else str(arg) for arg in args)
        expect(run(answer, *args), want, on=f"tflops({text})", otherwise=otherwise, rtol=1e-6, atol=0.0,
               suspects={words: factor * want for words, factor in suspects.items()})  # fmt: skip

    per_second = "FLOPs / seconds / 10¹²"
    # With seconds = 10⁻¹² the result is the number of FLOPs.
    compare(1, 1, 4, 4, 8, False, "fwd", 1e-12, otherwise=f"forward: {per_second}, with 2 matmuls of 2 · S_q · S_k · D FLOPs a head", suspects={
        "FLOP/s are not turned to TFLOP/s: divide by 10¹²": 1e12,
        "these are GFLOP/s, or the time is taken for milliseconds: tera is 10¹², and the time is in seconds": 1e3,
        "tera is 10¹² here, not 2⁴⁰": 1e12 / 2**40,
        "the time is divided by 1,000: it is in seconds already": 1e-3,
        "the time is multiplied: FLOPs divided by seconds": 1e-24,
        "half is missing: 2 matmuls, and 2 FLOPs a multiply-add": 0.5,
        "both the second matmul and the addition of a multiply-add are missing": 0.25,
    })  # fmt: skip
    compare(3, 5, 4, 4, 8, False, "fwd", 1e-12, otherwise="every head of every batch entry counts", suspects={
        "the batch is missing": 1 / 3, "the heads are missing": 1 / 5, "batch and heads are missing": 1 / 15})  # fmt: skip
    compare(1, 1, 4, 7, 8, False, "fwd", 1e-12, otherwise="S_q · S_k pairs a head", suspects={
        "S_q is used for both lengths": 4 / 7, "S_k is used for both lengths": 7 / 4})  # fmt: skip
    compare(1, 1, 4, 4, 8, True, "fwd", 1e-12, otherwise="causal: only the pairs that are seen count", suspects={
        "pairs that the causal mask hides are counted": 16 / 10,
        "half of all pairs are counted: a causal row i of a square sees i + 1 keys, S · (S + 1) / 2 in all": 8 / 10,
        "the diagonal is not counted: query i sees key i too": 6 / 10,
    })  # fmt: skip
    compare(1, 1, 2, 5, 8, True, "fwd", 1e-12, otherwise="causal, S_q < S_k: query i sees keys 0 … i + S_k − S_q", suspects={
        "the mask starts at the top left: the last query sees the last key": 3 / 9,
        "pairs that the causal mask hides are counted": 10 / 9,
        "half of all pairs are counted: the last query sees S_k keys, the one before it one less": 5 / 9,
    })  # fmt: skip
    compare(1, 1, 5, 2, 8, True, "fwd", 1e-12, otherwise="causal, S_q > S_k: the first S_q − S_k queries see no key and cost nothing, never "
            "less than nothing", suspects={"the mask starts at the top left: the last query sees the last key": 9 / 3})  # fmt: skip
    compare(1, 1, 4, 4, 8, False, "bwd", 1e-12, otherwise="backward counts 5 matmuls, 2.5 times the forward", suspects={
        "backward is counted as a forward: it has 5 matmuls, not 2": 2 / 5,
        "backward is counted as twice the forward: s is computed again, so 5 matmuls, not 4": 4 / 5,
        "7 matmuls are counted: that is what two kernels do, each with s and dp of its own; what is counted is what has to be done, 5": 7 / 5,
        "5 forwards are counted: backward is 5 matmuls, and a forward has 2 already": 2.0,
        "half is missing: 2 FLOPs a multiply-add": 0.5,
    })  # fmt: skip
    compare(1, 1, 4, 4, 8, False, "fwd_bwd", 1e-12, otherwise="fwd_bwd is forward and backward together, 7 matmuls", suspects={
        "fwd_bwd counts the backward alone: forward and backward together": 5 / 7,
        "fwd_bwd counts the forward alone: forward and backward together": 2 / 7,
        "fwd_bwd counts 9 matmuls: 2 forward and 5 backward, whatever the kernels repeat": 9 / 7,
        "fwd_bwd counts 6 matmuls: 2 forward and 5 backward": 6 / 7,
        "fwd_bwd is the mean of the two: their FLOPs add, for seconds is the time of both": 1 / 2,
    })  # fmt: skip
    slow = (1, 1, 4, 4, 8, False, "fwd", 7e-9)
    exact = _flops(*slow[:7]) / slow[7] / 1e12  # 0.0731429, another number with each number of decimals
    compare(*slow, otherwise="something is rounded on the way: return FLOPs / seconds / 10¹² as it is, in float32 or float64", suspects={
        "the result is cut to a whole number, and a slow run does less than one TFLOP/s: divide by /, and round nothing": 0.0,
        **{f"the result is rounded to {places} decimal{'s' * (places > 1)}: return it as it is": round(exact, places) / exact for places in range(1, 6)},
    })  # fmt: skip
    for _ in range(20):
        sizes = (random.randint(1, 4), random.randint(1, 8), random.randint(1, 300), random.randint(1, 300), random.randint(1, 128))
        for is_causal in (False, True):
            for mode in MATMULS:
                seconds = 10 ** random.uniform(-5, 0)
                want = _flops(*sizes, is_causal, mode) / seconds / 1e12
                expect(
                    run(answer, *sizes, is_causal, mode, seconds),
                    want,
                    on="a random case",
                    otherwise=OTHERS,
                    values=False,
                    rtol=1e-6,
                    atol=0.0,
                )


# ---------------------------------------------------------------- 8.2

ENOUGH = 2**30  # bytes: more than any tile asks for


def _says_fits(answer: Callable, config: TileConfig, D: int, itemsize: int, limit: int) -> bool:
    result = run(answer, config, D, itemsize, limit)
    if isinstance(result, torch.Tensor):
        result = result.tolist()
    if result not in (True, False):  # so 1 and NumPy's bools are right too
        raise Wrong(f"returns {show(result)}, want True or False: {_fits_text(config, D, itemsize, limit)}")
    return bool(result)


def _fits_text(config: TileConfig, D: int, itemsize: int, limit: int | str) -> str:
    tile = f"block_m = {config.block_m}, block_n = {config.block_n}, num_stages = {config.num_stages}"
    return f"{tile}, D = {D}, itemsize = {itemsize}, limit {limit if isinstance(limit, str) else show(limit)}"


def _bytes_asked(answer: Callable, config: TileConfig, D: int, itemsize: int) -> int:
    """The smallest limit with which the answer says that the tile fits."""
    at_nothing, at_enough = (_says_fits(answer, config, D, itemsize, limit) for limit in (0, ENOUGH))
    if at_nothing and not at_enough:
        raise Wrong(
            f"the comparison is turned round: a tile fits where it needs at most the limit: {_fits_text(config, D, itemsize, ENOUGH)} gives False"
        )
    if at_nothing or not at_enough:
        limit = 0 if at_nothing else ENOUGH
        raise Wrong(f"the limit is not asked: {_fits_text(config, D, itemsize, limit)} gives {at_nothing}")
    too_little, enough = 0, ENOUGH
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        if _says_fits(answer, config, D, itemsize, middle):
            enough = middle
        else:
            too_little = middle
    return enough


def _row_bytes(rows: int, D: int, itemsize: int) -> int:
    return rows * padded_d(D) * itemsize


def _tile_bytes(config: TileConfig, D: int, itemsize: int) -> int:
    return _row_bytes(config.block_m + 2 * config.num_stages * config.block_n, D, itemsize)


def grade_fits(answer) -> None:
    def compare(config: TileConfig, D: int, itemsize: int, otherwise: str, suspects: Mapping[str, int]) -> None:
        """suspects: diagnosis -> the bytes that this very mistake asks for."""
        want = _tile_bytes(config, D, itemsize)
        asked = _bytes_asked(answer, config, D, itemsize)
        if asked == want:
            return
        near = {"a tile that needs exactly the limit fits: at most the limit, not less": want + 1, **suspects}
        diagnosis = next((words for words, value in near.items() if value == asked), otherwise)
        raise Wrong(f"{diagnosis}: {_fits_text(config, D, itemsize, 'L')} is True from L = {show(asked)} on, want {show(want)}")

    def of_rows(rows: int) -> int:
        return _row_bytes(rows, 256, 2)

    def times(D: int, itemsize: int) -> float:
        """How many times too many bytes are asked for."""
        return _bytes_asked(answer, config, D, itemsize) / _tile_bytes(config, D, itemsize)

    # Sizes with which no two mistakes give the same number.
    m, n, stages = 128, 16, 3
    config, want = TileConfig(m, n, 4, stages), of_rows(m + 2 * stages * n)
    twice = times(256, 2) == 2  # for either of two reasons, or a third one
    compare(config, 256, 2, "q's tile stays, num_stages tiles each of k and v stream", {
        "num_stages is not used: that many tiles each of k and v are in flight": of_rows(m + 2 * n),
        "q is counted num_stages times: its tile stays, k and v stream": of_rows(stages * (m + 2 * n)),
        "one of k and v is missing: num_stages tiles of each": of_rows(m + stages * n),
        "q is missing: its tile stays in shared memory": of_rows(2 * stages * n),
        "o is counted too: acc is in registers": of_rows(2 * m + 2 * stages * n),
        "block_m and block_n are exchanged: q has block_m rows, k and v have block_n": of_rows(n + 2 * stages * m),
        "one stage too few is counted": of_rows(m + 2 * (stages - 1) * n),
        "one stage too many is counted": of_rows(m + 2 * (stages + 1) * n),
        "the tile of scores is counted too: s and p are in registers": want + 4 * m * n,
        "the tile of scores is counted too, in half precision: s and p are in registers": want + 2 * m * n,
        "1 KB is added: a block costs that of the SM's 228 KB, not of its own limit": want + 1024,
        "elements are counted, not bytes: multiply by itemsize": want // 2,
        "itemsize is taken for 4: it is an argument": 2 * want if twice and times(256, 4) == 1 else -1,
        "D = 256 is padded to 512: a D that is a power of two stays as it is": 2 * want if twice and times(80, 2) == 1 else -1,
        "bits are counted: the limit is in bytes": 8 * want,
        "D is missing: a tile has D columns": (m + 2 * stages * n) * 2,
        "bytes are compared with kilobytes: the limit is in bytes": -(-want // 1024),
        "the limit is multiplied by 1,000 or 1,024: it is in bytes": -(-want // 1000),
    })  # fmt: skip
    rows = m + 2 * n
    compare(TileConfig(m, n, 4, 1), 64, 4, "itemsize and num_stages are arguments", {
        "itemsize is taken for 2: it is an argument": _row_bytes(rows, 64, 2),
        "with num_stages = 1 one tile each of k and v is there": _row_bytes(m, 64, 4),
    })  # fmt: skip
    rows = 64 + 2 * 2 * 32
    padding = "a tile has BLOCK_D columns, D rounded up to a power of two of at least 16"
    compare(TileConfig(64, 32, 4, 2), 80, 2, padding, {
        f"D is not padded, or to a multiple of 16 alone: {padding}": rows * 80 * 2,
        f"D is padded to a multiple of 32: {padding}": rows * 96 * 2,
        f"D is padded down: {padding}": rows * 64 * 2,
    })  # fmt: skip
    compare(TileConfig(64, 32, 4, 2), 8, 2, padding, {
        f"D = 8 stays 8: {padding}": rows * 8 * 2,
        f"D is padded to at least 64: {padding}": rows * 64 * 2,
        f"D is padded to at least 32: {padding}": rows * 32 * 2,
    })  # fmt: skip
    for _ in range(6):
        block_m, block_n = (2 ** random.randint(4, 8) for _ in range(2))
        config, D, itemsize = TileConfig(block_m, block_n, 4, random.randint(1, 5)), random.randint(1, 256), random.choice((2, 4))
        if _bytes_asked(answer, config, D, itemsize) != _tile_bytes(config, D, itemsize):
            raise Wrong(f"{OTHERS}: a random case")


# ---------------------------------------------------------------- 8.3


@dataclass(frozen=True)
class _WithDescriptors:
    """A kernel that is launched with a descriptor in place of each of its first four arguments, tensors q, k, v and o."""

    kernel: Any

    @property
    def fn(self) -> Callable:
        return self.kernel.fn

    def __getitem__(self, grid: Any) -> Callable:
        def launch(q: Tensor, k: Tensor, v: Tensor, o: Tensor, *numbers: Any, **meta: int) -> None:
            rows = (meta["BLOCK_M"], meta["BLOCK_N"], meta["BLOCK_N"], meta["BLOCK_M"])
            tensors = zip((q, k, v, o), rows, strict=True)
            descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, r, x.shape[3]]) for x, r in tensors]
            self.kernel[grid](*descriptors, *numbers, **meta)

        return launch


class _DescriptorGrader(chapter_5.ForwardGrader):
    """chapter_5.ForwardGrader for a kernel that takes descriptors. Strides other than D's are multiples of 16 bytes."""

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale: float, blocks: Sequence[int], strides: Sequence[Any]) -> list[Tensor]:
        (B, H, S_q, D), S_k = q.shape, k.shape[2]
        buffers = [input_buffer(name, x, lies) for name, x, lies in zip("qkv", (q, k, v), strides[:3], strict=True)]
        buffers.append(output_buffer("o", q.shape, q.dtype, strides[3]))
        kernel = _WithDescriptors(self.kernel) if hasattr(self.kernel, "fn") else self.kernel
        grid = (-(-S_q // blocks[0]) * B * H,)
        return run_kernel(kernel, grid, (*buffers, H, S_q, S_k, scale), BLOCK_M=blocks[0], BLOCK_N=blocks[1], D=D)


def grade_flash_forward_descriptor_kernel(kernel) -> None:
    grader = _DescriptorGrader(kernel)
    _grade_one_tile(grader)
    _grade_two_tiles(grader)
    chapter_5.grade_range(grader)
    _grade_half(grader)
    _grade_coordinates(grader)
    _grade_ends(grader)
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    grader.compare((q, k, v), "scale = 0.5, D = 16", "the scale is an argument, which the caller may choose", {
        "the scale is computed in the kernel: it is an argument, which the caller may choose": attend(q, k, v),
    }, scale=0.5)  # fmt: skip
    cases = [((1, 1, 1, 1, 16), torch.float32, (16, 16), 1.0), ((2, 3, 33, 40, 32), torch.float16, (32, 32), 3.0),
             ((2, 2, 15, 17, 16), torch.float32, (16, 16), 3.0)]  # fmt: skip
    if hardware.device().type == "cuda":
        cases.append(((2, 2, 40, 50, 64), torch.bfloat16, (16, 32), 1.0))
    for (B, H, S_q, S_k, D), dtype, blocks, factor in cases:
        inputs = [(factor * x).to(dtype) for x in draw_qkv(B, H, S_q, S_k, D, generator=fresh())]
        strides = [strides_of(tuple(x.shape), order) for x, order in zip((*inputs, inputs[0]), (BSHD, BHSD, BSHD, BSHD), strict=True)]
        on = f"{dtype_name(dtype)}, B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, D = {D}, views"
        grader.compare(inputs, on, OTHERS, blocks=blocks, strides=strides, values=False)


def _grade_one_tile(grader: _DescriptorGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    s = scaled_scores(q, k, 0.25)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    grader.compare((q, k, v), "S_q = S_k = D = 16, one tile", "one tile gives softmax(scale · q kᵀ) v", {
        "scale is forgotten: s = scale · q kᵀ": weigh(scaled_scores(q, k, 1.0), v),
        "scale is applied twice": weigh(scaled_scores(q, k, 0.0625), v),
        "acc is not divided: o = acc / l": p @ v.double(),
        "k is not transposed: a descriptor gives [BLOCK_N, D], and tl.trans turns it": weigh(scaled_scores(q, k.mT, 0.25), v),
        "v is transposed: p v": weigh(s, v.mT),
        "v is loaded from k_desc": weigh(s, k),
        "k is loaded from v_desc": weigh(scaled_scores(q, v, 0.25), v),
        "a key that is there is hidden: the mask is start_n + tl.arange(0, BLOCK_N) < S_k": weigh(s[..., :15], v[:, :, :15]),
        "the scores themselves weigh v: p = exp(s − m)": s @ v.double(),
        "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))": weigh(s * math.log(2), v),
        "the softmax runs over the queries: a row's maximum and sum run over the keys, axis 1": torch.softmax(s, dim=-2) @ v.double(),
    }, unwritten="o's tile is not stored whole: o_desc.store([b, h, row, 0], tile), of shape [1, 1, BLOCK_M, D]")  # fmt: skip


TO_S_Q = "keys from S_q on do not count: the loop runs to S_k, and the mask lets all keys below S_k through"


def _compare_keys(grader: _DescriptorGrader, inputs: Sequence[Tensor], *args: Any) -> None:
    """grader.compare, and where S_q seems to be taken for S_k, a case in which both are the same: that must be right."""
    try:
        grader.compare(inputs, *args)
    except Wrong as wrong:
        if str(wrong).startswith(TO_S_Q):  # what loads or counts the first tile alone gives the same
            q, k, v = draw_qkv(1, 1, 28, 28, 16)
            again = [torch.cat([x[:, :, :16], x[:, :, :12]], dim=2) for x in (k, v)]
            grader.compare((q, k, v), "S_q = S_k = 28, two tiles of keys", "only keys of the first tile count", {
                "every step loads the first tile of k and v: their row is start_n": attend(q, *again),
                "only the first tile counts: the loop runs to S_k": attend(q, k[:, :, :16], v[:, :, :16]),
            })  # fmt: skip
        raise


def _grade_half(grader: _DescriptorGrader) -> None:
    """fp16 holds neither 65536 nor 5 · 0.3: scores that are rounded to it, or come of what is rounded, show."""
    chapter_5.grade_half(grader)
    q, k, v = (x.to(torch.float16) for x in draw_qkv(1, 1, 16, 16, 16))
    grader.compare((torch.full_like(q, 128), torch.full_like(k, 128), v), "fp16, all of q and k 128, scale = 1 / 4, all scores 65536",
                   "the scaled scores overflow: they too stay in float32, fp16 ends at 65504")  # fmt: skip
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], q[..., 1] = 5, -1
    k[:, :, ::2, 0], k[:, :, ::2, 1] = 4096, 5 * 4096
    rounded = (0.3 * q).to(q.dtype)
    grader.compare((q, k, v), "fp16, q = (5, −1, 0 …), even keys 4096 · (1, 5, 0 …), odd keys 0, scale = 0.3",
                   "5 · 4096 − 1 · 5 · 4096 is 0, so all keys weigh the same: q and k are multiplied as they are, and summed in float32", {
        "scale · q is rounded to fp16, and the errors are as large as the scores: scale what tl.dot returns, in float32":
            weigh(scaled_scores(rounded, k, 1.0), v),
    }, scale=0.3)  # fmt: skip


def _grade_two_tiles(grader: _DescriptorGrader) -> None:
    elements = "a tile's coordinate counts rows, not tiles"
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    s = scaled_scores(q, k, 0.25)
    by_tiles = [torch.cat([x[:, :, :16], x[:, :, 1:17]], dim=2) for x in (k, v)]
    first = [x[:, :, :16].repeat(1, 1, 2, 1) for x in (k, v)]
    _compare_keys(grader, (q, k, v), "S_q = 16, S_k = 32, two tiles of keys", "a second tile joins by softmax_step: m, l and acc", {
        f"the second tile of k and v is loaded from row 1: {elements}": attend(q, *by_tiles),
        f"the second tile of k is loaded from row 1: {elements}": attend(q, by_tiles[0], v),
        f"the second tile of v is loaded from row 1: {elements}": attend(q, k, by_tiles[1]),
        f"the second tile of k and v is past the end, and 0: {elements}": weigh(F.pad(s[..., :16], (0, 16)), F.pad(v[:, :, :16], (0, 0, 0, 16))),
        "every step loads the first tile of k: its row is start_n": attend(q, first[0], v),
        "every step loads the first tile of v: its row is start_n": attend(q, k, first[1]),
        "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": walk_tiles(s, v, "acc")[0],
        "l is not rescaled when the maximum grows: l = alpha · l + Σ p": walk_tiles(s, v, "l")[0],
        "neither acc nor l is rescaled when the maximum grows": walk_tiles(s, v, "both")[0],
        "only the last tile counts: is m kept from step to step?": weigh(s[..., 16:], v[:, :, 16:]),
        TO_S_Q: weigh(s[..., :16], v[:, :, :16]),
    })  # fmt: skip
    q, k, v = draw_qkv(1, 1, 32, 16, 16)
    o, start = attend(q, k, v), "a program's rows start at row_block · BLOCK_M"
    grader.compare((q, k, v), "S_q = 32, two programs", f"{start}, in q and in o", {
        f"every program loads the first rows of q: {start}": o[:, :, :16].repeat(1, 1, 2, 1),
        f"the second program loads q from row 1: {elements}, and {start}": torch.cat([o[:, :, :16], o[:, :, 1:17]], dim=2),
    }, unwritten=f"the second block of rows is never stored: {start}, in o too, and {elements}")  # fmt: skip


def _grade_ends(grader: _DescriptorGrader) -> None:
    """Ragged ends: two heads, so that what lies past a head's end is the next head."""
    q, k, v = draw_qkv(1, 2, 16, 20, 16)
    s = scaled_scores(q, k, 0.25)
    padded_v = F.pad(v, (0, 0, 0, 12))
    zeros = "keys past S_k are zeros, and a score of 0 still weighs exp(0 − m): the mask on the scores stays, with −inf"
    grader.compare((q, k, v), "two heads, S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged", {
        zeros: weigh(F.pad(s, (0, 12)), padded_v),
        "the ragged last tile of keys is left out: the loop goes on while start_n < S_k": weigh(s[..., :16], v[:, :, :16]),
    })  # fmt: skip
    q, _, v = draw_qkv(1, 1, 16, 20, 16)
    grader.compare((torch.ones_like(q), torch.full_like(v, -50), v), "S_k = 20, BLOCK_N = 16, all logits −200",
                   "the score 0 of a key past S_k joins the maximum, and every p underflows: hide the scores before the maximum is taken")  # fmt: skip
    blocks = "a head has tl.cdiv(S_q, BLOCK_M) row blocks, and the descriptor drops what a store puts past S_q"
    grader.compare(draw_qkv(1, 2, 20, 16, 16), "two heads, S_q = 20, BLOCK_M = 16", f"the last block of rows may be ragged: {blocks}",
                   unwritten=f"the ragged last rows are never stored: {blocks}")  # fmt: skip


def _grade_coordinates(grader: _DescriptorGrader) -> None:
    own = "b and h are coordinates of their own, 0 and 1; h = (pid // row_blocks) % H, b = (pid // row_blocks) // H"
    flat = "a row past S is no row of the next head: what a descriptor's shape does not hold is 0"
    for shape, dim, what in (((1, 2, 16, 16, 16), 1, "head"), ((2, 1, 16, 16, 16), 0, "batch entry")):
        q, k, v = draw_qkv(*shape)
        first = [x.narrow(dim, 0, 1).expand_as(x) for x in (q, k, v)]
        only = [torch.cat([x.narrow(dim, 0, 1), torch.zeros_like(x.narrow(dim, 0, 1))], dim) for x in (q, k, v)]
        grader.compare((q, k, v), f"two {'heads' if dim else 'batch entries'}", own, {
            f"q, k and v are loaded from {what} 0 by every program: {own}": attend(*first),
            f"k and v are loaded from {what} 0 by every program: {own}": attend(q, *first[1:]),
            f"q is loaded from {what} 0 by every program: {own}": attend(first[0], k, v),
            f"k is loaded from {what} 0 by every program: {own}": attend(q, first[1], v),
            f"v is loaded from {what} 0 by every program: {own}": attend(q, k, first[2]),
            f"k and v of {what} 1 are 0: {own}; {flat}": attend(q, *only[1:]),
            f"q of {what} 1 is 0: {own}; {flat}": attend(only[0], k, v),
        }, unwritten=f"only {what} 0 of o is stored: {own}; {flat}")  # fmt: skip
    q, k, v = draw_qkv(2, 2, 16, 16, 16)
    swapped = [x.transpose(0, 1) for x in (q, k, v)]
    exchanged = "batch and head are exchanged in {}: // H gives b, % H gives h"
    grader.compare((q, k, v), "B = H = 2", "pid // row_blocks is b · H + h", {
        exchanged.format("k and v"): attend(q, *swapped[1:]),
        exchanged.format("k"): attend(q, swapped[1], v),
        exchanged.format("v"): attend(q, k, swapped[2]),
        exchanged.format("q or o"): attend(swapped[0], k, v),
        exchanged.format("q, k and v, or in o"): attend(*swapped),
    })  # fmt: skip
    number = f"a program's number is (b · H + h) · row_blocks + row_block: {own}"
    grader.compare(draw_qkv(2, 3, 16, 16, 16), "B = 2, H = 3", number, unwritten=f"some heads of o are never stored: {number}")


# ---------------------------------------------------------------- 8.4

KERNELS = (backward.delta_kernel, backward.dkdv_kernel, backward.dq_kernel)
ONCE = "delta_kernel is launched once, and dkdv_kernel and dq_kernel read what it wrote"


def _laid_out(x: Tensor, order: Sequence[int]) -> Tensor:
    """x in memory in this order of its dimensions."""
    back = [list(order).index(dim) for dim in range(4)]
    return x.permute(*order).contiguous().permute(*back)


@dataclass(frozen=True)
class _Case:
    """What backward_once gets, on the course's device. tensors: q, k, v, o, do, lse."""

    tensors: Mapping[str, Tensor]
    is_causal: bool
    scale: float
    on: str
    values: bool = True

    @property
    def sizes(self) -> dict[str, int]:
        (_, H_q, S_q, D), (H_k, S_k) = self.tensors["q"].shape, self.tensors["k"].shape[1:3]
        return {"H_q": H_q, "H_k": H_k, "S_q": S_q, "S_k": S_k, "D": D}

    @property
    def is_empty(self) -> bool:
        return not (self.tensors["q"].numel() and self.tensors["k"].numel())


def _case(
    B: int, H_q: int, H_k: int, S_q: int, S_k: int, D: int, on: str, *, dtype: torch.dtype = torch.float32, is_causal: bool = False,
    scale: float = 0.5, orders: Sequence[Sequence[int]] = (BHSD,) * 5, ones: bool = False, generator: torch.Generator | None = None,
    values: bool = True,
) -> _Case:  # fmt: skip
    """orders: in memory, of q, k, v, o, do. ones: do is 1 everywhere, expanded from one element."""
    q, k, v = (x.to(dtype) for x in draw_qkv(B, H_q, S_q, S_k, D, H_k=H_k, generator=generator))
    do = torch.randn(q.shape, generator=generator or torch.Generator().manual_seed(1)).to(dtype)
    o, lse = reference.attention(q, k, v, is_causal, scale)
    if ones:
        do = torch.ones_like(do)
    tensors = {
        name: _laid_out(x, order) for name, x, order in zip(("q", "k", "v", "o", "do"), (q, k, v, o.to(dtype), do), orders, strict=True)
    }
    tensors = {name: x.to(hardware.device()) for name, x in {**tensors, "lse": lse.float().contiguous()}.items()}
    if ones:
        tensors["do"] = torch.ones((), dtype=dtype, device=hardware.device()).expand(q.shape)
    return _Case(tensors, is_causal, scale, on, values)


class _Launches:
    """While it is open, every launch of the three kernels is checked before it runs, and then recorded.

    What the reader passes decides where a kernel writes, so that a wrong argument is told and never run.
    """

    def __init__(self, case: _Case) -> None:
        self.case, self.wrong = case, None
        self.records: list[tuple[str, dict[str, Any]]] = []
        kind = type(KERNELS[0])
        self._patch = mock.patch.object(kind, "__getitem__", self._watched(kind.__getitem__))

    def __enter__(self) -> _Launches:
        self._patch.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._patch.stop()

    def _watched(self, start: Callable) -> Callable:
        def item(kernel: Any, grid: Any) -> Callable:
            launch = start(kernel, grid)
            if not any(kernel is known for known in KERNELS):
                return launch

            def checked(*args: Any, **meta: Any) -> Any:
                try:
                    self.records.append((kernel.fn.__name__, _check_launch(self.case, kernel, grid, args, meta)))
                except Wrong as wrong:
                    self.wrong = self.wrong or wrong
                    raise
                return launch(*args, **meta)

            return checked

        return item


def _frames() -> Iterator[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _check_launch(case: _Case, kernel: Any, grid: Any, args: Sequence[Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """The launch's arguments by name; Wrong if one is not what the kernel has to get."""
    name = kernel.fn.__name__
    if backward.flash_backward.__code__ in _frames():
        raise Wrong("flash_backward launches the kernels here: launch the three of them yourself")
    if case.is_empty:
        raise Wrong(
            f"{name} is launched, though nothing is there to compute: where q or k is empty, the gradients are 0 and nothing is launched"
        )
    signature = inspect.signature(kernel.fn)
    try:
        given = dict(signature.bind(*args, **{key: value for key, value in meta.items() if key in signature.parameters}).arguments)
    except TypeError as error:
        raise Wrong(f"{name} gets other arguments than it takes: {error}") from error
    _check_read(case, name, given)
    _check_settings(case, name, given)
    _check_written(case, name, given)
    _check_grid(case, name, grid, {**meta, **given})
    return given


def _check_read(case: _Case, name: str, given: Mapping[str, Any]) -> None:
    for what, want in case.tensors.items():
        if what == "lse":
            if "lse_ptr" in given and not _is_same(given["lse_ptr"], want):
                raise Wrong(f"{name} gets {_named(case, given['lse_ptr'])} where lse belongs")
            continue
        if what not in given:
            continue
        x, strides = _as_heads(name, what, given[what])
        if not _is_same(x, want):
            raise Wrong(f"{name} gets {_named(case, x)} where {what} belongs")
        if any(u != stride for u, stride, size in zip(strides, x.stride(), x.shape, strict=True) if size > 1):
            raise Wrong(f"{name} gets wrong strides for {what}: heads({what}) takes its own; {tuple(strides)} instead of {x.stride()}")


def _as_heads(name: str, what: str, given: Any) -> tuple[Tensor, Sequence[int]]:
    """A tensor and its strides, of an argument that must be Heads."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], torch.Tensor) and len(given[1]) == 4:
        return given[0], given[1]
    raise Wrong(f"{name} gets {show(given)} for {what}, want heads({what}): the tensor with its four strides")


def _named(case: _Case, x: Any) -> str:
    return next((known for known, tensor in case.tensors.items() if _is_same(x, tensor)), "something else")


def _is_same(x: Any, y: Tensor) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)


def _check_settings(case: _Case, name: str, given: Mapping[str, Any]) -> None:
    sizes = {**case.sizes, "GROUP": case.sizes["H_q"] // case.sizes["H_k"], "BLOCK_D": padded_d(case.sizes["D"])}
    why = {"GROUP": ": H_q // H_k", "BLOCK_D": ": padded_d(D)"}
    for size, want in sizes.items():
        if size in given and given[size] != want:
            raise Wrong(f"{name} gets {size} = {show(given[size])}, want {want}{why.get(size, '')}")
    if "scale" in given and not math.isclose(float(given["scale"]), case.scale, rel_tol=1e-6):
        raise Wrong(f"scale does not reach {name}: it gets {show(float(given['scale']))}, want {show(case.scale)}")
    if "IS_CAUSAL" in given and bool(given["IS_CAUSAL"]) != case.is_causal:
        raise Wrong(f"is_causal does not reach {name}: IS_CAUSAL is {bool(given['IS_CAUSAL'])}, want {case.is_causal}")
    if given.get("dlse_ptr") is not None:
        raise Wrong(f"{name} gets a tensor for dlse_ptr: lse has no gradient here, so pass None")


def _check_written(case: _Case, name: str, given: Mapping[str, Any]) -> None:
    q, k, lse = (case.tensors[what] for what in ("q", "k", "lse"))
    like = {"delta": lse, "dq": q, "dk": k, "dv": k}
    for what, model in like.items():
        if what == "delta":
            x, strides = given["delta_ptr"], None
        elif what in given:
            x, strides = _as_heads(name, what, given[what])
        else:
            continue
        if not isinstance(x, torch.Tensor) or x.shape != model.shape:
            shape = f"of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else show(x)
            raise Wrong(f"{what}, which {name} gets, is {shape}, want shape {tuple(model.shape)}")
        if x.dtype != model.dtype:
            why = "delta is a sum, and the kernels take it as float32, whatever q is" if what == "delta" else f"{what} is like {what[1:]}"
            raise Wrong(f"{what} is {dtype_name(x.dtype)}, want {dtype_name(model.dtype)}: {why}")
        if strides is None and not x.is_contiguous():
            raise Wrong(f"{what} is not contiguous, and {name} takes it as if it were")
        if strides is not None and tuple(strides) != x.stride():
            raise Wrong(f"{name} gets wrong strides for {what}: heads({what}) takes its own; {tuple(strides)} instead of {x.stride()}")


def _check_grid(case: _Case, name: str, grid: Any, meta: Mapping[str, Any]) -> None:
    grid = grid(meta) if callable(grid) else grid
    programs = math.prod(grid) if isinstance(grid, tuple | list) else grid
    sizes, B = case.sizes, case.tensors["q"].shape[0]
    length, block, heads = ("S_k", "BLOCK_N", "H_k") if name == "dkdv_kernel" else ("S_q", "BLOCK_M", "H_q")
    blocks = triton.cdiv(sizes[length], meta[block])
    want = blocks * B * sizes[heads]
    if programs == want and (not isinstance(grid, tuple | list) or grid[0] == want):
        return
    suspects = {
        f"{name} has one program for each query head: dk and dv have H_k heads": blocks * B * sizes["H_q"],
        f"H_q is missing in {name}'s grid: its output has H_q heads": blocks * B * sizes["H_k"],
        f"the number of blocks is rounded down for {name}": sizes[length] // meta[block] * B * sizes[heads],
        f"the heads are missing in {name}'s grid": blocks * B,
        f"the batch is missing in {name}'s grid": blocks * sizes[heads],
        f"{name} has one program for each row, not for each block": sizes[length] * B * sizes[heads],
        f"batch and heads are missing in {name}'s grid": blocks,
    }
    if "BLOCK_N" in meta:
        crossed = triton.cdiv(*((sizes["S_q"], meta["BLOCK_M"]) if name == "dkdv_kernel" else (sizes["S_k"], meta["BLOCK_N"])))
        suspects[f"{name} divides the other length: its programs own blocks of {length}"] = crossed * B * sizes[heads]
    words = next((words for words, value in suspects.items() if value == programs), f"{name} has the wrong grid")
    raise Wrong(f"{words}: {programs} programs, want (cdiv({length}, {block}) · B · {heads},), which is {want}")


def grade_backward_once(answer) -> None:
    def grade(
        *args: Any, mistakes: Callable[[Mapping[str, Tensor]], Mapping[str, Mapping[str, Tensor]]] | None = None, **options: Any
    ) -> None:
        _grade_backward(answer, _case(*args, **options), mistakes)

    def orders(exact: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        names = (("dk", "dv", "dq"), ("dq", "dv", "dk"), ("dk", "dq", "dv"), ("dv", "dq", "dk"), ("dv", "dk", "dq"))
        return {
            f"the gradients come as dq, dk, dv, and here they come as {', '.join(given)}": {
                name: exact[other] for name, other in zip(("dq", "dk", "dv"), given, strict=True)
            }
            for given in names
        }

    grade(1, 1, 1, 4, 4, 4, "S_q = S_k = D = 4", mistakes=orders)
    grade(1, 1, 1, 4, 4, 4, "is_causal = True, scale = 0.25", is_causal=True, scale=0.25)
    grade(2, 3, 1, 5, 3, 6, "B = 2, H_q = 3, H_k = 1, S_q = 5, S_k = 3, D = 6, causal", is_causal=True)
    grade(1, 2, 2, 4, 5, 4, "q, k, v, o and do laid out differently", orders=(BSHD, BHDS, BSHD, BHSD, BHDS))
    grade(1, 1, 1, 4, 4, 4, "do = 1, expanded from one element", ones=True)
    grade(1, 1, 1, 4, 4, 4, "fp16, S_q = S_k = D = 4", dtype=torch.float16)
    for sizes, what in (((2, 2, 2, 0, 3, 4), "S_q = 0"), ((2, 2, 2, 3, 0, 4), "S_k = 0"), ((0, 2, 2, 3, 3, 4), "B = 0")):
        grade(*sizes, what)
    grade(1, 1, 1, 140, 20, 4, "S_q = 140, S_k = 20")
    grade(1, 2, 1, 19, 40, 20, "fp16, causal, H_q = 2, H_k = 1, S_q = 19, S_k = 40, D = 20, views", dtype=torch.float16, is_causal=True,
          orders=(BSHD,) * 5, generator=fresh(), values=False)  # fmt: skip


def _grade_backward(answer: Any, case: _Case, mistakes: Callable | None) -> None:
    tensors = [case.tensors[name] for name in ("q", "k", "v", "o", "do", "lse")]
    with _Launches(case) as launches, PoisonedEmpty():
        try:
            result = run(answer, *tensors, case.is_causal, case.scale, on=case.on)
        except Wrong as wrong:
            raise (Wrong(f"{launches.wrong}: {case.on}") if launches.wrong else wrong) from wrong
    if not case.is_empty:
        _check_order(case, launches.records)
    names = ("dq", "dk", "dv")
    got = dict(zip(names, unpack(result, names, case.on), strict=True))
    q, k, v, _, do, _ = (x.cpu() for x in tensors)
    wants = dict(zip(names, reference.gradients(q, k, v, do, case.is_causal, case.scale), strict=True))
    for name, x in got.items():
        if not isinstance(x, torch.Tensor):
            raise Wrong(f"{name} is {show(x)}, want a tensor: {case.on}")
        if x.dtype != q.dtype:
            raise Wrong(f"{name} is {dtype_name(x.dtype)}, want {dtype_name(q.dtype)}, like {name[1:]}: {case.on}")
    otherwise = (
        "where q or k is empty nothing is seen, so every gradient is 0"
        if case.is_empty
        else "the gradients are those of dkdv_kernel and dq_kernel"
    )
    share = 1e-4 if q.dtype == torch.float32 else 0.02
    atols = {name: share * max(1.0, float(want.abs().amax()) if want.numel() else 0.0) for name, want in wants.items()}
    found = mistakes(wants) if mistakes else {}
    for name in names:
        suspects = {words: values[name] for words, values in found.items() if _all_close(got, values, atols)}
        expect(
            got[name],
            wants[name],
            on=case.on,
            otherwise=otherwise,
            suspects=suspects,
            rtol=0.0,
            atol=atols[name],
            values=case.values,
            what=name,
        )


def _all_close(got: Mapping[str, Tensor], values: Mapping[str, Tensor], atols: Mapping[str, float]) -> bool:
    return all(
        got[name].shape == values[name].shape and torch.allclose(got[name].double().cpu(), values[name], rtol=0.0, atol=atols[name])
        for name in got
    )


def _check_order(case: _Case, both_calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Wrong unless each call launched each kernel once, delta_kernel first, and the other two with its delta."""
    half = len(both_calls) // 2
    records, again = both_calls[:half], both_calls[half:]
    launched = [name for name, _ in records]
    if launched != [name for name, _ in again]:
        raise Wrong(
            f"a second call launches other kernels than the first: delta belongs to one call's o and do, and is not kept: {case.on}"
        )
    for kernel, remedy in (
        ("delta_kernel", f"{ONCE}"),
        ("dkdv_kernel", "it computes dk and dv"),
        ("dq_kernel", "it computes dq"),
    ):
        times = launched.count(kernel)
        if times == 0:
            raise Wrong(f"{kernel} is never launched: {remedy}: {case.on}")
        if times > 1:
            raise Wrong(f"{kernel} is launched {times} times in a call, want once: {remedy}: {case.on}")
    given = dict(records)
    for kernel in ("dkdv_kernel", "dq_kernel"):
        if launched.index(kernel) < launched.index("delta_kernel"):
            raise Wrong(f"{kernel} is launched before delta_kernel has written delta: {case.on}")
        if given[kernel]["delta_ptr"].data_ptr() != given["delta_kernel"]["delta_ptr"].data_ptr():
            raise Wrong(f"{kernel} reads another delta than delta_kernel wrote, which is a second sum or a copy: {ONCE}: {case.on}")


EXERCISES = (
    Exercise(
        "8.1", "tflops", "Turn seconds into TFLOP/s, as the literature counts: the pairs that are seen, 2 matmuls forward, 5 backward.", grade_tflops,
        ("Exercise 0.1 counts the forward. What does a backward have to compute, and how many matmuls is that?",
         "forward = 4 · B · H · pairs · D, and backward is 2.5 times that. fwd_bwd is their sum, for seconds is then the time of both.",
         "ledger.visible_pairs(S_q, S_k, is_causal) counts the pairs; 10¹² FLOPs a second are one TFLOP/s."),
        solutions.tflops,
        "The count is of what has to be done, not of what a kernel does: a kernel that computes tiles of hidden pairs, or s twice, gets no credit for it. "
        "So the number compares implementations on one task, and against the chip's peak it says how much of it the task got.",
        helpers=(ledger.visible_pairs, ledger.attention_flops, ledger.backward_flops),
    ),
    Exercise(
        "8.2", "fits", "Say whether a tile of the forward kernel fits into a block's shared memory: a tile of q, num_stages tiles each of k and v.",
        grade_fits,
        ("How many rows does a block hold at once, over q, k and v? block_m of q once; how often block_n?",
         "(block_m + 2 · num_stages · block_n) rows of BLOCK_D elements of itemsize bytes. acc, s and p are in registers.",
         "BLOCK_D is D rounded up to a power of two of at least 16: fa_tutorial.tiles.padded_d(D). A tile of exactly the limit fits."),
        solutions.fits,
        "q is loaded once, and k and v stream through num_stages buffers each, so that the loads of later tiles run while one is computed. That sum "
        "decides which tiles a card can try at all: what does not fit is left out before anything is compiled.",
        helpers=(padded_d,),
    ),
    Exercise(
        "8.3", "flash_forward_descriptor_kernel",
        "Write the forward with tensor descriptors of shape (B, H, S, D) and tiles [1, 1, BLOCK_M or BLOCK_N, D]: full attention, any S_q and S_k.",
        grade_flash_forward_descriptor_kernel,
        ("x_desc.load([b, h, row, 0]) gives a tile of shape [1, 1, rows, D], with 0 past the descriptor's shape, and .reshape([rows, D]) drops the ones. "
         "o_desc.store takes the same coordinates, and a tile of shape [1, 1, BLOCK_M, D].",
         "Coordinates count elements: row_block · BLOCK_M for q and o, start_n for k and v. There are no pointers, strides or masks of loads left.",
         "Keys past S_k are zeros. What does exp make of their scores? tl.where(start_n + tl.arange(0, BLOCK_N)[None, :] < S_k, s, −inf), as in exercise 5.2."),
        solutions.flash_forward_descriptor_kernel,
        "The shape (B, H, S, D) is what stops a tile at its head's end: the hardware compares each coordinate with its own size. A 2-D descriptor of "
        "(B · H · S, D) knows one end alone, and its ragged tiles hold rows of the next head, and overwrite them at the store. The zeros that stand in "
        "are harmless in q and v; as keys they have the score 0, so the mask on the scores stays.",
        helpers=(softmax_step, dot),
    ),
    Exercise(
        "8.4", "backward_once",
        "Write backward_once(q, k, v, o, do, lse, is_causal, scale) -> (dq, dk, dv): launch fa_tutorial.backward's delta_kernel once, and dkdv_kernel and "
        "dq_kernel with its delta. Tensors may be views, H_q a multiple of H_k; where q or k is empty nothing is launched.",
        grade_backward_once,
        ("Three launches, in which order? delta is (B, H_q, S_q) float32, contiguous, and so is lse; dq, dk and dv are of q's dtype.",
         "fa_tutorial.tiles.heads(x) is a tensor with its strides, as the kernels take q, k, v, o, do, dq, dk and dv; lse and delta go in as they are, and None "
         "for dlse_ptr. BLOCK_M = BLOCK_N = 32 will do, BLOCK_D = padded_d(D), and GROUP = H_q // H_k for dkdv_kernel.",
         "Grids: cdiv(S_q, BLOCK_M) · B · H_q for delta and dq, cdiv(S_k, BLOCK_N) · B · H_k for dk and dv."),
        solutions.backward_once,
        "delta needs o and do, 2 · S_q · D elements a head, for S_q numbers. A dkdv_kernel that sums it itself reads o in every step, for every block of keys again, "
        "and keeps one more tile in shared memory; dq_kernel then sums it once more. As a kernel of its own it costs one pass over o and do, and what "
        "the other two read is 4 bytes a row.",
        helpers=(heads, padded_d),
    ),
)  # fmt: skip
