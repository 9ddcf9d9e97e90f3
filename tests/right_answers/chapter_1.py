"""Right answers to chapter 1 in other words: Python floats, NumPy, log-sum-exp, cumulative sums, trees of merges, copies worked on in place."""

import functools
import math

import numpy as np
import torch

INF = math.inf


# ---------------------------------------------------------------- 1.1


def softmax_by_pytorch(x):
    return torch.softmax(x, dim=-1)


def softmax_through_lse(x):
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))


def softmax_in_numpy(tensor):
    rows = tensor.double().numpy()
    p = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return torch.from_numpy(p / p.sum(axis=-1, keepdims=True))


def softmax_on_its_own_copy(x):
    y = x.clone()
    y -= y.max(dim=-1).values.unsqueeze(-1)
    y.exp_()
    y /= y.sum(-1)[..., None]
    return y


def softmax_row_by_row(x):
    results = []
    for numbers in x.reshape(-1, x.shape[-1]).tolist():
        m = max(numbers)
        p = [math.exp(number - m) for number in numbers]
        results.append([number / math.fsum(p) for number in p])
    return torch.tensor(results, dtype=x.dtype).reshape(x.shape)


# ---------------------------------------------------------------- 1.2


def normalizer_by_cases(x):
    m, l = -INF, 0.0
    for i in range(len(x)):
        value = float(x[i])
        if value > m:
            l = l * math.exp(m - value) + 1.0
            m = value
        elif value > -INF:
            l += math.exp(value - m)
    return [m, l]


def normalizer_with_tensors(x):
    m, l = torch.tensor(-INF), torch.tensor(0.0)
    for value in x:
        m_new = torch.maximum(m, value)
        if m_new > -INF:
            l = l * torch.exp(m - m_new) + torch.exp(value - m_new)
        m = m_new
    return m, l


def normalizer_in_two_passes(x):
    seen = x[x > -INF].double()
    if seen.numel() == 0:
        return -INF, 0
    return seen.max(), (seen - seen.max()).exp().sum()


def normalizer_cumulative(x):
    if len(x) == 0:
        return torch.tensor(-INF), torch.tensor(0.0)
    m, lse = torch.cummax(x, 0).values[-1], torch.logcumsumexp(x, 0)[-1]
    return m, torch.exp(lse - m) if m > -INF else torch.tensor(0.0)


def normalizer_in_numpy(x):
    values = x.numpy()
    m = np.max(values, initial=-INF)
    return m, np.exp(values - m).sum() if m > -INF else np.float32(0)


# ---------------------------------------------------------------- 1.3


def merge_through_logs(m_a, l_a, m_b, l_b):
    m_a, l_a, m_b, l_b = (torch.as_tensor(value) for value in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    lse = torch.logaddexp(m_a + torch.log(l_a), m_b + torch.log(l_b))
    return m, torch.where(m == -INF, torch.zeros_like(lse), torch.exp(lse - m))


def merge_by_difference(m_a, l_a, m_b, l_b):
    m_a, l_a, m_b, l_b = torch.broadcast_tensors(*map(torch.as_tensor, (m_a, l_a, m_b, l_b)))
    swap = m_b > m_a
    m, low = torch.where(swap, m_b, m_a), torch.where(swap, m_a, m_b)
    l, l_low = torch.where(swap, l_b, l_a), torch.where(swap, l_a, l_b)
    return m, l + l_low * torch.nan_to_num(torch.exp(low - m), nan=0.0)


def merge_in_place_on_copies(m_a, l_a, m_b, l_b):
    pairs = [(torch.as_tensor(m), torch.as_tensor(l)) for m, l in ((m_a, l_a), (m_b, l_b))]
    m = torch.max(pairs[0][0], pairs[1][0])
    total = torch.zeros_like(m)
    for m_part, l_part in pairs:
        weight = (m_part - m).exp_()
        weight[m_part.broadcast_to(m.shape).isneginf()] = 0.0
        total += weight * l_part
    return [m, total]


def merge_in_numpy(m_a, l_a, m_b, l_b):
    m = np.maximum(np.asarray(m_a), np.asarray(m_b))
    shift = np.where(np.isinf(m), 0, m)
    l = np.exp(np.asarray(m_a) - shift) * np.asarray(l_a) + np.exp(np.asarray(m_b) - shift) * np.asarray(l_b)
    return torch.as_tensor(m), torch.as_tensor(l)


# ---------------------------------------------------------------- 1.4


def blocks_with_running_pair(x, block):
    m, l = x.new_full(x.shape[:-1], -INF), x.new_zeros(x.shape[:-1])
    for start in range(0, x.shape[-1], block):
        part = x[..., start : start + block]
        m_new = torch.maximum(m, part.max(dim=-1).values)
        shift = m_new.masked_fill(m_new == -INF, 0.0)
        l = l * (m - shift).exp() + (part - shift[..., None]).exp().sum(-1)
        m = m_new
    y = torch.empty_like(x)
    for start in range(0, x.shape[-1], block):
        y[..., start : start + block] = torch.exp(x[..., start : start + block] - m[..., None]) / l[..., None]
    return y


def blocks_start_at_a_large_negative(x, block):
    m, l = torch.full_like(x[..., :1], -1e9), torch.zeros_like(x[..., :1])
    for part in torch.split(x, block, -1):
        m_new = torch.maximum(m, part.amax(-1, keepdim=True))
        l = torch.exp(m - m_new) * l + torch.exp(part - m_new).sum(-1, keepdim=True)
        m = m_new
    return torch.exp(x - m) / l


def blocks_in_a_tree(x, block):
    def pair(part):
        return part.amax(-1, keepdim=True), torch.logsumexp(part, -1, keepdim=True)

    def merged(parts):
        if len(parts) == 1:
            return pair(parts[0])[1]
        half = len(parts) // 2
        return torch.logaddexp(merged(parts[:half]), merged(parts[half:]))

    return torch.exp(x - merged(x.split(block, dim=-1)))


def blocks_filled_with_minus_inf(x, block):
    n = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -n % block), value=-INF).unflatten(-1, (-1, block))
    m_blocks = blocks.amax(-1)
    l_blocks = torch.exp(blocks - m_blocks.clamp(min=torch.finfo(x.dtype).min)[..., None]).sum(-1)
    m = m_blocks.amax(-1, keepdim=True)
    l = (l_blocks * torch.exp(m_blocks - m)).sum(-1, keepdim=True)
    return (torch.exp(blocks - m[..., None]) / l[..., None]).flatten(-2)[..., :n]


def blocks_in_float64(x, block):
    return blocks_with_running_pair(x.double(), block)


# ---------------------------------------------------------------- 1.5


def sum_by_pytorch(scores, values, block):
    lse = torch.logsumexp(scores, dim=0)
    return (torch.softmax(scores, 0) @ values, lse) if lse > -INF else (values.new_zeros(values.shape[1]), lse)


def sum_normalised_as_it_goes(scores, values, block):
    o, lse = values.new_zeros(values.shape[1]), scores.new_tensor(-INF)
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        lse_new = torch.logaddexp(lse, torch.logsumexp(s, 0))
        if lse_new > -INF:
            o = o * torch.exp(lse - lse_new) + torch.exp(s - lse_new) @ v
            lse = lse_new
    return o, lse


def sum_in_two_levels(scores, values, block):
    def part(s, v):
        m = s.max()
        p = torch.exp(s - m) if m > -INF else torch.zeros_like(s)
        return m, p.sum(), p @ v

    def merged(a, b):
        m = torch.maximum(a[0], b[0])
        if m == -INF:
            return a
        weights = torch.exp(a[0] - m), torch.exp(b[0] - m)
        return m, weights[0] * a[1] + weights[1] * b[1], weights[0] * a[2] + weights[1] * b[2]

    nothing = scores.new_tensor(-INF), scores.new_tensor(0.0), values.new_zeros(values.shape[1])
    starts = range(0, len(scores), block)
    m, l, acc = functools.reduce(merged, [part(scores[i : i + block], values[i : i + block]) for i in reversed(starts)], nothing)
    return [torch.where(l > 0, acc / l, torch.zeros_like(acc)), m + torch.log(l)]


def sum_with_python_floats(scores, values, block):
    m, l, acc = -INF, 0.0, [0.0] * values.shape[1]
    for s, v in zip(scores.tolist(), values.tolist(), strict=True):
        if s == -INF:
            continue
        m_new = max(m, s)
        alpha, p = math.exp(m - m_new), math.exp(s - m_new)
        l, acc, m = alpha * l + p, [alpha * a + p * value for a, value in zip(acc, v, strict=True)], m_new
    if l == 0:
        return torch.zeros(values.shape[1]), -INF
    return torch.tensor([a / l for a in acc], dtype=torch.float64), m + math.log(l)


def sum_with_a_column_of_ones(scores, values, block):
    wide = torch.cat([values, torch.ones_like(values[:, :1])], dim=1).double()
    acc, m = wide.new_zeros(wide.shape[1]), -1e30
    for s, v in zip(scores.double().split(block), wide.split(block), strict=True):
        if len(s):
            m_new = max(m, s.max().item())
            acc *= math.exp(m - m_new)
            acc += (s - m_new).exp() @ v
            m = m_new
    return acc[:-1] / acc[-1].clamp(min=1e-300), m + acc[-1].log()


RIGHT_ANSWERS = (
    ("1.1", softmax_by_pytorch), ("1.1", softmax_through_lse), ("1.1", softmax_in_numpy), ("1.1", softmax_on_its_own_copy),
    ("1.1", softmax_row_by_row), ("1.2", normalizer_by_cases), ("1.2", normalizer_with_tensors), ("1.2", normalizer_in_two_passes),
    ("1.2", normalizer_cumulative), ("1.2", normalizer_in_numpy), ("1.3", merge_through_logs), ("1.3", merge_by_difference),
    ("1.3", merge_in_place_on_copies), ("1.3", merge_in_numpy), ("1.4", blocks_with_running_pair),
    ("1.4", blocks_start_at_a_large_negative), ("1.4", blocks_in_a_tree), ("1.4", blocks_filled_with_minus_inf),
    ("1.4", blocks_in_float64), ("1.5", sum_by_pytorch), ("1.5", sum_normalised_as_it_goes), ("1.5", sum_in_two_levels),
    ("1.5", sum_with_python_floats), ("1.5", sum_with_a_column_of_ones),
)  # fmt: skip
