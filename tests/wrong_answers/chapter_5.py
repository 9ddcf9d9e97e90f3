"""Chapter 5: accesses past the ends of heads and tensors, lanes that hold anything, NaN from −inf − (−inf), loops that begin before key 0.

Two kernels, right as long as the global FLAW is "": a wrong answer is one of them with a FLAW, by which a line differs.
"""

import types

from fa_tutorial.forward import softmax_step
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
    if FLAW == "row blocks rounded down":
        row_blocks = S_q // BLOCK_M
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
    m = tl.full((BLOCK_M,), -1e9 if FLAW == "m starts at a finite number" else -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    first, end, step = 0, S_k, BLOCK_N
    if FLAW == "start_n counts tiles":
        end, step = S_k // BLOCK_N, 1
    full = S_k // BLOCK_N * BLOCK_N  # tiles before it need no mask
    if CAUSAL:
        full = (start_m + (BLOCK_M if FLAW == "full from the last row" else 1) + S_k - S_q) // BLOCK_N * BLOCK_N
        first = tl.minimum(full, 0) if FLAW == "full is negative" else 0
        end = S_k if FLAW == "no tile is skipped" else tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(first, end, step):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_ptrs, keys, columns = tile_pointers(k, b, h_k, start_n, BLOCK_N, BLOCK_D)
        mask_k = (keys < (S_k + BLOCK_N if FLAW == "keys not masked" else S_k)) & (columns < D)
        k_tile = tl.load(k_ptrs, mask=mask_k) if FLAW == "k without other" else tl.load(k_ptrs, mask=mask_k, other=0.0)
        s = scale * tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        seen = offs_n[None, :] <= (offs_m[:, None] + S_k - S_q if CAUSAL else S_k - 1)
        if FLAW == "keys counted from the tile":
            seen = tl.arange(0, BLOCK_N)[None, :] < S_k
        if FLAW == "one key too many":
            seen = offs_n[None, :] <= S_k
        if FLAW == "rows for keys":
            seen = offs_n[:, None] < S_k
        s = tl.where(seen | (start_n + BLOCK_N <= full), s, -float("inf"))
        m_new = tl.max(s, axis=0) if FLAW == "maximum of the columns" else tl.maximum(m, tl.max(s, axis=1))
        shift = m_new if FLAW == "no shift by 0" else tl.where(m_new == -float("inf"), 0.0, m_new)
        p = tl.exp(s - (m if FLAW == "exp of the old maximum" else shift)[:, None])
        p = tl.exp(s - shift[None, :]) if FLAW == "maximum of the columns" else p
        alpha = tl.exp(m - shift)
        l = alpha * l + tl.sum(p, axis=1)
        v_ptrs, _, _ = tile_pointers(v, b, h_k, start_n, BLOCK_N, BLOCK_D)
        v_tile = tl.load(v_ptrs, mask=mask_k) if FLAW == "v without other" else tl.load(v_ptrs, mask=mask_k, other=0.0)
        if FLAW == "p left in float32":
            acc = dot(p, v_tile, alpha[:, None] * acc)
        elif FLAW == "p in fp16":
            acc = dot(p.to(tl.float16), v_tile, alpha[:, None] * acc)
        elif FLAW == "acc rescaled last":
            acc = dot(p.to(v_tile.dtype), v_tile, acc) * alpha[:, None]
        else:
            acc = tl.dot(p if FLAW == "p in float32" else p.to(v_tile.dtype), v_tile, alpha[:, None] * acc, input_precision="ieee")
        if FLAW == "divided in the loop":
            acc = acc / l[:, None]
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
def _attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,
            MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, FLAW: tl.constexpr):  # fmt: skip
    k_tile = load_tile(k, b, h_k, start_n, S_k if MASK else None, D, BLOCK_N, BLOCK_D)
    s = scale * dot(q_tile, tl.trans(k_tile))
    if (FLAW == "not MASK") != MASK:
        s = tl.where((start_n + tl.arange(0, BLOCK_N))[None, :] <= last_seen[:, None], s, -float("inf"))
    p, m, l, alpha = softmax_step(s, m, l)
    v_tile = load_tile(v, b, h_k, start_n, S_k if MASK else None, D, BLOCK_N, BLOCK_D)
    rescaled = acc * (alpha[None, :] if FLAW == "alpha by columns" else alpha[:, None])
    if FLAW == "acc replaced":
        rescaled = tl.zeros_like(acc)
    if FLAW == "acc not rescaled" or FLAW == "p v rescaled":
        rescaled = acc
    acc = dot(p.to(v_tile.dtype), v_tile, rescaled)
    return m, l, acc * alpha[:, None] if FLAW == "p v rescaled" else acc


@triton.jit
def _two_loops(q, k, v, o, H, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m, batch_head = tl.program_id(0) % row_blocks * BLOCK_M, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    last_seen = tl.full((BLOCK_M,), 0, dtype=tl.int32) + (S_k - 1)
    last_seen += 1 if FLAW == "last_seen is S_k" else 0
    full, end = S_k if FLAW == "full is S_k" else S_k // BLOCK_N * BLOCK_N, S_k
    if IS_CAUSAL:
        last_seen = last_seen if FLAW == "last_seen of no mask" else offs_m + (0 if FLAW == "last_seen top-left" else S_k - S_q)
        full = tl.maximum(start_m + 1 + S_k - S_q, 0)
        full = full if FLAW == "full is not rounded" else full // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    full = full // BLOCK_N if FLAW == "full in tiles" or FLAW == "full and end in tiles" else full
    end = tl.cdiv(end, BLOCK_N) if FLAW == "end in tiles" or FLAW == "full and end in tiles" else end
    for start_n in range(0, full, BLOCK_N):
        m, l, acc = _attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale, False, BLOCK_N, BLOCK_D, FLAW)
    for start_n in range(full, end, BLOCK_N):
        m, l, acc = _attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale, True, BLOCK_N, BLOCK_D, FLAW)
    store_tile(o, acc / tl.where(l == 0.0, 1.0, l)[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


@triton.jit
def _starter(q_tile):
    raise NotImplementedError


@triton.jit
def _calls_a_starter(q, k, v, o, H, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
                     BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    q_tile = load_tile(q, tl.program_id(0), tl.program_id(0), 0, S_q, D, BLOCK_M, BLOCK_D)
    _starter(q_tile)


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
    ("5.1", flawed(_load_tile, "rows not masked"), "the tile runs over its head's end", "store the whole tile, zeros too"),
    ("5.1", flawed(_load_tile, "no other"), "without other=0.0 a load leaves the lanes that its mask hides undefined", None),
    ("5.1", flawed(_load_tile, "no pointer"), "write x.ptr for the pointer", None),
    ("5.1", flawed(_load_tile, "stored by rows of the sequence"), "element (i, j) of program pid's tile goes to"),
    ("5.2", _full.fn, "put @triton.jit above it"),
    ("5.2", _shadowed, "keep Heads and tiles apart", None),
    ("5.2", flawed(_full, "batch and head exchanged"), "// H gives b and % H gives h"),
    ("5.2", flawed(_full, "p in float32"), "one edge is left: fp16", None),
    ("5.2", flawed(_full, "p left in float32"), "both factors of a dot must have one dtype, and these are fp32 and fp16"),
    ("5.2", flawed(_full, "p in fp16"), "both factors of a dot must have one dtype, and these are fp16 and fp32"),
    ("5.2", flawed(_full, "maximum of the columns"), "column j loses key j's maximum"),
    ("5.3", flawed(_full, "start_n counts tiles"), "start_n counts tiles"),
    ("5.3", flawed(_full, "p left in float32"), "both factors of a dot must have one dtype"),
    ("5.3", flawed(_full, "acc rescaled last"), "p v is rescaled too"),
    ("5.3", flawed(_full, "divided in the loop"), "divide once, after the loop"),
    ("5.4", flawed(_full, "p left in float32"), "both factors of a dot must have one dtype"),
    ("5.4", flawed(_full, "m starts at a finite number"), "m starts at −inf"),
    ("5.4", flawed(_full, "row blocks rounded down"), "the number of row blocks is rounded up"),
    ("5.4", flawed(_full, "keys counted from the tile"), "offs_n does not move with the loop"),
    ("5.4", flawed(_full, "one key too many"), "one key too many"),
    ("5.4", flawed(_full, "rows for keys"), "the mask hides rows"),
    ("5.5", flawed(_causal, "p left in float32"), "both factors of a dot must have one dtype"),
    ("5.5", _calls_a_starter, "_starter, which it calls, still raises NotImplementedError", None),
    ("5.5", flawed(_two_loops, "acc not rescaled"), "in attend, acc is not rescaled"),
    ("5.5", flawed(_two_loops, "p v rescaled"), "in attend, p v is rescaled too"),
    ("5.5", flawed(_two_loops, "alpha by columns"), "in attend, acc · alpha[None, :] rescales column j"),
    ("5.5", flawed(_two_loops, "acc replaced"), "in attend, each tile's p v replaces the one before"),
    ("5.5", flawed(_two_loops, "not MASK"), "attend hides nothing where it should"),
    ("5.5", flawed(_two_loops, "full is not rounded"), "full is no multiple of BLOCK_N"),
    ("5.5", flawed(_two_loops, "full is S_k"), "without IS_CAUSAL it ends at S_k // BLOCK_N · BLOCK_N", "still the kernel of 5.4"),
    ("5.5", flawed(_two_loops, "last_seen is S_k"), "without IS_CAUSAL, every row's last_seen is S_k − 1"),
    ("5.5", flawed(_two_loops, "full in tiles"), "full and end count keys, not tiles"),
    ("5.5", flawed(_two_loops, "end in tiles"), "full and end count keys, not tiles"),
    ("5.5", flawed(_two_loops, "full and end in tiles"), "full and end count keys, not tiles"),
    ("5.5", flawed(_two_loops, "last_seen top-left"), "S_k − S_q is missing in last_seen"),
    ("5.5", flawed(_two_loops, "last_seen of no mask"), "the mask hides nothing in the tile that the diagonal crosses"),
    ("5.6", flawed(_gqa, "p left in float32"), "both factors of a dot must have one dtype"),
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
