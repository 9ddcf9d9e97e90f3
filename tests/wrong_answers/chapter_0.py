"""Wrong answers to the exercises of chapter 0, each with words that its diagnosis must hold."""

from __future__ import annotations

import math

import torch

from wrong_answers import WrongAnswer


def _pairs(S_q, S_k, is_causal):
    return sum(min(max(0, i + 1 + S_k - S_q), S_k) for i in range(S_q)) if is_causal else S_q * S_k


# ---------------------------------------------------------------- 0.1


def _flops_one_per_multiply_add(B, H, S_q, S_k, D, is_causal):
    return 2 * B * H * _pairs(S_q, S_k, is_causal) * D


def _flops_ignore_mask(B, H, S_q, S_k, D, is_causal):
    return 4 * B * H * S_q * S_k * D


def _flops_halve_for_causal(B, H, S_q, S_k, D, is_causal):
    flops = 4 * B * H * S_q * S_k * D
    return flops // 2 if is_causal else flops


def _flops_without_diagonal(B, H, S_q, S_k, D, is_causal):
    pairs = sum(max(0, i + S_k - S_q) for i in range(S_q)) if is_causal else S_q * S_k
    return 4 * B * H * pairs * D


def _flops_top_left(B, H, S_q, S_k, D, is_causal):
    pairs = sum(min(i + 1, S_k) for i in range(S_q)) if is_causal else S_q * S_k
    return 4 * B * H * pairs * D


def _flops_one_head(B, H, S_q, S_k, D, is_causal):
    return 4 * B * _pairs(S_q, S_k, is_causal) * D


def _flops_one_length(B, H, S_q, S_k, D, is_causal):
    return 4 * B * H * _pairs(S_q, S_q, is_causal) * D


def _flops_negative_rows(B, H, S_q, S_k, D, is_causal):
    pairs = sum(i + 1 + S_k - S_q for i in range(S_q)) if is_causal else S_q * S_k
    return 4 * B * H * pairs * D


def _flops_in_float32(B, H, S_q, S_k, D, is_causal):
    pairs = S_k * (S_k + 1) / 2 if is_causal and S_q == S_k else _pairs(S_q, S_k, is_causal)
    return int(torch.tensor([4.0, B, H, pairs, D], dtype=torch.float32).prod())


# ---------------------------------------------------------------- 0.2


def _bytes_elements(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D + 4 * S_q * S_k)


def _bytes_two_touches(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D + 2 * S_q * S_k) * itemsize


def _bytes_three_touches(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D + 3 * S_q * S_k) * itemsize


def _bytes_fused(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D) * itemsize


def _bytes_without_output(B, H, S_q, S_k, D, itemsize):
    return B * H * (S_q * D + 2 * S_k * D + 4 * S_q * S_k) * itemsize


def _bytes_without_v(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + S_k * D + 4 * S_q * S_k) * itemsize


def _bytes_of_fp16(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D + 4 * S_q * S_k) * 2


def _bytes_of_fp32(B, H, S_q, S_k, D, itemsize):
    return B * H * (2 * S_q * D + 2 * S_k * D + 4 * S_q * S_k) * 4


def _bytes_one_length(B, H, S_q, S_k, D, itemsize):
    return B * H * (4 * S_q * D + 4 * S_q * S_q) * itemsize


def _bytes_one_head(B, H, S_q, S_k, D, itemsize):
    return B * (2 * S_q * D + 2 * S_k * D + 4 * S_q * S_k) * itemsize


# ---------------------------------------------------------------- 0.3


def _attend(q, k, v, is_causal, scale=None, fill=-math.inf, diagonal=None, dim=-1):
    S_q, S_k, D = q.shape[-2], k.shape[-2], q.shape[-1]
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(D) if scale is None else scale)
    if is_causal:
        diagonal = S_k - S_q if diagonal is None else diagonal
        s = s.masked_fill(~torch.ones(S_q, S_k, dtype=torch.bool).tril(diagonal), fill)
    return torch.softmax(s, dim=dim) @ v


def _attention_without_scale(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, scale=1.0)


def _attention_divided_by_d(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, scale=1 / q.shape[-1])


def _attention_divided_by_root_s(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, scale=q.shape[-2] ** -0.5)


def _attention_divided_by_root_h(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, scale=q.shape[1] ** -0.5)


def _attention_softmax_over_heads(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, dim=1)


def _attention_softmax_over_queries(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, dim=-2)


def _attention_without_mask(q, k, v, is_causal):
    return _attend(q, k, v, False)


def _attention_mask_after_softmax(q, k, v, is_causal):
    p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
    return (p.tril(k.shape[-2] - q.shape[-2]) if is_causal else p) @ v


def _attention_mask_with_zero(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, fill=0.0)


def _attention_strict_mask(q, k, v, is_causal):
    return torch.nan_to_num(_attend(q, k, v, is_causal, diagonal=k.shape[-2] - q.shape[-2] - 1), nan=0.0)


def _attention_top_left(q, k, v, is_causal):
    return _attend(q, k, v, is_causal, diagonal=0)


def _attention_overflows(q, k, v, is_causal):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    p = torch.exp(s)
    if is_causal:
        p = p.tril(k.shape[-2] - q.shape[-2])
    return p / p.sum(-1, keepdim=True) @ v


def _attention_scales_q_in_place(q, k, v, is_causal):
    q /= math.sqrt(q.shape[-1])
    return _attend(q, k, v, is_causal, scale=1.0)


# ---------------------------------------------------------------- 0.4


def _roof_of_the_larger(intensity, peak_flops, bandwidth):
    return max(peak_flops, intensity * bandwidth)


def _roof_always_peak(intensity, peak_flops, bandwidth):
    return peak_flops


def _roof_never_peak(intensity, peak_flops, bandwidth):
    return intensity * bandwidth


def _roof_upside_down(intensity, peak_flops, bandwidth):
    return min(peak_flops, bandwidth / intensity)


def _roof_as_integer(intensity, peak_flops, bandwidth):
    return int(min(peak_flops, intensity * bandwidth))


def _roof_in_series(intensity, peak_flops, bandwidth):
    return 1 / (1 / peak_flops + 1 / (intensity * bandwidth))


WRONG_ANSWERS = (
    WrongAnswer("0.1", _flops_one_per_multiply_add, "half is missing"),
    WrongAnswer("0.1", _flops_ignore_mask, "pairs that the causal mask hides are counted"),
    WrongAnswer("0.1", _flops_halve_for_causal, "the diagonal is half counted"),
    WrongAnswer("0.1", _flops_without_diagonal, "the diagonal is not counted"),
    WrongAnswer("0.1", _flops_top_left, "the mask starts at the top left"),
    WrongAnswer("0.1", _flops_one_head, "the number of heads is missing"),
    WrongAnswer("0.1", _flops_one_length, "S_q is used for both lengths"),
    WrongAnswer("0.1", _flops_negative_rows, "never less than nothing"),
    WrongAnswer("0.1", _flops_in_float32, "stay with integers"),
    WrongAnswer("0.2", _bytes_elements, "elements are counted, not bytes"),
    WrongAnswer("0.2", _bytes_two_touches, "only two touches of each score"),
    WrongAnswer("0.2", _bytes_three_touches, "one of the reads is missing"),
    WrongAnswer("0.2", _bytes_fused, "what a fused kernel would move"),
    WrongAnswer("0.2", _bytes_without_output, "o is not counted"),
    WrongAnswer("0.2", _bytes_without_v, "v is not counted"),
    WrongAnswer("0.2", _bytes_of_fp16, "4 here and not always 2"),
    WrongAnswer("0.2", _bytes_of_fp32, "2 here and not always 4"),
    WrongAnswer("0.2", _bytes_one_length, "S_q is used for both lengths"),
    WrongAnswer("0.2", _bytes_one_head, "the heads are missing"),
    WrongAnswer("0.3", _attention_without_scale, "the scores are not scaled"),
    WrongAnswer("0.3", _attention_divided_by_d, "the scores are divided by D"),
    WrongAnswer("0.3", _attention_divided_by_root_s, "the root of S"),
    WrongAnswer("0.3", _attention_divided_by_root_h, "the root of H"),
    WrongAnswer("0.3", _attention_softmax_over_heads, "the softmax runs over the heads"),
    WrongAnswer("0.3", _attention_softmax_over_queries, "the softmax runs over the queries"),
    WrongAnswer("0.3", _attention_without_mask, "is_causal changes nothing"),
    WrongAnswer("0.3", _attention_mask_after_softmax, "the mask comes after the softmax"),
    WrongAnswer("0.3", _attention_mask_with_zero, "hidden scores are set to 0"),
    WrongAnswer("0.3", _attention_strict_mask, "the mask is strict"),
    WrongAnswer("0.3", _attention_top_left, "the mask starts at the top left"),
    WrongAnswer("0.3", _attention_overflows, "exp overflows"),
    WrongAnswer("0.3", _attention_scales_q_in_place, "changes its input q in place"),
    WrongAnswer("0.4", _roof_of_the_larger, "the larger of the two limits"),
    WrongAnswer("0.4", _roof_always_peak, "the memory limit is missing"),
    WrongAnswer("0.4", _roof_never_peak, "the arithmetic limit is missing"),
    WrongAnswer("0.4", _roof_upside_down, "bandwidth is divided by the intensity"),
    WrongAnswer("0.4", _roof_as_integer, "the result is cut to a whole number"),
    WrongAnswer("0.4", _roof_in_series, "as if one waited for the other"),
)
