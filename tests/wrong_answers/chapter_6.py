"""Chapter 6: Jacobians and whole matrices that are built, tiles that are kept, inputs that are changed, results of less accuracy."""

import torch

from fa_tutorial.algorithm import p_and_ds


def matmul_by_jacobians(a, b, dc):
    if a.ndim > 2:
        return dc @ b.mT, a.mT @ dc
    of_a = torch.kron(torch.eye(a.shape[0], dtype=a.dtype), b.T.contiguous())  # of c's M · N elements by a's M · K
    of_b = torch.kron(a.contiguous(), torch.eye(b.shape[1], dtype=a.dtype))
    return (of_a.T @ dc.reshape(-1)).view(a.shape), (of_b.T @ dc.reshape(-1)).view(b.shape)


def matmul_right_for_square_matrices(a, b, dc):
    da = torch.zeros_like(a)
    for i in range(a.shape[-2]):
        for j in range(a.shape[-2]):
            da[..., i, j] = (dc[..., i, :] * b[..., j, :]).sum(-1)
    return da, a.mT @ dc


def matmul_in_float32(a, b, dc):
    return tuple(x.to(dc.dtype) for x in (dc.float() @ b.float().mT, a.float().mT @ dc.float()))


def matmul_one_gradient(a, b, dc):
    return dc @ b.mT


def matmul_in_float64(a, b, dc):
    return dc.double() @ b.double().mT, a.double().mT @ dc.double()


def matmul_returns_float32_for_halves(a, b, dc):
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in (dc @ b.mT, a.mT @ dc))


def softmax_by_jacobian(p, dp):
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return (jacobian @ dp[..., None])[..., 0]


def softmax_in_place(p, dp):
    dp -= (p * dp).sum(-1, keepdim=True)
    return p * dp


def softmax_in_float32(p, dp):
    return (p.float() * (dp.float() - (p.float() * dp.float()).sum(-1, keepdim=True))).to(p.dtype)


def softmax_in_float64(p, dp):
    p, dp = p.double(), dp.double()
    return p * (dp - (p * dp).sum(-1, keepdim=True))


def p_in_float32(q, k, lse, scale, is_causal):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] if is_causal else k.shape[2])
    s = (scale * (q.float() @ k.float().mT)).masked_fill(~seen, -torch.inf)
    return torch.exp(s - lse.float().masked_fill(lse == -torch.inf, torch.inf)[..., None])


def backward_in_float32(q, k, v, p, do, scale):
    dtype, (q, k, v, p, do) = q.dtype, (x.float() for x in (q, k, v, p, do))
    dp = do @ v.mT
    ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
    return tuple(x.to(dtype) for x in (ds @ k, ds.mT @ q, p.mT @ do))


def backward_in_float64(q, k, v, p, do, scale):
    q, k, v, p, do = (x.double() for x in (q, k, v, p, do))
    dp = do @ v.mT
    ds = scale * p * (dp - (p * dp).sum(-1, keepdim=True))
    return ds @ k, ds.mT @ q, p.mT @ do


def backward_weighs_in_place(q, k, v, p, do, scale):
    dv, dp = p.mT @ do, do @ v.mT
    p *= dp - (p * dp).sum(-1, keepdim=True)
    return scale * p @ k, scale * p.mT @ q, dv


def _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale, whole_mask=False):
    """dq, dk and dv by right tiles, in one loop."""
    dtype, S_q, S_k = q.dtype, q.shape[2], k.shape[2]
    q, k, v, do = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v, do))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    mask = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) if whole_mask and is_causal else None
    for i in range(0, S_q, block_m):
        for j in range(0, S_k, block_n):
            rows, keys = slice(i, min(i + block_m, S_q)), slice(j, min(j + block_n, S_k))
            s = scale * (q[:, :, rows] @ k[:, :, keys].mT)
            if is_causal:
                positions = torch.arange(rows.start, rows.stop)[:, None], torch.arange(keys.start, keys.stop)
                seen = mask[rows, keys] if whole_mask else positions[1] <= positions[0] + S_k - S_q
                s = s.masked_fill(~seen, -torch.inf)
            p = torch.exp(s - lse[:, :, rows])
            ds = scale * p * (do[:, :, rows] @ v[:, :, keys].mT - delta[:, :, rows, None])
            dv[:, :, keys] += p.mT @ do[:, :, rows]
            dk[:, :, keys] += ds.mT @ q[:, :, rows]
            dq[:, :, rows] += ds @ k[:, :, keys]
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


def dkdv_untiled(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return _tiles(q, k, v, do, lse, delta, q.shape[2], max(1, k.shape[2]), is_causal, scale)[1:]


def dkdv_untiled_if_causal(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    blocks = (q.shape[2], max(1, k.shape[2])) if is_causal else (block_m, block_n)
    return _tiles(q, k, v, do, lse, delta, *blocks, is_causal, scale)[1:]


def dkdv_all_queries_at_once(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return _tiles(q, k, v, do, lse, delta, q.shape[2], block_n, is_causal, scale)[1:]


def dkdv_whole_mask(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale, whole_mask=True)[1:]


def dkdv_scales_q_in_place(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    q *= scale
    return _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, 1.0)[1:]


def dkdv_slices_past_the_end(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for j in range(0, k.shape[2], block_n):
        for i in range(0, q.shape[2], block_m):
            rows, keys = slice(i, i + block_m), slice(j, j + block_n)
            p, ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale)
            dv[:, :, keys] += p.mT @ do[:, :, rows]
            dk[:, :, keys] += scale * ds.mT @ q[:, :, rows]
    return dk, dv


def dkdv_in_float64(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    q, k, v, do, lse, delta = (x.double() for x in (q, k, v, do, lse, delta))
    return _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale)[1:]


def dkdv_returns_the_sums(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    q, k, v, do = (x.to(lse.dtype) for x in (q, k, v, do))
    return _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale)[1:]


def dq_returns_the_sum(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    q, k, v, do = (x.to(lse.dtype) for x in (q, k, v, do))
    return _tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale)[0]


def dq_visits_hidden_tiles(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    lse, dq = lse.masked_fill(lse == -torch.inf, torch.inf), torch.zeros(q.shape, dtype=lse.dtype)
    for i in range(0, q.shape[2], block_m):
        for j in range(0, k.shape[2], block_n):
            rows, keys = slice(i, min(i + block_m, q.shape[2])), slice(j, min(j + block_n, k.shape[2]))
            ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale)[1]
            dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


def dq_all_keys_at_once(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return _tiles(q, k, v, do, lse, delta, block_m, max(1, k.shape[2]), is_causal, scale)[0]


def dq_blocks_exchanged(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return _tiles(q, k, v, do, lse, delta, block_n, block_m, is_causal, scale)[0]


def dq_keeps_ds(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    lse, tiles = lse.masked_fill(lse == -torch.inf, torch.inf), []
    for j in range(0, k.shape[2], block_n):
        for i in range(0, q.shape[2], block_m):
            rows, keys = slice(i, min(i + block_m, q.shape[2])), slice(j, min(j + block_n, k.shape[2]))
            if is_causal and keys.start >= rows.stop + k.shape[2] - q.shape[2]:
                continue
            tiles.append((rows, keys, p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale)[1]))
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for rows, keys, ds in tiles:
        dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


WRONG_ANSWERS = (
    ("6.1", matmul_by_jacobians, "a Jacobian is built, a matrix of 30 × 35"),
    ("6.1", matmul_right_for_square_matrices, "da = dc bᵀ and db = aᵀ dc: a of shape (1, 3), b of shape (3, 4)"),
    ("6.1", matmul_in_float32, "one edge is left: float64 goes in"),
    ("6.1", matmul_in_float64, "da comes in float64, and a in float32: convert it to that dtype at the end"),
    ("6.1", matmul_returns_float32_for_halves, "one edge is left: da comes in float32, and a in float16"),
    ("6.1", matmul_one_gradient, "want a tuple (da, db)"),
    ("6.2", softmax_by_jacobian, "the Jacobian is built, a matrix of 16 × 16"),
    ("6.2", softmax_in_place, "changes its input dp in place"),
    ("6.2", softmax_in_float32, "one edge is left: float64 goes in"),
    ("6.2", softmax_in_float64, "ds comes in float64, and s in float32"),
    ("6.3", backward_in_float64, "dq comes in float64, and q in float32"),
    ("6.3", backward_in_float32, "one edge is left: float64 goes in"),
    ("6.3", backward_weighs_in_place, "changes its input p in place"),
    ("6.4", p_in_float32, "one edge is left: float64 goes in"),
    ("6.5", dkdv_untiled, "all scores are computed at once"),
    ("6.5", dkdv_untiled_if_causal, "one edge is left: all scores are computed at once"),
    ("6.5", dkdv_all_queries_at_once, "all queries are taken at once"),
    ("6.5", dkdv_whole_mask, "one edge is left: a tensor of the whole size, 11 × 14, is built"),
    ("6.5", dkdv_scales_q_in_place, "changes its input q in place"),
    ("6.5", dkdv_slices_past_the_end, "which ends past S_k = 4: end the slice at S_k"),
    ("6.5", dkdv_in_float64, "dk comes in float64, and k in float32"),
    ("6.5", dkdv_returns_the_sums, "one edge is left: dk comes in float32, and k in float16"),
    ("6.6", dq_returns_the_sum, "dq comes in float32, and q in float16"),
    (
        "6.6",
        dq_visits_hidden_tiles,
        "one edge is left: the result is right, but it takes more than three products for each tile that is seen",
    ),
    ("6.6", dq_all_keys_at_once, "all keys of a block of rows are taken at once"),
    ("6.6", dq_blocks_exchanged, "block_m and block_n are exchanged"),
    ("6.6", dq_keeps_ds, "one edge is left: tiles are kept"),
)
