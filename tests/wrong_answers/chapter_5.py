"""Chapter 5: accesses past the ends of heads and tensors, lanes that hold anything, NaN from −inf − (−inf), loops that begin before key 0.

Two kernels, right as long as the global FLAW is "": a wrong answer is one of them with a FLAW, by which a line differs.
"""

import types

from fa_tutorial.hardware import require_triton
from fa_tutorial.tiles import dot, load_tile, store_tile, tile_pointers

triton = require_triton("Chapter 5's wrong answers")
import triton.language as tl  # noqa: E402

FLAW = tl.constexpr("")


def flawed(kernel, flaw):
    """The kernel with another FLAW, which is a global of its own."""
    copy = types.FunctionType(kernel.fn.__code__, {**kernel.fn.__globals__, "FLAW": tl.constexpr(flaw)}, kernel.fn.__name__)
    copy.__annotations__ = kernel.fn.__annotations__
    copy.__module__ = __name__
    return triton.jit(copy)


@triton.jit
def _load_tile(x, out_ptr, H, S, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    pid, row_blocks = tl.program_id(0), tl.cdiv(S, BLOCK_M)
    b, h = pid // row_blocks // H, pid // row_blocks % H
    offs_m, offs_d = pid % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head = x if FLAW == "no pointer" else x.ptr + b * x.strides[0] + h * x.strides[1]
    x_ptrs = head + offs_m[:, None] * x.strides[2] + offs_d[None, :] * x.strides[3]
    end_m = S + BLOCK_M if FLAW == "rows not masked" else S
    mask = (offs_m[:, None] < end_m) & (offs_d[None, :] < D)
    tile = tl.load(x_ptrs, mask=mask) if FLAW == "no other" else tl.load(x_ptrs, mask=mask, other=0.0)
    rows = pid * BLOCK_M + (offs_m if FLAW == "stored by rows of the sequence" else tl.arange(0, BLOCK_M))
    tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], tile)


@triton.jit
def _forward(q, k, v, o, lse_ptr, H_q, H_k, S_q, S_k, D, scale, CAUSAL: tl.constexpr, HAS_LSE: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, FLAW: tl.constexpr):  # fmt: skip
    row_blocks = tl.cdiv(S_q, BLOCK_N if FLAW == "row blocks of BLOCK_N" else BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    heads = H_k if FLAW == "programs count key heads" else H_q
    b, h = batch_head // heads, batch_head % heads
    if FLAW == "batch and head exchanged":
        b, h = h, b
    h_k = h if FLAW == "key head is the query head" else h // (H_q // H_k)
    start_m = row_block * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_ptrs, rows, columns = tile_pointers(q, b, h, start_m, BLOCK_M, BLOCK_D)
    mask_q = (rows < S_q) & (columns < D)
    if FLAW == "and":
        mask_q = rows < S_q and columns < D
    q_tile = tl.load(q_ptrs, mask=mask_q, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    first, end = 0, S_k
    full = S_k // BLOCK_N * BLOCK_N  # tiles before it need no mask
    if CAUSAL:
        full = (start_m + (BLOCK_M if FLAW == "full from the last row" else 1) + S_k - S_q) // BLOCK_N * BLOCK_N
        first = tl.minimum(full, 0) if FLAW == "full is negative" else 0
        end = S_k if FLAW == "no tile is skipped" else tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(first, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_ptrs, keys, columns = tile_pointers(k, b, h_k, start_n, BLOCK_N, BLOCK_D)
        mask_k = (keys < (S_k + BLOCK_N if FLAW == "keys not masked" else S_k)) & (columns < D)
        k_tile = tl.load(k_ptrs, mask=mask_k) if FLAW == "k without other" else tl.load(k_ptrs, mask=mask_k, other=0.0)
        s = scale * tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        seen = offs_n[None, :] <= (offs_m[:, None] + S_k - S_q if CAUSAL else S_k - 1)
        s = tl.where(seen | (start_n + BLOCK_N <= full), s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))
        shift = m_new if FLAW == "no shift by 0" else tl.where(m_new == -float("inf"), 0.0, m_new)
        p = tl.exp(s - (m if FLAW == "exp of the old maximum" else shift)[:, None])
        alpha = tl.exp(m - shift)
        l = alpha * l + tl.sum(p, axis=1)
        v_ptrs, _, _ = tile_pointers(v, b, h_k, start_n, BLOCK_N, BLOCK_D)
        v_tile = tl.load(v_ptrs, mask=mask_k) if FLAW == "v without other" else tl.load(v_ptrs, mask=mask_k, other=0.0)
        acc = tl.dot(p if FLAW == "p in float32" else p.to(v_tile.dtype), v_tile, alpha[:, None] * acc, input_precision="ieee")
        m = m_new
    end_m = row_blocks * BLOCK_M if FLAW == "rows stored past the end" else S_q
    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, end_m, D, BLOCK_M, BLOCK_D)
    if HAS_LSE:
        end_m = row_blocks * BLOCK_M if FLAW == "lse stored past the end" else S_q
        tl.store(lse_ptr + batch_head * S_q + offs_m, m + tl.log(l_or_one), mask=offs_m < end_m)


@triton.jit
def _full(q, k, v, o, H, S_q, S_k, D, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    _forward(q, k, v, o, None, H, H, S_q, S_k, D, scale, False, False, BLOCK_M, BLOCK_N, BLOCK_D, FLAW)


@triton.jit
def _causal(q, k, v, o, H, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    _forward(q, k, v, o, None, H, H, S_q, S_k, D, scale, IS_CAUSAL, False, BLOCK_M, BLOCK_N, BLOCK_D, FLAW)


@triton.jit
def _gqa(q, k, v, o, lse_ptr, H_q, H_k, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    _forward(q, k, v, o, lse_ptr, H_q, H_k, S_q, S_k, D, scale, IS_CAUSAL, True, BLOCK_M, BLOCK_N, BLOCK_D, FLAW)


@triton.jit
def _always_causal(q, k, v, o, H, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    _forward(q, k, v, o, None, H, H, S_q, S_k, D, scale, True, False, BLOCK_M, BLOCK_N, BLOCK_D, FLAW)


@triton.jit
def _shadowed(q, k, v, o, H, S_q, S_k, D, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """q is a tile from its second line on, and is loaded from all the same."""
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    q = load_tile(q, b, h, 0, S_q, D, BLOCK_M, BLOCK_D)
    q = load_tile(q, b, h, 0, S_q, D, BLOCK_M, BLOCK_D)
    store_tile(o, dot(q, q), b, h, 0, S_q, D, BLOCK_M, BLOCK_D)


WRONG_ANSWERS = (
    ("5.1", flawed(_load_tile, "rows not masked"), "the tile runs over its head's end", "must be 0: load them with other=0.0"),
    ("5.1", flawed(_load_tile, "no other"), "without other=0.0 a load leaves the lanes that its mask hides undefined", None),
    ("5.1", flawed(_load_tile, "no pointer"), "write x.ptr for the pointer", None),
    ("5.1", flawed(_load_tile, "stored by rows of the sequence"), "element (i, j) of program pid's tile goes to"),
    ("5.2", _full.fn, "put @triton.jit above it"),
    ("5.2", _shadowed, "keep Heads and tiles apart", None),
    ("5.2", flawed(_full, "batch and head exchanged"), "// H gives b and % H gives h"),
    ("5.2", flawed(_full, "p in float32"), "one edge is left: fp16", None),
    ("5.3", flawed(_full, "exp of the old maximum"), "p is exp(s − m_new), and alpha is exp(m − m_new)"),
    ("5.3", flawed(_full, "row blocks of BLOCK_N"), "a tile of q or o has BLOCK_M rows"),
    ("5.4", flawed(_full, "and"), "join masks by &, not by `and`", None),
    ("5.4", flawed(_full, "keys not masked"), "keys past S_k are read", "rows of v's tile past S_k hold anything"),
    ("5.4", flawed(_full, "rows stored past the end"), "rows past S_q are loaded or stored"),
    ("5.4", flawed(_full, "k without other"), "columns past D hold anything", None),
    ("5.4", flawed(_full, "v without other"), "rows of v's tile past S_k hold anything", None),
    ("5.5", flawed(_causal, "full from the last row"), "the tile that the diagonal crosses is not masked"),
    ("5.5", flawed(_causal, "full is negative"), "one edge is left: the second loop starts before key 0", None),
    ("5.5", flawed(_causal, "no shift by 0"), "one edge is left: rows that see no key give NaN"),
    ("5.5", flawed(_causal, "no tile is skipped"), "one edge is left: a tile that no row of the block sees is not skipped"),
    ("5.5", _always_causal, "one edge is left: with IS_CAUSAL = False it is still the kernel of 5.4"),
    ("5.6", flawed(_gqa, "key head is the query head"), "query head h reads key head h // (H_q // H_k)"),
    ("5.6", flawed(_gqa, "programs count key heads"), "programs count query heads"),
    ("5.6", flawed(_gqa, "lse stored past the end"), "rows past S_q are loaded or stored, of o or lse"),
)
