import torch
from edits import edit


def blocked_with_k_outside(a, b, block_m, block_n, block_k):
    c = torch.zeros(len(a), b.shape[1])
    for k in range(0, len(b), block_k):
        for m in range(0, len(a), block_m):
            for n in range(0, b.shape[1], block_n):
                a_tile, b_tile = a[m : m + block_m, k : k + block_k], b[k : k + block_k, n : n + block_n]
                c[m : m + block_m, n : n + block_n] += a_tile.float() @ b_tile.float()
    return c.to(a.dtype)


def tile_by_cases(pid, tiles_m, tiles_n, group):
    first_row = pid // (group * tiles_n) * group
    rows = group if first_row + group <= tiles_m else tiles_m - first_row
    within = pid % (group * tiles_n)
    return first_row + within % rows, within // rows


def tile_without_min(pid, tiles_m, tiles_n, group):
    first_row = pid // (group * tiles_n) * group
    rows = group
    if tiles_m < first_row + group:
        rows = tiles_m - first_row
    within = pid - first_row * tiles_n
    tile_n = within // rows
    return [first_row + within - tile_n * rows, tile_n]


def block(name, shape, strides, place):
    sides = {"a": "(BLOCK_M, BLOCK_K)", "b": "(BLOCK_K, BLOCK_N)"}[name]
    return f"tl.make_block_ptr({name}_ptr, {shape}, {strides}, {place}, {sides}, (1, 0))"


CHECKED = 'boundary_check=(0, 1), padding_option="zero"'
K_PTRS = "k_ptrs = k_ptr + tl.arange(0, BLOCK_N)[:, None] * stride_ks + offs_d[None, :] * stride_kd"
LOAD_K = "tl.load(k_ptrs, mask=mask_k, other=0.0)"

RIGHT_ANSWERS = (
    ("3.1", blocked_with_k_outside),
    edit("3.2", "offsets computed anew", ("load(a_ptrs,", "load(a_ptrs + k * stride_ak,"), ("load(b_ptrs,", "load(b_ptrs + k * stride_bk,"),
         ("        a_ptrs += step * stride_ak\n        b_ptrs += step * stride_bk\n", ""),
         ("acc = tl.dot(a, b, acc,", "acc += tl.dot(a, b,"), ("acc.to(c_ptr.dtype.element_ty)", "acc")),
    edit("3.2", "offsets of 32 bits", (".to(tl.int64)", "", 2), ("tl.full((), BLOCK_K, dtype=tl.int64)", "BLOCK_K")),
    edit("3.2", "block pointers",
         ("a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak", block("a", "(M, K)", "(stride_am, stride_ak)", "(tile_m * BLOCK_M, 0)")),
         ("b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn", block("b", "(K, N)", "(stride_bk, stride_bn)", "(0, tile_n * BLOCK_N)")),
         ("mask=mask_m & (offs_k[None, :] < K - k), other=0.0", CHECKED), ("mask=mask_n & (offs_k[:, None] < K - k), other=0.0", CHECKED),
         ("a_ptrs += step * stride_ak", "a_ptrs = tl.advance(a_ptrs, (0, BLOCK_K))"),
         ("b_ptrs += step * stride_bk", "b_ptrs = tl.advance(b_ptrs, (BLOCK_K, 0))"), (".to(tl.int64), tl.cdiv", ", tl.cdiv")),
    ("3.4", tile_by_cases),
    ("3.4", tile_without_min),
    edit("3.5", "pointers that move, tl.trans",
         ("    for start in", f"    {K_PTRS}\n    for start in"),
         ("k_t_ptrs = k_ptr + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks", "pass"),
         ("mask_k_t = (offs_d[:, None] < D) & (offs_n[None, :] < S_k)", "mask_k = (offs_d[None, :] < D) & (offs_n[:, None] < S_k)"),
         ("tl.load(k_t_ptrs, mask=mask_k_t, other=0.0)", f"tl.trans({LOAD_K})\n        k_ptrs += BLOCK_N * stride_ks"), ("acc.to(o_ptr.dtype.element_ty)", "acc")),
    edit("3.5", "offsets of 32 bits", (".to(tl.int64)", "", 3)),
)  # fmt: skip
