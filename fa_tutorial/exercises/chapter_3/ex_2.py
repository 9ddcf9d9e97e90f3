"""Exercise 3.2, matmul_kernel."""

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_3.ex_1 import tolerance as bound
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import gather, generator, laid_out
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.matmul import round_to_tf32

triton = hardware.require_triton("Exercise 3.2")
import triton.language as tl  # noqa: E402


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """c = a @ b. a: (M, K); b: (K, N); c: (M, N).

    Grid: (ceil(M / BLOCK_M) · ceil(N / BLOCK_N),), in row order.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_k = tl.arange(0, BLOCK_K)  # [BLOCK_K]
    mask_m = offs_m[:, None] < M
    mask_n = offs_n[None, :] < N
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=mask_m & (offs_k[None, :] < K - k), other=0.0)
        b = tl.load(b_ptrs, mask=mask_n & (offs_k[:, None] < K - k), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


_ONE_DIMENSION = "the grid has one dimension, and program_id(1) is 0 in every program"
MISTAKES = {
    "lost": "c stays 0: does the loop along K run when K = BLOCK_K, do you keep what tl.dot returns, acc = tl.dot(a, b, acc), and is each comparison "
    "in a mask in brackets, because & binds closer than <?",
    "a_swapped": "a's strides are swapped: stride_am leads to the next row of a, stride_ak to the next column",
    "b_swapped": "b's strides are swapped: stride_bk leads to the next row of b, stride_bn to the next column",
    "c_swapped": "c is stored transposed: stride_cm leads to the next row of c, stride_cn to the next column",
    "exchanged": "the factors are swapped: a's tile comes first",
    "elements": "a and b are multiplied element by element: multiply tiles with tl.dot",
    "a_contiguous": "a's strides are not used: element (m, k) of a lies at m · stride_am + k · stride_ak",
    "ak_is_one": "stride_ak is not used: the elements of a row of a are neighbours only where a is contiguous",
    "b_contiguous": "b's strides are not used: element (k, n) of b lies at k · stride_bk + n · stride_bn",
    "bn_is_one": "stride_bn is not used: the elements of a row of b are neighbours only where b is contiguous",
    "c_contiguous": "c's strides are not used: element (m, n) of c lies at m · stride_cm + n · stride_cn",
    "overwrites": "each step along K overwrites the one before: add it to acc",
    "twice": "acc is added twice in each step: tl.dot(a, b, acc) has added it already, so acc = tl.dot(a, b, acc), not +=",
    "first_step": "only the first step along K is computed: the loop runs to K",
    "one_early": "K's last block is dropped: the loop along K ends one step early",
    "ragged_k": "K's ragged last block is dropped: the number of steps is rounded up",
    "both_still": "no pointers are advanced: every step reads K's first block again",
    "a_still": "a's pointers are not advanced: every step reads the same columns of a",
    "b_still": "b's pointers are not advanced: every step reads the same rows of b",
    "a_by_elements": "a's pointers are advanced by BLOCK_K elements, which is one column here, not BLOCK_K columns: multiply by stride_ak",
    "b_by_elements": "b's pointers are advanced by BLOCK_K elements, which is one row here, not BLOCK_K rows: multiply by stride_bk",
    "first_column": f"only the first column of tiles is computed: {_ONE_DIMENSION}",
    "first_row": f"only the first row of tiles is computed: {_ONE_DIMENSION}",
    "by_tiles_m": "program and tile do not match: a row of tiles has tiles_n tiles, so divide pid by tiles_n",
    "column_order": "programs go down the columns of tiles, and row by row is asked for: program pid computes tile (pid // tiles_n, pid % tiles_n)",
    "n_by_block_m": "BLOCK_M and BLOCK_N are mixed up: c's rows are cut by BLOCK_M, its columns by BLOCK_N",
    "tiles_down": "the ragged last tiles count too: the number of tiles is rounded up",
    "no_other": "elements that a mask leaves out hold anything without other=0.0, NaN too, and 0 · NaN is NaN: they must add nothing to the sum",
    "in_loop": "where K is 0, the loop along K does not run, and c is 0 all the same: tl.store comes after the loop",
    "half": "sums are rounded to fp16, where 2048 + 1 is 2048: keep acc, and what tl.dot returns, in float32",
    "tf32": "fp32 is rounded to TF32, as tl.dot does by default: pass input_precision=\"ieee\"",
}  # fmt: skip

CONDITIONS = {
    "ragged": "M, N and K need not be multiples of the blocks",
    "precision": "tl.dot gets the tiles in the inputs' dtype, the accumulator is float32, and fp32 inputs are multiplied in IEEE precision",
    "empty": "K may be 0: then c is 0",
}


def twin(a, b, blocks, strides, programs=None, mistake=None):
    (M, K), N = a.shape, b.shape[1]
    block_m, block_n, block_k = blocks
    a_memory, b_memory = laid_out(a, strides[0]), laid_out(b, strides[1])
    c = laid_out(torch.zeros(M, N), strides[2]).fill_(UNWRITTEN)
    am, ak = {"a_swapped": strides[0][::-1], "a_contiguous": (K, 1), "ak_is_one": (strides[0][0], 1)}.get(mistake, strides[0])
    bk, bn = {"b_swapped": strides[1][::-1], "b_contiguous": (N, 1), "bn_is_one": (strides[1][0], 1)}.get(mistake, strides[1])
    cm, cn = {"c_swapped": strides[2][::-1], "c_contiguous": (N, 1)}.get(mistake, strides[2])
    a_step = {"a_still": 0, "both_still": 0, "a_by_elements": block_k}.get(mistake, block_k * ak)
    b_step = {"b_still": 0, "both_still": 0, "b_by_elements": block_k}.get(mistake, block_k * bk)
    tiles_m, tiles_n, steps = triton.cdiv(M, block_m), triton.cdiv(N, block_n), triton.cdiv(K, block_k)
    per_row = max(N // block_n, 1) if mistake == "tiles_down" else tiles_n
    steps = {"first_step": min(steps, 1), "one_early": max(steps - 1, 0), "ragged_k": K // block_k, "lost": 0}.get(mistake, steps)
    other = math.nan if mistake == "no_other" else 0.0
    for pid in range(programs or tiles_m * tiles_n):
        places = {"first_column": (pid, 0), "first_row": (0, pid), "by_tiles_m": divmod(pid, tiles_m)}
        places["column_order"] = (pid % tiles_m, pid // tiles_m)
        tile_m, tile_n = places.get(mistake, divmod(pid, per_row))
        m = (tile_m * block_m + torch.arange(block_m))[:, None]
        n = (tile_n * (block_m if mistake == "n_by_block_m" else block_n) + torch.arange(block_n))[None, :]
        acc = torch.zeros(block_m, block_n, dtype=torch.float64)
        for step in range(steps):
            k, left = torch.arange(block_k), K - step * block_k
            x = gather(a_memory, m * am + k[None, :] * ak + step * a_step, (m < M) & (k[None, :] < left), other)
            y = gather(b_memory, k[:, None] * bk + n * bn + step * b_step, (k[:, None] < left) & (n < N), other)
            if mistake == "tf32" and a.dtype == torch.float32:
                x, y = round_to_tf32(x.float()).double(), round_to_tf32(y.float()).double()
            product = {"exchanged": lambda x, y: y @ x, "elements": lambda x, y: x * y}.get(mistake, torch.matmul)(x, y)
            acc = {"overwrites": 0, "twice": 2}.get(mistake, 1) * acc + product
            acc = acc.half().double() if mistake == "half" and a.dtype == torch.float16 else acc
        inside = (m < M) & (n < N)
        if not (mistake == "in_loop" and steps == 0):
            c[(m * cm + n * cn)[inside]] = acc[inside]
    return c.as_strided((M, N), strides[2])


def launch(a, b, blocks, strides, programs=None):
    (M, K), N = a.shape, b.shape[1]
    args = (In(a, strides[0]), In(b, strides[1]), Out((M, N), a.dtype, strides[2]), M, N, K, *(step for pair in strides for step in pair))
    grid = (programs or triton.cdiv(M, blocks[0]) * triton.cdiv(N, blocks[1]),)
    return Launch(grid, args, dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True)))


LAYOUTS = {
    "rows": lambda rows, columns: (columns, 1),
    "columns": lambda rows, columns: (1, rows),
    "padded": lambda rows, columns: (columns + 8, 1),
    "spaced": lambda rows, columns: (2 * columns + 1, 2),
}


def inputs():
    def product(a, b, on, otherwise="", blocks=(16, 16, 16), layouts=("rows", "rows", "rows"), programs=None, **options):
        (M, K), N = a.shape, b.shape[1]
        strides = tuple(LAYOUTS[layout](*shape) for layout, shape in zip(layouts, ((M, K), (K, N), (M, N)), strict=True))
        return case(a, b, blocks, strides, programs, on=on, otherwise=otherwise, **options)

    def digits(seed, M, N, K, on, otherwise, **options):
        """Whole numbers from 1 to 5: their products are exact in every dtype, and never 0."""
        draw = torch.Generator().manual_seed(seed)
        a, b = (torch.randint(1, 6, shape, generator=draw).float() for shape in ((M, K), (K, N)))
        return product(a, b, on, otherwise, **options)

    fits = "an offset is wrong, not a mask, for whole tiles fit here"
    column_major = ("columns", "columns", "columns")
    yield digits(0, 16, 16, 16, "M = N = K = 16, one tile and one step", "one tile of c is a's tile times b's", stray=fits)
    both = "each pointer needs both of its strides"
    yield digits(0, 16, 16, 16, "M = N = K = 16, a, b and c column-major", both, layouts=column_major, stray=fits)
    yield digits(1, 16, 16, 48, "M = N = 16, K = 48, three steps along K", "a tile of c is the sum over all steps along K", stray=fits)
    further = "a step goes BLOCK_K columns of a and BLOCK_K rows of b further"
    yield digits(2, 16, 16, 32, "M = N = 16, K = 32, a, b and c column-major", further, layouts=column_major, stray=fits)
    yield digits(3, 32, 48, 16, "M = 32, N = 48, blocks 16 × 16, 2 × 3 tiles", MISTAKES["by_tiles_m"])
    yield digits(3, 32, 48, 16, "M = 32, N = 48, blocks 16 × 16, only programs 0 to 2 of 6 run", MISTAKES["column_order"], programs=3)
    yield digits(4, 32, 32, 16, "M = N = 32, blocks 32 × 16, 1 × 2 tiles", MISTAKES["n_by_block_m"], blocks=(32, 16, 16))
    past_k = "the last step reads past K, and 0 · NaN is NaN: mask the columns of a's tile and the rows of b's by what is left of K"
    shorter = "K's last block may be shorter"
    yield digits(5, 16, 16, 20, "M = N = 16, K = 20", shorter, layouts=("padded", "rows", "rows"), edge="ragged", stray=past_k)
    past = "the last tiles may be smaller: mask rows by M and columns by N, in both loads and in the store"
    yield digits(6, 20, 24, 16, "M = 20, N = 24, blocks 16 × 16", past, layouts=("rows", "rows", "padded"), edge="ragged")
    a, b = torch.zeros(16, 32, dtype=torch.float16), torch.ones(32, 16, dtype=torch.float16)
    a[:, 0], a[:, 1], a[:, 16] = 2048, 1, 1
    yield product(a, b, "fp16, rows of a hold 2048 and 1 in one step, 1 in the next, b all 1", MISTAKES["half"], edge="precision")
    yield product(torch.full((16, 16), 4097.0), torch.eye(16), "fp32, a all 4097, b the identity", MISTAKES["tf32"], edge="precision")
    draw = generator()
    fresh = [((33, 17, 13), torch.float32, (32, 16, 16), ("columns", "padded", "spaced")),
             ((16, 40, 33), torch.float16, (16, 32, 32), ("padded", "spaced", "columns"))]  # fmt: skip
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        fresh.append(((33, 20, 50), torch.bfloat16, (32, 16, 16), ("columns", "padded", "padded")))
    for (M, N, K), dtype, blocks, layouts in fresh:
        a, b = (torch.randn(shape, generator=draw).to(dtype) for shape in ((M, K), (K, N)))
        on = f"{str(dtype).removeprefix('torch.')}, M = {M}, N = {N}, K = {K}, blocks {' × '.join(map(str, blocks))}"
        yield product(a, b, on, blocks=blocks, layouts=layouts, fresh=True, edge="ragged")
    a, b = torch.randn(32, 48, generator=draw), torch.randn(48, 16, generator=draw)
    yield product(a, b, "float32, M = 32, N = 16, K = 48, blocks 16 × 16 × 16", layouts=("columns", "padded", "spaced"), fresh=True)
    nothing = "where K is 0, a and b have no element to read, and all of c is 0"
    yield product(torch.zeros(16, 0), torch.zeros(0, 16), "M = N = 16, K = 0", nothing, edge="empty")


EXERCISE = Exercise(
    id="3.2",
    task="Write the matmul kernel: one program computes one tile of c, for any strides of a, b and c.",
    conditions=CONDITIONS,
    hints=(
        "Which tile is yours? In row order programs 0 … tiles_n − 1 compute the first row of tiles. Then build two 2-D blocks of pointers, "
        "one for a and one for b, as in chapter 2's transposing copy.",
        "You need three masks: rows of a by M, columns of b by N and, in both loads, what is left of K in this step. other=0.0 adds nothing to the sum.",
        'In the loop: acc = tl.dot(a, b, acc, input_precision="ieee"), then a_ptrs += BLOCK_K * stride_ak and b_ptrs += BLOCK_K * stride_bk.',
    ),
    solution=matmul_kernel,
    reasoning="pid // tiles_n and pid % tiles_n give the tile. Both loads mask K, because memory beyond K may hold NaN, and 0 · NaN is NaN. "
    "acc is float32 and is rounded once, at the store, which masks c's own rows and columns. Each pointer advances by BLOCK_K times its own stride, "
    "so views work.",
    more="The package's version, matmul.matmul_kernel, numbers its programs in bands, as exercise 3.3 does, and its offsets are int64, because a tensor may "
    "have more than 2³¹ elements.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=bound,
    launch=launch,
    widened="tl.dot gets float32 tiles from 16-bit inputs, which takes it off the tensor cores: give it the tiles as they are",
    overlap="some tiles are computed by more than one program: program pid computes tile (pid // tiles_n, pid % tiles_n) and no other",
)
