import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_3.ex_1 import tolerance, whole_numbers
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.matmul import tl, triton


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """c = a @ b. a: (M, K); b: (K, N); c: (M, N).

    Grid: (ceil(M / BLOCK_M) · ceil(N / BLOCK_N),), in row order.
    """
    pid, tiles_n = tl.program_id(0).to(tl.int64), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = pid // tiles_n, pid % tiles_n
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)  # [BLOCK_K]
    mask_m = offs_m[:, None] < M
    mask_n = offs_n[None, :] < N
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
    step = tl.full((), BLOCK_K, dtype=tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=mask_m & (offs_k[None, :] < K - k), other=0.0)
        b = tl.load(b_ptrs, mask=mask_n & (offs_k[:, None] < K - k), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


TILE = "offs_{1}[:, None] * stride_{0}{2} + offs_{3}[None, :] * stride_{0}{4}".format
DOT = "acc = tl.dot(a, b, acc, "
MISTAKES = {
    **{f"{x}'s strides are swapped: stride_{x}{r} leads to the next row of {x}, stride_{x}{c} to the next column": (
        TILE(x, r, r, c, c), TILE(x, r, c, c, r)) for x, r, c in ("amk", "bkn", "cmn")},
    "c is 0 everywhere: does the loop along K run, and do you keep what tl.dot returns, acc = tl.dot(a, b, acc)?": (DOT, "tl.dot(a, b, acc, "),
    "each step along K overwrites the one before: add it to acc": (DOT, "acc = tl.dot(a, b, "),
    "acc is added twice in each step: tl.dot(a, b, acc) has added it already, so take =, not +=": (DOT, "acc += tl.dot(a, b, acc, "),
    "tl.dot gets bf16, whatever a and b are: give it the tiles as they are": ("dot(a, b", "dot(a.to(tl.bfloat16), b.to(tl.bfloat16)"),
    "c is rounded to bf16, whatever its dtype: round acc to c_ptr.dtype.element_ty": ("c_ptr.dtype.element_ty", "tl.bfloat16"),
    "the steps along K are rounded down: a kernel's // rounds toward 0, so take tl.cdiv(K, BLOCK_K)": (
        "range(0, K, BLOCK_K)", "range(0, K // BLOCK_K * BLOCK_K, BLOCK_K)"),
}  # fmt: skip


def truth(a, b, blocks, strides, rows):
    c = a.double() @ b.double()
    c[rows:] = UNWRITTEN  # only these rows' programs run
    return c


def launch(a, b, blocks, strides, rows):
    (M, K), N = a.shape, b.shape[1]
    args = (In(a, strides[0]), In(b, strides[1]), Out((M, N), a.dtype, strides[2]), M, N, K, *sum(strides, ()))
    programs = triton.cdiv(rows, blocks[0]) * triton.cdiv(N, blocks[1])
    return Launch((programs,), args, dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True)))


LAYOUTS = {
    "rows": lambda rows, columns: (columns, 1),
    "columns": lambda rows, columns: (1, rows),
    "padded": lambda rows, columns: (columns + 8, 1),
    **{name: lambda rows, columns, n=n: (n * columns + 1, n) for n, name in enumerate(("spaced", "wide", "wider"), 2)},
}


def inputs():
    def product(a, b, on, otherwise="", blocks=(16, 16, 16), layouts="rows rows rows", rows=None, **options):
        shapes = (a.shape, b.shape, (len(a), b.shape[1]))
        strides = tuple(LAYOUTS[layout](*shape) for layout, shape in zip(layouts.split(), shapes, strict=True))
        return case(a, b, blocks, strides, rows or len(a), on=on, otherwise=otherwise, **options)

    def digits(M, N, K, on, otherwise, **options):
        return product(*whole_numbers(M + N + K, (M, K), (K, N)), f"M = {M}, N = {N}, K = {K}, {on}", otherwise, **options)

    fits = "no mask is missing, for whole tiles fit here: an offset is wrong, or the loop goes too far"
    yield digits(16, 16, 16, "one tile and one step", "one tile of c is a's tile times b's", stray=fits)
    both = "each pointer needs both strides of its own tensor"
    yield digits(16, 16, 16, "a column-major, b and c with gaps", both, layouts="columns spaced wide", stray=fits)
    further = "c sums over all steps along K: each is BLOCK_K · stride_ak elements of memory further in a and BLOCK_K · stride_bk in b, and masks by what is left of K"
    yield digits(16, 16, 48, "three steps along K, a column-major", further, layouts="columns padded rows")
    row_order = "program pid computes tile (pid // tiles_n, pid % tiles_n), where tiles_n = ceil(N / BLOCK_N), and stores its rows below M and columns below N"
    for rows, words in ((32, "2 × 3 tiles"), (16, "only programs 0 to 2 of 6 run")):
        yield digits(32, 48, 16, f"blocks 16 × 16, {words}", row_order, rows=rows)
    cut = "c's rows are cut by BLOCK_M, its columns by BLOCK_N, and K by BLOCK_K"
    yield digits(32, 32, 32, "blocks 32 × 16 × 16, 1 × 2 tiles", cut, blocks=(32, 16, 16))
    past_k = "the last step reads past K, and 0 · NaN is NaN: mask the columns of a's tile and the rows of b's by what is left of K"
    shorter = "K's last block may be shorter: ⌈K / BLOCK_K⌉ steps, and what a mask leaves out must add 0 to the sum, other=0.0"
    yield digits(16, 16, 20, "BLOCK_K = 16", shorter, layouts="padded rows rows", edge="ragged", stray=past_k)
    past = "the last tiles may be smaller: ⌈N / BLOCK_N⌉ of them in a row; mask rows by M and columns by N, in both loads, with other=0.0, and in the store"
    yield digits(20, 24, 16, "blocks 16 × 16", past, layouts="rows rows padded", edge="ragged")
    a, b = torch.zeros(16, 32, dtype=torch.float16), torch.ones(32, 16, dtype=torch.float16)
    a[:, 0], a[:, 1], a[:, 16] = 2048, 1, 1
    sums = "sums stay in float32, acc and what tl.dot returns: fp16 rounds 2048 + 1 to 2048"
    yield product(a, b, "fp16, rows of a hold 2048 and 1 in one step, 1 in the next, b all 1", sums, edge="precision")
    kept = "a, b and c are fp32 here, so keep the tiles' dtype, and round acc to c_ptr.dtype.element_ty: 16 bits can't hold 131,584"
    a, b = torch.full((16, 16), 131_584.0), 2.0**17 * torch.eye(16)
    yield product(a, b, "fp32, a all 131,584, b 131,072 times the identity", kept, edge="precision")
    ieee = 'fp32 is multiplied in IEEE precision: tl.dot rounds it to TF32 unless you pass input_precision="ieee"'
    yield product(torch.full((16, 16), 4097.0), torch.eye(16), "fp32, a all 4097, b the identity", ieee, edge="precision")
    draw, bf16 = generator(), [torch.bfloat16] if hardware.device().type == "cuda" else []  # the interpreter's is wrong
    for dtype in (torch.float32, torch.float16, *bf16):
        a, b = (torch.randn(shape, generator=draw).to(dtype) for shape in ((33, 50), (50, 20)))
        on = f"{str(dtype).removeprefix('torch.')}, M = 33, N = 20, K = 50, blocks 32 × 16 × 32"
        yield product(a, b, on, blocks=(32, 16, 32), layouts="columns padded spaced", fresh=True, edge="ragged")
    yield product(torch.zeros(16, 0), torch.zeros(0, 16), "M = N = 16, K = 0", edge="empty")


EXERCISE = Exercise(
    task="Write the matmul kernel: one program computes one tile of c, for any strides of a, b and c.",
    conditions={
        "ragged": "M, N and K need not be multiples of the blocks",
        "precision": "tl.dot gets the tiles in the inputs' dtype, the accumulator is float32, and fp32 inputs are multiplied in IEEE precision",
        "empty": "K may be 0: then c is 0",
    },
    hints=(
        "Which tile is yours? In row order programs 0 … tiles_n − 1 compute the first row of tiles. Then build two 2-D blocks of pointers, "
        "one for a and one for b, as in chapter 2's transposing copy.",
        "You need three masks: rows of a by M, columns of b by N and, in both loads, what is left of K in this step. other=0.0 adds "
        "nothing to the sum.",
        'In the loop: acc = tl.dot(a, b, acc, input_precision="ieee"), then a_ptrs += BLOCK_K * stride_ak and b_ptrs += BLOCK_K * '
        "stride_bk.",
    ),
    solution=matmul_kernel,
    reasoning="pid // tiles_n and pid % tiles_n give the tile. Both loads mask K, because memory beyond K may hold NaN, and 0 · NaN is "
    "NaN. pid, offs_k and step have 64 bits here, so that no offset overflows in a tensor past 2³¹ elements. acc is float32 and is rounded once, at the store. Each pointer advances by BLOCK_K times its own stride, so views work.",
    more="The package's version, matmul.matmul_kernel, numbers its programs in bands, as in 3.4.",
    inputs=inputs,
    truth=truth,
    rule="c is a @ b for any strides, in float32's accuracy where a and b are float32",
    mistakes=MISTAKES,
    tolerance=tolerance,
    launch=launch,
    seen={
        "stored_again": "store acc once, after the loop along K",
        "widened": "16-bit inputs are multiplied as float32, off the tensor cores: use tl.dot, and give it the tiles as they are",
    },
)
