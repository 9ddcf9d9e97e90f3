"""FA2's loop in Gluon, with Ampere's `mma.sync`: for chapter 12, which times it whole and with one thing changed."""

from fa_tutorial.hardware import require_triton

require_triton("Measuring (tools/measure)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2  # noqa: E402


@gluon.jit
def begin_copy(tile, x_ptr, start):
    """Begin to copy rows start … of x into a tile of shared memory: 8 neighbours a thread, as tKgK has them."""
    ROWS: gl.constexpr = tile.shape[0]
    D: gl.constexpr = tile.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    offs_n = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(tile, x_ptr + offs_n.to(gl.int64)[:, None] * D + offs_d[None, :])
    async_copy.commit_group()


@gluon.jit
def fa2_kernel(q_ptr, k_ptr, v_ptr, o_ptr, S, scale_log2, D: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
               EARLY: gl.constexpr, SWIZZLED: gl.constexpr, FOLDED: gl.constexpr):  # fmt: skip
    """o of BLOCK_M rows, full attention. All (B · H · S, D), contiguous, S a multiple of both blocks.
    Grid: (B · H · S // BLOCK_M,). scale_log2: scale · log₂ e.

    EARLY: a copy begins as soon as its buffer is free, else both after p v, as Triton orders chapter 5's with two
    stages. SWIZZLED: the tiles in shared memory. FOLDED: the scale is exp2's, else the scores are scaled before, and
    then exp is taken, as in chapter 5.
    """
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8 if SWIZZLED else 1, [1, 0])  # c ^ (r % 8)
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, 8])  # fmt: skip
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=mma, k_width=2)
    right: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=mma, k_width=2)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    q = gl.allocate_shared_memory(dtype, [BLOCK_M, D], shared)
    k = gl.allocate_shared_memory(dtype, [BLOCK_N, D], shared)
    v = gl.allocate_shared_memory(dtype, [BLOCK_N, D], shared)
    start_m = gl.program_id(0) * BLOCK_M
    start_n = start_m // S * S
    begin_copy(q, q_ptr, start_m)
    begin_copy(k, k_ptr, start_n)
    if not EARLY:
        begin_copy(v, v_ptr, start_n)
    m = gl.full([BLOCK_M], -float("inf"), gl.float32, gl.SliceLayout(1, mma))
    l = gl.full([BLOCK_M], 0.0, gl.float32, gl.SliceLayout(1, mma))
    acc = gl.zeros([BLOCK_M, D], gl.float32, mma)
    for n in range(start_n, start_n + S, BLOCK_N):
        async_copy.wait_group(0)  # 305
        if EARLY:
            begin_copy(v, v_ptr, n)  # 310
        s = mma_v2(q.load(left), k.permute((1, 0)).load(right), gl.zeros([BLOCK_M, BLOCK_N], gl.float32, mma))  # 319
        if EARLY:
            async_copy.wait_group(0)  # 332
            if n + BLOCK_N < start_n + S:
                begin_copy(k, k_ptr, n + BLOCK_N)  # 335
        if FOLDED:
            m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)  # 344
            p = gl.exp2(s * scale_log2 - m_new[:, None])
            alpha = gl.exp2(m - m_new)
        else:
            s = s * (scale_log2 * 0.6931471805599453)
            m_new = gl.maximum(m, gl.max(s, axis=1))
            p = gl.exp(s - m_new[:, None])
            alpha = gl.exp(m - m_new)
        l = alpha * l + gl.sum(p, axis=1)
        m = m_new
        acc = acc * alpha[:, None]
        acc = mma_v2(gl.convert_layout(p.to(dtype), left), v.load(right), acc)  # 367
        if not EARLY and n + BLOCK_N < start_n + S:
            begin_copy(k, k_ptr, n + BLOCK_N)
            begin_copy(v, v_ptr, n + BLOCK_N)
    o = acc / l[:, None]
    offs_m = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mma))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, mma))
    gl.store(o_ptr + offs_m.to(gl.int64)[:, None] * D + offs_d[None, :], o.to(dtype))
