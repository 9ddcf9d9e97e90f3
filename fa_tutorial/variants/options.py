"""Chapter 10: the variants' arguments, checked once, as the public functions pass them on to the operators."""

from __future__ import annotations

import torch

from fa_tutorial.arguments import FLOAT_DTYPES, check_devices, check_finite, check_flag, check_int, check_tensor
from fa_tutorial.variants.attention import Options

NO_LIMIT = -1
FAR = 2**31 - 1  # further than any key
SEEDS = 2**62


def check_options(q, k, scale, left, right, softcap, alibi_slopes, attn_mask, sinks, dropout_p) -> Options:
    """Options of flash_attention's arguments, for q (B, H_q, S_q, D) and k (B, H_k, S_k, D). TypeError or ValueError
    with the value.

    scale, left, right: as check_attention and check_window return them.
    """
    if alibi_slopes is not None:
        alibi_slopes = check_slopes(alibi_slopes, q)
    if attn_mask is not None:
        attn_mask = check_mask(attn_mask, q, k)
    if sinks is not None:
        sinks = check_sinks(sinks, q)
    dropout_p = check_probability(dropout_p)
    rng = torch.randint(SEEDS, (2,), device=q.device) if dropout_p else None
    return Options(
        alibi_slopes, sinks, attn_mask, rng, None, None, left, right,
        None if softcap is None else check_softcap(softcap), dropout_p, scale,
    )  # fmt: skip


def check_window(window, is_causal) -> tuple[int, int]:
    """(left, right), each NO_LIMIT or 0 … FAR. is_causal makes right 0."""
    left, right = NO_LIMIT, NO_LIMIT
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"window must be (left, right), two integers, −1 for no limit, got {window!r}")
        left, right = (
            min(check_int(f"window's {side} side", x, NO_LIMIT), FAR)
            for side, x in zip(("left", "right"), window, strict=True)
        )
    return left, 0 if check_flag("is_causal", is_causal) else right


def check_number(name: str, value) -> float:
    """As check_finite. TypeError for a tensor that asks for a gradient it would not get."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TypeError(f"{name} is a number without a gradient, got a tensor that requires one")
    return check_finite(name, value)


def check_softcap(softcap) -> float:
    number, limits = check_number("softcap", softcap), torch.finfo(torch.float32)
    if not limits.tiny <= number <= limits.max:
        raise ValueError(f"softcap must be greater than 0 and finite in float32, got {softcap!r}; None for no soft cap")
    return number


def check_slopes(slopes, q: torch.Tensor) -> torch.Tensor:
    """(1 or B, H_q) float32, contiguous rows."""
    check_tensor("alibi_slopes", slopes, dtypes=(torch.float32,))
    check_devices(q=q, alibi_slopes=slopes)
    if slopes.requires_grad:
        raise TypeError(
            "alibi_slopes have no gradient, got a tensor that requires one; to learn slopes, add their product as an "
            "attn_mask"
        )
    B, H_q = q.shape[:2]
    if slopes.shape not in ((H_q,), (B, H_q)):
        raise ValueError(
            f"alibi_slopes must be (H_q,) or (B, H_q), here ({H_q},) or ({B}, {H_q}), got {tuple(slopes.shape)}"
        )
    slopes = slopes.contiguous()
    return slopes if slopes.ndim == 2 else slopes[None]


def check_sinks(sinks, q: torch.Tensor) -> torch.Tensor:
    """(H_q,) float32, contiguous."""
    check_tensor("sinks", sinks, ndim=1, dtypes=FLOAT_DTYPES)
    check_devices(q=q, sinks=sinks)
    if sinks.shape[0] != q.shape[1]:
        raise ValueError(f"sinks must be (H_q,), one for each of {q.shape[1]} query heads, got {tuple(sinks.shape)}")
    return sinks.float().contiguous()


def check_mask(attn_mask, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(B or 1, H_q or 1, S_q, S_k), uint8 for booleans, with strides of 0 where S_q or S_k is broadcast."""
    check_tensor("attn_mask", attn_mask, dtypes=(torch.bool, *FLOAT_DTYPES))
    check_devices(q=q, attn_mask=attn_mask)
    full, shape = (*q.shape[:3], k.shape[2]), (1,) * (4 - attn_mask.ndim) + tuple(attn_mask.shape)
    if len(shape) != 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(
            f"attn_mask must broadcast to (B, H_q, S_q, S_k), here {full}, got {tuple(attn_mask.shape)}; "
            "a mask of keys, (B, S_k), is attn_mask[:, None, None, :]"
        )
    attn_mask = attn_mask.view(torch.uint8) if attn_mask.dtype == torch.bool else attn_mask
    return attn_mask.reshape(shape).expand(-1, -1, *full[2:])


def check_probability(p) -> float:
    number = check_number("dropout_p", p)
    if not 0 <= number < 1:
        raise ValueError(f"dropout_p must be at least 0 and below 1, got {p!r}")
    return number


# ---------------------------------------------------------------- packed rows


def check_packed(q, k, v) -> list[torch.Tensor]:
    """q, k and v, (total, H, D) each, as (1, H, total, D), the same memory. Their shapes are compared here, so that
    errors show the caller's."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, dtypes=FLOAT_DTYPES)
        if x.ndim != 3:
            raise ValueError(f"{name}: expected (total, H, D), got {x.ndim} dimensions, shape {tuple(x.shape)}")
    if k.shape != v.shape or q.shape[2] != k.shape[2]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"k and v must have one shape (total_k, H_k, D), and q the same D, got {shapes}")
    return [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]


def check_cu_seqlens(q: torch.Tensor, cu_q, cu_k, max_q, max_k) -> None:
    """Types and shapes; the operator looks at the values where the CPU has them."""
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        check_tensor(name, cu, ndim=1, dtypes=(torch.int32,))
        check_devices(**{"q": q, name: cu})
        if cu.shape[0] < 2:
            raise ValueError(f"{name} must have an entry more than there are sequences, at least 2, got {cu.shape[0]}")
    if cu_q.shape != cu_k.shape:
        raise ValueError(
            f"cu_seqlens_q and cu_seqlens_k must be of one length, got {cu_q.shape[0]} and {cu_k.shape[0]}"
        )
    for name, most in (("max_seqlen_q", max_q), ("max_seqlen_k", max_k)):
        if most is not None:
            check_int(name, most, 0)
