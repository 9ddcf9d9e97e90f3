"""The backward kernels in float64, and with each mistake that readers make in them: the twin that exercises 7.2 and 7.3 are graded against.

Scores are whole matrices here. What a mistake does to a mask, to the bounds of a loop or to a program's rows is said by the positions i and j. A
mistake "how q+k" reads q and k in the way `how`; `read_mistakes` makes the diagnoses of these, for exercise 7.1 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

from fa_tutorial.exercises.harness import INF, UNWRITTEN, exp32, laid_out
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.strided import reread

LN_2 = 0.6931471805599453


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward kernel gets. q, do: (B, H, S_q, D); k, v: (B, H, S_k, D), by these strides. near: what results may differ by, if not computed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    is_causal: bool = False
    scale: float = 0.25
    blocks: tuple[int, int, int] = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D
    strides: tuple[Sequence[int] | None, ...] = (None,) * 4
    near: float | None = None
    found: dict = field(default_factory=dict)

    @cached_property
    def memory(self) -> dict[str, tuple[torch.Tensor, tuple[int, ...]]]:
        """Of each tensor the memory that it lies in, and its strides; lse and delta are float32, of float64 scores."""
        tensors = {name: getattr(self, name).double() for name in ("q", "k", "v", "do")}
        q, k, v, do = tensors.values()
        s = (self.scale * (q @ k.mT)).masked_fill(~self.seen, -INF)
        lse = torch.logsumexp(s, -1)
        p = exp32(s - lse[..., None]).masked_fill(~self.seen, 0.0)
        tensors |= {"lse": lse.float().double(), "delta": (do * (p @ v)).sum(-1).masked_fill(lse == -INF, 0.0).float().double()}
        strides = {name: strides or getattr(self, name).stride() for name, strides in zip(tensors, self.strides, strict=False)}
        strides |= dict.fromkeys(("lse", "delta"), lse.stride())
        return {name: (laid_out(x, strides[name]), tuple(strides[name])) for name, x in tensors.items()}

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

    def launch(self, *outputs: str) -> Launch:
        """How a kernel that gives these gradients is launched."""
        if outputs not in self.found:
            (B, H, S_q, D), S_k = self.q.shape, self.k.shape[2]
            strides = [self.memory[name][1] for name in ("q", "k", "v", "do")]
            tensors = [In(getattr(self, name), lies) for name, lies in zip(("q", "k", "v", "do"), strides, strict=True)]
            tensors += [In(self.memory[name][0].float().view(B, H, S_q)) for name in ("lse", "delta")]
            tensors += [Out(getattr(self, name[1:]).shape, self.q.dtype) for name in outputs]
            rows, block = (S_q, self.blocks[0]) if outputs == ("dq",) else (S_k, self.blocks[1])
            meta = {"IS_CAUSAL": self.is_causal, **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), self.blocks, strict=True))}
            args = (*tensors, H, S_q, S_k, D, self.scale, *(step for lies in strides for step in lies))
            self.found[outputs] = Launch((-(-rows // block) * B * H,), args, meta)
        return self.found[outputs]


def backward_twin(given: Given, mistake: str | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv; an exception where the mistake gives nothing on this input, as where a tensor has not the shape for it."""
    how, _, group = (mistake or "").partition(" ")
    how = given.memory[how[11:]][1] if how.startswith("strides_of_") and how[11:] in given.memory else how
    (S_q, D), S_k, (block_m, block_n, block_d) = given.q.shape[2:], given.k.shape[2], given.blocks
    shapes = {"k": given.k.shape, "v": given.k.shape, "lse": given.q.shape[:3], "delta": given.q.shape[:3]}
    rows, keys = _taken(S_q, block_m, mistake, "query"), _taken(S_k, block_n, mistake, "key")
    read = {}
    for name, (memory, strides) in given.memory.items():
        x = reread(memory, strides, shapes.get(name, given.q.shape), how if name in group.split("+") else "", S_k)
        index = keys if name in ("k", "v") else rows
        again = how == "first" and name in group.split("+")
        read[name] = x[:, :, index % (block_n if name in ("k", "v") else block_m) if again else index]
    if mistake == "keys_unmasked":
        read |= {name: F.pad(read[name], (0, 0, 0, -S_k % block_n)) for name in ("k", "v")}
        keys = torch.arange(read["k"].shape[2])
    read_rows, read_keys, seen = _walked(given, rows[:, None], keys[None, :], mistake)
    unread = (~read_rows.any(1))[:, None]  # what nobody reads may be NaN
    q, do = (read[name].masked_fill(unread, 0.0) for name in ("q", "do"))
    p_dv, p, ds = _weights(given, q, read["k"], read["v"], do, read["lse"], read["delta"], seen, mistake)

    own = {"scale_here": D**-0.5, "scale_of_block": block_d**-0.5}.get(mistake, given.scale)
    factor = {"factor_1": 1.0, "factor_squared": own**2, "dv_not_dk": 1.0, "sign": -own}.get(mistake, own)
    p_dv, ds_k, ds_q = p_dv.masked_fill(~read_rows, 0.0), ds.masked_fill(~read_rows, 0.0), ds.masked_fill(~read_keys, 0.0)
    k, v, p_k = read["k"], read["v"], p.masked_fill(~read_rows, 0.0)
    left, right = {"p_turned": (p, do), "both_turned": (p, do), "ds_for_p": (ds.mT, do), "v_for_do": (p.mT, v)}.get(mistake, (p_dv.mT, do))
    dv = _summed(left, right, block_m, given, mistake, "dv") * (own if mistake in ("scale_dv", "dv_not_dk") else 1.0)
    left, right = {"ds_turned": (ds, q), "both_turned": (ds, q), "p_for_ds": (p_k.mT, q), "k_for_q": (ds.mT, k)}.get(mistake, (ds_k.mT, q))
    dk = factor * _summed(left, right, block_m, given, mistake, "dk")
    left, right = {"ds_turned": (ds.mT, k), "k_turned_too": (ds, k.mT), "p_for_ds": (p, k), "q_for_k": (ds, q), "v_for_k": (ds, v),
                   "dk_for_dq": (ds.mT, q)}.get(mistake, (ds_q, k))  # fmt: skip
    dq = factor * _summed(left, right, block_n, given, mistake, "dq")
    lost_k, lost_q = (  # where NaN is in every sum
        (mistake == "no_other" and S % block != 0) or (mistake == "no_other_d" and block_d > D)
        for S, block in ((S_q, block_m), (S_k, block_n))
    )
    dk, dv, dq = (torch.full_like(x, torch.nan) if lost else x for x, lost in ((dk, lost_k), (dv, lost_k), (dq, lost_q)))
    dk, dv = (dv, dk) if mistake == "dk_and_dv" else (dk, dv)
    if mistake in ("as_stored", "sizes") or mistake is None:
        return dq, dk, dv
    if mistake == "dead_unstored":
        dq[:, :, torch.arange(S_q) // block_m * block_m + block_m + S_k - S_q <= 0] = UNWRITTEN
    return tuple(
        _stored(x, given, name, how, group, block) for x, name, block in ((dq, "dq", block_m), (dk, "dk", block_n), (dv, "dv", block_n))
    )


def _taken(S, block, mistake, side):
    """The rows of one side that count: those that are there, or what a mistake takes for them."""
    pad = -S % block
    if mistake == f"ragged_{side}":
        return torch.arange(S // block * block)
    if mistake == f"last_{side}":
        return torch.cat([torch.arange(S), torch.full((pad,), S - 1)])
    return torch.cat([torch.arange(S), torch.arange(pad if mistake == f"first_{side}" else 0)])


def _walked(given, i, j, mistake):
    """[S_q, S_k] booleans: whether key j's program reads query i, for dk and dv; whether query i's reads key j, for dq; whether i sees j."""
    (block_m, block_n, _), S_q, S_k = given.blocks, given.q.shape[2], given.k.shape[2]
    shift, every, i_block, j_block = S_k - S_q, torch.ones(len(i), j.shape[1], dtype=torch.bool), i // block_m, j // block_n
    first = (j_block * block_n - shift).clamp(min=0)  # query that sees a key of j's block
    start = first // block_m * block_m
    if not given.is_causal or mistake == "not_causal":
        return (i >= start if mistake == "skips_always" else every), every, every
    seen = {"no_mask": every, "strict": j < i + shift, "upside": j >= i + shift, "top_left": j <= i, "shift_sign": j <= i - shift,
            "by_place": j % block_n <= i % block_m}.get(mistake, j <= i + shift)  # fmt: skip
    if mistake in ("upside", "top_left", "shift_sign", "walks_unseen"):
        return every, every, seen
    last = (j_block + 1) * block_n - 1 - shift  # the query that is the first to see all of j's block
    begin = {"late": start + block_m, "by_number": j_block * block_m, "rounded": -(-first // block_m) * block_m,
             "start_top_left": j_block * block_n // block_m * block_m,
             "start_by_last": last.clamp(min=0) // block_m * block_m}.get(mistake, start)  # fmt: skip
    rows = (i >= begin) & (i < begin + block_m) if mistake == "ends_early" else i >= begin
    end, own = ((i_block + 1) * block_m).clamp(max=S_q) + shift, i_block * block_m + shift  # keys that i's block sees; that come before it
    stop = {"early": (end - 1) // block_n, "early_by_first": own // block_n, "end_by_first": own // block_n + 1,
            "rounded_down": end // block_n, "end_top_left": -(-(end - shift) // block_n),
            "all_stop_first": -(-(min(block_m, S_q) + shift) // block_n)}.get(mistake, -(-end // block_n))  # fmt: skip
    keys = (j_block < stop) & ((j_block >= own // block_n) | (mistake != "diagonal_alone"))
    if mistake == "first_masked":
        seen = seen | (i >= start + block_m)
    if mistake == "last_masked":
        seen = seen | (j_block < stop - 1)
    if mistake == "rows_open":  # every block of queries is read, and those before the diagonal are not masked
        return every, keys, seen | ~rows
    return (rows, every, seen | ~keys) if mistake == "keys_open" else (rows, keys, seen)


def _weights(given, q, k, v, do, lse, delta, seen, mistake):
    """p for dv, p and ds."""
    half, own = given.q.dtype == torch.float16, q.shape[-1] ** -0.5
    scale = {"scale_1": 1.0, "scale_squared": given.scale**2, "scale_here": own, "scale_of_block": given.blocks[2] ** -0.5}.get(
        mistake, given.scale
    )
    qk = {"q_turned": lambda: (k @ q).mT, "k_turned": lambda: q @ k}.get(mistake, lambda: q @ k.mT)()
    dp = {"do_turned": lambda: (v @ do).mT, "v_turned": lambda: do @ v}.get(mistake, lambda: do @ v.mT)()
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
    whole = p
    p = p * seen if mistake == "product" else p if mistake in ("hide_zero", "dead_nan") else p.masked_fill(~seen, 0.0)
    delta = {"no_delta": 0 * delta, "delta_added": -delta, "half_delta": delta.half().double()}.get(mistake, delta)
    delta_row = delta[..., None, :] if mistake == "delta_along_keys" else delta[..., None]
    if mistake in ("delta_of_tile", "tile_alone"):
        delta_row = _of_tile(p * dp, given, torch.sum)
    ds = (dp - delta_row).masked_fill(~seen, 0.0) if mistake == "no_p" else (whole if mistake == "ds_unmasked" else p) * (dp - delta_row)
    if mistake == "as_stored":
        p, ds = p.to(given.q.dtype).double(), ds.to(given.q.dtype).double()
    return whole if mistake == "p_unmasked" else p, p, ds


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


def _stored(x, given, part, how, group, block):
    """A gradient where the mistake stores it; UNWRITTEN where it stores nothing."""
    B, H, S, D = x.shape
    used = b_step, h_step, *_ = torch.empty(x.shape, device="meta").stride()
    if part in group.split("+"):
        other = (given.q.shape[2] + given.k.shape[2] - S) * D
        steps = {
            "out_origin": (0, 0),
            "out_head_0": (b_step, 0),
            "out_batch_0": (0, h_step),
            "out_exchanged": (D * S, D * S * H),
            "by_other": (H * other, other),
        }
        used = (*steps.get(how, (b_step, h_step)), D, 1)
        tensor = part[1:] if how == "by_own" else how.removeprefix("by_")
        used = given.memory[tensor][1] if tensor in given.memory else used
    memory = torch.full((x.numel(),), UNWRITTEN, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            place = memory.as_strided((S, D), used[2:], b * used[0] + h * used[1])
            for number, rows in enumerate(x[b, h].split(block)):
                start = 0 if how == "first_place" else number * block
                if how != "ragged_unstored" or len(rows) == block:
                    place[start : start + len(rows)] = rows
    return memory.view(x.shape)
