import math

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.chapter_6.shared import NAN, transposed
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import show_nested
from fa_tutorial.exercises.watch import Delta


def row_delta(q, k, v, o, lse, do):
    """delta: (B, H, S_q). q, o, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse: (B, H, S_q)."""
    return (do.to(lse.dtype) * o.to(lse.dtype)).sum(dim=-1)


PRODUCT = "do.to(lse.dtype) * o.to(lse.dtype)"
MISTAKES = {
    "each row has D products, and delta is one number: add them up": (".sum(dim=-1)", ""),
    "this takes a mean: delta is the sum over D": (".sum(dim=-1)", ".mean(dim=-1)"),
    "this is the sum of o: do weighs its elements": (PRODUCT, "o.to(lse.dtype)"),
    "o is multiplied by itself: where does do come in?": (PRODUCT, "o.to(lse.dtype) * o.to(lse.dtype)"),
    "the sum runs over the queries: each of them has its own delta": ("dim=-1", "dim=-2"),
    "delta has the scale, or 1/√D: compare with rowsum(p ∘ dp)": (".sum(dim=-1)", ".sum(dim=-1) * q.shape[-1] ** -0.5"),
    "the products are float16: convert o and do before you multiply": (f"({PRODUCT}).sum(dim=-1)", "(do * o).to(lse.dtype).sum(dim=-1)"),
    "p is recomputed without the scale, which isn't given: which of the six tensors has p in it?": (
        f"({PRODUCT}).sum(dim=-1)", "(torch.exp(q @ k.mT - lse[..., None]) * (do @ v.mT)).sum(dim=-1)"),
    "delta is rounded to the inputs' dtype on its way: multiply, sum and keep it in lse's": (".sum(dim=-1)", ".sum(dim=-1).to(q.dtype)"),
}  # fmt: skip

RULE = "delta is rowsum(p ∘ dp), with dp = do vᵀ and o = p v"
CONDITIONS = {
    "half": "for fp16 and bf16 multiply and sum in float32",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work",
    "nan": NAN,
}


def truth(q, k, v, o, lse, do):
    return (do.double() * o.double()).sum(-1)


def tolerance(args, part):
    o, do = args[3].double().nan_to_num(), args[5].double().nan_to_num()
    return 0.0, (1e-13 if args[0].dtype == torch.float64 else 1e-6) * float((o * do).abs().sum(-1).max())


def inputs():
    seed, fresh = torch.Generator().manual_seed(0), generator()

    def rows(o, do, otherwise="", dtype=torch.float32, **options):
        """One query that sees one key, so that o is v."""
        on = f"one query with o = {show_nested(o)}, do = {show_nested(do)}"
        o, do = (torch.tensor(x, dtype=dtype)[None, None, None] for x in (o, do))
        zeros = torch.zeros_like(o)
        return case(zeros, zeros, o, o, torch.zeros(1, 1, 1), do, on=on, otherwise=otherwise, **options)

    def drawn(sizes, otherwise="", draw=seed, is_causal=False, dtype=torch.float32, change=lambda x: x, words="", **options):
        B, H, S_q, S_k, D = sizes
        q, k, v, do = (torch.randn(B, H, S, D, generator=draw).to(dtype) for S in (S_q, S_k, S_k, S_q))
        o, lse = reference.attention(q, k, v, is_causal)
        tensors = q, k, v, o.to(dtype), lse.to(torch.promote_types(dtype, torch.float32)), do
        on = f"{words}(B, H, S_q, S_k, D) = {sizes}{', causal' if is_causal else ''}"
        return case(*map(change, tensors), on=on, otherwise=otherwise, fresh=draw is fresh, **options)

    yield rows([3.0], [2.0])
    yield rows([3.0, 5.0], [2.0, -1.0], "D = 2: the sum over the keys leaves D products")
    yield drawn((1, 1, 7, 9, 2))
    yield drawn((2, 3, 5, 4, 3), "the mask is unknown, and the scale: p can't be recomputed", is_causal=True)
    yield rows([math.nan, 5.0], [2.0, -1.0], edge="nan")
    yield rows([300.0], [300.0], "do ∘ o is 90,000, and float16 ends at 65,504", dtype=torch.float16, edge="half")
    yield rows([2048.0, 1.0], [1.0, 1.0], "2,048 + 1 is 2,048 in float16", dtype=torch.float16, edge="half")
    yield drawn((1, 1, 2, 3, 2), words="float64, ", dtype=torch.float64, edge="float64")
    yield drawn((2, 2, 9, 5, 16), draw=fresh, is_causal=True)
    yield drawn((2, 2, 9, 5, 16), draw=fresh, words="bfloat16, ", dtype=torch.bfloat16, edge="half")
    yield drawn((2, 3, 4, 6, 5), draw=fresh, words="views, ", change=transposed, edge="views")


EXERCISE = Exercise(
    task="Find delta without p and dp.",
    conditions=CONDITIONS,
    hints=(
        "In the example, by what factor does query 1's delta differ from its o? What about query 0?",
        "delta_i = Σ_j p_ij dp_ij. Put dp_ij = Σ_d do_id v_jd into it, and do the sum over the keys j first. What is Σ_j p_ij v_jd?",
        "Σ_j p_ij v_jd is o_id, so only a sum over d is left.",
    ),
    solution=row_delta,
    reasoning="Σ_j p_ij Σ_d do_id v_jd = Σ_d do_id Σ_j p_ij v_jd, and the inner sum is o_id, which forward has stored.",
    more="The package's version, algorithm.row_delta, takes o and do alone.",
    inputs=inputs,
    truth=truth,
    rule=RULE,
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=Delta,
)
