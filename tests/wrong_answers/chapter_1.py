"""Chapter 1: overflows in float32, exceptions, inputs that are changed, accuracy that is lost."""

import math

import torch


def softmax_naive(x):
    p = torch.exp(x)
    return p / p.sum(dim=-1, keepdim=True)


def softmax_in_place(x):
    x -= x.amax(dim=-1, keepdim=True)
    return softmax_naive(x)


def softmax_in_float32(x):
    return torch.softmax(x.float(), dim=-1)


def softmax_through_view(x):
    return torch.softmax(x.view(-1, x.shape[-1]), dim=1).view(x.shape)


def softmax_in_half(x):
    p = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return p / p.sum(dim=-1, keepdim=True)


def softmax_in_float32_at_least(x):
    return softmax_in_half(x.to(torch.promote_types(x.dtype, torch.float32)))


def softmax_of_a_pair(x):
    return softmax_in_half(x - x.max(-1, keepdim=True))


def softmax_from(first, wide):
    """A softmax that subtracts something else than the maximum, in float64 if it is `wide`."""

    def softmax(x):
        y = x.double() if wide else x
        p = torch.exp(y - first(y))
        return (p / p.sum(dim=-1, keepdim=True)).to(x.dtype)

    return softmax


def softmax_clamped(x):
    p = torch.exp(x.double().clamp(max=700))
    return (p / p.sum(dim=-1, keepdim=True)).to(x.dtype)


def normalizer_stops(x):
    m, l = -math.inf, 0.0
    for value in x.tolist():
        if value == -math.inf and m > -math.inf:
            break
        m_new = max(m, value)
        l = l * math.exp(m - m_new) + math.exp(value - m_new) if m_new > -math.inf else l
        m = m_new
    return m, l


def normalizer_needs_a_first(x):
    m, l = x[0].item(), 0.0
    for value in x.tolist():
        m_new = max(m, value)
        l = l * math.exp(m - m_new) + math.exp(value - m_new) if m_new > -math.inf else l
        m = m_new
    return m, l


def merge_numbers_only(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)


def merge_tensors_only(m_a, l_a, m_b, l_b):
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -math.inf, 0.0, m)
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


def merge_with_one_guard(m_a, l_a, m_b, l_b):
    m_a, l_a, m_b, l_b = (torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    if (m == -math.inf).all():
        return m, l_a + l_b
    return m, l_a * torch.exp(m_a - m) + l_b * torch.exp(m_b - m)


def blocks_without_correction(x, block):
    numerators = [torch.exp(part - part.amax(-1, keepdim=True)) for part in x.split(block, dim=-1)]
    return torch.cat(numerators, dim=-1) / torch.cat(numerators, dim=-1).sum(-1, keepdim=True)


def blocks_by_reshape(x, block):
    blocks = x.reshape(*x.shape[:-1], -1, min(block, x.shape[-1]))
    p = torch.exp(blocks - blocks.amax(dim=(-1, -2), keepdim=True))
    return (p / p.sum(dim=(-1, -2), keepdim=True)).reshape(x.shape)


def blocks_from_the_first_maximum(x, block):
    p = torch.exp(x - x[..., :block].amax(dim=-1, keepdim=True))
    return p / p.sum(dim=-1, keepdim=True)


def blocks_from_the_running_maximum(x, block):
    numerators, m = [], torch.full_like(x[..., :1], -math.inf)
    for part in x.split(block, dim=-1):
        m = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        numerators.append(torch.exp(part - torch.where(m == -math.inf, 0.0, m)))
    p = torch.cat(numerators, dim=-1)
    return p / p.sum(dim=-1, keepdim=True)


def blocks_start_at_a_large_negative(x, block):
    m, l = torch.full_like(x[..., :1], -1e9), torch.zeros_like(x[..., :1])
    for part in x.split(block, dim=-1):
        m_new = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        l = torch.exp(m - m_new) * l + torch.exp(part - m_new).sum(dim=-1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def blocks(x, block, skips):
    """(m, l) of x's blocks, except those that `skips` is true of; where it says "stop", of those before."""
    m, l = torch.full_like(x[..., :1], -math.inf), torch.zeros_like(x[..., :1])
    for part in x.split(block, dim=-1):
        skip = skips(part, m)
        if skip == "stop":
            break
        if skip:
            continue
        m_new = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        shift = torch.where(m_new == -math.inf, 0.0, m_new)
        l = l * torch.exp(m - shift) + torch.exp(part - shift).sum(dim=-1, keepdim=True)
        m = m_new
    return m, l


def stop_at_masked(part, m):
    empty = (part == -math.inf).all()
    return "stop" if empty and (m > -math.inf).any() else bool(empty)


def blocks_stop(x, block):
    m, l = blocks(x, block, stop_at_masked)
    return torch.exp(x - m) / l


def blocks_skipped_in_every_row(x, block):
    m, l = blocks(x, block, lambda part, m: bool((part == -math.inf).all(dim=-1).any()))
    return torch.exp(x - m) / l


def blocks_skipped_for_one_entry(x, block):
    m, l = blocks(x, block, lambda part, m: bool((part == -math.inf).any()))
    return torch.exp(x - m) / l


def blocks_with_one_guard(x, block):
    m, l = torch.full_like(x[..., :1], -math.inf), torch.zeros_like(x[..., :1])
    for part in x.split(block, dim=-1):
        m_new = torch.maximum(m, part.amax(dim=-1, keepdim=True))
        if (m_new == -math.inf).all():
            continue
        l = l * torch.exp(m - m_new) + torch.exp(part - m_new).sum(dim=-1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def sum_from(start, guarded):
    """A weighted sum whose m starts at a finite number."""

    def weighted_sum(scores, values, block):
        m, l, acc = scores.new_tensor(start), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
        for s, v in zip(scores.split(block), values.split(block), strict=True):
            if not len(s):
                continue
            m_new = torch.maximum(m, s.max())
            p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
            l, acc, m = alpha * l + p.sum(), alpha * acc + p @ v, m_new
        return (acc if guarded and l == 0 else acc / l), m + torch.log(l)

    return weighted_sum


def sum_with_alpha_on_the_new_block(guarded, both):
    def weighted_sum(scores, values, block):
        m, l, acc = scores.new_tensor(-math.inf), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
        for s, v in zip(scores.split(block), values.split(block), strict=True):
            if not len(s) or torch.maximum(m, s.max()) == -math.inf:
                continue
            m_new = torch.maximum(m, s.max())
            p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
            l = l + alpha * p.sum() if both else alpha * l + p.sum()
            acc, m = acc + alpha * (p @ v), m_new
        return (acc if guarded and l == 0 else acc / l), m + torch.log(l)

    return weighted_sum


def sum_stops(scores, values, block):
    m, l, acc = scores.new_tensor(-math.inf), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        if not len(s):
            continue
        if s.max() == -math.inf:
            if m > -math.inf:
                break
            continue
        m_new = torch.maximum(m, s.max())
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        l, acc, m = alpha * l + p.sum(), alpha * acc + p @ v, m_new
    return (acc / l if l > 0 else acc), m + torch.log(l)


def sum_skips_for_one_score(scores, values, block):
    kept = [not (s == -math.inf).any() for s in scores.split(block)]
    scores = torch.cat([s for s, keep in zip(scores.split(block), kept, strict=True) if keep] or [scores[:0]])
    values = torch.cat([v for v, keep in zip(values.split(block), kept, strict=True) if keep] or [values[:0]])
    return torch.softmax(scores, 0) @ values, torch.logsumexp(scores, 0)


def sum_fails_without_keys(scores, values, block):
    p = torch.exp(scores - scores.max())
    return p / p.sum() @ values, torch.logsumexp(scores, 0)


def sum_in_float32(scores, values, block):
    lse = torch.logsumexp(scores, 0)
    return torch.exp(scores - lse).nan_to_num().float() @ values.float(), lse


def sum_without_lse(scores, values, block):
    return torch.softmax(scores, 0) @ values


WRONG_ANSWERS = (
    ("1.1", softmax_naive, "exp overflows: float32 holds exp(x) only up to x = 88.72"),
    ("1.1", softmax_in_place, "changes its input x in place"),
    ("1.1", softmax_in_float32, "two edges are left; the first: float64 goes in, and the result has less accuracy"),
    ("1.1", softmax_through_view, "one edge is left: a transposed view, shape (3, 4, 8): raises RuntimeError: view size is not compatible"),
    ("1.1", softmax_in_half, "one edge is left: the sum of 70,000 ones is inf in float16"),
    (
        "1.1",
        softmax_in_float32_at_least,
        "one edge is left: the weights are right, but they are in float32: convert them to x's dtype, float16",
    ),
    ("1.1", softmax_of_a_pair, "take its .values, or use amax"),
    *(
        ("1.1", softmax_from(shift, wide), f"because you subtract the row's {words}")
        for wide in (False, True)
        for shift, words in (
            (lambda x: x[..., :1], "first value"),
            (lambda x: x[..., -1:], "last value"),
            (lambda x: x.amin(dim=-1, keepdim=True), "minimum"),
            (lambda x: x.mean(dim=-1, keepdim=True), "mean"),
        )
    ),
    ("1.1", softmax_from(lambda x: 80.0, True), "bring the largest exponent down to 0 first"),
    ("1.1", softmax_clamped, "0 / 0 is NaN: subtract the row's maximum"),
    ("1.2", normalizer_stops, "one edge is left: a −inf entry ends your loop"),
    ("1.2", normalizer_needs_a_first, "one edge is left: an empty vector: raises IndexError"),
    ("1.3", merge_numbers_only, "raises RuntimeError: Boolean value of Tensor"),
    ("1.3", merge_numbers_only, "torch.where decides for each"),
    ("1.3", merge_tensors_only, "one edge is left: merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    ("1.3", merge_with_one_guard, "one edge is left: one element is two empty parts"),
    ("1.4", blocks_without_correction, "that is the shortcut itself"),
    ("1.4", blocks_from_the_first_maximum, "every block is measured from the first block's maximum"),
    ("1.4", blocks_from_the_running_maximum, "measured from the running maximum of its time"),
    ("1.4", blocks_start_at_a_large_negative, "a finite number stands in for −inf, and elements may be smaller"),
    ("1.4", blocks_by_reshape, "x = [1, 2, 3], block = 2: raises RuntimeError"),
    ("1.4", blocks_stop, "one edge is left: a block of only −inf ends your loop"),
    ("1.4", blocks_skipped_in_every_row, "one edge is left: a block that is only −inf in one row is left out in every row"),
    ("1.4", blocks_skipped_for_one_entry, "one edge is left: a block is left out of l although only some of its entries are −inf"),
    ("1.4", blocks_with_one_guard, "one edge is left: one row sees only −inf at first"),
    *(
        ("1.5", sum_from(start, guarded), "a finite number stands in for −inf")
        for start in (-1e4, -1e9, -1e30)
        for guarded in (False, True)
    ),
    ("1.5", sum_with_alpha_on_the_new_block(True, True), "your first block vanishes"),
    ("1.5", sum_with_alpha_on_the_new_block(False, True), "your first block vanishes"),
    ("1.5", sum_with_alpha_on_the_new_block(True, False), "your first block vanishes"),
    ("1.5", sum_stops, "one edge is left: a block of only −inf ends your loop"),
    ("1.5", sum_skips_for_one_score, "one edge is left: a block is skipped although only some of its scores are −inf"),
    ("1.5", sum_fails_without_keys, "one edge is left: nothing is seen, and o is 0 / 0 = NaN"),
    ("1.5", sum_in_float32, "one edge is left: float64 goes in"),
    ("1.5", sum_without_lse, "want a tuple (o, lse)"),
)
