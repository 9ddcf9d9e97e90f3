import math

import torch
from edits import edit

from fa_tutorial import reference

INF = math.inf


def step_by_log_sum_exp(s, m, l):
    m_new = torch.cat([m[..., None], s], dim=-1).max(dim=-1).values
    p = torch.nan_to_num(torch.exp(s - m_new.unsqueeze(-1)), nan=0.0)
    alpha = torch.nan_to_num(torch.exp(m - m_new), nan=0.0)
    lse = torch.logaddexp(m + torch.log(l), torch.logsumexp(s, -1))
    return p, m_new, torch.where(m_new == -INF, 0.0, torch.exp(lse - m_new)), alpha


def forward_normalised_as_it_goes(q, k, v, block_m, block_n, scale, causal=False):
    S_q, S_k = q.shape[2], k.shape[2]
    outputs, sums = [], []
    for row, q_tile in enumerate(q.double().split(block_m, dim=2)):
        o, lse = torch.zeros_like(q_tile), q_tile.new_full(q_tile.shape[:3], -INF)
        i = torch.arange(q_tile.shape[2])[:, None] + row * block_m
        for key, (k_tile, v_tile) in enumerate(zip(k.double().split(block_n, dim=2), v.double().split(block_n, dim=2), strict=True)):
            j = torch.arange(k_tile.shape[2])[None, :] + key * block_n
            hidden = causal & (j > i + S_k - S_q)
            if hidden.all():
                continue
            s = scale * torch.einsum("bhid,bhjd->bhij", q_tile, k_tile).masked_fill(hidden, -INF)
            lse_new = torch.logaddexp(lse, torch.logsumexp(s, -1))
            shift = torch.where(lse_new == -INF, 0.0, lse_new)[..., None]
            o = torch.exp(lse[..., None] - shift) * o + torch.exp(s - shift) @ v_tile
            lse = lse_new
        outputs.append(o)
        sums.append(lse)
    return torch.cat(outputs, dim=2).to(q.dtype), torch.cat(sums, dim=2).float()


def tiles_by_counting(row_block, block_m, block_n, S_q, S_k):
    rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
    full = end = 0
    for tile in range(-(-S_k // block_n)):
        keys = range(tile * block_n, (tile + 1) * block_n)
        if all(key <= row + S_k - S_q and key < S_k for key in (keys[0], keys[-1]) for row in (rows[0], rows[-1])):
            full = tile + 1
        if keys[0] <= rows[-1] + S_k - S_q:
            end = tile + 1
    return full, end


def causal_normalised_as_it_goes(q, k, v, block_m, block_n, scale):
    return forward_normalised_as_it_goes(q, k, v, block_m, block_n, scale, causal=True)


def right_promise_by_promise(forward):
    def agrees(q, k, v, block_m, block_n, scale, atol=1e-4):
        got, want = forward(q, k, v, block_m, block_n, scale), reference.attention(q, k, v, is_causal=True, scale=scale)
        return all(torch.allclose(x.double(), y, atol=at) for x, y, at in zip(got, want, (atol, 1e-4), strict=True))

    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, S, 8) for S in (12, 12, 12))
    apart = torch.tensor([0.0, 200.0]).repeat(6)[:, None] * torch.eye(1, 8)
    ones = torch.eye(1, 8).expand(2, 2, 12, 8)
    return (
        agrees(q, k, v, 4, 3, 0.7)
        and agrees(q, k[:, :, :7], v[:, :, :7], 4, 3, 0.7)
        and agrees(q[:, :, :7], k, v, 4, 5, 0.7)
        and agrees(q + apart, k + ones, v, 4, 4, 1.0)
        and agrees((300 * q).half(), (300 * k).half(), v.half(), 4, 4, 1e-4, 4e-3)
    )


IN_LOOP = "p @ v[:, :, keys].float()"
RIGHT_ANSWERS = (
    ("4.1", step_by_log_sum_exp),
    ("4.2", forward_normalised_as_it_goes),
    edit("4.2", "divides in every iteration", ("= acc / l[..., None]", "= acc"), ("alpha[..., None] * acc", "(alpha * old)[..., None] * acc"),
         ("p, m, l, alpha = step(s, m, l)", "old, (p, m, l, alpha) = l, step(s, m, l)"), (IN_LOOP, f"{IN_LOOP}\n            acc = acc / l[..., None]")),
    *(edit(number, "p v by einsum", (IN_LOOP, 'torch.einsum("bhmn,bhnd->bhmd", p, v[:, :, keys].float())')) for number in ("4.2", "4.4")),
    *(edit(number, "p v by a sum", (IN_LOOP, "(p[..., None] * v[:, :, None, keys].float()).sum(-2)")) for number in ("4.2", "4.4")),
    ("4.3", tiles_by_counting),
    ("4.4", causal_normalised_as_it_goes, "those before full need no mask"),
    edit("4.4", "masks all tiles", ("key_block >= full", "True"), told="those before full need no mask"),
    edit("4.4", "0 / 0 replaced", ("acc / torch.where(l == 0, 1.0, l)[..., None]", "(acc / l[..., None]).nan_to_num()")),
    ("4.5", right_promise_by_promise),
)  # fmt: skip
