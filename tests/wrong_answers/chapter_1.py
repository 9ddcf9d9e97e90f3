"""Wrong answers to the exercises of chapter 1, each with words that its diagnosis must hold."""

from __future__ import annotations

import math

import torch

from wrong_answers import WrongAnswer

INF = math.inf


# ---------------------------------------------------------------- 1.1


def _shifted(x, c):
    p = torch.exp(x - c)
    return p / p.sum(dim=-1, keepdim=True)


def _softmax_naive(x):
    p = torch.exp(x)
    return p / p.sum(dim=-1, keepdim=True)


def _softmax_not_divided(x):
    return torch.exp(x - x.amax(dim=-1, keepdim=True))


def _softmax_shifted_above(x):
    return torch.exp(x - x.amax(dim=-1, keepdim=True)) / torch.exp(x).sum(dim=-1, keepdim=True)


def _softmax_shifted_below(x):
    return torch.exp(x) / torch.exp(x - x.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)


def _softmax_log(x):
    return torch.log_softmax(x, dim=-1)


def _softmax_wrong_sign(x):
    m = x.amax(dim=-1, keepdim=True)
    p = torch.exp(m - x)
    return p / p.sum(dim=-1, keepdim=True)


def _softmax_down_the_columns(x):
    p = torch.exp(x - x.amax(dim=0))
    return p / p.sum(dim=0)


def _softmax_over_dimension_1(x):
    return torch.softmax(x, dim=min(1, x.ndim - 1))


def _softmax_one_sum(x):
    p = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return p / p.sum()


def _softmax_one_maximum(x):
    return _shifted(x, x.max())


def _softmax_maximum_without_keepdim(x):
    return _shifted(x, x.amax(dim=-1))


def _softmax_sum_without_keepdim(x):
    p = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return p / p.sum(dim=-1)


def _softmax_clamped(x):
    return _softmax_naive(x.clamp(max=80))


def _softmax_minus_minimum(x):
    return _shifted(x, x.amin(dim=-1, keepdim=True))


def _softmax_minus_last(x):
    return _shifted(x, x[..., -1:])


def _softmax_minus_mean(x):
    return _shifted(x, x.mean(dim=-1, keepdim=True))


def _softmax_minus_largest_size(x):
    return _shifted(x, x.abs().amax(dim=-1, keepdim=True))


def _softmax_in_place(x):
    x -= x.amax(dim=-1, keepdim=True)
    return _softmax_naive(x)


def _softmax_in_half(x):
    return _softmax_naive(x.double()) if x.dtype in (torch.float16, torch.bfloat16) else torch.softmax(x, dim=-1)


def _softmax_in_float32(x):
    return torch.softmax(x.float(), dim=-1)


def _softmax_through_view(x):
    rows = x.view(-1, x.shape[-1])
    return torch.softmax(rows, dim=1).view(x.shape)


# ---------------------------------------------------------------- 1.2


def _normalizer(x, m=-INF, l=0.0, correction=lambda m, m_new: math.exp(m - m_new), term=lambda x, m, m_new: math.exp(x - m_new)):
    for value in x.tolist():
        if value != -INF:
            m_new = max(m, value)
            l = l * correction(m, m_new) + term(value, m, m_new)
            m = m_new
    return m, l


def _normalizer_not_rescaled(x):
    m, l = -INF, 0.0
    for value in x.tolist():
        m = max(m, value)
        l += math.exp(value - m)
    return m, l


def _normalizer_overwrites_m(x):
    m, l = torch.tensor(-INF), torch.tensor(0.0)
    for value in x:
        m = torch.maximum(m, value)
        l = l * torch.exp(m - m) + torch.exp(value - m)
    return m, l


def _normalizer_wrong_sign(x):
    return _normalizer(x, correction=lambda m, m_new: math.exp(m_new - m) if m > -INF else 0.0)


def _normalizer_relative_to_first(x):
    return x.max(), torch.exp(x - x[0]).sum()


def _normalizer_starts_at_zero(x):
    return _normalizer(x, m=0.0)


def _normalizer_starts_at_a_finite_number(x):
    return _normalizer(x, m=-1e9)


def _normalizer_nan_at_leading_inf(x):
    m, l = torch.tensor(-INF, dtype=x.dtype), torch.tensor(0.0, dtype=x.dtype)
    for value in x:
        m_new = torch.maximum(m, value)
        l = l * torch.exp(m - m_new) + torch.exp(value - m_new)
        m = m_new
    return m, l


def _normalizer_counts_masked(x):
    m, l = -INF, 0.0
    for value in x.tolist():
        if value > m:
            m, l = value, l * math.exp(m - value) + 1.0
        else:
            l += 1.0 if value == m else math.exp(value - m)
    return m, l


def _normalizer_returns_lse(x):
    m, l = _normalizer(x)
    return m, m + math.log(l)


def _normalizer_returns_log(x):
    m, l = _normalizer(x)
    return m, math.log(l)


def _normalizer_swapped(x):
    m, l = _normalizer(x)
    return l, m


def _normalizer_not_shifted(x):
    return x.max(), torch.exp(x).sum()


def _normalizer_shifted_late(x):
    return x.max(), torch.exp(x).sum() * torch.exp(-x.max())


def _normalizer_starts_anew(x):
    return _normalizer(x, correction=lambda m, m_new: float(m == m_new))


def _normalizer_old_maximum(x):
    return _normalizer(x, term=lambda x, m, m_new: math.exp(x - m) if m > -INF else 1.0)


def _normalizer_rescales_the_new(x):
    m, l = -INF, 0.0
    for value in x.tolist():
        m_new = max(m, value)
        l = (l + math.exp(value - m_new)) * (math.exp(m - m_new) if m > -INF else 1.0)
        m = m_new
    return m, l


def _normalizer_first_twice(x):
    return _normalizer(x, m=x[0].item(), l=1.0)


def _normalizer_needs_a_first(x):
    m, l = _normalizer(x[1:], m=x[0].item(), l=float(x[0] > -INF))
    return m, l


# ---------------------------------------------------------------- 1.3


def _merge_plainly(m_a, l_a, m_b, l_b):
    return torch.maximum(m_a, m_b), l_a + l_b


def _merge_wrong_sign(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    return m, l_a * torch.exp(m - m_a) + l_b * torch.exp(m - m_b)


def _merge_crossed(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    return m, l_a * torch.exp(m_b - m) + l_b * torch.exp(m_a - m)


def _merge_added_maxima(m_a, l_a, m_b, l_b):
    m = m_a + m_b
    return m, l_a * torch.exp(m_a - m) + l_b * torch.exp(m_b - m)


def _merge_averages(m_a, l_a, m_b, l_b):
    m = (m_a + m_b) / 2
    return m, l_a * torch.exp(m_a - m) + l_b * torch.exp(m_b - m)


def _merge_rescales_first_only(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    return m, l_a * torch.exp(m_a - m) + l_b


def _merge_second_is_larger(m_a, l_a, m_b, l_b):
    return torch.maximum(m_a, m_b), l_a * torch.exp(m_a - m_b) + l_b


def _merge_keeps_the_larger(m_a, l_a, m_b, l_b):
    return torch.maximum(m_a, m_b), torch.where(m_a > m_b, l_a, l_b)


def _merge_strict_comparison(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    a = torch.where(m_a < m, l_a * torch.exp(m_a - m), torch.where(m_a > m_b, l_a, 0.0))
    b = torch.where(m_b < m, l_b * torch.exp(m_b - m), l_b)
    return m, a + b


def _merge_nan_when_empty(m_a, l_a, m_b, l_b):
    m = torch.maximum(torch.as_tensor(m_a), torch.as_tensor(m_b))
    return m, l_a * torch.exp(m_a - m) + l_b * torch.exp(m_b - m)


def _merge_empty_gets_a_number(m_a, l_a, m_b, l_b):
    m = torch.nan_to_num(torch.maximum(m_a, m_b))
    return m, l_a * torch.exp(m_a - m) + l_b * torch.exp(m_b - m)


def _merge_through_sums(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -INF, 0.0, m)
    return m, (l_a * torch.exp(m_a) + l_b * torch.exp(m_b)) * torch.exp(-shift)


def _merge_numbers_only(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    if m == -INF:
        return m, l_a + l_b
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)


def _merge_one_maximum(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a.max(), m_b.max()).expand(torch.broadcast_shapes(m_a.shape, m_b.shape))
    shift = torch.where(m == -INF, 0.0, m)
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


def _merge_in_place(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    l_a *= torch.exp(m_a - m)
    return m, l_a + l_b * torch.exp(m_b - m)


def _merge_tensors_only(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -INF, 0.0, m)
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


# ---------------------------------------------------------------- 1.4


def _step(m, l, part):
    """A right step of the first pass, for answers that are wrong elsewhere."""
    m_new = torch.maximum(m, part.amax(dim=-1, keepdim=True))
    shift = torch.where(m_new == -INF, 0.0, m_new)
    return m_new, l * torch.exp(m - shift) + torch.exp(part - shift).sum(dim=-1, keepdim=True)


def _first_pass(parts, step=_step, m=-INF):
    m = torch.full_like(parts[0][..., :1], m)
    l = torch.zeros_like(m)
    for part in parts:
        m, l = step(m, l, part)
    return m, l


def _blocks_by_themselves(x, block):
    return torch.cat([torch.softmax(part, dim=-1) for part in x.split(block, dim=-1)], dim=-1)


def _blocks_own_maximum_in_second_pass(x, block):
    parts = x.split(block, dim=-1)
    _, l = _first_pass(parts)
    return torch.cat([torch.exp(part - part.amax(dim=-1, keepdim=True)) / l for part in parts], dim=-1)


def _blocks_not_rescaled(x, block):
    def step(m, l, part):
        m = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        return m, l + torch.exp(part - m).sum(dim=-1, keepdim=True)

    parts = x.split(block, dim=-1)
    m, l = _first_pass(parts, step)
    return torch.exp(x - m) / l


def _blocks_written_in_one_pass(x, block):
    m = torch.full_like(x[..., :1], -INF)
    l = torch.zeros_like(m)
    written = []
    for part in x.split(block, dim=-1):
        m, l = _step(m, l, part)
        written.append(torch.exp(part - m) / l)
    return torch.cat(written, dim=-1)


def _blocks_last_pair(x, block):
    def step(m, l, part):
        m = part.amax(dim=-1, keepdim=True)
        return m, torch.exp(part - m).sum(dim=-1, keepdim=True)

    m, l = _first_pass(x.split(block, dim=-1), step)
    return torch.exp(x - m) / l


def _blocks_not_divided(x, block):
    m, _ = _first_pass(x.split(block, dim=-1))
    return torch.exp(x - m)


def _blocks_sum_relative_to_own(x, block):
    def step(m, l, part):
        m_part = part.amax(dim=-1, keepdim=True)
        m_new = torch.maximum(m, m_part)
        return m_new, l * torch.exp(m - m_new) + torch.exp(part - m_part).sum(dim=-1, keepdim=True)

    m, l = _first_pass(x.split(block, dim=-1), step)
    return torch.exp(x - m) / l


def _blocks_ragged_end_dropped(x, block):
    whole = max(block, x.shape[-1] // block * block)
    parts = x[..., :whole].split(block, dim=-1)
    m, l = _first_pass(parts)
    return torch.cat([torch.exp(part - m) / l for part in parts], dim=-1)


def _blocks_ragged_end_not_summed(x, block):
    whole = max(block, x.shape[-1] // block * block)
    m, l = _first_pass(x[..., :whole].split(block, dim=-1))
    return torch.exp(x - m) / l


def _blocks_ragged_end_filled_with_zeros(x, block):
    n = x.shape[-1]
    filled = torch.nn.functional.pad(x, (0, -n % block))
    m, l = _first_pass(filled.split(block, dim=-1))
    return torch.exp(x - m) / l


def _blocks_by_reshape(x, block):
    blocks = x.reshape(*x.shape[:-1], -1, min(block, x.shape[-1]))
    m = blocks.amax(dim=(-1, -2), keepdim=True)
    p = torch.exp(blocks - m)
    return (p / p.sum(dim=(-1, -2), keepdim=True)).reshape(x.shape)


def _blocks_of_one_row(x, block):
    def step(m, l, part):
        m_new = torch.maximum(m, part.max())
        return m_new, l * torch.exp(m - m_new) + torch.exp(part - m_new).sum()

    m, l = _first_pass(x.split(block, dim=-1), step)
    return torch.exp(x - m) / l


def _blocks_not_shifted(x, block):
    l = sum(torch.exp(part).sum(dim=-1, keepdim=True) for part in x.split(block, dim=-1))
    return torch.exp(x) / l


def _blocks_start_at_zero(x, block):
    m, l = _first_pass(x.split(block, dim=-1), m=0.0)
    return torch.exp(x - m) / l


def _blocks_nan_at_masked_block(x, block):
    def step(m, l, part):
        m_part = part.amax(dim=-1, keepdim=True)
        m_new = torch.maximum(m, m_part)
        l_part = torch.exp(part - m_part).sum(dim=-1, keepdim=True)
        return m_new, l * torch.exp(m - m_new) + l_part * torch.exp(m_part - m_new)

    m, l = _first_pass(x.split(block, dim=-1), step)
    return torch.exp(x - m) / l


def _blocks_nan_at_first_masked_block(x, block):
    def step(m, l, part):
        m_new = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        return m_new, l * torch.exp(m - m_new) + torch.exp(part - m_new).sum(dim=-1, keepdim=True)

    m, l = _first_pass(x.split(block, dim=-1), step)
    return torch.exp(x - m) / l


# ---------------------------------------------------------------- 1.5


def _run_over_blocks(scores, values, block, *, m=-INF, rescale_acc=True, rescale_l=True, sign=1.0, end=None):
    """A right pass, with one mistake at a time. Returns m, l, acc."""
    m, l, acc = scores.new_tensor(m), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for start in range(0, len(scores) if end is None else end, block):
        s = scores[start : start + block]
        m_new = torch.maximum(m, s.amax())
        if m_new == -INF:
            continue
        p = torch.exp(s - m_new)
        alpha = torch.exp(sign * (m - m_new)) if m > -INF else scores.new_tensor(0.0)
        l = (alpha if rescale_l else 1.0) * l + p.sum()
        acc = (alpha if rescale_acc else 1.0) * acc + p @ values[start : start + block]
        m = m_new
    return m, l, acc


def _divided(m, l, acc):
    return (acc / l, m + torch.log(l)) if l > 0 else (acc, m)


def _sum_acc_not_rescaled(scores, values, block):
    return _divided(*_run_over_blocks(scores, values, block, rescale_acc=False))


def _sum_l_not_rescaled(scores, values, block):
    return _divided(*_run_over_blocks(scores, values, block, rescale_l=False))


def _sum_nothing_rescaled(scores, values, block):
    return _divided(*_run_over_blocks(scores, values, block, rescale_acc=False, rescale_l=False))


def _sum_wrong_sign(scores, values, block):
    return _divided(*_run_over_blocks(scores, values, block, sign=-1.0))


def _sum_not_divided(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return acc, m + torch.log(l)


def _sum_divided_in_every_block(scores, values, block):
    m, l, o = scores.new_tensor(-INF), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        m_new = torch.maximum(m, s.amax())
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        l = alpha * l + p.sum()
        o = (alpha * o + p @ v) / l
        m = m_new
    return o, m + torch.log(l)


def _sum_each_block_normalised(scores, values, block):
    blocks = zip(scores.split(block), values.split(block), strict=True)
    return sum(torch.softmax(s, dim=0) @ v for s, v in blocks), torch.logsumexp(scores, 0)


def _sum_lse_is_m(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return _divided(m, l, acc)[0], m


def _sum_lse_is_log_l(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return _divided(m, l, acc)[0], torch.log(l)


def _sum_lse_in_base_2(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return _divided(m, l, acc)[0], m + torch.log2(l)


def _sum_lse_first_maximum(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return _divided(m, l, acc)[0], scores[:block].amax() + torch.log(l)


def _sum_scaled_again(scores, values, block):
    return _divided(*_run_over_blocks(scores / math.sqrt(values.shape[1]), values, block))


def _sum_own_maximum(scores, values, block):
    m, l, acc = scores.new_tensor(-INF), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        p = torch.exp(s - s.amax())
        m_new = torch.maximum(m, s.amax())
        alpha = torch.exp(m - m_new)
        m, l, acc = m_new, alpha * l + p.sum(), alpha * acc + p @ v
    return acc / l, m + torch.log(l)


def _sum_maximum_falls(scores, values, block):
    m, l, acc = scores.new_tensor(-INF), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        m_new = s.amax()
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        m, l, acc = m_new, alpha * l + p.sum(), alpha * acc + p @ v
    return acc / l, m + torch.log(l)


def _sum_not_shifted(scores, values, block):
    l, acc = scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        p = torch.exp(s)
        l, acc = l + p.sum(), acc + p @ v
    return acc / l, torch.log(l)


def _sum_starts_at_zero(scores, values, block):
    return _divided(*_run_over_blocks(scores, values, block, m=0.0))


def _sum_ragged_end_dropped(scores, values, block):
    end = max(1, len(scores) // block) * block
    return _divided(*_run_over_blocks(scores[:end], values[:end], block))


def _sum_nan_at_masked_block(scores, values, block):
    m, l, acc = scores.new_tensor(-INF), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        m_new = torch.maximum(m, s.amax())
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        m, l, acc = m_new, alpha * l + p.sum(), alpha * acc + p @ v
    return acc / l, m + torch.log(l)


def _sum_nan_without_keys(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return acc / l, m + torch.log(l)


def _sum_lse_of_nothing_is_zero(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    o, lse = _divided(m, l, acc)
    return o, torch.nan_to_num(lse, neginf=0.0)


def _sum_acc_in_float32(scores, values, block):
    acc, l = torch.zeros(values.shape[1]), torch.zeros(())
    m = scores.amax() if len(scores) else scores.new_tensor(-INF)
    if m == -INF:
        return acc, m
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        p = torch.exp(s - m)
        acc += p @ v
        l += p.sum()
    return acc / l, m + torch.log(l)


def _sum_along_columns(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    o, lse = _divided(m, l, acc)
    return (values @ torch.softmax(scores, 0) if values.shape[0] == values.shape[1] > 0 else o), lse


def _sum_of_values_only(scores, values, block):
    m, l, acc = _run_over_blocks(scores, values, block)
    return _divided(m, l, acc)[0]


WRONG_ANSWERS = (
    WrongAnswer("1.1", _softmax_naive, "exp overflows: float32 holds exp(x) only for x below 89"),
    WrongAnswer("1.1", _softmax_not_divided, "the exponentials are not divided by their sum"),
    WrongAnswer("1.1", _softmax_shifted_above, "only the numerators are shifted"),
    WrongAnswer("1.1", _softmax_shifted_below, "only the sum is shifted"),
    WrongAnswer("1.1", _softmax_log, "the logarithm of softmax"),
    WrongAnswer("1.1", _softmax_wrong_sign, "the exponent has the wrong sign"),
    WrongAnswer("1.1", _softmax_down_the_columns, "the softmax runs down the columns"),
    WrongAnswer("1.1", _softmax_over_dimension_1, "the softmax runs over dimension 1"),
    WrongAnswer("1.1", _softmax_one_sum, "one sum is taken over the whole tensor"),
    WrongAnswer("1.1", _softmax_one_maximum, "one maximum for the whole tensor would"),
    WrongAnswer("1.1", _softmax_maximum_without_keepdim, "the maximum of row i is subtracted from column i"),
    WrongAnswer("1.1", _softmax_sum_without_keepdim, "column i is divided by the sum of row i"),
    WrongAnswer("1.1", _softmax_clamped, "x is clamped"),
    WrongAnswer("1.1", _softmax_minus_minimum, "the first value would, or the smallest"),
    WrongAnswer("1.1", _softmax_minus_last, "the last value would"),
    WrongAnswer("1.1", _softmax_minus_mean, "the mean would"),
    WrongAnswer("1.1", _softmax_minus_largest_size, "the largest |x| would"),
    WrongAnswer("1.1", _softmax_in_place, "changes its input x in place"),
    WrongAnswer("1.1", _softmax_in_half, "overflows in float16"),
    WrongAnswer("1.1", _softmax_in_float32, "float64 goes in, and the result has less accuracy"),
    WrongAnswer("1.1", _softmax_through_view, "view size is not compatible"),
    WrongAnswer("1.2", _normalizer_not_rescaled, "your l is not rescaled when the maximum grows: x = [1, 2] gives l = 2, want 1.368"),
    WrongAnswer("1.2", _normalizer_overwrites_m, "your l is not rescaled when the maximum grows"),
    WrongAnswer("1.2", _normalizer_wrong_sign, "rescaled with the wrong sign of the exponent"),
    WrongAnswer("1.2", _normalizer_relative_to_first, "relative to the first element"),
    WrongAnswer("1.2", _normalizer_starts_at_zero, "m starts at 0"),
    WrongAnswer("1.2", _normalizer_starts_at_a_finite_number, "m starts at a finite number"),
    WrongAnswer("1.2", _normalizer_nan_at_leading_inf, "−inf at the start gives NaN"),
    WrongAnswer("1.2", _normalizer_counts_masked, "−inf entries are counted"),
    WrongAnswer("1.2", _normalizer_returns_lse, "that is log Σ exp(x)"),
    WrongAnswer("1.2", _normalizer_returns_log, "that is the logarithm of l"),
    WrongAnswer("1.2", _normalizer_swapped, "m and l are swapped"),
    WrongAnswer("1.2", _normalizer_not_shifted, "the exponentials are not shifted by m"),
    WrongAnswer("1.2", _normalizer_shifted_late, "exp overflows on the way"),
    WrongAnswer("1.2", _normalizer_starts_anew, "a larger maximum starts your l anew"),
    WrongAnswer("1.2", _normalizer_old_maximum, "relative to the old maximum"),
    WrongAnswer("1.2", _normalizer_rescales_the_new, "the element that makes the maximum grow is rescaled as well"),
    WrongAnswer("1.2", _normalizer_first_twice, "l counts the first element twice"),
    WrongAnswer("1.2", _normalizer_needs_a_first, "an empty vector: raises IndexError"),
    WrongAnswer("1.3", _merge_plainly, "the part with the smaller maximum is not rescaled"),
    WrongAnswer("1.3", _merge_wrong_sign, "the correction has the wrong sign"),
    WrongAnswer("1.3", _merge_crossed, "the part with the larger maximum is rescaled"),
    WrongAnswer("1.3", _merge_added_maxima, "the maxima are added"),
    WrongAnswer("1.3", _merge_averages, "the maxima are averaged"),
    WrongAnswer("1.3", _merge_rescales_first_only, "only the first part is ever rescaled"),
    WrongAnswer("1.3", _merge_second_is_larger, "rescaled to the maximum of the second"),
    WrongAnswer("1.3", _merge_keeps_the_larger, "the part with the smaller maximum is left out"),
    WrongAnswer("1.3", _merge_strict_comparison, "two equal maxima: the first part is left out"),
    WrongAnswer("1.3", _merge_nan_when_empty, "two empty parts give NaN"),
    WrongAnswer("1.3", _merge_empty_gets_a_number, "two empty parts give an empty part"),
    WrongAnswer("1.3", _merge_through_sums, "exp overflows on the way"),
    WrongAnswer("1.3", _merge_numbers_only, "raises RuntimeError: Boolean value of Tensor"),
    WrongAnswer("1.3", _merge_one_maximum, "one maximum is taken over all elements"),
    WrongAnswer("1.3", _merge_in_place, "changes its input l_a in place"),
    WrongAnswer("1.3", _merge_tensors_only, "merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    WrongAnswer("1.4", _blocks_by_themselves, "each block is normalised by itself"),
    WrongAnswer("1.4", _blocks_own_maximum_in_second_pass, "each block's own maximum is used in the second pass"),
    WrongAnswer("1.4", _blocks_not_rescaled, "your l is not rescaled when the maximum grows"),
    WrongAnswer("1.4", _blocks_written_in_one_pass, "the first block is written before the last one is seen"),
    WrongAnswer("1.4", _blocks_last_pair, "m and l are those of the last block"),
    WrongAnswer("1.4", _blocks_not_divided, "exp(x − m) is not divided by l"),
    WrongAnswer("1.4", _blocks_sum_relative_to_own, "your l adds the second block relative to its own maximum"),
    WrongAnswer("1.4", _blocks_ragged_end_dropped, "the last block may be ragged"),
    WrongAnswer("1.4", _blocks_ragged_end_not_summed, "the first pass leaves the ragged last block out"),
    WrongAnswer("1.4", _blocks_ragged_end_filled_with_zeros, "filled up with zeros"),
    WrongAnswer("1.4", _blocks_by_reshape, "x = [1, 2, 3], block = 2: raises RuntimeError"),
    WrongAnswer("1.4", _blocks_of_one_row, "m and l are those of the whole tensor"),
    WrongAnswer("1.4", _blocks_not_shifted, "exp overflows: x must be shifted"),
    WrongAnswer("1.4", _blocks_start_at_zero, "if m started at 0"),
    WrongAnswer("1.4", _blocks_nan_at_masked_block, "a block of only −inf gives NaN: its own maximum is −inf"),
    WrongAnswer("1.4", _blocks_nan_at_first_masked_block, "a first block of only −inf gives NaN"),
    WrongAnswer("1.5", _sum_acc_not_rescaled, "your acc is not rescaled when the maximum grows"),
    WrongAnswer("1.5", _sum_l_not_rescaled, "your l is not rescaled when the maximum grows"),
    WrongAnswer("1.5", _sum_nothing_rescaled, "neither acc nor l is rescaled"),
    WrongAnswer("1.5", _sum_wrong_sign, "acc and l are rescaled with the wrong sign"),
    WrongAnswer("1.5", _sum_not_divided, "acc is not divided by l"),
    WrongAnswer("1.5", _sum_divided_in_every_block, "acc is divided by l in every block"),
    WrongAnswer("1.5", _sum_each_block_normalised, "each block is normalised by itself"),
    WrongAnswer("1.5", _sum_lse_is_m, "lse is m alone"),
    WrongAnswer("1.5", _sum_lse_is_log_l, "lse is log l alone"),
    WrongAnswer("1.5", _sum_lse_in_base_2, "log l is in base 2"),
    WrongAnswer("1.5", _sum_lse_first_maximum, "the m in lse is the first block's"),
    WrongAnswer("1.5", _sum_scaled_again, "the scores are scaled by 1/√D"),
    WrongAnswer("1.5", _sum_own_maximum, "p is relative to its block's own maximum"),
    WrongAnswer("1.5", _sum_maximum_falls, "m is the maximum of all that was seen, and it never falls"),
    WrongAnswer("1.5", _sum_not_shifted, "exp overflows: the scores must be shifted"),
    WrongAnswer("1.5", _sum_starts_at_zero, "if m started at 0"),
    WrongAnswer("1.5", _sum_ragged_end_dropped, "the ragged last block is dropped"),
    WrongAnswer("1.5", _sum_nan_at_masked_block, "a first block of only −inf gives NaN"),
    WrongAnswer("1.5", _sum_nan_without_keys, "o is 0 / 0 = NaN"),
    WrongAnswer("1.5", _sum_lse_of_nothing_is_zero, "lse is 0: log 0 is −inf"),
    WrongAnswer("1.5", _sum_acc_in_float32, "float64 goes in, and the result has less accuracy"),
    WrongAnswer("1.5", _sum_along_columns, "the weights run along the columns of values"),
    WrongAnswer("1.5", _sum_of_values_only, "want a tuple (o, lse)"),
)
