"""The backward kernels in float64, right or with one of the mistakes that readers make: exercises 7.2 to 7.5 are graded against them.

Scores are whole matrices here. What a mistake does to a mask, to the bounds of a loop or to a program's rows is expressed by the positions i and j.
A mistake "how q+k" reads q and k in the way `how`, and "how dk+dv" stores dk and dv that way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import exp32
from fa_tutorial.exercises.running import INF, UNWRITTEN
from fa_tutorial.exercises.strided import BHSD, strides_in

LN_2 = 0.6931471805599453


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward kernel gets. q, do: (B, H, S_q, D); k, v: (B, H, S_k, D). near: the tolerance, computed unless given.

    orders: of q, k, v and do the dimensions from the slowest in memory to the fastest, in rows that are one element longer than they need be.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    is_causal: bool = False
    scale: float = 0.25
    blocks: tuple[int, int, int] = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D
    orders: tuple[tuple[int, ...], ...] = (BHSD,) * 4
    near: float | None = None
    found: dict = field(default_factory=dict)

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What the kernel reads, in float64; lse and delta are rounded to float32."""
        q, k, v, do = (x.double() for x in (self.q, self.k, self.v, self.do))
        s = (self.scale * (q @ k.mT)).masked_fill(~self.seen, -INF)
        lse = torch.logsumexp(s, -1)
        p = exp32(s - lse[..., None]).masked_fill(~self.seen, 0.0)
        delta = (do * (p @ v)).sum(-1).masked_fill(lse == -INF, 0.0)
        return {"q": q, "k": k, "v": v, "do": do, "lse": lse.float().double(), "delta": delta.float().double()}

    @cached_property
    def seen(self) -> torch.Tensor:
        """[S_q, S_k] booleans: query i sees keys 0 … i + S_k − S_q."""
        S_q, S_k = self.q.shape[2], self.k.shape[2]
        return torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q if self.is_causal else S_k)

    @cached_property
    def atol(self) -> dict[str, float]:
        """Three times what rounding p and ds to the dtype costs, one rounding of the gradient, and a little of what it is the sum of."""
        exact, rounded, sizes = map(self.gradients, (None, "as_stored", "sizes"))
        eps = torch.finfo(self.q.dtype).eps
        return {
            name: self.near or 3 * float((a - b).abs().max()) + max(1e-5, eps) * float(size.max()) + 1e-5
            for name, a, b, size in zip(("dq", "dk", "dv"), exact, rounded, sizes, strict=True)
        }

    def gradients(self, mistake: str | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dq, dk and dv, computed once."""
        if mistake not in self.found:
            self.found[mistake] = backward_twin(self, mistake)
        return self.found[mistake]

    def launch(self, *outputs: str, one_tile: bool = False, causal: bool = False) -> Launch:
        """How a kernel that gives these gradients is launched. one_tile: it takes no lengths. causal: it takes IS_CAUSAL."""
        (B, H, S_q, D), S_k, (block_m, block_n, block_d) = self.q.shape, self.k.shape[2], self.blocks
        inputs = {name: getattr(self, name) for name in ("q", "k", "v", "do")}
        lies = [strides_in(x.shape, order, pad=int(order != BHSD)) for x, order in zip(inputs.values(), self.orders, strict=True)]
        args = [In(x, strides, as_heads=True) for x, strides in zip(inputs.values(), lies, strict=True)]
        args += [Out(inputs[name[1:]].shape, self.q.dtype, as_heads=True) for name in outputs]
        args += [In(self.tensors[name].float()) for name in ("lse", "delta")]
        blocks = -(-S_q // block_m) if outputs == ("dq",) else -(-S_k // block_n)
        meta = {"IS_CAUSAL": self.is_causal} if causal else {}
        meta |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d}
        return Launch((blocks * B * H,), (*args, H, *(() if one_tile else (S_q, S_k)), D, self.scale), meta)


def backward_twin(given: Given, mistake: str | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv; an exception where the mistake gives nothing on this input, for example where a tensor has not the shape for it."""
    how, _, group = (mistake or "").partition(" ")
    (S_q, D), S_k, (block_m, block_n, block_d) = given.q.shape[2:], given.k.shape[2], given.blocks
    rows = torch.arange(S_q // block_m * block_m if mistake == "ragged_query" else S_q)
    keys = torch.arange(S_k // block_n * block_n if mistake == "ragged_key" else S_k)
    read = {}
    for name, x in given.tensors.items():
        wrong = how if name in group.split("+") else ""
        index, block = (keys, block_n) if name in ("k", "v") else (rows, block_m)
        read[name] = _misread(x, wrong, S_k)[:, :, index % block if wrong == "first" else index]
    if mistake == "keys_unmasked":
        read |= {name: F.pad(read[name], (0, 0, 0, -S_k % block_n)) for name in ("k", "v")}
        keys = torch.arange(read["k"].shape[2])
    times, read_keys, seen = _walked(given, rows[:, None], keys[None, :], mistake)
    unread = (times == 0).all(1)[:, None]  # what nobody reads may be NaN
    q, do = (read[name].masked_fill(unread, 0.0) for name in ("q", "do"))
    p, ds = _weights(given, q, read["k"], read["v"], do, read["lse"], read["delta"], seen, mistake)

    own = {"scale_here": D**-0.5, "scale_of_block": block_d**-0.5}.get(mistake, given.scale)
    factor = {"factor_1": 1.0, "factor_squared": own**2, "dv_not_dk": 1.0, "sign": -own}.get(mistake, own)
    p_k, ds_k = (x.masked_fill(times == 0, 0.0) * times for x in (p, ds))
    ds_q, k, v = ds.masked_fill(~read_keys, 0.0), read["k"], read["v"]
    left, right = {"p_turned": (p, do), "both_turned": (p, do), "ds_for_p": (ds.mT, do), "v_for_do": (p.mT, v)}.get(mistake, (p_k.mT, do))
    dv = _summed(left, right, block_m, given, mistake, "dv") * (own if mistake in ("scale_dv", "dv_not_dk") else 1.0)
    left, right = {"ds_turned": (ds, q), "both_turned": (ds, q), "p_for_ds": (p_k.mT, q), "k_for_q": (ds.mT, k)}.get(mistake, (ds_k.mT, q))
    dk = factor * _summed(left, right, block_m, given, mistake, "dk")
    left, right = {"ds_turned": (ds.mT, k), "p_for_ds": (p, k), "q_for_k": (ds, q), "v_for_k": (ds, v)}.get(mistake, (ds_q, k))
    dq = factor * _summed(left, right, block_n, given, mistake, "dq")
    if mistake == "no_other" and S_q % block_m:  # NaN is in every sum
        dk, dv = torch.full_like(dk, torch.nan), torch.full_like(dv, torch.nan)
    dk, dv = (dv, dk) if mistake == "dk_and_dv" else (dk, dv)
    if mistake in ("as_stored", "sizes") or mistake is None:
        return dq, dk, dv
    if mistake == "dead_unstored":
        dq[:, :, torch.arange(S_q) // block_m * block_m + block_m + S_k - S_q <= 0] = UNWRITTEN
    stored = ((dq, "dq", block_m), (dk, "dk", block_n), (dv, "dv", block_n))
    return tuple(_stored(x, block, how) if name in group.split("+") else x for x, name, block in stored)


def _misread(x, how, S_k):
    """A tensor, read in the way that `how` says; RuntimeError where that leaves its memory, or gives another shape."""
    B, H, S = x.shape[:3]
    first = {"head_0": x[:, :1], "batch_0": x[:1], "origin": x[:1, :1]}.get(how, x).expand(x.shape)
    if how == "by_keys":
        return x.contiguous().flatten().as_strided((B, H, S), (H * S_k, S_k, 1))
    return first.transpose(0, 1).expand(x.shape) if how == "exchanged" else first


def _walked(given, i, j, mistake):
    """[S_q, S_k] each: how often key j's program reads query i, for dk and dv; whether query i's reads key j, for dq; whether i sees j."""
    (block_m, block_n, _), S_q, S_k = given.blocks, given.q.shape[2], given.k.shape[2]
    shift, every, i_block, j_block = S_k - S_q, torch.ones(len(i), j.shape[1], dtype=torch.bool), i // block_m, j // block_n
    first = (j_block * block_n - shift).clamp(min=0)  # query that sees a key of j's block
    last = (((j_block + 1) * block_n).clamp(max=S_k) - 1 - shift).clamp(min=0)  # the query that is the first to see all of j's block
    start, full = first // block_m * block_m, -(-last // block_m) * block_m
    if not given.is_causal or mistake == "not_causal":
        return (i >= start if mistake == "skips_always" else every).double(), every, every
    seen = {"no_mask": every, "strict": j < i + shift, "upside": j >= i + shift, "top_left": j <= i, "shift_sign": j <= i - shift,
            "by_place": j % block_n <= i % block_m}.get(mistake, j <= i + shift)  # fmt: skip
    if mistake in ("upside", "top_left", "shift_sign", "walks_unseen"):
        return every.double(), every, seen
    begin = {"late": start + block_m, "by_number": j_block * block_m, "rounded": -(-first // block_m) * block_m, "no_masked_loop": full,
             "start_top_left": j_block * block_n // block_m * block_m, "start_by_last": last // block_m * block_m}.get(mistake, start)  # fmt: skip
    rows = (i >= begin) & (i < full) if mistake == "ends_early" else i >= begin
    times = rows.double() + {"masked_twice": i >= full, "unmasked_from_start": (i >= start) & (i < full)}.get(mistake, ~every).double()
    end, own = ((i_block + 1) * block_m).clamp(max=S_q) + shift, i_block * block_m + shift  # keys that i's block sees; that come before it
    stop = {"early": (end - 1) // block_n, "end_by_first": own // block_n + 1, "rounded_down": end // block_n}.get(
        mistake, -(-end // block_n)
    )
    keys = (j_block < stop) & ((j_block >= own // block_n) | (mistake != "diagonal_alone"))
    if mistake == "unmasked_from_start":  # once with the mask, once without
        return torch.where(seen, times, times / 2), keys, seen | rows
    if mistake == "first_masked":
        seen = seen | (i >= start + block_m)
    return times, keys, seen


def _weights(given, q, k, v, do, lse, delta, seen, mistake):
    """p and ds."""
    half, own = given.q.dtype == torch.float16, q.shape[-1] ** -0.5
    scale = {"scale_1": 1.0, "scale_squared": given.scale**2, "scale_here": own, "scale_of_block": given.blocks[2] ** -0.5}.get(
        mistake, given.scale
    )
    qk = {"q_turned": lambda: (k @ q).mT, "k_turned": lambda: q @ k}.get(mistake, lambda: q @ k.mT)()
    dp = {"do_turned": lambda: (v @ do).mT, "v_turned": lambda: do @ v}.get(mistake, lambda: do @ v.mT)()
    dp = dp.masked_fill(dp.abs() > torch.finfo(torch.float32).max, INF)  # a kernel's dp is float32
    qk, dp = qk.half().double() if half and mistake == "half_qk" else qk, dp.half().double() if half and mistake == "half_dp" else dp
    s = scale * qk
    s = s.half().double() if half and mistake == "half_s" else s
    s = s.masked_fill(~seen, 0.0) if mistake == "hide_zero" else s
    lse_row = lse[..., None, :] if mistake == "lse_along_keys" else 0 * lse[..., None] if mistake == "no_lse" else lse[..., None]
    if mistake in ("softmax_of_tile", "tile_alone"):
        lse_row = _of_tile(s.masked_fill(~seen, -INF), given, torch.logsumexp)
    x = (s.masked_fill(~seen, -INF) if mistake == "dead_nan" else s) - lse_row
    p = {"base_2": lambda: exp32(LN_2 * x), "no_exp": lambda: s, "exp_by_exp": lambda: exp32(s) / exp32(lse_row)}.get(
        mistake, lambda: exp32(x)
    )()
    p = p * seen if mistake == "product" else p if mistake in ("hide_zero", "dead_nan") else p.masked_fill(~seen, 0.0)
    delta = {"no_delta": 0 * delta, "delta_added": -delta, "half_delta": delta.half().double()}.get(mistake, delta)
    delta_row = delta[..., None, :] if mistake == "delta_along_keys" else delta[..., None]
    if mistake in ("delta_of_tile", "tile_alone"):
        delta_row = _of_tile(p * dp, given, torch.sum)
    ds = (dp - delta_row).masked_fill(~seen, 0.0) if mistake == "no_p" else p * (dp - delta_row)
    if mistake == "as_stored":
        p, ds = p.to(given.q.dtype).double(), ds.to(given.q.dtype).double()
    return p, ds


def _of_tile(x, given, of):
    return torch.cat([of(tile, -1, keepdim=True).expand_as(tile) for tile in x.split(given.blocks[1], -1)], -1)


def _summed(left, right, block, given, mistake, part):
    """left @ right, as a sum over blocks of what is summed over."""
    left, right = (left.abs(), right.abs()) if mistake == "sizes" else (left, right)
    steps = [left[..., at : at + block] @ right[..., at : at + block, :] for at in range(0, right.shape[2], block)]
    if mistake in ("last_block", f"last_block_{part}"):
        return steps[-1]
    if mistake == "first_block":
        return steps[0]
    acc = torch.zeros(*left.shape[:3], right.shape[3], dtype=torch.float64)
    for step in steps:
        acc = acc * given.scale + step if mistake == "scale_each_step" else acc + step
        acc = acc.to(given.q.dtype).double() if mistake == f"half_{part}" else acc
    return acc


def _stored(x, block, how):
    """A gradient where the mistake stores it; UNWRITTEN where it stores nothing."""
    out = torch.full_like(x, UNWRITTEN)
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            to = {"out_origin": (0, 0), "out_head_0": (b, 0), "out_batch_0": (0, h), "out_exchanged": (h, b)}.get(how, (b, h))
            for number, rows in enumerate(x[b, h].split(block)):
                start = 0 if how == "first_place" else number * block
                if how != "ragged_unstored" or len(rows) == block:
                    out[to][start : start + len(rows)] = rows
    return out
