import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import Tiles


def blocked_matmul(a, b, block_m, block_n, block_k):
    """a @ b by tiles: for each tile of c, a loop along K that adds into an accumulator."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    for m in range(0, M, block_m):
        for n in range(0, N, block_n):
            tile = c[m : m + block_m, n : n + block_n]
            acc = torch.zeros(tile.shape, dtype=torch.float32, device=a.device)
            for k in range(0, K, block_k):
                a_tile = a[m : m + block_m, k : k + block_k].float()
                b_tile = b[k : k + block_k, n : n + block_n].float()
                acc += a_tile @ b_tile
            tile.copy_(acc)  # rounds once, to c's dtype
    return c


ZEROS = "            acc = torch.zeros(tile.shape, dtype=torch.float32, device=a.device)\n"
MISTAKES = {
    "each step along K overwrites the one before: add it": ("acc += a_tile", "acc = a_tile"),
    "the accumulator is set to 0 only once, before the first tile: it starts at 0 for each tile of c": [
        (ZEROS, ""), ("    for m in", "    acc = torch.zeros((block_m, block_n))\n    for m in")],
    "a and b are multiplied element by element: multiply tiles with @": ("a_tile @ b_tile", "a_tile * b_tile"),
    "columns are cut by block_m: a tile of c has block_n columns": ("n + block_n", "n + block_m"),
    "the sum is rounded to a's dtype after every step: keep it in float32, and round once at the end": (ZEROS, ZEROS.replace("torch.float32", "a.dtype")),
    "each product is rounded to a's dtype before it is added: multiply float32 tiles, and add in float32": (".float()", ""),
}  # fmt: skip


def truth(a, b, block_m, block_n, block_k):
    return a.double() @ b.double()


def tolerance(args, part):
    """Whole numbers are exact. Else a float32 accumulator costs a few units of Σ|a·b|, and rounding to a's dtype one unit of the result."""
    a, b = args[:2]
    if (a == a.round()).all() and (b == b.round()).all():
        return 1e-6, 0.0
    return torch.finfo(a.dtype).eps, 2e-6 * float((a.abs().double() @ b.abs().double()).max())


def whole_numbers(seed, *shapes):
    """From 1 to 5: their products are exact in every dtype, and never 0."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 6, shape, generator=draw).float() for shape in shapes]


def inputs():
    draw = generator()

    def product(a, b, blocks, kind="", **options):
        on = f"{kind}M = {len(a)}, N = {b.shape[1]}, K = {len(b)}, blocks {' × '.join(map(str, blocks))}"
        return case(a, b, *blocks, on=on, **options)

    def digits(M, N, K, blocks, otherwise, edge=""):
        return product(*whole_numbers(M + N + K, (M, K), (K, N)), blocks, otherwise=otherwise, edge=edge)

    def normals(M, N, K, blocks, dtype=torch.float32, edge=""):
        a, b = torch.randn(M, K, generator=draw).to(dtype), torch.randn(K, N, generator=draw).to(dtype)
        return product(a, b, blocks, f"{str(dtype).removeprefix('torch.')}, ", fresh=True, edge=edge)

    yield case(*torch.arange(1.0, 9.0).view(2, 2, 2), 2, 2, 2, otherwise="one tile of c is a @ b")
    yield digits(2, 2, 6, (2, 2, 2), "c has a's rows and b's columns, and each of its tiles is the sum over all steps along K")
    yield digits(4, 6, 2, (2, 2, 2), "each tile of c is a sum of its own, from 0 on: its rows of a times its columns of b")
    for sizes, blocks in (((1, 4, 2), (1, 2, 2)), ((4, 6, 8), (2, 3, 4)), ((6, 4, 8), (3, 2, 4))):
        yield digits(*sizes, blocks, "rows are cut by block_m, columns by block_n, K by block_k")
    yield normals(16, 24, 40, (8, 8, 8))
    yield digits(2, 2, 3, (2, 2, 2), "the last block of K may be shorter", "ragged")
    yield digits(3, 5, 2, (2, 2, 2), "", "ragged")
    yield normals(15, 17, 16, (4, 8, 5), edge="ragged")
    for block_k in (1, 2):  # fp16 between 2,048 and 4,096 holds even numbers alone: 2,048 + 1 stays 2,048
        a, b = torch.tensor([[2048, 1, 1, 0]], dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
        yield case(a, b, 1, 1, block_k, on=f"fp16 a = [[2048, 1, 1, 0]], b all 1, block_k = {block_k}", edge="half")
    for dtype in (torch.float16, torch.bfloat16):
        yield normals(8, 8, 4096, (8, 8, 128), dtype, "half")
    a, b = torch.randn(11, 9, generator=draw).T, torch.randn(11, 26, generator=draw)[:, ::2]
    yield product(a, b, (4, 8, 3), "a transposed view, every second column of b, ", fresh=True, edge="views")


EXERCISE = Exercise(
    task="Multiply two matrices tile by tile: each product takes one tile of a and one tile of b, and is added to an accumulator.",
    conditions={
        "ragged": "the last tiles may be smaller, in every direction",
        "half": "with fp16 or bf16 inputs, multiply and add in float32, and return c in a's dtype",
        "views": "a and b may have any strides",
    },
    hints=(
        "You need three loops: over rows of tiles, over columns of tiles, and, for each tile of c, along K. Which of the three adds up?",
        "PyTorch cuts a slice short at the end of a tensor, so x[i : i + block] is right for ragged tiles too. "
        "Give acc the shape of the slice of c, not (block_m, block_n).",
        "Call .float() on both tiles before @. The accumulator starts at 0 for each tile of c, and goes into c once, after the loop along "
        "K.",
    ),
    solution=blocked_matmul,
    reasoning="A tile of c is a sum of products, each of one tile of a and one tile of b (3.2). Slices make the last tiles as small as "
    "they have to be. The sum stays in float32 and is rounded once, at the end: in fp16 every step would round, and from 2,048 on adding "
    "1 changes nothing.",
    more="The package's version, matmul.blocked_matmul, accumulates float64 in float64 and checks its arguments.",
    inputs=inputs,
    truth=truth,
    rule="c is a @ b, whatever the blocks, summed in float32",
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=Tiles,
)
