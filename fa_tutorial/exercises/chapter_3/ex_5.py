import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_3.ex_1 import whole_numbers
from fa_tutorial.exercises.chapter_3.ex_2 import LAYOUTS
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.matmul import tl, triton


@triton.jit
def scores_values_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale,
    stride_qs, stride_qd, stride_ks, stride_kd, stride_vs, stride_vd, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = scale · (q kᵀ) v for one head. q, o: (S_q, D); k, v: (S_k, D). BLOCK_D ≥ D.

    Grid: (ceil(S_q / BLOCK_M),).
    """
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # of o, too
    q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=mask_q, other=0.0)  # [BLOCK_M, BLOCK_D]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, S_k, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t_ptrs = k_ptr + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks
        mask_k_t = (offs_d[:, None] < D) & (offs_n[None, :] < S_k)
        k_t = tl.load(k_t_ptrs, mask=mask_k_t, other=0.0)  # [BLOCK_D, BLOCK_N]
        s = scale * tl.dot(q, k_t, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
        mask_v = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        v = tl.load(v_ptrs, mask=mask_v, other=0.0)  # [BLOCK_N, BLOCK_D]
        acc = tl.dot(s.to(v.dtype), v, acc, input_precision="ieee")  # [BLOCK_M, BLOCK_D]
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_q)


S, PV = "s = scale * tl.dot(q, k_t, ", "acc = tl.dot(s.to(v.dtype), v, acc, "
MISTAKES = {
    "q is multiplied by k, not by kᵀ: element (d, n) of kᵀ is element (n, d) of k": (
        "offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks", "offs_d[:, None] * stride_ks + offs_n[None, :] * stride_kd"),
    "q is multiplied by k, not by kᵀ: this tile of k is transposed already, so leave tl.trans out": (S, S.replace("k_t", "tl.trans(k_t)")),
    "o is rounded to fp16, whatever its dtype: round acc to o_ptr.dtype.element_ty": ("acc.to(o_ptr.dtype.element_ty)", "acc.to(tl.float16)"),
    "fp16 may overflow before scale comes: multiply s = q kᵀ by scale in float32, then round it to v's dtype": [
        (S, S.replace("scale * ", "")), ("tl.store(o_ptrs, acc.to", "tl.store(o_ptrs, (scale * acc).to")],
    "each block of keys overwrites the one before: add its product to acc": (PV, PV.replace("acc, ", "")),
    "acc is added twice in each step: tl.dot(s, v, acc) has added it already, so take =, not +=": (PV, PV.replace("=", "+=")),
}  # fmt: skip


def truth(q, k, v, blocks, strides, scale):
    return scale * (q.double() @ k.double().T) @ v.double()


def launch(q, k, v, blocks, strides, scale):
    (S_q, D), S_k = q.shape, len(k)
    args = (*map(In, (q, k, v), strides), Out((S_q, D), q.dtype, strides[3]), S_q, S_k, D, scale, *sum(strides, ()))
    return Launch((-(-S_q // blocks[0]),), args, dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True)))


def tolerance(args, part):
    """Whole numbers are exact. Else sums cost a few float32 units of Σ|q·k·v|; a half rounds s, and o, by one of its own units."""
    q, k, v, *_, scale = args
    if all((x == x.round()).all() for x in (q, k, v)):
        return 1e-6, 0.0
    size = float((abs(scale) * q.abs().double() @ k.abs().double().T @ v.abs().double()).max())
    return torch.finfo(q.dtype).eps, (2e-6 + (torch.finfo(q.dtype).eps if q.dtype != torch.float32 else 0.0)) * size


def inputs():
    def attention(q, k, v, on, otherwise="", blocks=(16, 16, 16), layouts="rows rows rows rows", scale=1.0, **options):
        strides = tuple(LAYOUTS[layout](*x.shape) for layout, x in zip(layouts.split(), (q, k, v, q), strict=True))
        return case(q, k, v, blocks, strides, scale, on=on, otherwise=otherwise, **options)

    def digits(S_q, S_k, D, on, otherwise="", **options):
        on = f"S_q = {S_q}, S_k = {S_k}, D = {D}, {on}"
        q, k, v = whole_numbers(S_q + S_k + D, (S_q, D), (S_k, D), (S_k, D))
        return attention(-q, k, v, on, otherwise, **options)  # negative scores: a ReLU shows

    fits = "no mask is missing, for whole blocks fit here: an offset is wrong, or the loop goes too far"
    alone = "o is (q kᵀ) v here and nothing else, without a softmax, a causal mask, a factor such as 1/√D or another dtype; each pointer has its two strides, in their order"
    yield digits(16, 16, 16, "one tile of each, scale = 1", alone, stray=fits)
    rows = "a program has BLOCK_M rows of q and o, from tl.program_id(0) · BLOCK_M on, and all S_k keys: each step takes its own BLOCK_N keys, rows of k and v, and its s starts from 0"
    yield digits(48, 96, 16, "scale = 1, BLOCK_M = 16, BLOCK_N = 32", rows, blocks=(16, 32, 16), stray=fits)
    yield digits(16, 32, 16, "scale = 3, BLOCK_N = 16", "scale multiplies s, once, and s is rounded to v's dtype alone", scale=3.0)
    own, mixed = "each tensor has its own two strides", "columns wider spaced wide"
    yield digits(16, 32, 16, "q column-major, k, v and o with gaps", own, layouts=mixed, stray=own)
    past = "the last blocks may be smaller: go on to them, and mask rows of q and o by S_q, keys by S_k, columns by D, with other=0.0; a missing key's score must be 0, not −∞"
    for sizes, block in (((16, 20, 16), "BLOCK_N"), ((20, 16, 16), "BLOCK_M"), ((16, 16, 12), "BLOCK_D")):
        yield digits(*sizes, f"{block} = 16", past, edge="ragged", stray=past)
    ones, v = torch.zeros(16, 16, dtype=torch.float16), torch.zeros(48, 16, dtype=torch.float16)
    ones[:, 0], v[0], v[1], v[16] = 1, 2048, 1, 1
    sums = "sums stay in float32, acc and what tl.dot returns: fp16 rounds 2048 + 1 to 2048"
    yield attention(ones, ones[:1].expand(48, 16), v, "fp16, all scores 1, rows of v 2048, 1; 1 in the next block", sums, edge="precision")
    one, on = torch.eye(16), "fp32, q and v are 131,584 times the identity, k is 131,072 times"
    kept = "q, k, v, s and o are fp32 here, so keep them: 16 bits can't hold 131,584. s.to(v.dtype) rounds s to fp16 only where v is fp16"
    yield attention(131_584 * one, 131_072 * one, 131_584 * one, on, kept, edge="precision")
    ieee = 'fp32 is multiplied in IEEE precision, q kᵀ and s v: tl.dot rounds to TF32 unless you pass input_precision="ieee"'
    yield attention(4097 * one, one, one, "fp32, q is 4097 times the identity, k and v are the identity", ieee, edge="precision")
    q, k = torch.zeros(2, 16, 16, dtype=torch.float16)
    q[:, 0], q[:, 1], k[:, 0], k[:, 1] = 1, 3, 3, -1  # 0.3 and 0.9 are both rounded in fp16, and not to 1 : 3
    scaled = "the scale multiplies s, in float32: q or k times the scale would be rounded"
    yield attention(q, k, q * 0 + 1, "fp16, rows of q 1 and 3, of k 3 and −1, v all 1, scale = 0.3", scaled, scale=0.3, edge="precision")
    over = "s = q kᵀ comes first, and is scaled before it is rounded to fp16: q kᵀ and kᵀ v are 160,000 here, and fp16 ends at 65,504"
    large, on = torch.full((16, 16), 100.0, dtype=torch.float16), "fp16, q and k all 100, columns of v 100, 50, 33, …, scale = 0.0001"
    yield attention(large, large, large / torch.arange(1, 17), on, over, scale=1e-4, edge="precision")
    draw, bf16 = generator(), [torch.bfloat16] if hardware.device().type == "cuda" else []  # the interpreter's is wrong
    for dtype in (torch.float32, torch.float16, *bf16):
        q, k, v = (torch.randn(S, 13, generator=draw).to(dtype) for S in (33, 29, 29))
        on = f"{str(dtype).removeprefix('torch.')}, S_q = 33, S_k = 29, D = 13, blocks 32 × 16 × 16"
        yield attention(q, k, v, on, blocks=(32, 16, 16), layouts=mixed, scale=0.3, fresh=True, edge="ragged")
    yield attention(torch.ones(16, 16), *torch.ones(2, 0, 16), "S_q = 16, S_k = 0", edge="empty")


EXERCISE = Exercise(
    task="Write the kernel that computes o = scale · (q kᵀ) v for one head and keeps s on the chip.",
    conditions={
        "ragged": "S_q and S_k need not be multiples of the blocks, and D may be smaller than BLOCK_D",
        "precision": "sums and scaling are float32, fp32 is multiplied in IEEE precision, and products take q, k and v as they are",
        "empty": "S_k may be 0: then o is 0",
    },
    hints=(
        "Compare it with 3.2. There is no tile_n, because a program owns whole rows of o. The loop runs over keys, not over D: "
        "q's tile is loaded once, before the loop, and both k's tile and v's tile are loaded inside.",
        "kᵀ costs nothing: offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks gives pointers of shape [BLOCK_D, BLOCK_N]. "
        "tl.trans(k) of a tile [BLOCK_N, BLOCK_D] works as well.",
        "In the loop offs_n = start + tl.arange(0, BLOCK_N); mask offs_n < S_k and offs_d < D in both loads. Then "
        's = scale * tl.dot(q, k_t, input_precision="ieee") and acc = tl.dot(s.to(v.dtype), v, acc, input_precision="ieee").',
    ),
    solution=scores_values_kernel,
    reasoning="A program keeps BLOCK_M rows of q and of acc, and the loop streams blocks of k and v past them. s lives for one iteration, "
    "in registers. Zeros beyond D add nothing to s. A key beyond S_k was loaded as 0, so its score is 0, and 0 · v adds nothing "
    "to acc: without a softmax, zeros do.",
    inputs=inputs,
    truth=truth,
    rule="o = scale · (q kᵀ) v for any strides of q, k, v and o",
    mistakes=MISTAKES,
    tolerance=tolerance,
    launch=launch,
    seen={
        "stored_again": "store acc once, after the loop over keys",
        "again": "load q's tile once, before the loop, and each tile of k and v once",
        "widened": "16-bit inputs are multiplied as float32, off the tensor cores: tl.dot takes q, k and v as they are, and s rounded to v's dtype",
    },
)
