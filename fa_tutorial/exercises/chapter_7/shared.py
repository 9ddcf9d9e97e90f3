"""What exercises 7.2 and 7.3 share: the mistakes that both kernels can have, the inputs that show them, and the tolerance."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.backward_kernel_twin import Given
from fa_tutorial.exercises.harness import case, generator
from fa_tutorial.exercises.strided import BDHS, BHDS, BHSD, BSHD, OWN, UNLIKE, joined, read_mistakes, stride_mistakes, strides_in

_TURN = "{0} is not transposed: {1}, and tl.trans turns a tile round (with S = D it runs all the same)"
_KEPT = "fp16 numbers lie 2 apart from 2,048 on: what tl.dot returns stays float32"
FORMULAS = {
    "scale_1": "scale is forgotten in the scores: s = scale · q kᵀ",
    "scale_squared": "scale is applied twice to the scores",
    "q_turned": _TURN.format("q", "sᵀ = scale · k qᵀ"),
    "k_turned": _TURN.format("k", "s = scale · q kᵀ"),
    "do_turned": _TURN.format("do", "dpᵀ = v doᵀ"),
    "v_turned": _TURN.format("v", "dp = do vᵀ"),
    "no_lse": "lse is not subtracted: p = exp(s − lse)",
    "no_exp": "exp is missing: p = exp(s − lse)",
    "base_2": "the base is 2: tl.exp2(x) is 2 to the power x, and exp(x) is exp2(x · log2(e))",
    "lse_along_keys": "lse belongs to the queries, and here it runs along the keys",
    "no_delta": "delta is forgotten: ds = p ∘ (dp − delta)",
    "delta_added": "delta is added: ds = p ∘ (dp − delta)",
    "delta_along_keys": "delta belongs to the queries, and here it runs along the keys",
    "no_p": "ds is not multiplied by p: ds = p ∘ (dp − delta)",
    "delta_of_tile": "delta is summed over one tile's keys: delta_ptr holds the sum over all keys",
    "softmax_of_tile": "p is a softmax over one tile's keys: p = exp(s − lse), and lse_ptr holds the lse of all keys",
    "tile_alone": "p is a softmax, and delta a sum, over one tile's keys: lse_ptr and delta_ptr hold those of all keys",
    "scale_of_block": "the scale comes from BLOCK_D: it is an argument",
    "scale_here": "the scale is computed in the kernel: it is an argument, which the caller may choose",
    "no_other": "without other=0.0 the lanes that a mask leaves out hold anything, NaN too, and 0 · NaN is NaN: they must add nothing to a sum",
    "no_other_d": "without other=0.0 the columns past D hold anything, NaN too, and 0 · NaN is NaN: they must add nothing to a dot product",
    "exp_by_exp": "exp overflows: exp(s − lse) is at most 1, exp(s) / exp(lse) is inf / inf",
    "product": "what is hidden is multiplied by 0, and inf · 0 is NaN: exp(100 − lse) is inf in float32. tl.where chooses, and what it leaves out "
    "counts for nothing",
    "half_qk": "the scores overflow: keep what tl.dot returns in float32, fp16 ends at 65504",
    "half_s": f"s is rounded to fp16: {_KEPT}",
    "half_dp": f"dp is rounded to fp16: {_KEPT}",
    "half_delta": "delta is rounded to fp16, and 2 apart lie its numbers from 2,048 on: it stays float32",
}  # fmt: skip
MASKS = {
    "not_causal": "IS_CAUSAL changes nothing: query i sees keys 0 to i + S_k − S_q",
    "no_mask": "nothing is hidden: query i sees keys 0 to i + S_k − S_q, so a tile that the diagonal crosses needs a mask",
    "strict": "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q",
    "upside": "the mask is turned round: keys after the query are hidden, not those before",
    "hide_zero": "hidden keys get a score of 0, and exp(0 − lse) is not 0: p is 0 there",
    "by_place": "the mask is by positions in the tile: compare positions in the sequence",
    "top_left": "the mask is aligned top-left: query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 to i + S_k − S_q",
    "dead_nan": "rows that see nothing have lse = −inf, and −inf − (−inf) is NaN: mask p, not s, or put +inf in lse's place",
}
CONDITIONS = {
    "unseen": "rows that see nothing have lse = −inf, and add nothing",
    "range": "logits may be any finite numbers: p = exp(s − lse) is computed in one step, and hidden by tl.where",
    "half": "with fp16 and bf16 the scores, dp and the sums are float32",
    "zero": "do may have strides of 0, as o.sum().backward() gives it",
}


def place_mistakes(*outputs: str) -> dict[str, str]:
    """What can be wrong in a head's place, of what is read and of these outputs."""
    each = ("q", "k", "v", "do", "lse", "delta")
    words, all_of = joined(outputs), "+".join(outputs)
    rule = f"{words} {'are' if len(outputs) > 1 else 'is'} contiguous, (b · H + h) · S · D to a head and D to a row"
    start = "a head's rows of {} start at (b · H + h) · S_q, for they belong to the queries"
    found = {
        f"out_head_0 {all_of}": f"only head 0 of {words} is written: add the head's offset, (b · H + h) · S · D",
        f"out_batch_0 {all_of}": f"only batch 0 of {words} is written: add the batch's offset, (b · H + h) · S · D",
        f"out_origin {all_of}": f"every head of {words} is written to the same place: add the head's offset, (b · H + h) · S · D",
        f"out_exchanged {all_of}": f"batch and head are exchanged in all that is read, or in {words}: // H gives b, % H gives h",
        **read_mistakes(("head_0", "batch_0"), ("q+k+v+do", "lse+delta", *each)),
        **read_mistakes(("exchanged",), ("q+k+v+do", "lse+delta")),
        **read_mistakes(("origin",), ("q+k+v+do", "lse+delta", "lse", "delta")),
        **stride_mistakes(("q", "k", "v", "do")),
        **{f"by_{name} {all_of}": f"{words} stored by the strides of {name}: {rule}" for name in ("q", "k", "v", "do")},
    }  # fmt: skip
    if len(outputs) > 1:
        found["by_own dk+dv"] = f"{words} stored by the strides of k and v: {rule}"
    return found | {f"by_keys {names}": start.format(names.replace("+", " and ")) for names in ("lse+delta", "lse", "delta")}


def tolerance(args, part):
    return 1e-5, args[0].atol[part]


def draw(B, H, S_q, S_k, D, random=None):
    """q, k, v, do of normal values, the same on every call unless a generator is given."""
    random = random or torch.Generator().manual_seed(0)
    return [torch.randn((B, H, S, D), generator=random) for S in (S_q, S_k, S_k, S_q)]


def given(sizes, on, otherwise="", *, tensors=None, edge="", fresh=False, stray="", **options):
    """A case of B, H, S_q, S_k, D, or of these tensors."""
    return case(Given(*(tensors or draw(*sizes)), **options), on=on, otherwise=otherwise, edge=edge, fresh=fresh, stray=stray)


def places(outputs, own):
    """Several heads, views, a side of the programs that is ragged, and D."""
    unlike = tuple(strides_in((2, 2, 16, 16), order) for order in UNLIKE)
    yield given((2, 2, 16, 16, 16), "B = H = 2, q, k, v and do laid out differently",
                f"{OWN}, and head h of batch b starts at (b · H + h) · S · D of {outputs}, at (b · H + h) · S_q of lse and delta", strides=unlike,
                stray=f"an offset is wrong, as where batch and head are exchanged (// H gives b, % H gives h): {OWN}")  # fmt: skip
    touch = f"tiles of one head must not touch the next: a head starts at (b · H + h) · {own} · D of {outputs}, and its ragged block ends with it"
    yield given((1, 2, 20, 16, 16), "two heads, S_q = 20, S_k = 16, blocks of 16", touch,
                stray=f"{touch}; lse and delta start at (b · H + h) · S_q, for they belong to the queries")  # fmt: skip
    columns = f"columns past D are loaded or stored: offs_d < D is in the mask of every load and store of a tile, and rows of {outputs} lie D apart"
    yield given((1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16, scale = 0.5", "D may be less than BLOCK_D", scale=0.5, stray=columns)


def zero_strides():
    q, k, v, do = draw(1, 1, 16, 16, 16)
    zero = "do has strides of 0, as o.sum().backward() gives it: read it by its own strides"
    tensors = q, k, v, torch.ones(1, 1, 1, 1).expand(do.shape)
    yield given(None, "do = 1, expanded from one element", zero, tensors=tensors, edge="zero", stray=zero)


def ranges():
    """Large logits, hidden large logits, fp16 scores."""
    q, k, v, do = draw(1, 1, 16, 16, 16)
    ones = torch.ones_like(q)
    yield given(None, "all logits 200", FORMULAS["exp_by_exp"], tensors=(ones, 50 * ones, v, do), edge="range")
    q[..., 0], q[:, :, 15, 0], k[:, :, 15], k[:, :, 15, 0] = 1, 0, 0, 400
    yield given(None, "causal, one tile, key 15 with a score of 100 for the queries that do not see it", FORMULAS["product"], tensors=(q, k, v, do),
                is_causal=True, edge="range")  # fmt: skip
    q, k, v, do = draw(1, 1, 16, 16, 16)  # s is near 2,080 and dp near 2,050, where fp16 numbers lie further apart than a row's scores
    q[..., 0], k[..., 0], v[..., 0], do[..., 0] = 256, 260, 1367, 1.5
    on = "fp16, q kᵀ near 66,560 before it is scaled, s near 2,080, dp and delta near 2,050"
    halves = [x.half() for x in (q, k, v, do)]
    yield given(None, on, f"s, dp or delta is not kept in float32: {_KEPT}", tensors=halves, scale=2.0**-5, edge="half")


def fresh_cases(blocks):
    """blocks: those of the main case."""
    random = generator()
    cases = [((1, 1, 1, 1, 1), torch.float32, True, (16, 16, 16), "", 1), ((1, 2, 17, 31, 40), torch.float32, False, (32, 16, 64), "", 3),
             ((1, 1, 33, 40, 20), torch.float16, True, (32, 32, 32), "half", 1), ((1, 1, 37, 19, 16), torch.float32, True, blocks, "unseen", 3)]  # fmt: skip
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        cases.append(((1, 2, 40, 50, 40), torch.bfloat16, True, (16, 32, 64), "half", 1))
    for sizes, dtype, is_causal, tiles, edge, factor in cases:
        tensors = [(factor * x).to(dtype) for x in draw(*sizes, random)]
        strides = tuple(strides_in(x.shape, order, pad=1) for x, order in zip(tensors, (BSHD, BHDS, BHSD, BDHS), strict=True))
        on = f"{str(dtype).removeprefix('torch.')}, {'causal' if is_causal else 'full'}, views, (B, H, S_q, S_k, D) = {sizes}"
        yield given(
            None, on, tensors=tensors, is_causal=is_causal, scale=sizes[-1] ** -0.5, blocks=tiles, strides=strides, edge=edge, fresh=True
        )
