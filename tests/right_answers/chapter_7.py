from edits import edit

from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_with_computed_transposes(q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, D, scale,
                                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """s and ds are [BLOCK_M, BLOCK_N], and p and ds are transposed by tl.trans; exp2."""
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    q_tile, do_tile = load_tile(q, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D), load_tile(do, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D)
    k_tile, v_tile = load_tile(k, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D), load_tile(v, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    p = tl.exp2(dot(q_tile, tl.trans(k_tile)) * (scale * LOG2_E) - tl.load(lse_ptr + rows) * LOG2_E)
    ds = p * (dot(do_tile, tl.trans(v_tile)) - tl.load(delta_ptr + rows)) * scale
    store_tile(dv, dot(tl.trans(p.to(do_tile.dtype)), do_tile), b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)
    store_tile(dk, dot(tl.trans(ds.to(q_tile.dtype)), q_tile), b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)


@triton.jit
def dq_keys_by_queries(q, k, v, do, dq, lse_ptr, delta_ptr, H_q, H_k, S_q, S_k, D, scale,
                       IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One loop with one mask; transposed tiles; the sum is that of dqᵀ, and ds is scaled before it is summed."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m, b, h = tl.program_id(0) % row_blocks * BLOCK_M, tl.program_id(0) // row_blocks // H_q, tl.program_id(0) // row_blocks % H_q
    rows = start_m + tl.arange(0, BLOCK_M)
    q_tile, do_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D), load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    lse = tl.load(lse_ptr + (b * H_q + h) * S_q + rows, mask=rows < S_q, other=0.0)[None, :]
    delta = tl.load(delta_ptr + (b * H_q + h) * S_q + rows, mask=rows < S_q, other=0.0)[None, :]
    dq_t = tl.zeros((BLOCK_D, BLOCK_M), tl.float32)
    end = tl.minimum(start_m + BLOCK_M + S_k - S_q, S_k) if IS_CAUSAL else S_k
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)[:, None]
        k_tile, v_tile = (
            load_tile(k, b, h * H_k // H_q, start, S_k, D, BLOCK_N, BLOCK_D),
            load_tile(v, b, h * H_k // H_q, start, S_k, D, BLOCK_N, BLOCK_D),
        )
        seen = (keys < S_k) & (rows[None, :] < S_q)
        if IS_CAUSAL:
            seen = seen & (keys - S_k <= rows[None, :] - S_q)
        p_t = tl.where(seen, tl.exp2((scale * dot(k_tile, tl.trans(q_tile)) - lse) * LOG2_E), 0.0)
        ds_t = scale * p_t * (dot(v_tile, tl.trans(do_tile)) - delta)
        dq_t += dot(tl.trans(k_tile), ds_t.to(k_tile.dtype))
    store_tile(dq, tl.trans(dq_t), b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


HALVES = """    for step in tl.static_range(2):
        if step == 0:
            delta = 0.5 * tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1)
        else:
            delta += delta
"""
BACKWARDS = "while start_m > 0:\n        start_m -= BLOCK_M"
LSE = "lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q"
LOAD_K, LOAD_Q = "load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)\n", "load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)\n"
REFUSES = "        if torch.is_grad_enabled():\n            raise RuntimeError('differentiable once')\n"

RIGHT_ANSWERS = (
    edit("7.1", "the first iteration of an unrolled loop sets delta",
         ("    delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1)  # [BLOCK_M]\n", HALVES)),
    ("7.2", tile_with_computed_transposes, "but a computed tile is transposed", None), ("7.5", dq_keys_by_queries),
    edit("7.4", "full_m rounded up by hand, positions in another order",
         ("tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M)", "(tl.maximum(last_key - (S_k - S_q), 0) + BLOCK_M - 1) // BLOCK_M"),
         ("start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)", "S_q - S_k + tl.arange(0, BLOCK_N) + start_n")),
    edit("7.3", "last block first, sums by +=, missing rows with lse = inf",
         ("for start_m in range(0, S_q, BLOCK_M):", f"start_m = tl.cdiv(S_q, BLOCK_M) * BLOCK_M\n    {BACKWARDS}"),
         (f"{LSE}, other=0.0", f'{LSE}, other=float("inf")'),
         ("dv_acc = dot(p_t.to(do_tile.dtype), do_tile, dv_acc)", "dv_acc += dot(p_t.to(do_tile.dtype), do_tile)"),
         ("dk_acc = dot(ds_t.to(q_tile.dtype), q_tile, dk_acc)", "dk_acc += dot(ds_t.to(q_tile.dtype), q_tile)"),
         ("p_t * (dp_t - delta[None, :])", "p_t * dp_t - p_t * delta[None, :]")),
    edit("7.6", "s and dp as the forward computes them, dq scaled before its product",
         ("s_t = scale * dot(k_tile, tl.trans(q_tile))", "s_t = tl.trans(scale * dot(q_tile, tl.trans(k_tile)))"),
         ("dp_t = dot(v_tile, tl.trans(do_tile))", "dp_t = tl.trans(dot(do_tile, tl.trans(v_tile)))"),
         ("scale * dot(tl.trans(ds_t), k_tile)", "tl.trans(dot(tl.trans(k_tile), ds_t)) * scale")),
    edit("7.6", "ds masked, p not: a missing key's row of dv is not stored",
         ("tl.where(here[:, None], tl.exp(s_t - lse[None, :]), 0.0)", "tl.exp(s_t - lse[None, :])"),
         ("(p_t * (dp_t - delta[None, :]))", "tl.where(here[:, None], p_t * (dp_t - delta[None, :]), 0.0)")),
    edit("7.6", "adds in the default order", (', sem="relaxed"', "")),
    edit("7.6", "s of missing keys is −∞",
         ("tl.where(here[:, None], tl.exp(s_t - lse[None, :]), 0.0)", 'tl.exp(tl.where(here[:, None], s_t, -float("inf")) - lse[None, :])')),
    edit("7.3", "k loaded in every step", ("        offs_m = ", f"        k_tile = {LOAD_K}        offs_m = "),
         told="k is read more than once: it stays, so load it before the loop", gpu=None),
    edit("7.5", "q loaded in every step", ("        k_tile = ", f"        q_tile = {LOAD_Q}        k_tile = "),
         told="q is read more than once: it stays, so load it before the loop", gpu=None),
    edit("7.7", "the loop of (7.4), whose h the interpreter makes an int",
         ("for member in range(GROUP):", "for h in range(h_k * GROUP, (h_k + 1) * GROUP):"), ("        h = h_k * GROUP + member\n", "")),
    edit("7.7", "k and v loaded anew for each query head", ("        row = (b", """        k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
        v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
        row = (b"""), told="it stays, so load it before the loop", gpu=None),
    edit("7.8", "no decorator: backward refuses where its graph is wanted",
         ("    @torch.autograd.function.once_differentiable\n", ""),
         ("        q, k, v, o, lse = ctx", f"{REFUSES}        q, k, v, o, lse = ctx"),
         ("o, do, lse", "o, do.contiguous(), lse")),
)  # fmt: skip
