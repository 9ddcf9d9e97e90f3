"""Chapter 9: what a consumer computes between its two matmuls.

That is the softmax of a tile of scores, and p as the next matmul's operand.
"""

from __future__ import annotations

from fa_tutorial.hardware import require_triton

require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402


@gluon.jit
def mul_up(x, y):
    """x · y, rounded up. Rounded to nearest, the maximum at logits of 10,000 may come out so low that its own p is
    1.0003, see chapter 8's UP."""
    return gl.inline_asm_elementwise("mul.rp.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def softmax_step(s, m, scale_log2, seen, MASK: gl.constexpr):
    """The softmax of chapter 8's attend (8.3). s: [ROWS, BLOCK_N], m: [ROWS], both not scaled yet. Returns p, m_new,
    alpha.

    seen: [ROWS], how many keys of this tile each row sees, used with MASK.
    """
    if MASK:
        key = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = gl.where(key[None, :] < seen[:, None], s, -float("inf"))
    m_new = gl.maximum(m, gl.max(s, axis=1))
    shift = m_new
    if MASK:  # only here can a row have seen nothing yet
        shift = gl.where(m_new == -float("inf"), 0.0, m_new)
    shift_log2 = mul_up(shift, scale_log2)
    return gl.exp2(s * scale_log2 - shift_log2[:, None]), m_new, gl.exp2(mul_up(m, scale_log2) - shift_log2)


@gluon.jit
def pack(p, dtype: gl.constexpr):
    """[M, N] float32 -> [M, N / 2] int32, each of two neighbours rounded to dtype.

    A value of 16 bits that lives from one iteration of a loop to the next gets a register of its own, and two more
    instructions to come and go. In pairs it costs nothing: an eighth fewer instructions a thread and block with D = 64.
    """
    first, second = p.reshape([p.shape[0], p.shape[1] // 2, 2]).split()
    if dtype == gl.float16:
        return gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=gl.int32, is_pure=True, pack=1
        )
    else:
        return gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=gl.int32, is_pure=True, pack=1
        )


@gluon.jit
def unpack(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """pack backwards: [M, N / 2] int32 -> [M, N] of dtype, as the first operand of a wgmma."""
    both: gl.constexpr = (gl.float16, gl.float16) if dtype == gl.float16 else (gl.bfloat16, gl.bfloat16)
    first, second = gl.inline_asm_elementwise(
        "mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], dtype=both, is_pure=True, pack=1
    )
    return gl.convert_layout(gl.join(first, second).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)
