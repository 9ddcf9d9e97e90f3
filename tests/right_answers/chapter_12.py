import math

import torch


def place_by_a_rotation(row, piece):
    return (piece + 3 * row) % 8


def place_as_a_tensor(row, piece):
    return torch.tensor(piece) ^ (row % 8)


def fa2_softmax_with_a_state_that_is_set_first(s, row_max, row_sum, acc, scale_log2, is_first):
    if is_first:
        row_max, row_sum = torch.full_like(row_max, -math.inf), torch.zeros_like(row_sum)
    new_max = torch.cat([row_max[:, None], s], dim=1).max(dim=1).values
    shift = (new_max * scale_log2).masked_fill(new_max.isinf(), 0.0)
    alpha = torch.exp2(row_max * scale_log2 - shift)
    p = torch.exp2(torch.addcmul(-shift[:, None], s, torch.tensor(scale_log2, dtype=s.dtype)))
    own = torch.stack([p[:, 2 * t :: 8].sum(1) + p[:, 2 * t + 1 :: 8].sum(1) for t in range(4)], dim=1)
    return p, new_max, alpha[:, None] * row_sum + own, acc if is_first else alpha[:, None] * acc


def fa2_softmax_in_base_e(s, row_max, row_sum, acc, scale_log2, is_first):
    scale = scale_log2 * math.log(2)
    block = s.amax(dim=1)
    new_max = block if is_first else torch.where(block > row_max, block, row_max)
    p = torch.exp(scale * (s - new_max[:, None])).masked_fill(s == -math.inf, 0.0)
    own = p.view(len(p), -1, 4, 2).sum(dim=(1, 3))
    if is_first:
        return p, new_max, own, acc.clone()
    alpha = torch.exp(scale * (row_max - new_max)).masked_fill(row_max == -math.inf, 0.0)
    return p, new_max, torch.addcmul(own, alpha[:, None], row_sum), torch.einsum("r,rd->rd", alpha, acc)


def two_tests_in_lists():
    return [24, 41, 0], [28, 37, 200]


def fa2_backward_step_in_base_e(q, k, v, do, lse, delta, seen, scale_log2):
    p = torch.exp(scale_log2 * math.log(2) * torch.einsum("id,jd->ij", q, k) - lse.unsqueeze(1)).masked_fill(~seen, 0.0)
    ds = torch.addcmul(p * (do @ v.mT), p, delta.unsqueeze(1), value=-1.0)
    return torch.einsum("ij,jd->id", ds, k), torch.einsum("ij,id->jd", ds, q), torch.einsum("ij,id->jd", p, do)


def fa2_backward_step_with_a_guard(q, k, v, do, lse, delta, seen, scale_log2):
    shift = math.log2(math.e) * lse
    shift[shift == -math.inf] = 0.0
    p = torch.exp2((q @ k.T).masked_fill(~seen, -math.inf) * scale_log2 - shift[:, None])
    ds = p * (do @ v.T) - p * delta[:, None]
    return ds @ k, ds.T @ q, p.T @ do


def lagging_step_with_the_blocks_own_maximum(s, shift, l, threshold):
    m = s.max(dim=1).values  # a row whose maximum is below its shift doesn't move
    new_shift = torch.where(m > shift + threshold * math.log(2), m, shift)
    alpha = torch.where(new_shift == shift, 1.0, torch.exp(shift - new_shift))
    p = torch.where(s == -math.inf, 0.0, torch.exp(s - new_shift.unsqueeze(1)))
    return p, new_shift, torch.addcmul(p.sum(dim=1), alpha, l), alpha


def lagging_step_line_by_line(s, shift, l, threshold):
    new = torch.maximum(shift, s.amax(dim=1))
    safe = torch.where(new == -math.inf, 0.0, new)
    power = (shift - safe) * math.log2(math.e)
    alpha = torch.exp2(power)
    if threshold > 0:
        stays = power >= -threshold
        new, safe, alpha = torch.where(stays, shift, new), torch.where(stays, shift, safe), torch.where(stays, 1.0, alpha)
    p = torch.exp(s - safe[:, None])
    return p, new, l * alpha + p.sum(dim=1), alpha


def fa3_step_in_a_list():
    step = ["gemm q kᵀ", "gemm p v", "mask_fn", "max_get_scale", "online_softmax", "convert_type_out", "rescale_o"]
    step[5:5] = ["warpgroup_wait<0>", "release v"]
    step[2:2] = ["warpgroup_wait<1>", "release k"]
    return step


def ruined_as_a_range(S_q, S_k):
    return range(max(0, S_q - S_k - 16), 32) if S_q - S_k >= 32 else ()


def ruined_as_a_tensor(S_q, S_k):
    rows = torch.arange(32)
    return rows[(rows >= S_q - S_k - 16) & (S_q - S_k >= 32)]


RIGHT_ANSWERS = (
    ("12.1", place_by_a_rotation),
    ("12.1", place_as_a_tensor),
    ("12.2", fa2_softmax_with_a_state_that_is_set_first),
    ("12.2", fa2_softmax_in_base_e),
    ("12.3", two_tests_in_lists),
    ("12.4", fa2_backward_step_in_base_e),
    ("12.4", fa2_backward_step_with_a_guard),
    ("12.5", fa3_step_in_a_list),
    ("12.6", lagging_step_line_by_line),
    ("12.6", lagging_step_with_the_blocks_own_maximum),
    ("12.7", ruined_as_a_range),
    ("12.7", ruined_as_a_tensor),
)
