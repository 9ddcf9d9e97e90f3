"""Chapter 11: attention while a model generates: a new token or a few, against the keys and values of all the tokens
before them.

Keys and values stay in a cache, so nothing is computed twice. One query has little to compute and the whole cache to
read: the kernel can be as fast as memory, and no faster. Two things make it so. A sequence's keys are split among many
programs (split-KV), so that one sequence keeps the whole GPU busy; and the query heads that share a key head are the
rows of one tile, so that each key is read once.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch

from fa_tutorial.arguments import (
    FLOAT_DTYPES,
    check_alike,
    check_devices,
    check_int,
    check_scale,
    check_tensor,
    dtype_name,
)
from fa_tutorial.forward import softmax_step
from fa_tutorial.hardware import card_of, on_device_of, require_kernel_device, require_triton
from fa_tutorial.operators import LIBRARY
from fa_tutorial.tiles import (
    INTERPRETED,
    MAX_D,
    MIN_DOT,
    TileConfig,
    check_block,
    dot,
    heads,
    load_tile,
    padded_d,
    store_tile,
)
from fa_tutorial.variants.mods import tanh
from fa_tutorial.variants.options import check_sinks, check_slopes, check_softcap, check_window

triton = require_triton("Chapter 11 (fa_tutorial.decode)")
import triton.language as tl  # noqa: E402

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max  # 448
FP8_CAPABILITY = 89  # from which on a GPU converts it

# ---------------------------------------------------------------- kernels


class Sizes(NamedTuple):
    """rows: those of a key head's group, H_q / H_k · S_q. mask_row: of attn_mask, in elements."""

    H_k: Any
    S_q: Any
    rows: Any
    D: Any
    mask_row: Any


class Options(NamedTuple):
    """Of the scores, as flash_attention has them, in the order of the operator's arguments; None where not asked for,
    and then they cost nothing.

    attn_mask: (B, S_max) uint8, 1 for the keys that are seen; alibi_slopes: (B, H_q) float32; sinks: (H_q,) float32;
    leftpad: (B,) int32, keys before each sequence's first; left: keys before a token's own that it sees.
    """

    attn_mask: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    leftpad: Any = None
    left: Any = None
    softcap: Any = None


NO_OPTIONS = Options()


class Scales(NamedTuple):
    """Pointers to each key head's scale of 8-bit keys and of 8-bit values, (H_k,) float32; None for other caches."""

    k: Any
    v: Any


@triton.jit
def key_pointers(x, block_table, b, h_k, offs_n, offs_d, mask_n, PAGE_SIZE: tl.constexpr):
    """[BLOCK_N, BLOCK_D] pointers to keys offs_n of sequence b, head h_k.

    x: Heads of a cache; offs_n, mask_n: [BLOCK_N]; offs_d: [1, BLOCK_D]. Without a block table,
    sequence b is entry b of the cache. With one, key n is row n mod PAGE_SIZE of page
    block_table[b, n // PAGE_SIZE] (11.4).
    """
    if block_table is None:
        offsets = b.to(tl.int64) * x.strides[0] + offs_n.to(tl.int64) * x.strides[2]  # [BLOCK_N]
    else:
        table = block_table.ptr + b.to(tl.int64) * block_table.strides[0]  # of sequence b
        entries = table + offs_n // PAGE_SIZE * block_table.strides[1]  # [BLOCK_N]
        page = tl.load(entries, mask=mask_n, other=0).to(tl.int64)  # [BLOCK_N]
        offsets = page * x.strides[0] + (offs_n % PAGE_SIZE).to(tl.int64) * x.strides[2]  # [BLOCK_N]
    head = x.ptr + h_k.to(tl.int64) * x.strides[1]
    return head + (offsets[:, None] + offs_d * x.strides[3])


@triton.jit
def load_keys(x, block_table, b, h_k, start_n, S, D,
              PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """[BLOCK_N, BLOCK_D] keys, or values, from start_n on of sequence b, head h_k; 0 beyond S and D."""
    offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)[None, :]  # [1, BLOCK_D]
    mask_n = offs_n < S  # [BLOCK_N]
    pointers = key_pointers(x, block_table, b, h_k, offs_n, offs_d, mask_n, PAGE_SIZE)
    tile = tl.load(pointers, mask=mask_n[:, None] & (offs_d < D), other=0.0)  # [BLOCK_N, BLOCK_D]
    if INTERPRETED and tile.dtype == tl.bfloat16:
        tile = tile.to(tl.float32)  # as load_tile does
    return tile


@triton.jit
def modified(s, last_seen, offs_n, b, h, first, seqlen, H_q, mask_row, opts):
    """The scores with opts, and −inf where a row does not see a key. s: [BLOCK_M, BLOCK_N]; last_seen, h: [BLOCK_M],
    a row's own key and query head; offs_n: [BLOCK_N]; first: the sequence's first key."""
    distance = last_seen[:, None] - offs_n[None, :]  # [BLOCK_M, BLOCK_N], from a key to the row's own
    seen = distance >= 0
    if opts.softcap is not None:
        s = opts.softcap * tanh(s * (1 / opts.softcap))
    if opts.alibi_slopes is not None:
        s -= tl.load(opts.alibi_slopes + b * H_q + h)[:, None] * distance
    if opts.left is not None:
        seen = seen & (distance <= opts.left)
    if opts.leftpad is not None:
        seen = seen & (offs_n >= first)[None, :]
    if opts.attn_mask is not None:
        allowed = tl.load(opts.attn_mask + b.to(tl.int64) * mask_row + offs_n, mask=offs_n < seqlen, other=0)
        seen = seen & (allowed != 0)[None, :]
    return tl.where(seen, s, -float("inf"))


@triton.jit
def split_kernel(q, k, v, o, lse_ptr, seqlens_ptr, block_table, scales, opts, sizes, scale,
                 PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_D: tl.constexpr):  # fmt: skip
    """Attention to one part of each sequence's keys: that part's o and lse, (11.1).

    q: Heads (B, H_k, rows, D), the rows of a key head's group: its query heads, S_q tokens each. k, v:
    Heads of the caches. o: Heads (splits · B, H_k, rows, D); lse_ptr: (splits, B, H_k, rows) float32.
    A part without keys gives o = 0 and lse = −inf, but for the sinks, which are in the first part. Grid:
    (ceil(rows / BLOCK_M) · B · H_k, splits).
    """
    H_k, S_q, rows, D, mask_row = sizes
    row_blocks = tl.cdiv(rows, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h_k = batch_head // H_k, batch_head % H_k
    split, splits = tl.program_id(1), tl.num_programs(1)

    seqlen = tl.load(seqlens_ptr + b)
    first = tl.load(opts.leftpad + b) if opts.leftpad is not None else 0  # key of the sequence
    first_seen = first
    if opts.left is not None:  # by the oldest of the new tokens, which sees the furthest back
        first_seen = tl.maximum(first, seqlen - S_q - opts.left)
    # Keys of a part: whole tiles, until none is left.
    tile = first_seen // BLOCK_N
    part = tl.cdiv(tl.maximum(tl.cdiv(seqlen, BLOCK_N) - tile, 0), splits) * BLOCK_N
    start = tile * BLOCK_N + split * part
    end = tl.minimum(start + part, seqlen)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    last_seen = seqlen - S_q + offs_m % S_q  # [BLOCK_M]; the newest token sees every key
    q_tile = load_tile(q, b, h_k, start_m, rows, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    group = rows // S_q
    h = tl.minimum(h_k * group + offs_m // S_q, H_k * group - 1)  # [BLOCK_M], a row's query head
    if opts.sinks is not None:  # a key before all others, whose value is 0
        m = tl.where(split == 0, tl.load(opts.sinks + h), m)
        l = tl.where(split == 0, l + 1.0, l)
    if scales.k is not None:
        scale *= tl.load(scales.k + h_k)  # q · (k_scale k8) = k_scale (q · k8)

    for start_n in range(start, end, BLOCK_N):
        # k_tile, v_tile: [BLOCK_N, BLOCK_D]
        k_tile = load_keys(k, block_table, b, h_k, start_n, seqlen, D, PAGE_SIZE, BLOCK_N, BLOCK_D)
        s = scale * dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)))  # [BLOCK_M, BLOCK_N]
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = modified(s, last_seen, offs_n, b, h, first, seqlen, H_k * group, mask_row, opts)
        p, m, l, alpha = softmax_step(s, m, l)
        v_tile = load_keys(v, block_table, b, h_k, start_n, seqlen, D, PAGE_SIZE, BLOCK_N, BLOCK_D)
        acc = dot(p.to(q_tile.dtype), v_tile.to(q_tile.dtype), acc * alpha[:, None])

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o_tile = acc / l_or_one[:, None]  # [BLOCK_M, BLOCK_D]
    if scales.v is not None:
        o_tile *= tl.load(scales.v + h_k)
    split_batch_head = split * (tl.num_programs(0) // row_blocks) + batch_head
    store_tile(o, o_tile, split_batch_head // H_k, h_k, start_m, rows, D, BLOCK_M, BLOCK_D)
    lse = m + tl.log(l_or_one)  # −inf for a row that sees no key of this part, because its m is −inf
    tl.store(lse_ptr + split_batch_head.to(tl.int64) * rows + offs_m, lse, mask=offs_m < rows)


@triton.jit
def combine_kernel(o_parts, lse_parts, o, lse_ptr, rows, splits, D,
                   BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Rows of o and lse from those of their parts, (11.2): attention again, with the parts' lse as scores and their o
    as values.

    o_parts: (splits, rows, D), lse_parts: (splits, rows), float32; o: (rows, D); lse_ptr: (rows,) float32; all
    contiguous.
    Grid: (ceil(rows / BLOCK_R),).
    """
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    m = tl.full((BLOCK_R,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_R,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_D), dtype=tl.float32)
    for start in range(0, splits, BLOCK_S):
        offs_s = start + tl.arange(0, BLOCK_S)  # [BLOCK_S]
        part = offs_s.to(tl.int64)[None, :] * rows + offs_r[:, None]  # [BLOCK_R, BLOCK_S]
        mask = (offs_s < splits)[None, :] & (offs_r < rows)[:, None]  # [BLOCK_R, BLOCK_S]
        s = tl.load(lse_parts + part, mask=mask, other=-float("inf"))  # [BLOCK_R, BLOCK_S]
        values = o_parts + (part[:, :, None] * D + offs_d[None, None, :])
        # [BLOCK_R, BLOCK_S, BLOCK_D]
        v_tile = tl.load(values, mask=mask[:, :, None] & (offs_d < D)[None, None, :], other=0.0)
        p, m, l, alpha = softmax_step(s, m, l)
        acc = acc * alpha[:, None] + tl.sum(p[:, :, None] * v_tile, axis=1)  # [BLOCK_R, BLOCK_D]
    l_or_one = tl.where(l == 0.0, 1.0, l)
    pointers = o + (offs_r.to(tl.int64)[:, None] * D + offs_d[None, :])  # [BLOCK_R, BLOCK_D]
    tl.store(
        pointers,
        (acc / l_or_one[:, None]).to(o.dtype.element_ty),
        mask=(offs_r < rows)[:, None] & (offs_d < D)[None, :],
    )
    tl.store(lse_ptr + offs_r, m + tl.log(l_or_one), mask=offs_r < rows)


@triton.jit
def append_kernel(k_new, v_new, k, v, seqlens_ptr, block_table, H_k, S_new, S_max, D,
                  PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """The keys and values of new tokens go where load_keys finds them, token t of sequence b at position seqlen − S_new
    + t.

    k_new, v_new: Heads (B, H_k, S_new, D); k, v: Heads of the caches. Positions below 0 and from S_max on are left out.
    Grid: (ceil(S_new / BLOCK_N) · B · H_k,).
    """
    row_blocks = tl.cdiv(S_new, BLOCK_N)
    start = tl.program_id(0) % row_blocks * BLOCK_N
    batch_head = tl.program_id(0) // row_blocks
    b, h_k = batch_head // H_k, batch_head % H_k
    token = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_n = tl.load(seqlens_ptr + b) - S_new + token  # [BLOCK_N]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)[None, :]  # [1, BLOCK_D]
    mask_n = (token < S_new) & (offs_n >= 0) & (offs_n < S_max)  # [BLOCK_N]
    mask = mask_n[:, None] & (offs_d < D)
    k_tile = load_tile(k_new, b, h_k, start, S_new, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v_new, b, h_k, start, S_new, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    k_pointers = key_pointers(k, block_table, b, h_k, offs_n, offs_d, mask_n, PAGE_SIZE)  # [BLOCK_N, BLOCK_D]
    v_pointers = key_pointers(v, block_table, b, h_k, offs_n, offs_d, mask_n, PAGE_SIZE)  # [BLOCK_N, BLOCK_D]
    tl.store(k_pointers, k_tile.to(k.ptr.dtype.element_ty), mask=mask)
    tl.store(v_pointers, v_tile.to(v.ptr.dtype.element_ty), mask=mask)


# ---------------------------------------------------------------- launching

# of one tile of keys: large enough to stream, small enough that several are on their way on each multiprocessor
TILE_BYTES = 16_384
PROGRAMS_PER_SM = 2  # that choose_num_splits counts on; an H200 has room for two without pages, and for three with them
TURING_BYTES = 65_536  # of shared memory; there Triton uses no tensor cores
HOPPER_BYTES = 232_448
MAX_ROWS = 64  # rows of a program: more make a second program read the same keys
SPLITS_AT_ONCE = 64  # that combine_kernel loads
LEAST_KEYS = 256  # of a split that choose_num_splits chooses
MAX_SPLITS = 65_535  # of a grid's second axis


def choose_config(rows: int, D: int, dtype: torch.dtype, is_paged: bool, shared_memory: int | None) -> TileConfig:
    """The tile for `rows` query rows a key head and a cache of `dtype`. shared_memory: bytes a block may ask for; None
    means the interpreter."""
    block_m = min(max(triton.next_power_of_2(rows), MIN_DOT), MAX_ROWS)
    if shared_memory is None:
        return TileConfig(block_m, 32, 4, 1)
    if shared_memory <= TURING_BYTES:
        return TileConfig(MIN_DOT, MIN_DOT, 8, 1)
    block_n = min(max(TILE_BYTES // (padded_d(D) * dtype.itemsize), MIN_DOT), 128)
    has_room = shared_memory >= HOPPER_BYTES
    # Hopper multiplies 64 rows by four warps; on smaller cards these would spill.
    num_warps = 4 if dtype.itemsize == 2 and (block_m < MAX_ROWS or has_room) else 8
    if is_paged:
        # a page's number is a load before the load of its keys: two stages for one
        return TileConfig(block_m, block_n, num_warps, 6)
    # With four stages two programs fit on an SM, with three three, and then 64 sequences of 8 heads took 16 % longer on
    # an H200.
    return TileConfig(block_m, block_n, num_warps, 4 if has_room and block_m == MIN_DOT else 3)


@functools.lru_cache(1024)  # a cache grows by a token a step, and by a tile only every block_n of them
def choose_num_splits(n: int, tiles: int, multiprocessors: int, least: int) -> int:
    """Parts into which to split each key head's tiles of keys, of `least` tiles or more. n: programs a split.

    A GPU runs PROGRAMS_PER_SM · multiprocessors programs at once, a wave. A part has ceil(tiles / splits) tiles, as
    long as there are any, and waves follow one another, so waves · part tiles do: (11.3), with one price. Of
    544 tiles, with n = 8 on an H200, those are 17 with 32 splits, and 32 with 34 splits, which need a second wave.
    Splits cost, since their results are written, read and combined: we take the fewest that are within 5 % of the best.
    Programs without keys are counted, too: they change no choice, for fewer splits have parts as long.
    """
    wave, possible = PROGRAMS_PER_SM * multiprocessors, range(1, max(tiles // least, 1) + 1)
    in_a_row = [triton.cdiv(tiles, splits) * triton.cdiv(n * splits, wave) for splits in possible[:wave]]
    best = min(in_a_row)
    return next(splits for splits, row in zip(possible, in_a_row, strict=False) if row <= 1.05 * best)


def decode(q, k_cache, v_cache, cache_seqlens, block_table, k_scale, v_scale, scale: float, num_splits: int | None,
           options: Options = NO_OPTIONS) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch split_kernel, and combine_kernel where there are splits, on q's GPU, which must be current. Trusts its
    arguments, see flash_decode."""
    (B, H_q, S_q, D), (H_k, S_max) = q.shape, k_cache.shape[1:3]
    rows, page_size = H_q // H_k * S_q, 0
    if block_table is not None:
        page_size, S_max = S_max, S_max * block_table.shape[1]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    card = card_of(q)
    config = choose_config(rows, D, k_cache.dtype, block_table is not None, card.shared_memory)
    programs = triton.cdiv(rows, config.block_m) * B * H_k
    keys = S_max if options.left is None else min(S_max, options.left + S_q)  # that a sequence's new tokens see
    tiles, least = (triton.cdiv(x, config.block_n) for x in (keys, LEAST_KEYS))
    num_splits = num_splits or choose_num_splits(programs, tiles, card.multiprocessors, least)
    o_parts, lse_parts = o, lse
    if num_splits > 1:
        o_parts = torch.empty((num_splits * B, H_k, rows, D), dtype=torch.float32, device=q.device)
        lse_parts = torch.empty((num_splits, B, H_k, rows), dtype=torch.float32, device=q.device)
    mask_row = 0 if options.attn_mask is None else options.attn_mask.shape[1]
    scales = Scales(*(None if x is None else x.contiguous() for x in (k_scale, v_scale)))
    split_kernel[(programs, num_splits)](
        heads(q.reshape(B, H_k, rows, D)), heads(k_cache), heads(v_cache), heads(o_parts.view(-1, H_k, rows, D)),
        lse_parts, cache_seqlens.contiguous(), None if block_table is None else heads(block_table), scales, options,
        Sizes(H_k, S_q, rows, D, mask_row), scale, PAGE_SIZE=page_size, BLOCK_D=padded_d(D), **config.launch(),
    )  # fmt: skip
    if num_splits > 1:
        all_rows, block_s = B * H_q * S_q, min(triton.next_power_of_2(num_splits), SPLITS_AT_ONCE)
        block_r = 64 if card.shared_memory is None else 1  # the interpreter is slow by the program
        combine_kernel[(triton.cdiv(all_rows, block_r),)](
            o_parts, lse_parts, o, lse, all_rows, num_splits, D, BLOCK_R=block_r, BLOCK_S=block_s, BLOCK_D=padded_d(D),
            num_warps=4,
        )  # fmt: skip
    return o, lse


def append(k_cache, v_cache, k_new, v_new, cache_seqlens, block_table) -> None:
    """Launch append_kernel on the caches' GPU, which must be current. Trusts its arguments, see append_to_cache."""
    (B, H_k, S_new, D), S_max = k_new.shape, k_cache.shape[2]
    page_size = 0
    if block_table is not None:
        page_size, S_max = S_max, S_max * block_table.shape[1]
    block_n = min(triton.next_power_of_2(S_new), 16)
    append_kernel[(triton.cdiv(S_new, block_n) * B * H_k,)](
        heads(k_new), heads(v_new), heads(k_cache), heads(v_cache), cache_seqlens.contiguous(),
        None if block_table is None else heads(block_table), H_k, S_new, S_max, D,
        PAGE_SIZE=page_size, BLOCK_N=block_n, BLOCK_D=padded_d(D), num_warps=1,
    )  # fmt: skip


# ---------------------------------------------------------------- the operators


def run_decode(q, k_cache, v_cache, cache_seqlens, block_table, k_scale, v_scale, scale, num_splits, *options):
    """The operator flash_decode on a device."""
    require_kernel_device(q, "q")
    if k_cache.dtype == FP8 and card_of(q).capability < FP8_CAPABILITY:
        raise ValueError(
            f"caches of {dtype_name(FP8)} need a GPU of compute capability 8.9 or newer, {card_of(q).name} is older"
        )
    if not q.is_cuda:
        check_values(cache_seqlens, k_cache, block_table)
    options = Options(*options)
    if not q.numel():
        return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)
    with on_device_of(q):
        return decode(q, k_cache, v_cache, cache_seqlens, block_table, k_scale, v_scale, scale, num_splits, options)


def run_append(k_cache, v_cache, k_new, v_new, cache_seqlens, block_table):
    """The operator append_to_cache on a device."""
    require_kernel_device(k_cache, "k_cache")
    if not k_cache.is_cuda:
        check_values(cache_seqlens, k_cache, block_table)
    if k_new.numel():
        with on_device_of(k_cache):
            append(k_cache, v_cache, k_new, v_new, cache_seqlens, block_table)


LIBRARY.define(
    "flash_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cache_seqlens, Tensor? block_table, Tensor? "
    "k_scale, Tensor? v_scale, float scale, int? num_splits, Tensor? attn_mask, Tensor? alibi_slopes, "
    "Tensor? sinks, Tensor? leftpad, int? left, float? softcap) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    "append_to_cache(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, Tensor cache_seqlens, Tensor? "
    "block_table) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for device in ("CPU", "CUDA"):
    LIBRARY.impl("flash_decode", run_decode, device)
    LIBRARY.impl("append_to_cache", run_append, device)


@torch.library.register_fake("fa_tutorial::flash_decode", lib=LIBRARY)
def fake_decode(q, *arguments):
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("fa_tutorial::append_to_cache", lib=LIBRARY)
def fake_append(k_cache, v_cache, k_new, v_new, cache_seqlens, block_table):
    return None


# ---------------------------------------------------------------- the public functions


def flash_decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, cache_seqlens: torch.Tensor, *,
                 block_table: torch.Tensor | None = None, scale: float | None = None, num_splits: int | None = None,
                 k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None,
                 attn_mask: torch.Tensor | None = None, window: tuple[int, int] | None = None,
                 softcap: float | None = None, alibi_slopes: torch.Tensor | None = None,
                 sinks: torch.Tensor | None = None, cache_leftpad: torch.Tensor | None = None, return_lse: bool = False,
                 ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of the newest S_q tokens of each sequence to all of its keys, in a cache that stays where it is
    (Flash-Decoding, Dao et al., 2023).

    q: (B, H_q, S_q, D), S_q = 1 for plain generation, more for tokens that are guessed ahead. k_cache, v_cache:
    (B, H_k, S_max, D), any strides, H_q a multiple of H_k, 1 ≤ D ≤ 256. cache_seqlens: (B,) int32, each sequence's
    length with its new tokens, whose keys stand in the cache already: token t sees keys 0 … cache_seqlens − S_q + t.
    What a cache holds beyond that is not looked at.
    block_table: (B, pages) int32, for a paged cache (PagedAttention, Kwon et al., 2023): k_cache and v_cache are
    (pages in all, H_k, page size, D), page size a power of two of at least 16, and key n of sequence b is row n mod
    page size of page block_table[b, n // page size].
    Dtypes: fp16, bf16, fp32, one for all; or q of fp16 or bf16 and caches of float8_e4m3fn with k_scale and v_scale,
    (H_k,) float32, by quantise_fp8.
    scale: 1/√D unless given. num_splits: parts that each sequence's keys are split into, by choose_num_splits unless
    given.
    attn_mask: booleans that broadcast to (B, 1, 1, S_max), True for the keys that are seen, where holes are among them.
    window, softcap, alibi_slopes, sinks: as flash_attention's; a window's right side is 0, for no token sees a later
    one, and keys that no new token sees are not read. cache_leftpad: (B,) int32, each sequence's first key, where
    sequences of different lengths are padded on their left; cache_seqlens counts the padding.

    Returns o (B, H_q, S_q, D), contiguous, in q's dtype; with return_lse also lse (B, H_q, S_q) float32, as
    flash_attention. A token that sees no key gets o = 0 and lse = −inf. Nothing waits for the GPU, so it can be
    captured in a CUDA graph. Two runs give the same bits.

    Raises TypeError for dtypes, ValueError for shapes, devices and numbers, RuntimeError where a gradient is asked for,
    or for a device on which no kernel runs. Lengths and page ids out of range raise ValueError on the CPU. On a GPU
    they are not looked at, since the host would have to wait for it: they read memory that is not the cache's.
    """
    scale = check_decode(q, k_cache, v_cache, cache_seqlens, block_table, scale, k_scale, v_scale)
    if num_splits is not None and check_int("num_splits", num_splits) > MAX_SPLITS:
        raise ValueError(f"num_splits must be 1 to {MAX_SPLITS}, got {num_splits}; None lets choose_num_splits choose")
    check_no_gradient(q=q, k_cache=k_cache, v_cache=v_cache)
    left, _ = check_window(window, True)
    options = Options(
        None if attn_mask is None else check_key_mask(attn_mask, q, k_cache, block_table),
        None if alibi_slopes is None else check_slopes(alibi_slopes, q).expand(len(q), -1).contiguous(),
        None if sinks is None else check_sinks(sinks, q),
        None if cache_leftpad is None else check_leftpad(cache_leftpad, cache_seqlens),
        None if left < 0 else left,
        None if softcap is None else check_softcap(softcap),
    )
    operator = torch.ops.fa_tutorial.flash_decode.default
    o, lse = operator(q, k_cache, v_cache, cache_seqlens, block_table, k_scale, v_scale, scale, num_splits, *options)
    return (o, lse) if return_lse else o


def append_to_cache(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor, cache_seqlens: torch.Tensor,
    *, block_table: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Write the keys and values of new tokens into the caches, in place, where flash_decode with the same cache_seqlens
    looks for them.

    k_new, v_new: (B, H_k, S_new, D), in the caches' dtype, any strides; the rest as for flash_decode. cache_seqlens
    counts the new tokens already: token t of sequence b goes to position cache_seqlens[b] − S_new + t. So one step is:
    cache_seqlens += S_new, append_to_cache, flash_decode. A position below 0 is left out, for a sequence that has fewer
    new tokens than S_new: its tokens are the last ones.

    Raises as flash_decode does. On a GPU a position beyond the cache is left out, and a page id out of range writes to
    memory that is not the cache's.
    """
    check_caches(k_cache, v_cache, cache_seqlens, block_table, (*FLOAT_DTYPES, FP8))
    check_tensor("k_new", k_new, ndim=4, dtypes=(k_cache.dtype,))
    check_alike(k_cache=k_cache, k_new=k_new, v_new=v_new)
    want = (len(cache_seqlens), k_cache.shape[1], k_new.shape[2], k_cache.shape[3])
    if k_new.shape != want or v_new.shape != want:
        raise ValueError(
            f"k_new and v_new must be (B, H_k, S_new, D) = {want}, got {tuple(k_new.shape)} and {tuple(v_new.shape)}"
        )
    check_no_gradient(k_cache=k_cache, v_cache=v_cache, k_new=k_new, v_new=v_new)
    torch.ops.fa_tutorial.append_to_cache.default(k_cache, v_cache, k_new, v_new, cache_seqlens, block_table)


def quantise_fp8(x: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x (…, H, S, D) as float8_e4m3fn and a scale for each head: x ≈ scale · x8, off by at most 1/16 of a number
    (or scale / 1,024 near 0).

    scale: (H,) float32, so that a head's largest number becomes 448, the largest of the format, unless given; what is
    beyond it is cut off. TypeError and ValueError for other dtypes and shapes.
    """
    check_tensor("x", x, dtypes=FLOAT_DTYPES)
    if x.ndim < 3:
        raise ValueError(f"x must be (…, H, S, D), got shape {tuple(x.shape)}")
    H = x.shape[-3]
    if scale is not None:
        check_scales(H, scale=scale)
    elif x.numel():
        largest = x.abs().amax(dim=(*range(x.ndim - 3), -2, -1)).float()
        scale = torch.where(largest == 0, 1.0, (largest / FP8_MAX).clamp(min=torch.finfo(torch.float32).tiny))
    else:
        scale = torch.ones(H, dtype=torch.float32, device=x.device)
    return (x.float() / scale[:, None, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


# ---------------------------------------------------------------- checks


def check_caches(k_cache, v_cache, cache_seqlens, block_table, dtypes) -> None:
    """Raise unless the caches, the lengths and the block table fit together."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, cache, ndim=4, dtypes=dtypes)
    check_alike(k_cache=k_cache, v_cache=v_cache)
    if k_cache.shape != v_cache.shape:
        raise ValueError(
            f"k_cache and v_cache must have one shape, got {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    if not 1 <= k_cache.shape[3] <= MAX_D:
        raise ValueError(f"head dimension D must be 1 to {MAX_D}, got {k_cache.shape[3]}")
    check_tensor("cache_seqlens", cache_seqlens, ndim=1, dtypes=(torch.int32,))
    on_device = {"k_cache": k_cache, "cache_seqlens": cache_seqlens}
    if block_table is None:
        if len(k_cache) != len(cache_seqlens):
            raise ValueError(
                f"the cache must have an entry for each of the {len(cache_seqlens)} cache_seqlens, got "
                f"{tuple(k_cache.shape)}"
            )
    else:
        check_tensor("block_table", block_table, ndim=2, dtypes=(torch.int32,))
        check_block("page size, k_cache.shape[2],", k_cache.shape[2], MIN_DOT)
        if len(block_table) != len(cache_seqlens):
            want = f"({len(cache_seqlens)}, pages), a row for each of cache_seqlens"
            raise ValueError(f"block_table must be {want}, got {tuple(block_table.shape)}")
        on_device["block_table"] = block_table
    check_devices(**on_device)


def check_decode(q, k_cache, v_cache, cache_seqlens, block_table, scale, k_scale, v_scale) -> float:
    """Check flash_decode's arguments, and return the scale: `scale`, or 1/√D where it is None."""
    check_tensor("q", q, ndim=4, dtypes=FLOAT_DTYPES)
    check_caches(
        k_cache, v_cache, cache_seqlens, block_table, (q.dtype,) if q.dtype == torch.float32 else (q.dtype, FP8)
    )
    (B, H_q, _, D), H_k = q.shape, k_cache.shape[1]
    if len(cache_seqlens) != B or k_cache.shape[3] != D:
        found = f"got q {tuple(q.shape)}, {len(cache_seqlens)} cache_seqlens and k_cache {tuple(k_cache.shape)}"
        raise ValueError(f"q, cache_seqlens and k_cache must agree in batch and head dimension, {found}")
    if H_q % H_k if H_k else H_q:
        raise ValueError(f"query heads must be a multiple of key heads, got {H_q} query heads and {H_k} key heads")
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    if k_cache.dtype == FP8:
        check_scales(H_k, **scales)
    elif k_scale is not None or v_scale is not None:
        raise ValueError(
            f"k_scale and v_scale are for caches of {dtype_name(FP8)}, got caches of {dtype_name(k_cache.dtype)}"
        )
    check_devices(q=q, k_cache=k_cache, **{name: value for name, value in scales.items() if value is not None})
    return 1 / math.sqrt(D) if scale is None else check_scale(scale)


def check_scales(H: int, **scales) -> None:
    """TypeError or ValueError unless each is (H,) float32."""
    for name, scale in scales.items():
        check_tensor(name, scale, ndim=1, dtypes=(torch.float32,))
        if len(scale) != H:
            raise ValueError(f"{name} must be ({H},), a number for each key head, got {tuple(scale.shape)}")


def check_leftpad(leftpad: torch.Tensor, cache_seqlens: torch.Tensor) -> torch.Tensor:
    """Contiguous. TypeError or ValueError unless it is like cache_seqlens, and on the CPU none below 0."""
    check_tensor("cache_leftpad", leftpad, ndim=1, dtypes=(torch.int32,))
    check_devices(cache_seqlens=cache_seqlens, cache_leftpad=leftpad)
    if leftpad.shape != cache_seqlens.shape:
        raise ValueError(f"cache_leftpad must be ({len(cache_seqlens)},) as cache_seqlens, got {tuple(leftpad.shape)}")
    if leftpad.device.type == "cpu" and (leftpad < 0).any():
        raise ValueError(f"cache_leftpad must be 0 or more, each sequence's first key, got {leftpad.tolist()}")
    return leftpad.contiguous()


def check_key_mask(attn_mask: torch.Tensor, q: torch.Tensor, k_cache: torch.Tensor, block_table) -> torch.Tensor:
    """(B, S_max) uint8, contiguous."""
    check_tensor("attn_mask", attn_mask, dtypes=(torch.bool,))
    check_devices(q=q, attn_mask=attn_mask)
    full = (len(q), 1, 1, k_cache.shape[2] * (1 if block_table is None else block_table.shape[1]))
    shape = (1,) * (4 - attn_mask.ndim) + tuple(attn_mask.shape)
    if len(shape) != 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(f"attn_mask must broadcast to (B, 1, 1, S_max), here {full}, got {tuple(attn_mask.shape)}")
    return attn_mask.view(torch.uint8).reshape(shape).expand(full).reshape(len(q), full[3]).contiguous()


def check_no_gradient(**tensors: torch.Tensor) -> None:
    """Raise RuntimeError where somebody asks for a gradient of one of the tensors."""
    asked = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if asked and torch.is_grad_enabled():
        raise RuntimeError(
            f"decoding has no gradient, and {', '.join(asked)} requires one: call it under torch.no_grad(), or "
            f"train with flash_attention"
        )


def check_values(cache_seqlens, k_cache, block_table) -> None:
    """Raise ValueError for a length beyond the cache, or a page that it has not. On the CPU alone: on a GPU the host
    would have to wait for it."""
    page_size = k_cache.shape[2]
    S_max = page_size if block_table is None else page_size * block_table.shape[1]
    for b, length in enumerate(cache_seqlens.tolist()):
        if not 0 <= length <= S_max:
            raise ValueError(
                f"cache_seqlens must be 0 to {S_max}, the keys that the cache has room for, got {length} for "
                f"sequence {b}"
            )
        if block_table is not None:
            pages = block_table[b, : triton.cdiv(length, page_size)].tolist()
            if wrong := [page for page in pages if not 0 <= page < len(k_cache)]:
                raise ValueError(f"block_table must hold pages 0 to {len(k_cache) - 1}, got {wrong} for sequence {b}")


# ---------------------------------------------------------------- pages


class PagedCache:
    """Keys and values of several sequences and layers in pages, which go to the sequence that needs one and come back
    when it is done.

    k, v: a cache for each of `layers` layers, (num_pages, H_k, page_size, D). Page n of every layer belongs to the same
    sequence, so one block_table (B, pages of S_max tokens) serves all. One step of a model:

        cache = PagedCache(layers=2, num_pages=64, H_k=4, page_size=16, D=64, B=8, S_max=1024,
                           dtype=torch.float16, device="cuda")
        cache.grow(b, tokens=1)                         # for each sequence b that has a new token
        o = cache.attend(layer, q, k_new, v_new)        # in each layer
        cache.release(b)                                # when sequence b is done

    ValueError or TypeError for a size below 1, a page_size that isn't a power of two from 16 on, and a sequence that
    isn't one of the B.
    """

    def __init__(self, layers: int, num_pages: int, H_k: int, page_size: int, D: int, B: int, S_max: int,
                 dtype: torch.dtype, device: torch.device):  # fmt: skip
        sizes = {"layers": layers, "num_pages": num_pages, "H_k": H_k, "D": D, "B": B, "S_max": S_max}
        for name, size in sizes.items():
            check_int(name, size)
        self.page_size, self.S_max = check_block("page_size", page_size, MIN_DOT), S_max
        self.k, self.v = (
            torch.empty(layers, num_pages, H_k, page_size, D, dtype=dtype, device=device) for _ in range(2)
        )
        self.block_table = torch.zeros(B, triton.cdiv(S_max, page_size), dtype=torch.int32, device=device)
        self.cache_seqlens = torch.zeros(B, dtype=torch.int32, device=device)
        self.free = list(range(num_pages))
        # as the host knows them, so that it asks the GPU nothing
        self.lengths, self.pages = [0] * B, [[] for _ in range(B)]

    def grow(self, b: int, tokens: int) -> None:
        """Make room for `tokens` more tokens of sequence b, and count them.
        MemoryError where no page is free, ValueError beyond S_max."""
        self.check(b)
        length, pages = self.lengths[b] + check_int("tokens", tokens), self.pages[b]
        if length > self.S_max:
            raise ValueError(f"a sequence has at most S_max = {self.S_max} tokens, {length} do not fit")
        missing = triton.cdiv(length, self.page_size) - len(pages)
        if missing > len(self.free):
            found = f"{len(self.free)} of {self.k.shape[1]} are free"
            raise MemoryError(f"sequence {b} needs {missing} more pages, {found}: release one first")
        for _ in range(missing):
            self.block_table[b, len(pages)] = self.free[-1]
            pages.append(self.free.pop())
        self.lengths[b] = length
        self.cache_seqlens[b] = length

    def check(self, b: int) -> None:
        if check_int("the sequence", b, minimum=0) >= len(self.lengths):
            raise ValueError(f"the sequence must be 0 to {len(self.lengths) - 1}, got {b}")

    def release(self, b: int) -> None:
        """Give sequence b's pages back."""
        self.check(b)
        self.free += self.pages[b]
        self.pages[b], self.lengths[b] = [], 0
        self.cache_seqlens[b] = 0

    def attend(self, layer: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor,
               **options) -> torch.Tensor:  # fmt: skip
        """Append k_new and v_new (B, H_k, S_new, D) to a layer's cache, for which grow has made room;
        the attention of q (B, H_q, S_new, D) to it, with flash_decode's options."""
        k, v, table = self.k[layer], self.v[layer], self.block_table
        append_to_cache(k, v, k_new, v_new, self.cache_seqlens, block_table=table)
        return flash_decode(q, k, v, self.cache_seqlens, block_table=table, **options)
