"""Exercise 3.1, blocked_matmul."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.exercises.watch import Tiles


def blocked_matmul(a, b, block_m, block_n, block_k):
    """a @ b by tiles: for each tile of c, a loop along K that adds into an accumulator."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype)
    for m in range(0, M, block_m):
        for n in range(0, N, block_n):
            tile = c[m : m + block_m, n : n + block_n]
            acc = torch.zeros(tile.shape, dtype=torch.float32)
            for k in range(0, K, block_k):
                a_tile = a[m : m + block_m, k : k + block_k].float()
                b_tile = b[k : k + block_k, n : n + block_n].float()
                acc += a_tile @ b_tile
            tile.copy_(acc)  # rounds once, to c's dtype
    return c


_HOLDS = "the accumulator still holds {}: it starts at 0 for each tile of c"
MISTAKES = {
    "elements": "a and b are multiplied element by element: multiply tiles with @",
    "b_transposed": "b is read transposed",
    "a_transposed": "a is read transposed",
    "exchanged": "the factors are swapped: a's tile comes first",
    "c_transposed": "c is stored transposed",
    "overwrites": "each step along K overwrites the one before: add it",
    "first_step": "only the first step along K is computed: the loop runs to K",
    "one_early": "K's last block is dropped: the loop along K ends one step early",
    "no_first": "K's first block is dropped",
    "ragged_k": "K's ragged last block is dropped: a block of K may be shorter",
    "k_by_m": "K is cut by block_m: a step takes block_k elements of K",
    "k_by_n": "K is cut by block_n: a step takes block_k elements of K",
    "acc_rows": _HOLDS.format("every tile before it, row by row"),
    "acc_left": _HOLDS.format("the tiles to its left"),
    "acc_columns": _HOLDS.format("every tile before it, column by column"),
    "acc_above": _HOLDS.format("the tiles above it"),
    "bounds": "the bounds of the two loops are swapped: rows of tiles run to M, columns of tiles to N",
    "first_tile": "only the first tile of c is computed: there is a loop over its rows of tiles and one over its columns",
    "first_row": "only the first row of tiles is computed",
    "first_column": "only the first column of tiles is computed",
    "columns_by_m": "columns are cut by block_m: a tile of c has block_n columns",
    "rows_by_n": "rows are cut by block_n: a tile of c has block_m rows",
    "ragged": "the ragged last tiles are never computed: a tile may be smaller",
    "ragged_rows": "the ragged last row of tiles is never computed: a tile may be smaller",
    "ragged_columns": "the ragged last column of tiles is never computed: a tile may be smaller",
    "half_sum": "the sum is kept in fp16 and rounded after every step: keep it in float32, and round once at the end",
    "half_products": "each product is rounded to fp16 before it is added: turn the tiles into float32 first, then multiply",
}

CONDITIONS = {
    "ragged": "the last tiles may be smaller, in every direction",
    "half": "with fp16 or bf16 inputs, turn both tiles into float32 before you multiply them, add in float32, and return c in a's dtype",
    "views": "a and b may have any strides",
}


def _step(a, b, dtype, mistake):
    if mistake == "half_products":
        return (a @ b).to(dtype).double()
    return {"elements": lambda: a * b, "b_transposed": lambda: a @ b.T, "a_transposed": lambda: a.T @ b, "exchanged": lambda: b @ a,
            "c_transposed": lambda: (a @ b).T}.get(mistake, lambda: a @ b)()  # fmt: skip


def twin(a, b, block_m, block_n, block_k, mistake=None):
    dtype, (M, K), N = a.dtype, a.shape, b.shape[1]
    a, b = a.double(), b.double()
    c = torch.full((M, N), UNWRITTEN, dtype=torch.float64)
    rows, columns = (N, M) if mistake == "bounds" else (M, N)
    tiles = [(m, n) for m in range(0, rows, block_m) for n in range(0, columns, block_n)]
    tiles = sorted(tiles, key=lambda tile: tile[::-1]) if mistake in ("acc_columns", "acc_above") else tiles
    if mistake in ("first_tile", "first_row", "first_column"):
        tiles = [(m, n) for m, n in tiles if (m == 0 or mistake == "first_column") and (n == 0 or mistake == "first_row")]
    ragged_rows, ragged_columns = mistake in ("ragged", "ragged_rows"), mistake in ("ragged", "ragged_columns")
    held = {}  # what the accumulator starts with, by where it is set to 0
    for m, n in tiles:
        if (ragged_rows and m + block_m > M) or (ragged_columns and n + block_n > N):
            continue
        m_end, n_end = m + (block_n if mistake == "rows_by_n" else block_m), n + (block_m if mistake == "columns_by_m" else block_n)
        key = {"acc_rows": 0, "acc_columns": 0, "acc_left": m, "acc_above": n}.get(mistake, (m, n))
        acc = held.get(key, torch.zeros(c[m:m_end, n:n_end].shape, dtype=torch.float64))
        steps = list(range(0, K, block_k))
        steps = {"first_step": steps[:1], "one_early": steps[:-1], "no_first": steps[1:], "ragged_k": steps[: K // block_k]}.get(
            mistake, steps
        )
        width = {"k_by_m": block_m, "k_by_n": block_n}.get(mistake, block_k)
        for k in steps:
            step = _step(a[m:m_end, k : k + width], b[k : k + width, n:n_end], dtype, mistake)
            acc = step if mistake == "overwrites" else acc + step
            acc = acc.to(dtype).double() if mistake == "half_sum" else acc
        c[m:m_end, n:n_end] = held[key] = acc
    return torch.where(c == UNWRITTEN, c, c.to(dtype).double())


def tolerance(args, part):
    """Whole numbers are exact. Else a float32 accumulator costs a few units of Σ|a·b|, and rounding to a's dtype one unit of the result."""
    a, b = args[:2]
    if (a == a.round()).all() and (b == b.round()).all():
        return 1e-6, 0.0
    return torch.finfo(a.dtype).eps, 2e-6 * float((a.abs().double() @ b.abs().double()).max())


def inputs():
    def digits(seed, M, N, K, blocks, otherwise, edge=""):
        """Whole numbers from 1 to 5: their products are exact in every dtype, and never 0."""
        draw = torch.Generator().manual_seed(seed)
        a, b = (torch.randint(1, 6, shape, generator=draw).float() for shape in ((M, K), (K, N)))
        return case(a, b, *blocks, on=f"M = {M}, N = {N}, K = {K}, blocks {' × '.join(map(str, blocks))}", otherwise=otherwise, edge=edge)

    draw = generator()

    def normals(M, N, K, blocks, dtype=torch.float32, edge="", views=lambda a, b: (a, b), kind="fp32"):
        a, b = views(torch.randn(M, K, generator=draw), torch.randn(K, N, generator=draw))
        on = f"{kind}, M = {len(a)}, N = {b.shape[1]}, K = {len(b)}, blocks {' × '.join(map(str, blocks))}"
        return case(
            a.to(dtype) if dtype != torch.float32 else a,
            b.to(dtype) if dtype != torch.float32 else b,
            *blocks,
            on=on,
            fresh=True,
            edge=edge,
        )

    on = "a = [[1, 2], [3, 4]], b = [[5, 6], [7, 8]], one tile"
    yield case(
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]), 2, 2, 2, on=on, otherwise="one tile of c is a @ b"
    )
    yield digits(0, 2, 2, 6, (2, 2, 2), "a tile of c is the sum over all steps along K")
    yield digits(1, 4, 6, 2, (2, 2, 2), "a tile's place in c is the place of its rows in a and its columns in b")
    for seed, (sizes, blocks) in enumerate((((4, 6, 8), (2, 3, 4)), ((6, 4, 8), (3, 2, 4)), ((6, 8, 6), (3, 4, 2)))):
        yield digits(2 + seed, *sizes, blocks, "rows are cut by block_m, columns by block_n, K by block_k")
    yield digits(6, 2, 2, 3, (2, 2, 2), "the last block of K may be shorter", "ragged")
    yield digits(7, 3, 5, 2, (2, 2, 2), "the last tiles may be smaller", "ragged")
    for sizes, blocks in (((1, 1, 1), (16, 16, 16)), ((15, 17, 16), (4, 8, 5)), ((33, 16, 70), (16, 32, 32))):
        yield normals(*sizes, blocks, edge="ragged")
    yield normals(16, 24, 40, (8, 8, 8))
    for block_k in (1, 2):  # fp16 between 2,048 and 4,096 holds even numbers alone: 2,048 + 1 stays 2,048
        a, b = torch.tensor([[2048, 1, 1, 0]], dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
        yield case(a, b, 1, 1, block_k, on=f"fp16 a = [[2048, 1, 1, 0]], b all 1, block_k = {block_k}", edge="half")
    for dtype in (torch.float16, torch.bfloat16):
        yield normals(8, 8, 4096, (8, 8, 128), dtype, "half", kind=str(dtype).removeprefix("torch."))
    yield normals(9, 13, 11, (4, 8, 3), edge="views", views=lambda a, b: (a.T.contiguous().T, b.T.contiguous().T), kind="transposed views")
    yield normals(9, 26, 11, (4, 8, 3), edge="views", views=lambda a, b: (a[1:], b[:, ::2]), kind="sliced views")


EXERCISE = Exercise(
    id="3.1",
    task="Multiply two matrices tile by tile: each product takes one tile of a and one tile of b, and is added to an accumulator.",
    conditions=CONDITIONS,
    hints=(
        "You need three loops: over rows of tiles, over columns of tiles, and, for each tile of c, along K. Which of the three adds up?",
        "PyTorch cuts a slice short at the end of a tensor, so x[i : i + block] is right for ragged tiles too. "
        "Give acc the shape of the slice of c, not (block_m, block_n).",
        "Call .float() on both tiles before @. The accumulator starts at 0 for each tile of c, and goes into c once, after the loop along K.",
    ),
    solution=blocked_matmul,
    reasoning="A tile of c is a sum of products, each of one tile of a and one tile of b (3.2). Slices make the last tiles as small as they have to be. "
    "The sum stays in float32 and is rounded once, at the end: in fp16 every step would round, and from 2,048 on adding 1 changes nothing.",
    more="The package's version, matmul.blocked_matmul, accumulates float64 in float64 and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=Tiles,
)
