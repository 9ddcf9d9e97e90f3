"""Chapters 4 and 6: flash attention in PyTorch, forward and backward, tile for tile the twin of the Triton kernels.

Shows, on tensors that you can inspect, what the kernels do on the chip. Forward: tiles of keys join the running states
m, l and acc, the division waits until the end, and tiles that the causal mask hides are skipped. What it reads and
writes can be counted.
Backward: p comes back from q, k and lse, five matmuls give the gradients, and two loops over the tiles need no more
memory than the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fa_tutorial.arguments import FLOAT_DTYPES_AND_64, check_attention, check_int
from fa_tutorial.reference import causal_mask, repeat_heads


@dataclass
class Traffic:
    """Bytes of the tiles that an algorithm reads and writes, added up as it runs, and the most scores that one head
    holds at a time. On a GPU, L2 serves many of the repeated reads."""

    read_bytes: int = 0
    written_bytes: int = 0
    most_scores: int = 0

    def read(self, tile: torch.Tensor) -> torch.Tensor:
        """Count `tile` as loaded, and return it."""
        self.read_bytes += tile.numel() * tile.element_size()
        return tile

    def write(self, target: torch.Tensor, tile: torch.Tensor) -> None:
        """Store `tile` in `target` (rounded to its dtype), and count it."""
        target.copy_(tile)
        self.written_bytes += target.numel() * target.element_size()

    def hold(self, s: torch.Tensor) -> torch.Tensor:
        """Note a tile of scores (..., block_m, block_n), which stays on the chip, and return it."""
        self.most_scores = max(self.most_scores, s.shape[-2] * s.shape[-1])
        return s

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


def softmax_step(
    s: torch.Tensor, m: torch.Tensor, l: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tile of scores joins the running maximum and sum of its rows (4.2).

    s: (..., block_m, block_n), −inf where hidden; m, l: (..., block_m). Returns p like s, m_new, l_new, and
    alpha = exp(m − m_new), the factor that rescales everything summed so far. A row that has seen nothing keeps m =
    −inf and l = 0, and its p is 0.
    """
    m_new = torch.maximum(m, s.amax(dim=-1))
    shift = torch.where(m_new == -math.inf, 0.0, m_new)  # −inf − (−inf) would be NaN
    p = torch.exp(s - shift[..., None])
    alpha = torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(dim=-1), alpha


def causal_tiles(row_block: int, block_m: int, block_n: int, S_q: int, S_k: int) -> tuple[int, int]:
    """Which key blocks a block of query rows sees under the causal mask: (full, end) (4.6).

    Every row sees blocks 0 … full − 1 whole; blocks full … end − 1 need the mask; no row sees anything of the blocks
    from end on.
    """
    row_block, block_m, block_n = (
        check_int("row_block", row_block, 0),
        check_int("block_m", block_m),
        check_int("block_n", block_n),
    )
    S_q, S_k = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0)
    first = row_block * block_m
    if first >= S_q:
        raise ValueError(
            f"row_block must be below {-(-S_q // block_m)} for S_q = {S_q} and block_m = {block_m}, got {row_block}"
        )
    last = min(first + block_m, S_q) - 1
    seen_by_first = max(0, first + 1 + S_k - S_q)
    seen_by_last = max(0, last + 1 + S_k - S_q)
    return seen_by_first // block_n, -(-seen_by_last // block_n)


def all_tiles(block_n: int, S_k: int) -> tuple[int, int]:
    """(full, end) without a causal mask: only a shorter last block needs a mask."""
    return S_k // block_n, -(-S_k // block_n)


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int, is_causal: bool = False,
    scale: float | None = None, traffic: Traffic | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Flash attention in FA2's loop order: each block of queries walks over its blocks of keys
    (4.1 to 4.5; FA2, algorithm 1).

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), one float dtype, H_q a multiple of H_k. Returns o like q and lse
    (B, H_q, S_q), float32 (float64 for float64). A row that sees no key gets o = 0 and lse = −inf. traffic counts the
    bytes of every tile, of all heads. TypeError and ValueError as check_attention, and if a block size is not an
    integer of at least 1.
    """
    scale = check_attention(q, k, v, scale, dtypes=FLOAT_DTYPES_AND_64)
    block_m, block_n = check_int("block_m", block_m), check_int("block_n", block_n)
    traffic = traffic or Traffic()
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    S_q, S_k = q.shape[2], k.shape[2]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=state_dtype(q), device=q.device)
    for row_block in range(
        -(-S_q // block_m)
    ):  # on a GPU each iteration is one program for each head: none needs another
        rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
        q_tile = traffic.read(q[:, :, rows])  # [B, H, BLOCK_M, D]
        m, l, acc = empty_state(q_tile)
        full, end = causal_tiles(row_block, block_m, block_n, S_q, S_k) if is_causal else all_tiles(block_n, S_k)
        for key_block in range(end):
            keys = slice(key_block * block_n, min((key_block + 1) * block_n, S_k))
            s = traffic.hold(scores(q_tile, traffic.read(k[:, :, keys]), scale))  # [B, H, BLOCK_M, BLOCK_N]
            if is_causal and key_block >= full:
                s = s.masked_fill(~seen_in_tile(rows, keys, S_q, S_k, q.device), -math.inf)
            p, m, l, alpha = softmax_step(s, m, l)
            acc = alpha[..., None] * acc + weighted(p, traffic.read(v[:, :, keys]))  # [B, H, BLOCK_M, D]
        o_tile, lse_tile = finish(m, l, acc)
        traffic.write(o[:, :, rows], o_tile)
        traffic.write(lse[:, :, rows], lse_tile)
    return o, lse


def state_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of m, l and acc: float32, or float64 where x is."""
    return torch.promote_types(x.dtype, torch.float32)


def empty_state(q_tile: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """m = −inf, l = 0, acc = 0 for a tile of queries (..., block_m, D): rows that have seen nothing."""
    acc = torch.zeros(q_tile.shape, dtype=state_dtype(q_tile), device=q_tile.device)
    l = acc.new_zeros(q_tile.shape[:-1])
    return torch.full_like(l, -math.inf), l, acc


def scores(q_tile: torch.Tensor, k_tile: torch.Tensor, scale: float) -> torch.Tensor:
    """scale · q kᵀ of two tiles, in the state's dtype (4.1). Returns (..., block_m, block_n)."""
    dtype = state_dtype(q_tile)
    return scale * (q_tile.to(dtype) @ k_tile.to(dtype).transpose(-1, -2))


def weighted(p: torch.Tensor, v_tile: torch.Tensor) -> torch.Tensor:
    """p v of two tiles (4.3), with p rounded to v's dtype first, because tensor cores want both operands in one dtype.
    Returns (..., block_m, D)."""
    return p.to(v_tile.dtype).to(p.dtype) @ v_tile.to(p.dtype)


def finish(m: torch.Tensor, l: torch.Tensor, acc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o = acc / l and lse = m + log l (4.4, 4.5); rows that saw nothing give o = 0 and lse = −inf."""
    return acc / torch.where(l == 0, 1.0, l)[..., None], m + torch.log(l)


def seen_in_tile(rows: slice, keys: slice, S_q: int, S_k: int, device: torch.device) -> torch.Tensor:
    """Booleans (block_m, block_n): which keys of the tile each row may see under the causal mask, bottom-right aligned.

    Raises ValueError where a slice begins before 0 or ends past S_q or S_k: the tile would be smaller than its mask.
    """
    for name, part, size, length in (("rows", rows, S_q, "S_q"), ("keys", keys, S_k, "S_k")):
        if part.start < 0:
            raise ValueError(
                f"{name} is slice({part.start}, {part.stop}), which begins before 0: no block comes before block 0"
            )
        if part.stop > size:
            raise ValueError(
                f"{name} is slice({part.start}, {part.stop}), which ends past {length} = {size}: end the slice at "
                f"{length}"
            )
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=device)[None, :]
    return j <= i + S_k - S_q


# ---------------------------------------------------------------- backward (chapter 6)


def softmax_backward(p: torch.Tensor, dp: torch.Tensor) -> torch.Tensor:
    """The gradient of p = softmax(s) over the last dimension: ds = p ∘ (dp − rowsum(p ∘ dp)) (6.5). p, dp and the
    result: (..., S_k)."""
    return p * (dp - (p * dp).sum(dim=-1, keepdim=True))


def recompute_p(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float | None = None, is_causal: bool = False
) -> torch.Tensor:
    """p = exp(scale · q kᵀ − lse), (B, H_q, S_q, S_k): recomputes the softmax from the lse that forward stored (6.7).

    q: (B, H_q, S_q, D); k: (B, H_k, S_k, D); lse: (B, H_q, S_q). p is 0 for hidden pairs, and in rows whose lse is
    −inf. TypeError and ValueError as check_attention.
    """
    scale = check_attention(q, k, k, scale, dtypes=FLOAT_DTYPES_AND_64)
    s = scores(q, repeat_heads(k, q.shape[1]), scale)
    if is_causal:
        s = s.masked_fill(~causal_mask(q.shape[2], k.shape[2], q.device), -math.inf)
    return torch.exp(s - finite_or_inf(lse)[..., None])


def finite_or_inf(lse: torch.Tensor) -> torch.Tensor:
    """lse with +inf in place of −inf. In a row that sees nothing, exp(s − lse) is then 0; with −inf it would be
    exp(−inf + inf) = NaN."""
    return torch.where(lse == -math.inf, math.inf, lse)


def row_delta(o: torch.Tensor, do: torch.Tensor) -> torch.Tensor:
    """delta = rowsum(do ∘ o), which is rowsum(p ∘ dp) (6.6). o, do: (..., S_q, D). Returns (..., S_q) in the state's
    dtype."""
    return (do.to(state_dtype(o)) * o.to(state_dtype(o))).sum(dim=-1)


def sum_groups(dx: torch.Tensor, H_k: int) -> torch.Tensor:
    """Sum (B, H_q, S_k, D) over the query heads that share a key head, to (B, H_k, S_k, D). This is the gradient of
    repeat_heads."""
    return dx.unflatten(1, (H_k, -1)).sum(dim=2) if H_k else dx


def attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    scale: float | None = None, is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dq, dk, dv) of attention by five matmuls of whole (S_q, S_k) matrices (6.6 to 6.12; FA2, section 2.3.2).

    q, o, do: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), one float dtype; lse: (B, H_q, S_q). scale: 1/√D unless given.
    dk and dv are summed over the query heads that share a key head. The gradients have the inputs' dtype; a row that
    sees nothing gets dq = 0. TypeError and ValueError as check_attention.
    """
    scale = check_attention(q, k, v, scale, dtypes=FLOAT_DTYPES_AND_64)
    H_q, H_k = q.shape[1], k.shape[1]
    p = recompute_p(q, k, lse, scale, is_causal)  # [B, H_q, S_q, S_k]
    dv = weighted(p.transpose(-1, -2), do)
    dp = scores(do, repeat_heads(v, H_q), 1.0)
    ds = p * (dp - row_delta(o, do)[..., None])
    dq = scale * weighted(ds, repeat_heads(k, H_q))
    dk = scale * weighted(ds.transpose(-1, -2), q)
    return dq.to(q.dtype), sum_groups(dk, H_k).to(k.dtype), sum_groups(dv, H_k).to(v.dtype)


def causal_rows(key_block: int, block_m: int, block_n: int, S_q: int, S_k: int) -> tuple[int, int]:
    """Which blocks of query rows see a block of keys under the causal mask: (start, full) (6.13).

    Row blocks before start see none of its keys; row blocks start … full − 1 need the mask; from full on, every row
    sees every key.
    """
    key_block, block_m, block_n = (
        check_int("key_block", key_block, 0),
        check_int("block_m", block_m),
        check_int("block_n", block_n),
    )
    S_q, S_k = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0)
    first = key_block * block_n
    if first >= S_k:
        raise ValueError(
            f"key_block must be below {-(-S_k // block_n)} for S_k = {S_k} and block_n = {block_n}, got {key_block}"
        )
    last = min(first + block_n, S_k) - 1
    sees_first = max(0, first - (S_k - S_q))  # the first row that sees the block's first key
    sees_last = max(0, last - (S_k - S_q))
    return sees_first // block_m, -(-sees_last // block_m)


def flash_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    block_m: int, block_n: int, is_causal: bool = False, scale: float | None = None, dlse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dq, dk, dv) of attention tile by tile, in two loops (6.6 to 6.14; FA2, algorithm 2, split in two).

    q, o, do: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), one float dtype; lse: (B, H_q, S_q). dlse: the gradient of lse,
    if the loss uses lse (6.18). The first loop owns a block of keys, walks over the queries and sums dk and dv. The
    second owns a block of queries, walks over the keys and sums dq. Errors as flash_forward.
    """
    scale = check_attention(q, k, v, scale, dtypes=FLOAT_DTYPES_AND_64)
    block_m, block_n = check_int("block_m", block_m), check_int("block_n", block_n)
    H_k, S_q, S_k = k.shape[1], q.shape[2], k.shape[2]
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    delta = row_delta(o, do) if dlse is None else row_delta(o, do) - dlse
    dq, dk, dv = (torch.zeros(x.shape, dtype=state_dtype(x), device=x.device) for x in (q, k, v))

    for key_block in range(-(-S_k // block_n)):
        keys = slice(key_block * block_n, min((key_block + 1) * block_n, S_k))
        start, full = causal_rows(key_block, block_m, block_n, S_q, S_k) if is_causal else (0, 0)
        for row_block in range(start, -(-S_q // block_m)):
            rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
            masked = is_causal and row_block < full
            p, ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, masked, scale)  # [B, H_q, BLOCK_M, BLOCK_N]
            dv[:, :, keys] += weighted(p.transpose(-1, -2), do[:, :, rows])
            dk[:, :, keys] += scale * weighted(ds.transpose(-1, -2), q[:, :, rows])

    for row_block in range(-(-S_q // block_m)):
        rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
        full, end = causal_tiles(row_block, block_m, block_n, S_q, S_k) if is_causal else all_tiles(block_n, S_k)
        for key_block in range(end):
            keys = slice(key_block * block_n, min((key_block + 1) * block_n, S_k))
            _, ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal and key_block >= full, scale)
            dq[:, :, rows] += scale * weighted(ds, k[:, :, keys])

    return dq.to(q.dtype), sum_groups(dk, H_k).to(k.dtype), sum_groups(dv, H_k).to(v.dtype)


def p_and_ds(q, k, v, do, lse, delta, rows: slice, keys: slice, mask: bool,
             scale: float) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """p (6.7) and ds (6.10) of one tile, each (B, H, block_m, block_n).

    rows, keys: slices that end at S_q and S_k at most. mask: apply the causal mask inside the tile.
    """
    s = scores(q[:, :, rows], k[:, :, keys], scale)
    if mask:
        s = s.masked_fill(~seen_in_tile(rows, keys, q.shape[2], k.shape[2], q.device), -math.inf)
    p = torch.exp(s - finite_or_inf(lse[:, :, rows, None]))
    dp = scores(do[:, :, rows], v[:, :, keys], 1.0)
    return p, p * (dp - delta[:, :, rows, None])


class TiledAttention(torch.autograd.Function):
    """flash_forward and flash_backward as one operation of autograd: TiledAttention.apply(q, k, v, block_m, block_n,
    is_causal, scale).

    Returns o and lse, both differentiable. It exists for torch.autograd.gradcheck; use attention.flash_attention for
    work.
    """

    @staticmethod
    def forward(ctx, q, k, v, block_m, block_n, is_causal, scale):
        o, lse = flash_forward(q, k, v, block_m, block_n, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.how = (block_m, block_n, is_causal, scale)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        return *flash_backward(q, k, v, o, do, lse, *ctx.how, dlse), None, None, None, None
