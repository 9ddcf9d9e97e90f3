"""Right answers to chapter 0 in other words: loops, masks, NumPy, floats that are whole, float32, PyTorch's own attention."""

import torch


def flops_by_a_mask(B, H, S_q, S_k, D, is_causal):
    pairs = int(torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q).sum()) if is_causal else S_q * S_k
    return 4 * B * H * pairs * D


def bytes_kernel_by_kernel(B, H, S_q, S_k, D, itemsize):
    scores = S_q * S_k
    first = S_q * D + S_k * D + scores
    second = 2 * scores
    third = scores + S_k * D + S_q * D
    return float(B * H * itemsize * (first + second + third))


def attention_by_einsum(q, k, v, is_causal):
    s = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
    if is_causal:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
        s = torch.where(j <= i + k.shape[2] - q.shape[2], s, torch.tensor(-1e30))
    s = s - s.amax(-1, keepdim=True)
    s.exp_()
    return torch.einsum("bhij,bhjd->bhid", s / s.sum(-1, keepdim=True), v)


def roof_in_float32(intensity, peak_flops, bandwidth):
    return torch.minimum(torch.tensor(float(peak_flops)), torch.tensor(float(intensity)) * torch.tensor(float(bandwidth)))


RIGHT_ANSWERS = (
    ("0.1", flops_by_a_mask),
    ("0.2", bytes_kernel_by_kernel),
    ("0.3", attention_by_einsum),
    ("0.4", roof_in_float32),
)
