import math

import torch

INF = math.inf


def softmax_with_a_wide_sum(x):
    p = torch.exp(x - x.max(-1, keepdim=True).values)
    return (p / p.sum(-1, keepdim=True, dtype=torch.float64)).to(x.dtype)


def normalizer_with_tensors(x):
    m, l = torch.tensor(-INF), torch.tensor(0.0)
    for value in x:
        m_new = torch.maximum(m, value)
        if m_new > -INF:
            l = l * torch.exp(m - m_new) + torch.exp(value - m_new)
        m = m_new
    return m, l


def merge_through_logs(m_a, l_a, m_b, l_b):
    m_a, l_a, m_b, l_b = (torch.as_tensor(value) for value in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    lse = torch.logaddexp(m_a + torch.log(l_a), m_b + torch.log(l_b))
    return m, torch.where(m == -INF, torch.zeros_like(lse), torch.exp(lse - m))


def row_up_and_down(block):
    heights = [0, 2, 1]
    return torch.tensor([-5e4 + heights[i // block] for i in range(3 * block - 1)])


def sum_normalised_as_it_goes(blocks, D):
    o, lse = torch.zeros(D), torch.tensor(-INF)
    for s, v in blocks:
        lse_new = torch.logaddexp(lse, torch.logsumexp(s, 0))
        if lse_new > -INF:
            o = o * torch.exp(lse - lse_new) + torch.exp(s - lse_new) @ v
            lse = lse_new
    return o, lse


def join_by_softmax(o_a, lse_a, o_b, lse_b):
    both = torch.stack([lse_a, lse_b])
    share_a, share_b = torch.softmax(both, 0).nan_to_num()
    return share_a * o_a + share_b * o_b, torch.logsumexp(both, 0)


RIGHT_ANSWERS = (
    ("1.1", softmax_with_a_wide_sum),
    ("1.2", normalizer_with_tensors),
    ("1.3", merge_through_logs),
    ("1.4", row_up_and_down),
    ("1.5", sum_normalised_as_it_goes),
    ("1.6", join_by_softmax),
)
