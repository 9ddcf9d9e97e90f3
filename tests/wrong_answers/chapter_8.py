"""Chapter 8: a step that is a plain function, a step that stops, tiles of the wrong shape."""

from fa_tutorial.matmul import tl, triton


def plain_step(s, m, l, scale_log2):
    return s, m, l, m


@triton.jit
def step_of_three(s, m, l, scale_log2):
    return tl.exp2(s), m, l


@triton.jit
def forward_without_reshape(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    q = q_desc.load([0, 0, 0, 0])
    k = k_desc.load([0, 0, 0, 0]).reshape([BLOCK_N, D])
    s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
    o_desc.store([0, 0, 0, 0], s.to(o_desc.dtype).reshape([1, 1, BLOCK_M, D]))


@triton.jit
def forward_stored_without_reshape(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    o_desc.store([0, 0, 0, 0], v_desc.load([0, 0, 0, 0]).reshape([BLOCK_M, D]))


WRONG_ANSWERS = (
    ("8.2", plain_step, "put @triton.jit above it"),
    ("8.2", step_of_three, "stops with"),
    ("8.3", forward_without_reshape, "drop the ones by .reshape([rows, D])"),
    ("8.3", forward_stored_without_reshape, "give o its ones back by .reshape([1, 1, BLOCK_M, D])"),
)
