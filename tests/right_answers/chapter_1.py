"""Right answers to chapter 1 in other words: Python floats, NumPy, log-sum-exp, cumulative sums, trees of merges, copies worked on in place."""

import math

import numpy as np
import torch

INF = math.inf


# ---------------------------------------------------------------- 1.1


def softmax_through_lse(x):
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))


def softmax_in_numpy(tensor):
    rows = tensor.double().numpy()
    p = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return torch.from_numpy(p / p.sum(axis=-1, keepdims=True))


# ---------------------------------------------------------------- 1.2


def normalizer_with_tensors(x):
    m, l = torch.tensor(-INF), torch.tensor(0.0)
    for value in x:
        m_new = torch.maximum(m, value)
        if m_new > -INF:
            l = l * torch.exp(m - m_new) + torch.exp(value - m_new)
        m = m_new
    return m, l


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


def merge_in_numpy(m_a, l_a, m_b, l_b):
    m = np.maximum(np.asarray(m_a), np.asarray(m_b))
    shift = np.where(np.isinf(m), 0, m)
    l = np.exp(np.asarray(m_a) - shift) * np.asarray(l_a) + np.exp(np.asarray(m_b) - shift) * np.asarray(l_b)
    return torch.as_tensor(m), torch.as_tensor(l)


# ---------------------------------------------------------------- 1.4


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


# ---------------------------------------------------------------- 1.5


def sum_normalised_as_it_goes(scores, values, block):
    o, lse = values.new_zeros(values.shape[1]), scores.new_tensor(-INF)
    for s, v in zip(scores.split(block), values.split(block), strict=True):
        lse_new = torch.logaddexp(lse, torch.logsumexp(s, 0))
        if lse_new > -INF:
            o = o * torch.exp(lse - lse_new) + torch.exp(s - lse_new) @ v
            lse = lse_new
    return o, lse


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
    ("1.1", softmax_through_lse),
    ("1.1", softmax_in_numpy),
    ("1.2", normalizer_with_tensors),
    ("1.2", normalizer_cumulative),
    ("1.2", normalizer_in_numpy),
    ("1.3", merge_through_logs),
    ("1.3", merge_in_numpy),
    ("1.4", blocks_start_at_a_large_negative),
    ("1.4", blocks_in_a_tree),
    ("1.5", sum_normalised_as_it_goes),
    ("1.5", sum_with_python_floats),
    ("1.5", sum_with_a_column_of_ones),
)
