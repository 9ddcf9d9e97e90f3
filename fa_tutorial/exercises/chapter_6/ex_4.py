"""Exercise 6.4, attention_backward."""

import functools
import math

import torch

from fa_tutorial.exercises.gradient_inputs import DP_IN_HALF, HALF_SCALE, HALF_SCORES, Inputs, bounds
from fa_tutorial.exercises.gradient_twin import gradient_twin
from fa_tutorial.exercises.harness import Exercise


def attention_backward(q, k, v, o, do, lse, scale, is_causal):
    """(dq, dk, dv). q, o, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse: (B, H, S_q)."""
    dtype = q.dtype
    q, k, v, o, do = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v, o, do))
    s = scale * (q @ k.transpose(-1, -2))
    if is_causal:
        S_q, S_k = q.shape[2], k.shape[2]
        seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q)
        s = s.masked_fill(~seen, -math.inf)
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing
    p = torch.exp(s - lse[..., None])  # (6.7)
    delta = (do * o).sum(dim=-1)  # (6.6)
    dv = p.transpose(-1, -2) @ do  # (6.8)
    dp = do @ v.transpose(-1, -2)  # (6.9)
    ds = p * (dp - delta[..., None])  # (6.10)
    dq = scale * ds @ k  # (6.11)
    dk = scale * ds.transpose(-1, -2) @ q  # (6.12)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


_ORDER = "return (dq, dk, dv)"
MISTAKES = {
    "no_delta": "delta is forgotten: ds = p ∘ (dp − delta)",
    "delta_plus": "delta has the wrong sign: ds = p ∘ (dp − delta)",
    "ds_sign": "ds has the wrong sign: it is p ∘ (dp − delta)",
    "no_p": "p is missing in ds: it is p ∘ (dp − delta)",
    "delta_outside": "delta is subtracted after p is multiplied: ds = p ∘ (dp − delta)",
    "delta_oo": "delta is rowsum(o ∘ o): it is rowsum(do ∘ o)",
    "delta_dodo": "delta is rowsum(do ∘ do): it is rowsum(do ∘ o)",
    "delta_dp": "delta is rowsum(dp): weight dp by p, or take rowsum(do ∘ o)",
    "delta_o": "delta is rowsum(o): it is rowsum(do ∘ o)",
    "delta_mean": "delta is a mean over D: it is the sum",
    "delta_columns": "delta is taken for each column: it is one number for each row, rowsum(p ∘ dp)",
    "delta_lost": "column j is shifted by the delta of row j: it has lost its dimension (delta[..., None])",
    "delta_all": "one delta is summed over all rows: each has its own",
    "dp_from_k": "k stands where v belongs: dp = do vᵀ",
    "dp_from_o": "o stands where do belongs: dp = do vᵀ",
    "dp_v": "v is not transposed: dp = do vᵀ",
    "dp_scaled": "dp is scaled: it is do vᵀ, without the scale",
    "ds_is_dp": "softmax's gradient is not taken: ds is not dp",
    "p_for_ds": "p stands where ds belongs: dq = scale · ds k, dk = scale · dsᵀ q",
    "no_lse": "lse is forgotten: p = exp(s − lse)",
    "lse_columns": "column j is shifted by the lse of row j: p = exp(s − lse[..., None])",
    "dq_ds_transposed": "ds is transposed in dq: dq = scale · ds k",
    "dq_from_v": "v stands where k belongs: dq = scale · ds k",
    "dq_from_q": "q stands where k belongs: dq = scale · ds k",
    "dk_ds": "ds is not transposed: dk = scale · dsᵀ q",
    "dk_from_do": "do stands where q belongs: dk = scale · dsᵀ q",
    "dk_from_k": "k stands where q belongs: dk = scale · dsᵀ q",
    "dk_from_dq": "dq stands where q belongs: dk = scale · dsᵀ q",
    "dv_p": "p is not transposed: dv = pᵀ do",
    "dv_from_o": "o stands where do belongs: dv = pᵀ do",
    "dv_from_v": "v stands where do belongs: dv = pᵀ do",
    "dv_from_ds": "ds stands where p belongs: dv = pᵀ do",
    "dv_scaled": "dv is scaled: only the scores are, and so dq and dk",
    "dq_never": "dq is never written, or stays 0",
    "dk_never": "dk is never written, or stays 0",
    "dv_never": "dv is never written, or stays 0",
    "exchanged": f"dq and dk are exchanged: {_ORDER}",
    "dk_dv": f"dk and dv are exchanged: {_ORDER}",
    "turned": f"the gradients come in another order: {_ORDER}",
    "dq_unscaled": "dq is without the scale: dq = scale · ds k",
    "dk_unscaled": "dk is without the scale: dk = scale · dsᵀ q",
    "both_unscaled": "dq and dk are without the scale: s = scale · q kᵀ, so both gradients hold it",
    "both_twice": "the scale is applied twice in dq and dk",
    "dq_twice": "the scale is applied twice in dq",
    "dk_twice": "the scale is applied twice in dk",
    "own_outside": "dq and dk are scaled by 1/√D: multiply them by the scale that is given",
    "scores_unscaled": "the scores are without the scale: p = exp(scale · q kᵀ − lse)",
    "scale_ignored": "the scale is ignored: it belongs to the scores, and so to dq and dk",
    "scale_own": "1/√D is taken for the scale: take the scale that is given",
    "one_head": "every head gets the gradients of head 0",
    "one_batch": "every batch element gets the gradients of batch element 0",
    "heads_summed": "the gradients are summed over the heads",
    "no_mask": "is_causal changes nothing",
    "strict": "the mask is strict: query i sees key i too",
    "wide": "the mask is one key too wide: the last key that query i sees is key i",
    "upside": "the mask is upside down: it hides the past",
    "hide_zero": "hidden scores are set to 0, and exp(0 − lse) is not 0: use −inf",
    "ds_unmasked": "ds is not masked: at a hidden pair it is 0, because p is",
    "top_left": "the mask starts at the top left: align it so that the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q",
    "shift_opens": "with S_q < S_k nothing is masked any more",
    "half_grads": "a gradient comes in float16, and float32 goes in: return that, or the dtype it is computed in",
    "unseen_nan": "rows that see nothing give NaN, and it reaches all keys: lse and s are −inf there, and −inf − (−inf) is NaN; p must be 0",
    "unseen_inf": "rows that see nothing give NaN or inf: lse is −inf there, and exp(s + inf) is not 0; p must be 0",
    "shift_clipped": "rows see more than they may: S_k − S_q is negative here, and the mask has to move left by it",
    "half_dp": DP_IN_HALF,
    "half_scores": HALF_SCORES,
    "half_scale": HALF_SCALE,
}

CONDITIONS = {
    "unseen": "a row that sees no key, lse = −inf, has dq = 0 and adds nothing to dk and dv: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 all is computed in float32; p and ds may be rounded for their matmuls, and each gradient at the end",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work, 0 too",
}


def twin(q, k, v, o, do, lse, scale, is_causal, mistake=None):
    return gradient_twin(q, k, v, o, do, lse, q.shape[2], max(1, k.shape[2]), is_causal, scale, mistake)


def tolerance(args, part):
    *tensors, scale, is_causal = args
    return bounds(part, *tensors, tensors[0].shape[2], max(1, tensors[1].shape[2]), is_causal, scale)


MAKE = Inputs(lambda tensors, blocks, is_causal, scale: (*tensors, scale, is_causal), has_blocks=False)


@functools.cache  # the same tensors each time: what the twin gives for them is computed once
def fixed():
    return *MAKE.one_tile(), *MAKE.masks(), *MAKE.edges(None)


def inputs():
    yield from fixed()
    yield from MAKE.fresh([None] * 5)


EXERCISE = Exercise(
    id="6.4",
    task="Write attention's gradients dq, dk and dv from q, k, v, o, do and lse, with whole matrices.",
    conditions=CONDITIONS,
    hints=(
        "o = p v is a matmul, p = softmax(s) a softmax, s = scale · q kᵀ a matmul: go backward through them with what 6.1 to 6.3 gave.",
        "dv = pᵀ do and dp = do vᵀ; ds = p ∘ (dp − delta) with delta = rowsum(do ∘ o), one number a row; dq = scale · ds k, dk = scale · dsᵀ q.",
        "Compute in float32 (float64 if that comes in). p and ds may be rounded for their matmuls, and each gradient once, at the end. With p = 0 "
        "in a row that sees nothing, ds is 0 too.",
    ),
    solution=attention_backward,
    reasoning="Five matmuls: q kᵀ to bring back p, pᵀ do, do vᵀ, ds k and dsᵀ q. delta = rowsum(p ∘ dp) = rowsum(do ∘ o), which needs no matrix. The "
    "scale multiplies the scores, so it is a factor of dq and of dk, and not of dv.",
    more="The package's version, algorithm.attention_backward, rounds p and ds to the inputs' dtype for their matmuls, as tensor cores want them, takes "
    "fewer heads for k and v than for q, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
)
