"""What exercises 7.2 to 7.5 share: the mistakes that several of these kernels can have, the inputs that show them, and the tolerance."""

import functools

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.backward_kernel_twin import Given
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.strided import BDHS, BHDS, BHSD, BSHD, joined, read_mistakes

_TURN = "{0} is not transposed: {1}, and tl.trans transposes a tile (where S = D the kernel runs all the same)"
_KEPT = "fp16 numbers are 2 apart from 2,048 on, so keep what dot returns in float32"
RULES = {
    "scale_1": "scale is forgotten in the scores: s = scale · q kᵀ",
    "scale_squared": "scale is applied twice to the scores",
    "no_lse": "lse is not subtracted: p = exp(s − lse)",
    "no_exp": "exp is missing: p = exp(s − lse)",
    "base_2": "the base is 2: tl.exp2(x) is 2 to the power x; use tl.exp, or exp2(x · log2(e))",
    "lse_along_keys": "lse belongs to the queries, but here it runs along the keys",
    "no_delta": "delta is forgotten: ds = p ∘ (dp − delta)",
    "delta_added": "delta is added: ds = p ∘ (dp − delta)",
    "delta_along_keys": "delta belongs to the queries, but here it runs along the keys",
    "no_p": "ds is not multiplied by p: ds = p ∘ (dp − delta)",
    "scale_of_block": "the scale comes from BLOCK_D: it is an argument",
    "scale_here": "the scale is computed in the kernel: it is an argument, which the caller may choose",
    "exp_by_exp": "exp overflows: compute exp(s − lse), which is at most 1; exp(s) / exp(lse) is inf / inf",
    "half_qk": "the scores overflow: keep what dot returns in float32, because fp16 ends at 65504",
    "half_s": f"s is rounded to fp16: {_KEPT}",
    "half_dp": f"dp is rounded to fp16: {_KEPT}",
    "half_delta": "delta is rounded to fp16, whose numbers are 2 apart from 2,048 on: leave it in float32",
}
TURNED = {
    "q_turned": _TURN.format("q", "sᵀ = scale · k qᵀ"),
    "k_turned": _TURN.format("k", "s = scale · q kᵀ"),
    "do_turned": _TURN.format("do", "dpᵀ = v doᵀ"),
    "v_turned": _TURN.format("v", "dp = do vᵀ"),
}
OF_ONE_TILE = {
    "delta_of_tile": "delta is summed over one tile's keys: delta_ptr holds the sum over all keys",
    "softmax_of_tile": "p is a softmax over one tile's keys: p = exp(s − lse), and lse_ptr holds the lse of all keys",
    "tile_alone": "p is a softmax, and delta a sum, over one tile's keys: lse_ptr and delta_ptr hold those of all keys",
}
MASKS = {
    "not_causal": "IS_CAUSAL changes nothing: query i sees keys 0 to i + S_k − S_q",
    "no_mask": "nothing is hidden: query i sees keys 0 to i + S_k − S_q, so a tile that the diagonal crosses needs a mask",
    "strict": "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q",
    "upside": "the mask is the wrong way round: it hides the keys before the query and shows those after it",
    "by_place": "the mask compares positions in the tile: compare positions in the sequence",
    "top_left": "the mask is aligned top-left: query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 to i + S_k − S_q",
}
HALF = "with fp16 and bf16, the scores, dp and the sums are float32"
EACH = ("q", "k", "v", "do", "lse", "delta")


def place_mistakes(*outputs: str) -> dict[str, str]:
    """Ways to take the wrong head, of what is read and of these outputs."""
    words, all_of = joined(outputs), "+".join(outputs)
    start = "a head's rows of {} start at (b · H + h) · S_q, because they belong to the queries"
    return {
        f"out_head_0 {all_of}": f"only head 0 of {words} is written: store_tile takes b and h",
        f"out_batch_0 {all_of}": f"only batch 0 of {words} is written: store_tile takes b and h",
        f"out_origin {all_of}": f"every head of {words} is written to the same place: store_tile takes b and h",
        f"out_exchanged {all_of}": f"batch and head are exchanged in all that is read, or in {words}: // H gives b, % H gives h",
        **read_mistakes(("head_0", "batch_0"), ("q+k+v+do", "lse+delta", *EACH)),
        **read_mistakes(("exchanged",), ("q+k+v+do", "lse+delta")),
        **read_mistakes(("origin",), ("q+k+v+do", "lse+delta", "lse", "delta")),
        **{f"by_keys {names}": start.format(names.replace("+", " and ")) for names in ("lse+delta", "lse", "delta")},
    }


def same_rows(words, *groups):
    """The mistake to read the first rows of these tensors again and again."""
    return {f"first {'+'.join(names)}": words.format(" and ".join(names)) for names in groups}


def exercise(*outputs, one_tile=False, causal=False, **words):
    """An Exercise whose kernel gives these gradients."""
    return Exercise(
        twin=lambda given, mistake=None: given.gradients(mistake)[0] if outputs == ("dq",) else given.gradients(mistake)[1:],
        launch=lambda given: given.launch(*outputs, one_tile=one_tile, causal=causal),
        tolerance=lambda args, part: (1e-5, args[0].atol[part]),
        overlap="programs store to one another's rows: where do a program's rows start, and which are its b and h?",
        **words,
    )


def kept(cases):
    """The cases of a generator, made once: what their twins give is computed once then."""
    return functools.cache(lambda: tuple(cases()))


def draw(B, H, S_q, S_k, D, random=None):
    """q, k, v, do of normal values, the same on every call unless a generator is given."""
    random = random or torch.Generator().manual_seed(0)
    return [torch.randn((B, H, S, D), generator=random) for S in (S_q, S_k, S_k, S_q)]


def given(sizes, on, otherwise="", *, tensors=None, edge="", fresh=False, stray="", **options):
    """A case of B, H, S_q, S_k, D, or of these tensors."""
    return case(Given(*(tensors or draw(*sizes)), **options), on=on, otherwise=otherwise, edge=edge, fresh=fresh, stray=stray)


def several_heads(outputs):
    place = f"batch_head is b · H + h: // H gives b, % H gives h, for {outputs} too, and a head's rows of lse and delta start at batch_head · S_q"
    return given((2, 2, 16, 16, 16), "B = H = 2", place, stray=f"an offset is wrong, for example with batch and head exchanged: {place}")


def two_heads():
    own = "a head's rows of lse and delta start at batch_head · S_q, because they belong to the queries"
    return given((1, 2, 32, 16, 16), "two heads, S_q = 32, S_k = 16", own, stray=own)


def causal_heads():
    """Two blocks each way, so that in every head the loop with the mask and the one without both run."""
    on, own = "causal, B = H = 2, S_q = S_k = 32", "every loop takes b and h as before, and rows of lse and delta from batch_head · S_q on"
    return given((2, 2, 32, 32, 16), on, own, is_causal=True, stray=own)


def narrow():
    return given((1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16, scale = 0.5", "D may be less than BLOCK_D", scale=0.5)


def large_logits():
    _, _, v, do = draw(1, 1, 16, 16, 16)
    ones = torch.ones_like(v)
    return given(None, "all logits 200", RULES["exp_by_exp"], tensors=(ones, 50 * ones, v, do), edge="range")


def half_scores():
    """s is near 2,080 and dp near 2,050, where fp16 numbers are further apart than a row's scores."""
    q, k, v, do = draw(1, 1, 16, 16, 16)
    q[..., 0], k[..., 0], v[..., 0], do[..., 0] = 256, 260, 1367, 1.5
    on = "fp16, q kᵀ near 66,560 before it is scaled, s near 2,080, dp and delta near 2,050"
    return given(
        None, on, f"s, dp or delta is not kept in float32: {_KEPT}", tensors=[x.half() for x in (q, k, v, do)], scale=2.0**-5, edge="half"
    )


def fresh_cases(blocks, causal=False, ragged="", half="half"):
    """Random values, in views. blocks: those of the main case. ragged, half: the edges that such cases belong to."""
    random = generator()
    cases = [((1, 2, 2 * blocks[0], 2 * blocks[1], blocks[2]), torch.float32, False, blocks, "", 1),
             ((1, 1, 1, 1, 1), torch.float32, causal, (16, 16, 16), ragged, 1), ((2, 2, 17, 31, 40), torch.float32, False, (32, 16, 64), ragged, 3),
             ((1, 1, 33, 40, 20), torch.float16, causal, (32, 32, 32), half, 1)]  # fmt: skip
    if causal:
        cases.append(((2, 2, 37, 19, 16), torch.float32, True, blocks, "unseen", 3))
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        cases.append(((1, 2, 40, 50, 40), torch.bfloat16, causal, (16, 32, 64), half, 1))
    for sizes, dtype, is_causal, tiles, edge, factor in cases:
        on = f"{str(dtype).removeprefix('torch.')}, {'causal' if is_causal else 'full'}, views, (B, H, S_q, S_k, D) = {sizes}"
        yield given(None, on, "each tensor has its own four strides: load_tile takes them from its Heads", edge=edge, fresh=True, blocks=tiles,
                    tensors=[(factor * x).to(dtype) for x in draw(*sizes, random)], is_causal=is_causal, scale=sizes[-1] ** -0.5,
                    orders=(BSHD, BHDS, BHSD, BDHS))  # fmt: skip
