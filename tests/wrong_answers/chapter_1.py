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


def blocks_by_reshape(x, block):
    blocks = x.reshape(*x.shape[:-1], -1, min(block, x.shape[-1]))
    p = torch.exp(blocks - blocks.amax(dim=(-1, -2), keepdim=True))
    return (p / p.sum(dim=(-1, -2), keepdim=True)).reshape(x.shape)


def sum_fails_without_keys(scores, values, block):
    p = torch.exp(scores - scores.max())
    return p / p.sum() @ values, torch.logsumexp(scores, 0)


def sum_in_float32(scores, values, block):
    lse = torch.logsumexp(scores, 0)
    return torch.exp(scores - lse).nan_to_num().float() @ values.float(), lse


def sum_without_lse(scores, values, block):
    return torch.softmax(scores, 0) @ values


WRONG_ANSWERS = (
    ("1.1", softmax_naive, "exp overflows: float32 holds exp(x) only for x below 89"),
    ("1.1", softmax_in_place, "changes its input x in place"),
    ("1.1", softmax_in_float32, "one edge is left: float64 goes in, and the result has less accuracy"),
    ("1.1", softmax_through_view, "one edge is left: a transposed view, shape (3, 4, 8): raises RuntimeError: view size is not compatible"),
    ("1.2", normalizer_needs_a_first, "one edge is left: an empty vector: raises IndexError"),
    ("1.3", merge_numbers_only, "raises RuntimeError: Boolean value of Tensor"),
    ("1.3", merge_tensors_only, "one edge is left: merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    ("1.4", blocks_by_reshape, "x = [1, 2, 3], block = 2: raises RuntimeError"),
    ("1.5", sum_fails_without_keys, "one edge is left: nothing is seen, and o is 0 / 0 = NaN"),
    ("1.5", sum_in_float32, "one edge is left: float64 goes in"),
    ("1.5", sum_without_lse, "want a tuple (o, lse)"),
)
