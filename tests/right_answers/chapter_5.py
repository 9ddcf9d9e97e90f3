from edits import edit

from fa_tutorial.forward import attend, softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile, tile_pointers


@triton.jit
def tile_from_a_clamped_pointer(x, out_ptr, H, S, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows and columns past the end read the last one, and are set to 0 afterwards."""
    pid = tl.cast(tl.program_id(0), tl.int64)
    row_blocks = (S + BLOCK_M - 1) // BLOCK_M
    b = pid // (row_blocks * H)
    h = pid // row_blocks - b * H
    s = (pid - pid // row_blocks * row_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    stride_b, stride_h, stride_s, stride_d = x.strides
    tile = tl.load(x.ptr + b * stride_b + h * stride_h + tl.minimum(s, S - 1) * stride_s + tl.minimum(d, D - 1) * stride_d)
    tile = tl.where((s < S) & (d < D), tile, 0.0)
    tl.store(out_ptr + pid * BLOCK_M * BLOCK_D + tl.arange(0, BLOCK_M)[:, None] * BLOCK_D + d, tile)


@triton.jit
def _widened(x):
    """The interpreter's dot is exact for float32 alone in every version, and fp16 products are exact in float32."""
    return x.to(tl.float32)


@triton.jit
def flash_last_tile_first(q, k, v, o, H, S_q, S_k, D, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Keys from the last tile to the first; p is masked rather than s; o is divided in every iteration, as FA1 does."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    q_ptrs, offs_m, offs_d = tile_pointers(q, b, h, start_m, BLOCK_M, BLOCK_D)
    q_tile = tl.load(q_ptrs, mask=(offs_m < S_q) & (offs_d < D), other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for step in range(tl.cdiv(S_k, BLOCK_N)):
        start_n = (tl.cdiv(S_k, BLOCK_N) - 1 - step) * BLOCK_N
        there = (start_n + tl.arange(0, BLOCK_N) < S_k)[None, :]
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
        s = tl.where(there, scale * tl.dot(_widened(q_tile), tl.trans(_widened(k_tile)), input_precision="ieee"), -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(there, tl.exp(s - m_new[:, None]), 0.0)
        l_old = l * tl.exp(m - m_new)
        l = l_old + tl.sum(p, 1)
        acc = (acc * l_old[:, None] + tl.dot(p, _widened(v_tile), input_precision="ieee")) / l[:, None]
        m = m_new
    store_tile(o, acc, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


NO_STAGES = "correct (tiles with a mask may be loaded ahead here"
RIGHT_ANSWERS = (
    ("5.1", tile_from_a_clamped_pointer),
    ("5.3", flash_last_tile_first), ("5.4", flash_last_tile_first),
    edit("5.3", "while", ("for start_n in range(0, S_k, BLOCK_N):", "start_n = 0\n    while start_n < S_k:"),
         ("        m = m_new\n", "        m = m_new\n        start_n += BLOCK_N\n")),
    edit("5.3", "one name in two loops, of two types", ("    for start_n in", "    for _ in range(2):\n        x = tl.zeros((BLOCK_M,), dtype=tl.float32)\n    for start_n in"),
         ("        m = m_new\n", "        m = m_new\n        for _ in range(2):\n            x = p\n        x = m\n")),
    edit("5.3", "q loaded in each iteration",
         ("        k_tile =", "        q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)\n        k_tile =")),
    edit("5.5", "keys counted from the end", ("offs_n[None, :] <= last_seen[:, None], s, -float(\"inf\")",
                                              "last_seen[:, None] - offs_n[None, :] < 0, -float(\"inf\"), s"),
         ("    rows = S_k", "    offs_n = start_n + tl.arange(0, BLOCK_N)\n    rows = S_k"),
         ("acc = acc * alpha[:, None]", "v_tile = load_tile(v, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)"),
         ("acc = dot(p.to(v_tile.dtype), v_tile, acc)", "acc = alpha[:, None] * acc + dot(p.to(v_tile.dtype), v_tile)")),
    edit("5.6", "whole tiles to the end, exp2",
         ("tl.exp(", "tl.exp2(", 2), ("s = scale * ", "s = (scale * 1.4426950408889634) * "),
         ("BLOCK_N * BLOCK_N, S_k  #", "BLOCK_N * BLOCK_N, tl.cdiv(S_k, BLOCK_N) * BLOCK_N  #"),
         ("tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q", "tl.cdiv(tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q, BLOCK_N) * BLOCK_N"),
         ("acc / l_or_one[:, None]", 'tl.where(m[:, None] == -float("inf"), 0.0, acc / tl.maximum(l, 1e-30)[:, None])'),
         helpers=(softmax_step, attend)),
    edit("5.6", "one loop that branches", ("range(0, full_n, BLOCK_N):", "range(0, end_n, BLOCK_N):\n      if start_n < full_n:"),
         ("    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=1):", "      else:"), told=NO_STAGES),
    edit("5.6", "the second loop by range", ("tl.range(full_n, end_n, BLOCK_N, num_stages=1)", "range(full_n, end_n, BLOCK_N)"), told=NO_STAGES),
    edit("5.6", "l and a number that float32 loses", ("tl.where(l == 0.0, 1.0, l)", "l + 1e-30")),
    edit("5.8", "sizes and layouts of their own",
         ("(q, k.mT.contiguous().mT, v, False)", "(torch.randn(2, 64, 3, 20).transpose(1, 2), k := torch.randn(2, 3, 64, 20), k, 0)"),
         ("(*randn(1, 40, 1, 32), False)", "(*randn(3, 33, 3, 33), True)"), ("(*randn(1, 32, 1, 64), True)", "[*randn(1, 64, 1, 129), True]")),
    edit("5.8", "an expanded k", ("k.mT.contiguous().mT", "torch.randn(1, 1, 1, 16).expand(1, 1, 32, 16)")),
    edit("5.8", "F without D, by no keys", ("(*randn(1, 64, 1, 32), True)", "(*randn(1, 64, 1, 0), False)")),
    edit("5.9", "in turns, instructions that might not fit beside the products", ("(products + max(exponential, softmax))",
         "(max(products, every - softmax) + max(exponential, softmax))")),
)  # fmt: skip
