import math

from edits import edit

from fa_tutorial.matmul import grouped_tile, tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)


def one_more_by_scheduler(warps, registers, shared):
    each = 16_384 // (32 * 8 * math.ceil(registers / 8))  # warps that one of four schedulers holds
    now = min(4 * each // warps, 233_472 // (shared + 1024))
    kept = 256 // ((now + 1) * warps) * 8
    return [now, registers - min(registers, kept), shared - min(shared, 233_472 // (now + 1) - 1024)]


@triton.jit
def forward_transposed(q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    """Scores as [BLOCK_N, BLOCK_M], in base 2; keys from the last tile to the first."""
    row_blocks = (S_q + BLOCK_M - 1) // BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    row = (tl.program_id(0) - batch_head * row_blocks) * BLOCK_M
    b = batch_head // H
    h = batch_head - b * H
    q = tl.reshape(q_desc.load([b, h, row, 0]), (BLOCK_M, D))
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((D, BLOCK_M), tl.float32)
    tiles = tl.cdiv(S_k, BLOCK_N)
    for step in range(tiles):
        start = (tiles - 1 - step) * BLOCK_N
        k = tl.reshape(k_desc.load([b, h, start, 0]), (BLOCK_N, D))
        v = tl.reshape(v_desc.load([b, h, start, 0]), (BLOCK_N, D))
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
        s = tl.where((tl.arange(0, BLOCK_N) < S_k - start)[:, None], s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=0))
        p = tl.exp2(s - m_new[None, :])
        l = l * tl.exp2(m - m_new) + tl.sum(p, axis=0)
        acc = acc * tl.exp2(m - m_new)[None, :] + tl.dot(tl.trans(v), p.to(v.dtype), input_precision="ieee")
        m = m_new
    o_desc.store([b, h, row, 0], tl.reshape(tl.trans(acc / l[None, :]), (1, 1, BLOCK_M, D)).to(o_desc.dtype))


def order_by_chapter_3(heads, row_blocks, at_once):
    tiles = (grouped_tile(pid, heads, row_blocks, at_once) for pid in range(heads * row_blocks))
    return [[head, range(row_blocks)[-1 - row]] for head, row in tiles]


def order_with_groups_from_the_end(heads, row_blocks, at_once):
    programs = ((head, row) for head in range(heads) for row in range(row_blocks))
    return sorted(programs, key=lambda one: (-((heads - 1 - one[0]) // at_once), -one[1]))


def cycles_by_the_whole_tile(D, block_m, block_n, num_warps, instructions):
    scores = block_m * block_n
    return scores * D / 1024 * (4096 / scores) + max(256, num_warps * (instructions // 4 + instructions % 4 / 4) * (4096 / scores))


ALPHA = "tl.exp2(m - shift)"
RIGHT_ANSWERS = (
    ("8.1", one_more_by_scheduler),
    edit("8.2", "a finite shift", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e30)")),
    edit("8.2", "the first alpha is 1", (ALPHA, f"tl.where(m == -float('inf'), 1.0, {ALPHA})")),
    ("8.3", forward_transposed),
    edit("8.3", "missing keys score −1e30", ('s, -float("inf")', "s, -1e30")),
    edit("8.3", "o in q's dtype", ("o_desc.dtype", "q.dtype")),
    edit("8.3", "a tile of missing keys alone", ("range(0, S_k, BLOCK_N)", "range(0, S_k + BLOCK_N, BLOCK_N)")),
    ("8.6", order_by_chapter_3),
    ("8.6", order_with_groups_from_the_end),
    ("8.4", cycles_by_the_whole_tile),
    edit("8.5", "S_k where there is a mask", ("load_tile(k, b, h_k, start_n, S_k", "load_tile(k, b, h_k, start_n, S_k if MASK else None")),
    edit("8.5", "step 3's guard", ("    if MASK:  # only here may a row have seen no key\n    ", "")),
    edit("8.5", "the shift is finite", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e30)")),
)
