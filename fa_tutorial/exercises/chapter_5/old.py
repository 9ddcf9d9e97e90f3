"""The old graders of chapter 5, for those of chapters 7 and 8 that are made from them. It goes when those are converted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from fa_tutorial import hardware, reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.grader import (
    OTHERS,
    Stray,
    Unwritten,
    Wrong,
    close,
    expect,
    fresh,
    input_buffer,
    misses_told,
    output_buffer,
    run_kernel,
)

Tensor = torch.Tensor
Suspects = Mapping[str, Tensor]
Order = tuple[int, int, int, int]  # dimensions of a (B, H, S, D) tensor, from the slowest in memory to the fastest
BHSD: Order = (0, 1, 2, 3)
BSHD: Order = (0, 2, 1, 3)
BHDS: Order = (0, 1, 3, 2)
BDHS: Order = (0, 3, 1, 2)
TILE = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D
BATCH = "batch b starts at b · stride_xb"
INF, NAN = float("inf"), float("nan")


def strides_of(shape: Sequence[int], order: Order = BHSD, pad: int = 0) -> tuple[int, ...]:
    """Strides of a tensor whose dimensions lie in memory in this order; pad: unused elements after each run of the fastest."""
    strides, step = [0] * 4, 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * max(shape[dim], 1) + pad
        pad = 0
    return tuple(strides)


def reread(x: Tensor, true: Sequence[int], used: Sequence[int]) -> Tensor:
    """What is read of x, which lies in memory by the strides `true`, without gaps, by the strides `used`."""
    memory = torch.empty(x.numel(), dtype=x.dtype)
    memory.as_strided(x.shape, tuple(true)).copy_(x)
    return memory.as_strided(x.shape, tuple(used)).clone()


def _name_mistake(got: Tensor, suspects: Suspects | None, atol: float) -> str | None:
    """The first suspect whose value is `got`; where a mistake divides 0 by 0, NaN and 0 count as the same."""

    def plain(x: Tensor) -> Tensor:
        return torch.nan_to_num(x.double(), nan=0.0, posinf=INF, neginf=-INF)

    return next((name for name, value in (suspects or {}).items() if close(plain(got), plain(value), 1e-5, atol)), None)


# ---------------------------------------------------------------- 5.1


def _tiles(x: Tensor, block_m: int, block_d: int) -> Tensor:
    """All tiles of x in the order of the programs: [B · H · row_blocks, BLOCK_M, BLOCK_D]."""
    S, D = x.shape[2:]
    return F.pad(x.double(), (0, block_d - D, 0, -S % block_m)).reshape(-1, block_m, block_d)


def _count(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


def grade_load_tile_kernel(kernel) -> None:
    place = "element (i, j) of program pid's tile lies at (pid · BLOCK_M + i) · BLOCK_D + j of out"

    def compare(x, on, otherwise, suspects=None, *, strides=None, blocks=(16, 16), stray="", unwritten="", values=True) -> None:
        """stray, unwritten: the diagnosis where an access misses its tensor, or where a part of out stays as it was."""
        block_m, block_d = blocks
        (_, H, S, D), want = x.shape, _tiles(x, block_m, block_d)
        buffers = input_buffer("x_ptr", x, strides), output_buffer("out_ptr", want.shape, x.dtype)
        args = (*buffers, H, S, D, *buffers[0].tensor.stride())
        with misses_told(on, stray=stray or otherwise, unwritten=unwritten or f"a tile is not stored whole: {place}"):
            try:
                (out,) = run_kernel(kernel, (len(want),), args, BLOCK_M=block_m, BLOCK_D=block_d)
            except Stray as wrong:
                if wrong.brief.endswith("outside out"):  # whatever is wrong with the loads
                    raise Wrong(f"{place}: {on}, it {wrong.brief}") from wrong
                raise
        if torch.isnan(out).any():  # on a GPU a stray read shows only so
            otherwise = stray or otherwise
        inside = _tiles(torch.ones(x.shape), block_m, block_d) == 1
        name = _name_mistake(out, suspects, 0.0)
        if name is None and torch.equal(out[inside], want[inside]):
            name = "rows past S and columns past D must be 0: load them with other=0.0"
        expect(out, want, on=on, otherwise=name or otherwise, rtol=0.0, atol=0.0, values=values)

    x = _count(1, 1, 16, 16)
    compare(x, "one head, S = D = 16, one tile", "the tile is x itself here", {
        "the tile is stored transposed, or loaded so: rows go with stride_xs and BLOCK_D, columns with stride_xd and 1": x[0].mT,
        "out is 0: is the mask ever true?": torch.zeros(1, 16, 16),
    })  # fmt: skip
    x = _count(1, 1, 32, 16)
    compare(x, "one head, S = 32, two programs", "program pid has rows row_block · BLOCK_M to row_block · BLOCK_M + BLOCK_M − 1",
            {"every program loads its head's first rows: offs_m starts at row_block · BLOCK_M": x[0, :, :16].repeat(2, 1, 1),
             "row_block is not multiplied by BLOCK_M": torch.stack([x[0, 0, :16], x[0, 0, 1:17]])},
            unwritten=f"every program stores to the same place, or not BLOCK_M · BLOCK_D elements further: {place}")  # fmt: skip
    x = _count(1, 2, 16, 16)
    head = "head h starts at h · stride_xh, with h = (pid // row_blocks) % H"
    compare(x, "two heads, S = 16", head, {
        f"every program loads head 0: {head}": x[0, :1].repeat(2, 1, 1),
        "pid itself is taken for the row block: row_block = pid % row_blocks": torch.cat([x[0, :1], torch.zeros(1, 16, 16)]),
    }, stray=f"an offset is wrong, as where batch and head are exchanged: {head}, and b = (pid // row_blocks) // H")  # fmt: skip
    x = _count(2, 1, 16, 16)
    batch = f"{BATCH}, with b = (pid // row_blocks) // H"
    compare(x, "two batches of one head, S = 16", batch, {f"the batch is forgotten: {batch}": x[:1, 0].repeat(2, 1, 1)})
    x = _count(2, 2, 16, 16)
    compare(x, "B = H = 2, S = 16", "pid // row_blocks is b · H + h", {
        "batch and head are exchanged: pid // row_blocks is b · H + h, so // H gives b and % H gives h": _tiles(x.transpose(0, 1), 16, 16),
    })  # fmt: skip
    x = _count(1, 2, 32, 16)
    compare(x, "two heads, S = 32", "pid is (b · H + h) · row_blocks + row_block", {
        "the head runs fastest: row_block = pid % row_blocks, b · H + h = pid // row_blocks": _tiles(x, 16, 16).view(2, 2, 16, 16).transpose(
            0, 1).reshape(4, 16, 16),
    })  # fmt: skip
    _grade_tile_strides(compare)
    _grade_tile_ends(compare)

    cases = [((1, 1, 1, 1), torch.float32, TILE), ((2, 3, 33, 20), torch.float16, (32, 0, 32)), ((2, 2, 31, 7), torch.float32, TILE)]
    if hardware.device().type == "cuda":
        cases.append(((2, 2, 50, 40), torch.bfloat16, (16, 0, 64)))
    for shape, dtype, (block_m, _, block_d) in cases:
        for order in (BSHD, BHDS):
            x = (10 * torch.randn(shape, generator=fresh())).to(dtype)
            on = f"{dtype_name(dtype)} x of shape {shape}, a view"
            compare(x, on, OTHERS, strides=strides_of(shape, order, pad=3), blocks=(block_m, block_d), values=False)


def _grade_tile_strides(compare: Callable) -> None:
    x = _count(1, 1, 16, 16)
    i = torch.arange(16)
    rule = "element (s, d) of a head lies at s · stride_xs + d · stride_xd"
    compare(x, "one head, S = D = 16, column-major", rule, {
        f"x is read as if it were contiguous: {rule}": x[0].mT,
        f"stride_xd is not used: {rule}": x[0, 0].T.flatten()[i[:, None] + i[None, :]][None],
        f"stride_xs is not used: {rule}": x[0, 0].T.flatten()[16 * (i[:, None] + i[None, :]).clamp(max=15)][None],
    }, strides=strides_of(x.shape, BHDS), stray=f"a stride is not used: {rule}")  # fmt: skip
    x = _count(1, 2, 16, 16)
    strides = strides_of(x.shape, BSHD)
    compare(x, "two heads, x a (B, S, H, D) tensor seen as (B, H, S, D)", "a view's heads may lie anywhere: h · stride_xh", {
        "x is read as if it were contiguous: a view's heads and rows lie stride_xh and stride_xs apart": _tiles(
            reread(x, strides, strides_of(x.shape)), 16, 16),
    }, strides=strides)  # fmt: skip
    x = _count(2, 1, 16, 16)
    strides = strides_of(x.shape, BSHD)
    used = (strides[1], *strides[1:])
    compare(x, "two batches of one head, x a (B, S, H, D) tensor seen as (B, H, S, D)", f"a view's batches may lie anywhere: {BATCH}", {
        f"b · H + h is multiplied by stride_xh: {BATCH}": reread(x, strides, used)[:, 0],
    }, strides=strides)  # fmt: skip


def _grade_tile_ends(compare: Callable) -> None:
    x = _count(1, 1, 20, 16)
    over = "the tile runs over its head's end: rows from S on belong to the next head, or to nobody, so offs_m < S is in the mask"
    compare(x, "one head, S = 20, BLOCK_M = 16", "the last tile may be ragged", {
        "the number of row blocks is rounded down: it is tl.cdiv(S, BLOCK_M)": x[0, :, :16].repeat(2, 1, 1),
    }, strides=(0, 0, 16, 1), stray=over, unwritten="the tile is stored whole, zeros too: the load alone needs a mask")  # fmt: skip
    x = _count(1, 2, 20, 16)
    rows = F.pad(x.view(40, 16), (0, 0, 0, 16))
    compare(x, "two heads, S = 20, BLOCK_M = 16", "the last tile may be ragged", {
        over: torch.stack([rows[start : start + 16] for start in (0, 16, 20, 36)]),
    }, stray=over)  # fmt: skip
    compare(_count(1, 1, 16, 12), "one head, S = 16, D = 12, BLOCK_D = 16", "a tile has BLOCK_D columns, x has D",
            stray="columns past D are loaded, which belong to the next row: offs_d < D is in the mask",
            unwritten="the tile is stored whole, zeros too: its rows are BLOCK_D apart in out, and the load alone needs a mask")  # fmt: skip


# ---------------------------------------------------------------- 5.2 to 5.4: what they share

LSE_PLACE = "row i of head h of batch b lies at (b · H_q + h) · S_q + i of lse, i < S_q"
LSE_FORGOTTEN = f"lse is never stored, and o is: {LSE_PLACE}"


def draw_qkv(B: int, H: int, S_q: int, S_k: int, D: int, *, H_k: int = 0, generator: torch.Generator | None = None) -> list[Tensor]:
    """q, k, v of normal values, the same on every call unless a generator is given."""
    generator = generator or torch.Generator().manual_seed(0)
    shapes = (B, H, S_q, D), (B, H_k or H, S_k, D), (B, H_k or H, S_k, D)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def scaled_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return scale * (q.double() @ k.double().mT)


def weigh(s: Tensor, v: Tensor) -> Tensor:
    """softmax(s) v in float64; a row of −inf gives NaN."""
    return torch.softmax(s, dim=-1) @ v.double()


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weigh(scaled_scores(q, k, q.shape[-1] ** -0.5), v)


def walk_tiles(s: Tensor, v: Tensor, flaw: str) -> tuple[Tensor, Tensor]:
    """The loop over tiles of 16 keys in float64, with one mistake. Returns o and lse."""
    m, l, acc = torch.full_like(s[..., :1], -INF), torch.zeros_like(s[..., :1]), torch.zeros_like(s[..., :1] * v[..., :1, :])
    for tile, values in zip(s.split(16, dim=-1), v.double().split(16, dim=-2), strict=True):
        m_new = torch.maximum(m, tile.amax(-1, keepdim=True))
        p, alpha = torch.exp(tile - m_new), torch.exp(m - m_new)
        l = (l if flaw in ("l", "both") else 0 * l if flaw == "l lost" else alpha * l) + p.sum(-1, keepdim=True)
        acc = (acc if flaw in ("acc", "both") else 0 * acc if flaw == "acc lost" else alpha * acc) + p @ values
        if flaw == "divided":
            acc = acc / l
        m = m_new
    return (acc if flaw == "divided" else acc / l), (m + torch.log(l))[..., 0]


class ForwardGrader:
    """Runs one kernel on inputs and compares o, and lse where the kernel has one."""

    def __init__(self, kernel: Any, *, is_causal: bool = False, has_lse: bool = False) -> None:
        self.kernel, self.is_causal, self.has_lse = kernel, is_causal, has_lse

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale: float, blocks: Sequence[int], strides: Sequence[Any]) -> list[Tensor]:
        (B, H, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
        named = zip("qkv", (q, k, v), strides[:3], strict=True)
        buffers = [input_buffer(f"{name}_ptr", x, lies) for name, x, lies in named]
        buffers.append(output_buffer("o_ptr", q.shape, q.dtype, strides[3]))
        steps = [stride for buffer in buffers for stride in buffer.tensor.stride()]
        if self.has_lse:
            buffers.append(output_buffer("lse_ptr", (B, H, S_q), torch.float32))
        heads = (H, H_k) if self.has_lse else (H,)
        grid = (-(-S_q // blocks[0]) * B * H,)
        meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)  # the interpreter's tl.max: o tells what it has to tell
            return run_kernel(self.kernel, grid, (*buffers, *heads, S_q, S_k, D, scale, *steps), **meta)

    def compare(
        self, inputs: Sequence[Tensor], on: str, otherwise: str, suspects: Suspects | None = None, lse_suspects: Suspects | None = None, *,
        lse_otherwise: str = "lse is m + log l", scale: float | None = None, blocks: Sequence[int] = TILE,
        strides: Sequence[Any] = (None,) * 4, stray: str = "", stray_q: str = "", filler: str = "", unwritten: str = "", values: bool = True,
    ) -> None:  # fmt: skip
        """stray, unwritten: the diagnosis where an access misses its tensor, or where a part of o or lse stays as it was.

        stray_q: the diagnosis where that tensor is q or o, if it is another one. filler: the diagnosis where o is NaN without any such access.
        """
        q, k, v = inputs
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        want, want_lse = reference.attention(q, k, v, self.is_causal, scale)
        try:
            o, *lse = self.run(q, k, v, scale, blocks, strides)
        except Unwritten as wrong:
            forgotten = str(wrong).startswith("never writes lse") and not wrong.written.any()
            raise Wrong(f"{LSE_FORGOTTEN if forgotten else unwritten or otherwise}: {on}, it {wrong}") from wrong
        except Stray as wrong:
            mine = stray_q if wrong.brief.endswith(("outside q", "outside o")) else ""
            raise Wrong(f"{mine or stray or otherwise}: {on}, it {wrong.brief}") from wrong
        plain = reference.naive_attention(q, k, v, self.is_causal, scale).double()
        slip = float(torch.nan_to_num(plain - want).abs().amax())
        largest = float(want.abs().amax())
        atol = 2 * slip + 1e-5 * max(1.0, largest) + (0.0 if q.dtype == torch.float32 else torch.finfo(q.dtype).eps * largest)
        if not close(o, want, 0.0, atol):
            lost = _lost_by(stray, filler) if torch.isnan(o).any() else ""
            otherwise = _name_mistake(o, suspects, atol) or lost or otherwise
        expect(o, want, on=on, otherwise=otherwise, rtol=0.0, atol=atol, values=values, what="o")
        if self.has_lse:
            expect(lse[0], want_lse, on=on, otherwise=lse_otherwise, suspects=lse_suspects, rtol=1e-6, atol=1e-5 if q.dtype == torch.float32 else 1e-3,
                   values=values, what="lse")  # fmt: skip

    def on_fresh_inputs(self, cases: Sequence[tuple]) -> None:
        """cases: (B, H, H_k, S_q, S_k, D), dtype, blocks, factor. bf16 joins on a GPU: the interpreter's is wrong."""
        cases = list(cases)
        if hardware.device().type == "cuda":
            cases.append(((1, 2, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0))
        for (B, H, H_k, S_q, S_k, D), dtype, blocks, factor in cases:
            inputs = [(factor * x).to(dtype) for x in draw_qkv(B, H, S_q, S_k, D, H_k=H_k, generator=fresh())]
            heads = f"H = {H}" if H_k == H else f"H_q = {H}, H_k = {H_k}"
            on = f"{dtype_name(dtype)}, B = {B}, {heads}, S_q = {S_q}, S_k = {S_k}, D = {D}, views"
            shapes = [tuple(x.shape) for x in (*inputs, inputs[0])]
            strides = [strides_of(shape, order, pad=1) for shape, order in zip(shapes, (BSHD, BHDS, BHSD, BSHD), strict=True)]
            self.compare(inputs, on, OTHERS, blocks=blocks, strides=strides, values=False)


def _lost_by(stray: str, filler: str) -> str:
    """What gives NaN at an edge: a GPU shows stray reads only so, and the interpreter has let none through."""
    if hardware.interpreter_on():
        return filler
    return f"{stray}, or {filler}" if stray and filler else stray or filler


def _grade_one_tile(grader: ForwardGrader, seen: Tensor | None = None, **lse: Any) -> None:
    """S_q = S_k = D = 16: one tile, one step. seen: what the mask lets through."""
    q, k, v = draw_qkv(1, 1, 16, 16, 16)

    def hide(s: Tensor) -> Tensor:
        return s if seen is None else s.masked_fill(~seen, -INF)

    s = hide(scaled_scores(q, k, 0.25))
    by_queries, down = torch.exp(s - s.amax(-2)[..., None]), "a row's maximum and sum run over its keys, axis 1"
    grader.compare((q, k, v), "S_q = S_k = D = 16, one tile", "one tile gives softmax(scale · q kᵀ) v", {
        "scale is forgotten: s = scale · q kᵀ": weigh(hide(scaled_scores(q, k, 1.0)), v),
        "scale is applied twice": weigh(hide(scaled_scores(q, k, 0.0625)), v),
        "acc is not divided: o = acc / l": torch.exp(s - s.amax(-1, keepdim=True)) @ v.double(),
        "acc is divided by the number of keys: o = acc / l": torch.exp(s - s.amax(-1, keepdim=True)) @ v.double() / 16,
        "k is not transposed: s = scale · q kᵀ, so k's tile is read as [BLOCK_D, BLOCK_N]": weigh(hide(scaled_scores(q, k.mT, 0.25)), v),
        "v is read transposed": weigh(s, v.mT),
        "the scores themselves weigh v: p = exp(s − m)": s.nan_to_num(neginf=0.0) @ v.double(),
        "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))": weigh(s * 0.6931471805599453, v),
        "the softmax runs over the queries: a row's maximum and sum run over the keys, axis 1": torch.softmax(s, dim=-2) @ v.double(),
        f"the sum runs over the queries, and so l of key i divides row i: {down}": (
            torch.exp(s - s.amax(-1, keepdim=True)) @ v.double() / torch.exp(s - s.amax(-1, keepdim=True)).sum(-2)[..., None]),
        f"maximum and sum run over the queries, and so those of key i are taken for row i: {down}": (
            by_queries @ v.double() / by_queries.sum(-2)[..., None]),
        "NaN from the first tile on: m starts at −inf, where alpha = exp(m_old − m_new) is 0 and exp(m_new − m_old) inf":
            torch.full_like(s, NAN),
        "o is stored transposed": weigh(s, v).mT,
    }, stray="an offset is wrong, not a mask, for whole tiles fit here", unwritten="o's tile is not stored whole", **lse)  # fmt: skip


# ---------------------------------------------------------------- 5.2

KEYS_FILLED = "what a load puts in place of keys past S_k is not 0: p is 0 there, and 0 · inf is NaN"
ROWS = "rows past S_q are loaded or stored: offs_m < S_q is in the masks of q's load and of o's store"


def grade_flash_forward_kernel(kernel) -> None:
    grader = ForwardGrader(kernel)
    _grade_one_tile(grader)
    _grade_two_tiles(grader)
    grade_range(grader)
    _grade_own_maximum(grader)
    grade_half(grader)
    _grade_ragged(grader)
    _grade_low_scores(grader)
    _grade_blocks(grader)
    _grade_scale(grader)
    _grade_heads(grader)
    _grade_strides(grader)
    grader.on_fresh_inputs((
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((1, 2, 2, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((2, 2, 2, 15, 17, 16), torch.float32, TILE, 3.0),
        ((1, 1, 1, 20, 40, 40), torch.float32, (16, 32, 64), 1.0),
    ))  # fmt: skip


def _grade_two_tiles(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    s = scaled_scores(q, k, 0.25)
    first, last, one_on = slice(0, 16), slice(16, 32), [*range(16), *range(1, 17)]
    grader.compare((q, k, v), "S_k = 32, two tiles of keys", "a second tile joins by softmax_step: m, l and acc", {
        "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": walk_tiles(s, v, "acc")[0],
        "l is not rescaled when the maximum grows: l = alpha · l + Σ p": walk_tiles(s, v, "l")[0],
        "neither acc nor l is rescaled when the maximum grows: alpha = exp(m_old − m_new), taken before m is replaced": walk_tiles(s, v, "both")[0],
        "each tile's l replaces the one before: l = alpha · l + Σ p": walk_tiles(s, v, "l lost")[0],
        "each tile's p v replaces the one before: acc = alpha · acc + p v": walk_tiles(s, v, "acc lost")[0],
        "acc is divided by l at every step: divide once, after the loop": walk_tiles(s, v, "divided")[0],
        "only the last tile counts: is m kept from step to step, so that alpha is not 0?": weigh(s[..., last], v[:, :, last]),
        "only the first tile counts: the loop runs to S_k, and so does the mask of the scores": weigh(s[..., first], v[:, :, first]),
        "every step reads the first tile of k: its rows are start_n + tl.arange(0, BLOCK_N)": weigh(s[..., first].repeat(1, 1, 1, 2), v),
        "every step reads the first tile of v: its rows are start_n + tl.arange(0, BLOCK_N)": weigh(s, v[:, :, first].repeat(1, 1, 2, 1)),
        "the second step takes keys 1 to 16: a tile begins BLOCK_N keys after the one before": weigh(s[..., one_on], v[:, :, one_on]),
    }, stray="a step's keys are start_n to start_n + BLOCK_N − 1, and start_n stays below S_k")  # fmt: skip


def draw_logits(*tiles: float, scale: float = 0.25, S_k: int | None = None) -> list[Tensor]:
    """q, k, v of 16 queries whose logits are equal within each tile of 16 keys, the last one cut off at S_k."""
    q, _, v = draw_qkv(1, 1, 16, 16 * len(tiles), 16)
    k = torch.cat([torch.full((1, 1, 16, 16), tile / (16 * scale)) for tile in tiles], dim=2)
    return [torch.ones_like(q), k[:, :, :S_k].clone(), v[:, :, :S_k].clone()]


def grade_range(grader: ForwardGrader) -> None:
    """Logits that no exp can take as they are."""
    grader.compare(
        draw_logits(200, scale=1.0), "all logits 200, scale = 1", "exp overflows: subtract the row's maximum before exp", scale=1.0
    )
    grader.compare(draw_logits(200), "all logits 200, scale = 0.25",
                   "with a scale other than 1 exp under- or overflows: m is the maximum of scale · q kᵀ, not of q kᵀ")  # fmt: skip
    grader.compare(draw_logits(-200), "all logits −200", "every p underflows to 0: m starts at −inf, not at 0 or another finite value")
    grader.compare(draw_logits(200, 0), "logits 200 in the first tile, 0 in the second",
                   "the maximum is that of the last tile alone, so alpha overflows: m_new = max(m, the tile's maximum)")  # fmt: skip


def _grade_own_maximum(grader: ForwardGrader) -> None:
    q, k, v = draw_logits(200)
    q[:, :, :15] = 0
    o = reference.attention(q, k, v, grader.is_causal, 0.25)[0]
    last = torch.arange(16)[:, None] == 15
    grader.compare((q, k, v), "logits 200 in row 15, 0 in all others", "each row is shifted by its own maximum: p = exp(s − m)", {
        "every p of the other rows underflows to 0: a row's maximum is its own, over its keys, axis 1": o * last,
        "exp under- or overflows in row 15: p = exp(s − m), with m the row's maximum of the scaled scores": o * ~last,
    })  # fmt: skip


def _grade_low_scores(grader: ForwardGrader) -> None:
    """All scores −2^30: −1e4, −1e6 and −1e9, where they stand for −inf, lie above. Lower still, and the reference in float64 loses log l."""
    low = "where every score is lower, that is the maximum, and every p 0"
    grader.compare(draw_logits(-(2.0**30)), "all logits −2³⁰, one whole tile of keys", f"m starts at a finite number, not at −inf: {low}")
    pads = "keys past S_k get a finite score, which may be the largest of all: they must be −inf"
    grader.compare(draw_logits(-(2.0**30), S_k=4), "S_k = 4, all logits −2³⁰", pads, lse_otherwise=pads, filler=KEYS_FILLED,
                   stray="S_k may be less than BLOCK_N: no key may be read that is not there")  # fmt: skip


def _grade_ragged(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 20, 16)
    s, padded_v = scaled_scores(q, k, 0.25), F.pad(v, (0, 0, 0, 12))
    grader.compare((q, k, v), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged", {
        "keys past S_k count with a score of 0, and exp(0 − m) is not 0: set their scores to −inf": weigh(F.pad(s, (0, 12)), padded_v),
        "the ragged last tile of keys is left out: the loop goes on while start_n < S_k": weigh(s[..., :16], v[:, :, :16]),
    }, stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's", filler=KEYS_FILLED)  # fmt: skip
    q, k, v = draw_qkv(1, 1, 32, 16, 16)
    o = attend(q, k, v)
    grader.compare((q, k, v), "S_q = 32, two programs", "a program's rows start at row_block · BLOCK_M, in q and in o", {
        "every program loads the first rows of q: offs_m starts at row_block · BLOCK_M": o[:, :, :16].repeat(1, 1, 2, 1),
    }, unwritten="the second block of rows is never stored: a program's rows start at row_block · BLOCK_M, in o too")  # fmt: skip
    grader.compare(draw_qkv(1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=ROWS,
                   strides=((0, 0, 16, 1),) * 4, unwritten="the ragged last rows are never stored: there are tl.cdiv(S_q, BLOCK_M) row blocks a head")  # fmt: skip


def _grade_scale(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 16, 12)
    grader.compare((q, k, v), "D = 12, BLOCK_D = 16", "D may be less than BLOCK_D", {
        "the scale comes from BLOCK_D: it is an argument": weigh(scaled_scores(q, k, 0.25), v),
    }, stray="columns past D are loaded or stored: offs_d < D is in the mask of every load and of the store",
        filler="what a load puts in place of columns past D is not 0: it enters the sums of q kᵀ, and 0 · inf is NaN")  # fmt: skip
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    grader.compare((q, k, v), "scale = 0.5, D = 16", "the scale is an argument, which the caller may choose", {
        "the scale is computed in the kernel: it is an argument, which the caller may choose": attend(q, k, v),
    }, scale=0.5)  # fmt: skip


def _grade_heads(grader: ForwardGrader) -> None:
    def forgotten(q: Tensor, k: Tensor, v: Tensor, dim: int, what: str) -> dict[str, Tensor]:
        """What comes out where some of q, k, v are read from index 0 of `dim` alone."""
        first = [x.narrow(dim, 0, 1).expand_as(x) for x in (q, k, v)]
        pairs = {
            "q": (first[0], k, v),
            "k": (q, first[1], v),
            "v": (q, k, first[2]),
            "k and v": (q, first[1], first[2]),
            "q, k and v": first,
        }
        return {f"{names} {'are' if 'and' in names else 'is'} {what}": attend(*tensors) for names, tensors in pairs.items()}

    q, k, v = draw_qkv(1, 2, 16, 16, 16)
    grader.compare((q, k, v), "two heads", "each program stays within its own head: h · stride, h = (pid // row_blocks) % H",
                   forgotten(q, k, v, 1, "read from head 0 by every program: add h · stride"),
                   stray="an offset is wrong, as where batch and head are exchanged: // H gives b, % H gives h",
                   unwritten="only head 0 of o is written: add h · stride_oh")  # fmt: skip
    q, k, v = draw_qkv(2, 1, 16, 16, 16)
    grader.compare((q, k, v), "two batches", "each program stays within its own batch: b · stride, b = (pid // row_blocks) // H",
                   forgotten(q, k, v, 0, "read from batch 0 by every program: the batch's offset, b · stride, is forgotten"),
                   unwritten="only batch 0 of o is written: add b · stride_ob")  # fmt: skip
    q, k, v = draw_qkv(2, 2, 16, 16, 16)
    swapped_k, swapped_v = k.transpose(0, 1), v.transpose(0, 1)
    grader.compare((q, k, v), "B = H = 2", "pid // row_blocks is b · H + h", {
        "batch and head are exchanged in k and v: // H gives b, % H gives h": attend(q, swapped_k, swapped_v),
        "batch and head are exchanged in k: // H gives b, % H gives h": attend(q, swapped_k, v),
        "batch and head are exchanged in v: // H gives b, % H gives h": attend(q, k, swapped_v),
        "batch and head are exchanged in q or o: // H gives b, % H gives h": attend(q.transpose(0, 1), k, v),
    })  # fmt: skip


def _grade_strides(grader: ForwardGrader) -> None:
    """Four layouts without gaps, all different: whose strides were used shows in the values."""
    q, k, v = draw_qkv(1, 2, 16, 16, 16)
    strides = dict(zip("qkvo", (strides_of(q.shape, order) for order in (BHSD, BSHD, BHDS, BDHS)), strict=True))
    o = attend(q, k, v)
    suspects = {}
    for other in "qv":
        read = reread(k, strides["k"], strides[other])
        suspects[f"k is read by the strides of {other}: each tensor has its own"] = attend(q, read, v)
        for used in "qk":
            read_v = reread(v, strides["v"], strides[used])
            suspects[f"v is read by the strides of {used}: each tensor has its own"] = attend(q, k, read_v)
            suspects[f"k and v are read by the strides of {other} and {used}: each tensor has its own"] = attend(q, read, read_v)
    for used in "qkv":
        suspects[f"o is stored by the strides of {used}: each tensor has its own"] = reread(o, strides[used], strides["o"])
    grader.compare((q, k, v), "q, k, v and o laid out differently", "each tensor has its own four strides", suspects,
                   strides=tuple(strides.values()))  # fmt: skip
    grader.compare(draw_qkv(1, 2, 20, 16, 16), "two heads, S_q = 20, BLOCK_M = 16", "tiles of one head must not touch the next", stray=ROWS,
                   unwritten="a head has tl.cdiv(S_q, BLOCK_M) row blocks: pid // row_blocks is b · H + h")  # fmt: skip
    _grade_batches(grader)


def _grade_batches(grader: ForwardGrader) -> None:
    """B = 2, H = 1, (B, S, H, D) in memory: (b · H + h) · stride_h reaches another row of batch 0."""
    q, k, v = draw_qkv(2, 1, 16, 16, 16)
    strides = strides_of(q.shape, BSHD)
    rule = "batch b starts at b · the batch's stride, its head h at h · the head's stride further on: (b · H + h) · one of them is elsewhere in a view"
    grader.compare((q, k, v), "B = 2, H = 1, all tensors views of (B, S, H, D)", rule, strides=(strides,) * 4)


def _grade_blocks(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 32, 32, 16)
    s, step = (
        scaled_scores(q, k, 0.25),
        "as where BLOCK_M stands for BLOCK_N: a step takes BLOCK_N keys, and the next begins BLOCK_N further on",
    )
    twice = [*range(32), *range(16, 32)]
    for block_m, block_n in ((16, 32), (32, 16)):
        grader.compare((q, k, v), f"S_q = S_k = 32, BLOCK_M = {block_m}, BLOCK_N = {block_n}",
                       "BLOCK_M and BLOCK_N may differ: a tile of q or o has BLOCK_M rows, one of k or v BLOCK_N", {
            f"keys 16 to 31 count twice, {step}": weigh(s[..., twice], v[:, :, twice]),
            f"keys 16 to 31 are left out, {step}": weigh(s[..., :16], v[:, :, :16]),
        }, blocks=(block_m, block_n, 16))  # fmt: skip


def grade_half(grader: ForwardGrader) -> None:
    """Equal scores, so p = 1 and l = 48; fp16 holds 2,048 but not 2,049."""
    q, k, v = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (16, 48, 48))
    v[:, :, 0], v[:, :, 16], v[:, :, 32] = 2048, 1, -2048
    grader.compare((q, k, v), "fp16, equal scores, v of the three tiles sums to 2048, 1 and −2048", "fp16 needs a float32 acc", {
        "acc is kept in fp16, in which 2048 + 1 is 2048: m, l and acc are float32": torch.zeros(1, 1, 16, 16),
    })  # fmt: skip
    q, k, v = (x.to(torch.float16) for x in draw_qkv(1, 1, 16, 16, 16))
    grader.compare((torch.full_like(q, 64), torch.full_like(k, 64), v), "fp16, all of q and k 64, so that q kᵀ is 65536 before it is scaled",
                   "the scores overflow: keep what tl.dot returns in float32, fp16 ends at 65504")  # fmt: skip


# ---------------------------------------------------------------- 5.3


def seen_pairs(S_q: int, S_k: int, diagonal: int | None = None) -> Tensor:
    """reference.causal_mask, or with a `diagonal` the mask that a mistake gives: query i sees keys 0 … i + diagonal."""
    return torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q if diagonal is None else diagonal)


def grade_flash_forward_causal_kernel(kernel) -> None:
    grader = ForwardGrader(kernel, is_causal=True)
    _grade_masks(grader)
    _grade_one_tile(grader, seen_pairs(16, 16))
    _grade_hidden_scores(grader)
    _grade_own_maximum(grader)
    _grade_tiles_walked(grader)
    _grade_alignment(grader)
    _grade_last_keys(grader)
    _grade_dead_rows(grader)
    _grade_tiles_skipped(grader)
    grader.on_fresh_inputs((
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((1, 2, 2, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((2, 1, 1, 37, 19, 16), torch.float32, TILE, 1.0),
        ((1, 2, 2, 20, 40, 40), torch.float32, (16, 32, 64), 3.0),
    ))  # fmt: skip


def _grade_masks(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    s, seen = scaled_scores(q, k, 0.25), seen_pairs(16, 16)
    grader.compare((q, k, v), "S_q = S_k = 16, one tile", "query i sees keys 0 to i", {
        "nothing is hidden: query i sees keys 0 to i + S_k − S_q": weigh(s, v),
        "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q": weigh(s.masked_fill(~seen_pairs(16, 16, -1), -INF), v),
        "the mask is turned round: keys after the query are hidden, not those before": weigh(s.masked_fill(~seen.mT, -INF), v),
        "hidden keys get a score of 0, and exp(0 − m) is not 0: −inf it must be": weigh(s.masked_fill(~seen, 0.0), v),
        "the mask comes after exp, and l has counted the hidden keys: hide them in s, before m and l": (
            torch.softmax(s, dim=-1).masked_fill(~seen, 0.0) @ v.double()),
        "no tile is walked, the loop stops one tile too early: the tile that the diagonal crosses holds keys that are seen": torch.zeros_like(s),
    }, stray="an offset is wrong, not a mask, for whole tiles fit here")  # fmt: skip


def _grade_hidden_scores(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    k[:, :, 15] = 100
    grader.compare((q.abs() + 1, k, v), "the last key's logits over 400, all others small",
                   "hidden keys must not move the maximum: hide them in s, before m")  # fmt: skip


def _grade_tiles_walked(grader: ForwardGrader) -> None:
    """Which tiles a block of rows walks over: its keys, up to a limit for each row block."""

    def walked(inputs: Sequence[Tensor], limits: Sequence[int], block_m: int, hidden: bool = True) -> Tensor:
        """Row block i sees no key from limits[i] on; hidden: the diagonal's mask is applied too."""
        q, k, v = inputs
        S_q, S_k = q.shape[2], k.shape[2]
        limit = torch.tensor(limits).repeat_interleave(block_m)[:S_q, None]
        seen = (torch.arange(S_k) < limit) & (seen_pairs(S_q, S_k) if hidden else torch.tensor(True))
        return weigh(scaled_scores(q, k, q.shape[-1] ** -0.5).masked_fill(~seen, -INF), v)

    inputs = draw_qkv(1, 1, 32, 32, 16)
    early = "the loop stops one tile too early: the tile that the diagonal crosses holds keys that are seen"
    places = "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added"
    q, k, v = inputs
    i, j = torch.arange(32)[:, None], torch.arange(32)

    def masked(seen: Tensor) -> Tensor:
        return weigh(scaled_scores(q, k, 0.25).masked_fill(~seen, -INF), v)

    grader.compare(inputs, "S_q = S_k = 32, two blocks of rows", "a block of rows walks over every tile that its last row sees", {
        early: walked(inputs, (0, 16), 16),
        "the tile that the diagonal crosses is not masked": walked(inputs, (16, 32), 16, hidden=False),
        "every block of rows stops where the first one does": walked(inputs, (16, 16), 16),
        places: masked((j % 16 <= i % 16) & (j // 16 <= i // 16)),
        f"{places} (no tile is skipped)": masked(j % 16 <= i % 16),
        f"{places} (the rows' is there)": masked((j % 16 <= i) & (j // 16 <= i // 16)),
        f"{places} (the keys' is there)": masked(j <= i % 16),
    })  # fmt: skip
    grader.compare(inputs, "S_q = S_k = 32, BLOCK_M = 32, BLOCK_N = 16", "BLOCK_M and BLOCK_N may differ", {
        "the loop stops before the last row's diagonal: it goes on while start_n < (row_block + 1) · BLOCK_M + S_k − S_q": walked(
            inputs, (16,), 32),
    }, blocks=(32, 16, 16))  # fmt: skip
    grader.compare(inputs, "S_q = S_k = 32, BLOCK_M = 16, BLOCK_N = 32", "BLOCK_M and BLOCK_N may differ", {
        early: walked(inputs, (0, 0), 16),
        "the number of tiles is rounded down: the tile that the diagonal crosses holds keys that are seen": walked(inputs, (0, 32), 16),
    }, blocks=(16, 32, 16))  # fmt: skip


def _grade_alignment(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    s = scaled_scores(q, k, 0.25)
    bottom = "query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"
    grader.compare((q, k, v), "S_q = 16, S_k = 32", bottom, {
        f"the mask is aligned top-left: {bottom}": weigh(s.masked_fill(~seen_pairs(16, 32, 0), -INF), v),
        "the mask is right, but the loop stops at key (row_block + 1) · BLOCK_M: add S_k − S_q": weigh(s[..., :16], v[:, :, :16]),
        f"S_k − S_q has the wrong sign: {bottom}": weigh(s.masked_fill(~seen_pairs(16, 32, -16), -INF), v),
    })  # fmt: skip


def _grade_last_keys(grader: ForwardGrader) -> None:
    """S_q = 16, S_k = 20 and 17: the last tile of keys is ragged, and in the second case only the last row sees into it, one key."""
    for S_k, first_tile in (
        (20, "the ragged last tile of keys is left out: the last row sees all S_k keys"),
        (17, "the loop stops one key too early: its end is exclusive, and the last row's key i + S_k − S_q is seen too"),
    ):
        q, k, v = draw_qkv(1, 1, 16, S_k, 16)
        s = scaled_scores(q, k, 0.25).masked_fill(~seen_pairs(16, S_k), -INF)
        grader.compare((q, k, v), f"S_q = 16, S_k = {S_k}, BLOCK_N = 16", "the last tile of keys may be ragged", {first_tile: weigh(s[..., :16], v[:, :, :16])},
                       stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's", filler=KEYS_FILLED)  # fmt: skip


def _grade_tiles_skipped(grader: ForwardGrader) -> None:
    """Rows 0 to 15 see no key of the second tile, whose v is NaN: it shows in their o if they read it, for 0 · NaN is NaN."""
    q, k, v = draw_qkv(1, 1, 32, 32, 16)
    v[:, :, 16:] = NAN
    if torch.isnan(grader.run(q, k, v, 0.25, TILE, (None,) * 4)[0][:, :, :16]).any():
        raise Wrong("a tile that no row of the block sees is not skipped: S_q = S_k = 32, rows 0 to 15 read v's rows 16 to 31")


def _grade_dead_rows(grader: ForwardGrader) -> None:
    """S_q = 24, S_k = 16: the first 8 rows see nothing; then S_q = 32: the first block sees nothing at all."""
    for S_q, on in (
        (24, "S_q = 24, S_k = 16, so that rows 0 to 7 see no key"),
        (32, "S_q = 32, S_k = 16, so that rows 0 to 15 see no key"),
    ):
        inputs, dead = draw_qkv(1, 1, S_q, 16, 16), S_q - 16
        want = reference.attention(*inputs, is_causal=True)[0]
        o = grader.run(*inputs, 0.25, TILE, (None,) * 4)[0]
        if close(o[:, :, dead:], want[:, :, dead:], 0.0, 1e-4) and not close(o, want, 0.0, 1e-4):
            lost = torch.isnan(o[:, :, :dead])
            if lost.any():
                raise Wrong(f"rows that see no key give NaN, from −inf − (−inf) or 0 / 0; they must be 0: {on}")
            raise Wrong(f"rows that see no key give an average of v, as where a finite number stands for −inf; they must be 0: {on}")
        s = scaled_scores(inputs[0], inputs[1], 0.25)
        grader.compare(inputs, on, "S_q may be larger than S_k", {
            "the mask is aligned top-left: query i sees keys 0 to i + S_k − S_q": weigh(s.masked_fill(~seen_pairs(S_q, 16, 0), -INF), inputs[2]),
        })  # fmt: skip


# ---------------------------------------------------------------- 5.4


def grade_flash_forward_gqa_kernel(kernel) -> None:
    grader = ForwardGrader(kernel, has_lse=True)
    q, k, _ = draw_qkv(1, 1, 16, 16, 16)
    s = scaled_scores(q, k, 0.25)
    m, lse = s.amax(-1), torch.logsumexp(s, -1)
    _grade_one_tile(grader, lse_suspects={
        "lse is in base 2: with exp2, m and log2(l) are to be divided by log2(e)": lse / 0.6931471805599453,
        "m is natural, but l's logarithm is in base 2: tl.log, or tl.log2 divided by log2(e)": m + (lse - m) / 0.6931471805599453,
        "l is added without its logarithm: lse = m + log l": m + torch.exp(lse - m),
        "m is left out: l is a sum of exp(s − m), so lse = m + log l": lse - m,
        "that is m alone: lse = m + log l": m,
        "that is l: lse = m + log l": torch.exp(lse - m),
        "m has the wrong sign: lse = m + log l": lse - 2 * m,
        "the logarithm has the wrong sign: lse = m + log l": 2 * m - lse,
        "m is not scaled: lse is that of scale · q kᵀ": lse + 3 * m,
    })  # fmt: skip
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3
    s = scaled_scores(q, k, 0.25)
    grader.compare((q, k, v), "S_k = 32, two tiles of keys", "a second tile joins by softmax_step: m, l and acc", {
        "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": walk_tiles(s, v, "acc")[0],
        "l is not rescaled when the maximum grows: l = alpha · l + Σ p": walk_tiles(s, v, "l")[0],
    }, {"lse is that of the last tile: it is stored once, after the loop": torch.logsumexp(s[..., 16:], -1),
        "l is not rescaled when the maximum grows: l = alpha · l + Σ p": walk_tiles(s, v, "l")[1]})  # fmt: skip
    _grade_own_maximum(grader)
    _grade_head_map(grader)
    _grade_lse_place(grader)
    q, k, v = draw_qkv(1, 1, 16, 20, 16)
    s = F.pad(scaled_scores(q, k, 0.25), (0, 12))
    zero = "keys past S_k count with a score of 0, and exp(0 − m) is not 0: set their scores to −inf"
    grader.compare((q, k, v), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged", {zero: weigh(s, F.pad(v, (0, 0, 0, 12)))},
                   {zero: torch.logsumexp(s, -1)}, stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's",
                   filler=KEYS_FILLED)  # fmt: skip
    _grade_low_scores(grader)
    nothing = "with no key l is 0: o must be 0, not 0 / 0"
    grader.compare(draw_qkv(1, 1, 16, 0, 16), "S_k = 0", nothing, {nothing: torch.full((1, 1, 16, 16), NAN)},
                   lse_otherwise="with no key lse is −inf, the logarithm of an empty sum", stray="with no key nothing may be read")  # fmt: skip
    grader.on_fresh_inputs((
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((2, 2, 1, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((1, 2, 1, 15, 40, 40), torch.float32, (16, 32, 64), 1.0),
    ))  # fmt: skip


def _grade_head_map(grader: ForwardGrader) -> None:
    q, k, v = draw_qkv(1, 6, 16, 16, 16, H_k=3)
    split = "pid // row_blocks counts query heads: it is b · H_q + h"
    group = "a key head serves H_q / H_k neighbouring query heads: query head h reads key head h // (H_q // H_k)"

    def mapped(key_heads: Sequence[int], value_heads: Sequence[int]) -> Tensor:
        return attend(q, k[:, list(key_heads)], v[:, list(value_heads)])

    right, taken_modulo, swapped, none = (0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2), (0, 0, 0, 1, 1, 1), (0,) * 6
    grader.compare((q, k, v), "H_q = 6, H_k = 3", group, {
        f"h % H_k is the head read: {group}": mapped(taken_modulo, taken_modulo),
        f"h // H_k is the head read: {group}": mapped(swapped, swapped),
        f"every query head reads key head 0: {group}": mapped(none, none),
        f"k's head is mapped, but not v's: {group}": mapped(right, taken_modulo),
        f"v's head is mapped, but not k's: {group}": mapped(taken_modulo, right),
    }, stray=f"a key head past H_k is read: {group}", stray_q=split,
        unwritten=f"o or lse is not stored for every head: {LSE_PLACE}", lse_otherwise=LSE_PLACE)  # fmt: skip
    q, k, v = draw_qkv(2, 2, 16, 16, 16, H_k=1)
    grader.compare((q, k, v), "B = 2, H_q = 2, H_k = 1", split, {
        "k and v are read from batch 0 by every program: the batch's offset, b · stride, is forgotten": attend(
            q, k[:1].expand_as(q), v[:1].expand_as(q)),
    }, stray=split, unwritten=f"{split}; {LSE_PLACE}", lse_otherwise=LSE_PLACE)  # fmt: skip


def _grade_lse_place(grader: ForwardGrader) -> None:
    grader.compare(draw_qkv(2, 2, 20, 16, 16), "B = H_q = 2, S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged",
                   stray=f"rows past S_q are loaded or stored, of o or lse: {LSE_PLACE}", unwritten=LSE_PLACE, lse_otherwise=LSE_PLACE)  # fmt: skip
