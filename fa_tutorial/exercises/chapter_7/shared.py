"""What exercises 7.2 to 7.7 share: what a backward kernel gets and should give, the inputs, and the tolerance."""

import functools
from dataclasses import dataclass
from functools import cached_property

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises import harness_kernel
from fa_tutorial.exercises.forward_cases import WIDENED, strides_of, widens
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF

HALF = "with fp16 and bf16, only the operands of a product have 16 bits: the rest is float32, including the scaling and the p in ds"
DELTA_OF_A_TILE = "delta is summed over one tile of keys, and a row's delta takes all of its keys: it was computed before, so load it"
NO_SCALE = "dk is without the scale: dk = scale · dsᵀ q"
FP16 = "the products take fp16 tiles for every dtype, and fp32 loses digits: round p and ds to the dtype of the tile that each is multiplied by"
LOADED = "no row past S_q is read or written: load_tile takes S_q for q and do, and lse and delta take the mask offs_m < S_q"
TF32 = 'fp32 is multiplied in TF32, which has 11 bits of float32\'s 24: use dot, or pass input_precision="ieee" to tl.dot'
SUMS = "the sums over blocks are kept in float32: fp16 has no 2,049"


@dataclass(frozen=True, eq=False)
class Given:
    """What a backward kernel gets. q, do: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D). near: the tolerance, computed unless given.

    layouts: of q, k, v and do in memory, as strides_of takes them, in rows that are one element longer than need be; a gradient lies like
    its input, but for a dq to which programs add, which has a layout of its own.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    is_causal: bool = False
    scale: float = 0.25
    blocks: tuple[int, int, int] = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D
    layouts: tuple[str, ...] = ("bhsd",) * 4
    dq_layout: str = "bhsd"  # where programs add to dq
    near: float | None = None
    other_keys: float = 0.0  # what keys of other tiles add to every lse

    @cached_property
    def hidden(self) -> torch.Tensor:
        """[S_q, S_k] booleans: a causal query i sees keys 0 … i + S_k − S_q."""
        S_q, S_k = self.q.shape[2], self.k.shape[2]
        return ~torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) & self.is_causal

    @property
    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v as every query head reads them: (B, H_q, S_k, D)."""
        group = self.q.shape[1] // self.k.shape[1]
        return self.k.repeat_interleave(group, 1), self.v.repeat_interleave(group, 1)

    @cached_property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """lse and delta, float32."""
        q, k, v, do = (x.double() for x in (self.q, *self.read, self.do))
        s = (self.scale * (q @ k.mT)).masked_fill(self.hidden, -INF)
        lse = torch.logsumexp(s, -1) + self.other_keys
        return lse.float(), (do * (torch.softmax(s, -1) @ v)).sum(-1).masked_fill(lse == -INF, 0.0).float()

    @cached_property
    def right(self) -> dict[str, torch.Tensor]:
        return gradients(self)

    @cached_property
    def atol(self) -> dict[str, float]:
        """Three times what rounding p and ds to the dtype costs, one rounding of the gradient, and a little of what it is the sum of."""
        rounded, sizes, eps = gradients(self, self.q.dtype), gradients(self, size=True), torch.finfo(self.q.dtype).eps
        return {
            name: self.near or 3 * float((x - rounded[name]).abs().max()) + max(1e-5, eps) * float(sizes[name].max()) + 1e-5
            for name, x in self.right.items()
        }

    def launch(self, outputs: tuple[str, ...], one_tile: bool, causal: bool, grouped: bool) -> Launch:
        """How a kernel that gives these gradients is launched. one_tile: it takes no lengths. causal: it takes IS_CAUSAL, grouped: GROUP."""
        (B, H_q, S_q, D), (H_k, S_k) = self.q.shape, self.k.shape[1:3]
        block_m, block_n, block_d = self.blocks
        inputs = {name: getattr(self, name) for name in ("q", "k", "v", "do")}
        strides = {name: strides_of(x.shape, layout, layout != "bhsd")
                   for (name, x), layout in zip(inputs.items(), self.layouts, strict=True)}  # fmt: skip
        args: list = [In(x, strides[name], as_heads=True) for name, x in inputs.items()]
        own = strides_of(self.q.shape, self.dq_layout, self.dq_layout != "bhsd")
        for name in outputs:
            x, added = inputs[name[1:]], name == "dq" and len(outputs) == 3  # by many programs, in float32
            args.append(Out(x.shape, torch.float32 if added else x.dtype, own if added else strides[name[1:]], as_heads=True))
        args += map(In, self.rows)
        programs = -(-S_q // block_m) * H_q if outputs == ("dq",) else -(-S_k // block_n) * H_k
        meta = ({"IS_CAUSAL": self.is_causal} if causal else {}) | ({"GROUP": H_q // H_k} if grouped else {})
        meta |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d}
        return Launch(
            (programs * B,), (*args, *((H_q,) if outputs == ("dq",) else ()), H_k, *(() if one_tile else (S_q, S_k)), D, self.scale), meta
        )


def gradients(given: Given, dtype: torch.dtype = torch.float64, size: bool = False) -> dict[str, torch.Tensor]:
    """dq, dk and dv in float64. dtype: p and ds are rounded to it. size: the sums of absolute values instead."""
    q, k, v, do, lse, delta = (x.double() for x in (given.q, *given.read, given.do, *given.rows))
    dead = given.hidden.all(1)[:, None]  # rows that see nothing may be NaN
    q, do = q.masked_fill(dead, 0.0), do.masked_fill(dead, 0.0)
    p = torch.exp(given.scale * (q @ k.mT) - lse[..., None]).masked_fill(given.hidden, 0.0)
    ds = p * (do @ v.mT - delta[..., None])
    p, ds = p.to(dtype).double(), ds.to(dtype).double()
    p, ds, q, k, do = (x.abs() if size else x for x in (p, ds, q, k, do))
    dk, dv = (x.unflatten(1, (given.k.shape[1], -1)).sum(2) for x in (ds.mT @ q, p.mT @ do))  # over the group
    return {"dq": given.scale * ds @ k, "dk": given.scale * dk, "dv": dv}


OVERLAP = "programs store to one another's rows: where do a program's rows start, and which are its b and h?"


def exercise(outputs, one_tile=False, causal=False, grouped=False, overlap=OVERLAP, note=None, **words):
    """An Exercise whose kernel gives these gradients. note: of a right kernel; what one program loads again unless given."""

    def refused(kernel):
        half = Given(*(x.half() for x in draw(1, 1, 16, 16, 16)))
        slow = f"{WIDENED}: leave q, k, v and do as they are, and round p and ds to the dtype of the tile that each is multiplied by"
        return slow if widens(kernel, half.launch(outputs, one_tile, causal, grouped)) else ""

    def loaded_again(kernel):
        """What one program loads again, although it stays: k and v of a block of keys, or q, do, lse and delta of a block of queries."""
        q, k, v, do = draw(1, 1, *((16, 32) if outputs == ("dq",) else (32, 16)), 16)
        launch = Given(q.repeat(1, 1 + grouped, 1, 1), k, v, do.repeat(1, 1 + grouped, 1, 1)).launch(outputs, one_tile, causal, grouped)
        again = hardware.interpreter_on() and harness_kernel.results(kernel, launch, kernel, "", "", once=True)[1].again
        return f"{again}: it stays, so load it before the loop" if again else ""

    return Exercise(
        truth=lambda given: tuple(given.right[name] for name in outputs),
        launch=lambda given: given.launch(outputs, one_tile, causal, grouped),
        tolerance=lambda args, part: (1e-5, args[0].atol[part]),
        refused=refused,
        note=note or loaded_again,
        seen={"overlap": overlap, "stored_again": "sum in registers, and store after the loop"},
        **words,
    )


def kept(cases):
    """The cases of a generator, made once: what is right for them is computed once then."""
    return functools.cache(lambda: tuple(cases()))


def with_fresh(blocks, causal="", ragged=""):
    """Decorates the inputs of an exercise, which are then kept, and adds fresh ones. causal, ragged: the edges of causal inputs that have
    rows which see nothing, and of odd lengths."""

    def decorate(inputs):
        fixed = kept(inputs)
        return functools.wraps(inputs)(lambda: (*fixed(), *_fresh(blocks, causal, ragged)))

    return decorate


def draw(B, H, S_q, S_k, D, random=None):
    """q, k, v, do of normal values, the same on every call unless a generator is given."""
    random = random or torch.Generator().manual_seed(0)
    return [torch.randn((B, H, S, D), generator=random) for S in (S_q, S_k, S_k, S_q)]


def given(sizes, on, otherwise="", *, tensors=None, edge="", fresh=False, stray="", **options):
    """A case of B, H, S_q, S_k, D, or of these tensors."""
    return case(Given(*(tensors or draw(*sizes)), **options), on=on, otherwise=otherwise, edge=edge, fresh=fresh, stray=stray)


def grouped(sizes, on, otherwise="", **options):
    """A case of B, H_k, GROUP, S_q, S_k, D."""
    B, H_k, group, *rest = sizes
    q, _, _, do = draw(B, H_k * group, *rest)
    _, k, v, _ = draw(B, H_k, *rest)
    return given(None, on, otherwise, tensors=(q, k, v, do), **options)


def several_heads(outputs, rows="batch_head · S_q", blocks=(16, 32, 16)):
    """S_q is not S_k, so that rows of lse and delta which are found by S_k show."""
    place = f"a head's number is b · H + h: // H gives b, % H gives h, for {outputs} too, and its rows of lse and delta start at {rows}"
    return given((2, 2, 16, 32, 16), "B = H = 2, S_q = 16, S_k = 32", place, blocks=blocks)


TWO_SIZES = "a block has BLOCK_M queries or BLOCK_N keys: start_m counts by BLOCK_M, start_n by BLOCK_N"


def two_sizes():
    return given((1, 1, 48, 64, 16), "S_q = 48, S_k = 64, blocks of 16 queries and 32 keys", TWO_SIZES, blocks=(16, 32, 16))


def causal(S_q, S_k, otherwise="", edge="", *, B=1, blocks=(16, 16, 16), on="", **options):
    """A case of one head; if B > 1 one in which the loop with the mask and the one without both run for each entry."""
    batch = "both loops take b and h as before, and rows of lse and delta from batch_head · S_q on" if B > 1 else ""
    tiles = f"blocks of {blocks[0]} queries and {blocks[1]} keys"
    words = f"causal, {f'B = {B}, ' if B > 1 else ''}S_q = {S_q}, S_k = {S_k}, {tiles}{on}"
    options = {"stray": batch, "is_causal": True, "edge": edge, "blocks": blocks} | options
    return given((B, 1, S_q, S_k, 16), words, otherwise or batch, **options)


def ragged(last, past):
    """A last block of queries with rows that aren't there, and a last block of keys."""
    yield given((1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", last, stray=past, edge="ragged")
    yield given((1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last block of keys may be ragged", edge="ragged")


def narrow():
    return given((1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16, scale = 0.5", "D may be less than BLOCK_D", scale=0.5)


def large_logits():
    _, _, v, do = draw(1, 1, 16, 16, 16)
    one_step = "exp(s − lse) is at most 1: compute it in one step, because exp(s) may overflow"
    return given(None, "all logits 200", one_step, tensors=(torch.ones_like(v), torch.full_like(v, 50.0), v, do), edge="range")


def low_logits():
    q, k, v, do = draw(1, 1, 16, 20, 16)
    past = "a key past S_k has p = 0: exp(0 − lse) may be inf, and inf · 0 is NaN, so choose with tl.where"
    low = torch.ones_like(q), k - 50, v, do
    yield given(None, "all logits near −200, S_k = 20", past, tensors=low, edge="range")
    half = "a key past S_k has p = 0 and a float32 dp − delta: else −exp(0 − lse) · delta, or delta alone, may pass fp16's 65,504, and ∞ · 0 is NaN"
    low = [x.half() for x in (torch.ones_like(q), k - 3.5, v + 75, do + 75)]
    yield given(None, "fp16, all logits near −14, delta near 90,000, S_k = 20", half, tensors=low, edge="range")


def zeros(S_q=16, S_k=16):
    """q, k, v, do in fp16: all scores are 0, so p = 1 / S_k."""
    return [torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (S_q, S_k, S_k, S_q)]


def rounding():
    """What stays float32 in a step: the scores, dp and delta, the p in ds, and the scaling of a gradient."""
    tensors = draw(1, 1, 16, 16, 16)  # s is near 2,080 and dp near 2,050, where fp16 numbers are further apart than a row's scores
    for x, first in zip(tensors, (256, 260, 1367, 1.5), strict=True):
        x[..., 0] = first
    on = "fp16, q kᵀ near 66,560 before it is scaled, s near 2,080, dp and delta near 2,050"
    rule = "s, dp, delta stay float32: fp16 numbers are 2 apart from 2,048 on, and end at 65,504; exp(s − lse) takes one step: exp(2080) is inf"
    yield given(None, on, rule, tensors=[x.half() for x in tensors], scale=2.0**-5, edge="half")
    q, k, v, do = zeros()  # ds is 11 a b, with a and b 3, 5, −3, −5 over queries and keys, so ds / 11 is whole
    q[:, :, ::4, 0], q[:, :, ::4, 1], k[:, :, ::2, 0], k[:, :, ::2, 1] = 5, -1, 4096, 20480
    q[..., 2] = k[..., 3] = torch.tensor([20480, -12288, 0, 0]).repeat(4)
    do[..., 0], v[..., 0] = (torch.tensor(x).repeat(4) for x in ([528, 880, -528, -880], [3, 5, -3, -5]))
    on = "fp16, scale = 1/11, sums of 0 such as 5 · 4096 − 20480 in s, and 99 · 20480 − 165 · 12288 in dk and dq"
    rule = "in s, dk and dq, q and k are multiplied as they are, and scale multiplies float32 numbers only, because fp16 has no 1/11"
    yield given(None, on, rule, tensors=(q, k, v, do), scale=1 / 11, near=0.1, edge="half")
    q, k, v, do = zeros()  # key 15 has p = 2e-8, which is 0 in fp16, and dp = 131,072
    q[..., 0], k[:, :, 15, 0], v[:, :, 15, 0], do[..., 0] = 1, -15, 32768, 4
    on = "fp16, a p of 2e-8, which fp16 rounds to 0, and a dp of 131,072, past its end"
    rule = "p is rounded to fp16 right before its product, and ds is computed from the p that isn't rounded, and from a float32 dp − delta"
    yield given(None, on, rule, tensors=(q, k, v, do), scale=1.0, edge="half")
    q, k, v, do = zeros()
    q[..., 0], k[:, :, ::2, 1], do[..., 0] = 4096, 4096, 64
    v[:, :, 0::2, 0], v[:, :, 1::2, 0] = 1, -1
    on = "fp16, scale = 1/16, dsᵀ q = ±262144 and ds k = 131072"
    rule = "dk and dq are scaled in float32, and then rounded once, because fp16 ends at 65,504"
    yield given(None, on, rule, tensors=(q, k, v, do), scale=2.0**-4, edge="half")


def _fresh(blocks, causal, ragged):
    """Random values, in views."""
    random = generator()
    cases = [((1, 2, *blocks), torch.float32, False, blocks, "", 1),
             ((1, 2, 17, 31, 40), torch.float32, False, (32, 32, 64), ragged, 3),
             ((1, 1, 17, 24, 20), torch.float16, bool(causal), (32, 32, 32), "half", 1)]  # fmt: skip
    if causal:
        cases.append(((2, 1, 21, 19, 16), torch.float32, True, blocks, causal, 3))
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        cases.append(((1, 2, 40, 50, 40), torch.bfloat16, bool(causal), (16, 32, 64), "half", 1))
    for sizes, dtype, is_causal, tiles, edge, factor in cases:
        on = f"{str(dtype).removeprefix('torch.')}, {'causal' if is_causal else 'full'}, views, (B, H, S_q, S_k, D) = {sizes}"
        yield given(None, on, "each tensor has its own four strides: load_tile takes them from its Heads", edge=edge, fresh=True, blocks=tiles,
                    tensors=[(factor * x).to(dtype) for x in draw(*sizes, random)], is_causal=is_causal, scale=sizes[-1] ** -0.5,
                    layouts=("bshd", "bhds", "bhsd", "bdhs"))  # fmt: skip
