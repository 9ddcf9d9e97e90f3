"""Graders, hints and reasoning of chapter 3: matmul by tiles, in PyTorch and in Triton, the order of its programs and its traffic."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fa_tutorial import hardware, matmul, tiles
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import (
    OTHERS,
    PoisonedEmpty,
    Stray,
    Unwritten,
    Wrong,
    as_tensor,
    close,
    expect,
    expect_equal,
    fresh,
    input_buffer,
    output_buffer,
    run,
    run_kernel,
    unpack,
)

Blocks = tuple[int, int, int]  # (block_m, block_n, block_k)


def _digits(seed: int, *shapes: tuple[int, int]) -> list[torch.Tensor]:
    """Matrices of whole numbers from 1 to 5: their products are exact in every dtype and with every accumulator, and never 0."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 6, shape, generator=generator).float() for shape in shapes]


def _normals(M: int, N: int, K: int, dtype: torch.dtype, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = fresh()
    a, b = torch.randn(M, K, generator=generator), torch.randn(K, N, generator=generator)
    return (factor * a).to(dtype), (factor * b).to(dtype)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def _bound(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """What a float32 accumulator and one rounding to a's dtype may cost: a few float32 units of Σ|a·b|, one unit of the result."""
    info = torch.finfo(a.dtype)
    return {"rtol": info.eps, "atol": 2e-6 * float(_product(a.abs(), b.abs()).max()) + info.tiny * info.eps}


def _sizes(M: int, N: int, K: int, blocks: Blocks) -> str:
    return f"M = {M}, N = {N}, K = {K}, blocks {' × '.join(map(str, blocks))}"


# ---------------------------------------------------------------- 3.1


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


class _Products(PoisonedEmpty):
    """Poisons torch.empty, and notes which parts of a and of b one call of PyTorch multiplies.

    shapes: (that of the part of a, that of the part of b) for each such call. What comes from a or from b is followed from call to call;
    what passes through other memory (a buffer, NumPy) is lost sight of, and not noted.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        super().__init__()
        self.sources = {"a": a, "b": b}
        self.known: dict[int, tuple[torch.Tensor, set[str]]] = {}  # id -> tensor, which must live as long as its id, and its sources
        self.shapes: list[tuple[torch.Size, torch.Size]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        if name.startswith("new_") or name.endswith("_like"):  # takes a shape or a dtype, not what is in it
            return result
        operands = [(tensor, self._from(tensor)) for tensor in _tensors((args, kwargs or {}))]
        parts = [next((tensor for tensor, sources in operands if sources == {source}), None) for source in "ab"]
        if None not in parts and isinstance(result, torch.Tensor):
            batched = "matmul" in name or "bmm" in name  # each matrix of a batch is a product of its own
            self.shapes.append(tuple(part.shape[-2:] if batched else part.shape for part in parts))
        sources = set().union(*(sources for _, sources in operands))
        self.known |= {id(tensor): (tensor, sources) for tensor in _tensors(result) if sources}
        return result

    def _from(self, tensor: torch.Tensor) -> set[str]:
        """The sources of a tensor: of a new one, the one of the same shape that holds the same."""
        if id(tensor) not in self.known:
            equal = {name for name, source in self.sources.items() if source.shape == tensor.shape and torch.equal(source, tensor)}
            self.known[id(tensor)] = tensor, equal
        return self.known[id(tensor)][1]


def _refuse_large_products(products: _Products, blocks: Blocks, on: str) -> None:
    """Wrong if one product takes more than a tile of a or of b."""
    block_m, block_n, block_k = blocks
    largest = {"a": ("block_m × block_k", block_m * block_k), "b": ("block_k × block_n", block_k * block_n)}
    for shapes in products.shapes:
        if all(shape.numel() == source.numel() for shape, source in zip(shapes, products.sources.values(), strict=True)):
            raise Wrong(f"all of a and all of b go into one product: {on}, multiply a tile of a by a tile of b")
        for shape, (name, (tile, elements)) in zip(shapes, largest.items(), strict=True):
            if shape.numel() > elements:
                raise Wrong(f"a product takes a part of {name} of shape {tuple(shape)}, and a tile of {name} is {tile} at most: {on}")


def _run_poisoned(answer: Any, a: torch.Tensor, b: torch.Tensor, blocks: Blocks, on: str) -> Any:
    with PoisonedEmpty():
        return run(answer, a, b, *blocks, on=on)


def _refuse_holes(c: Any, want: torch.Tensor, regions: Mapping[str, torch.Tensor], on: str) -> None:
    """Wrong if c is right except where it is 0 or was never written; the region that is equal to the hole names the mistake."""
    c = as_tensor(c)
    if c.shape != want.shape:
        return
    hole = torch.isnan(c) | (c == 0)
    if not hole.any() or not close(c[~hole], want[~hole], 1e-6, 0.0):
        return
    otherwise = "nothing is written to c" if hole.all() else "a part of c is never written"
    diagnosis = next((name for name, region in regions.items() if torch.equal(region.expand_as(hole), hole)), otherwise)
    row, column = torch.nonzero(hole)[0].tolist()
    raise Wrong(f"{diagnosis}: {on}, c[{row}, {column}] is never computed")


def grade_blocked_matmul(answer) -> None:
    def compare(a, b, blocks, on="", *, otherwise, suspects=None, regions=None) -> None:
        (M, K), N, want = a.shape, b.shape[1], _product(a, b)
        on = on or _sizes(M, N, K, blocks)
        with _Products(a, b) as products:
            c = run(answer, a, b, *blocks, on=on)
        _refuse_holes(c, want, regions or {}, on)
        expect(c, want, on=on, otherwise=otherwise, suspects=suspects, rtol=1e-6, atol=0.0)
        if all(block < size for block, size in zip(blocks, (M, N, K), strict=True)):  # elsewhere all of a may be a tile
            _refuse_large_products(products, blocks, on)

    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    compare(a, b, (2, 2, 2), "a = [[1, 2], [3, 4]], b = [[5, 6], [7, 8]], one tile", otherwise="one tile of c is a @ b", suspects={
        "a and b are multiplied element by element: a tile's product is @": a * b,
        "b is read transposed": a @ b.T,
        "a is read transposed": a.T @ b,
        "the factors are exchanged: a's tile comes first": b @ a,
        "c is stored transposed": (a @ b).T,
    })  # fmt: skip

    a, b = _digits(0, (2, 6), (6, 2))
    steps = [a[:, k : k + 2] @ b[k : k + 2] for k in (0, 2, 4)]
    compare(a, b, (2, 2, 2), otherwise="a tile of c is the sum over all steps along K", suspects={
        "each step along K overwrites the one before: add it": steps[2],
        "only the first step along K is taken: the loop must run to K": steps[0],
        "K's last block is dropped: the loop along K ends one step early": steps[0] + steps[1],
        "K's first block is dropped": steps[1] + steps[2],
    })  # fmt: skip

    rows, columns = torch.arange(6)[:, None], torch.arange(6)[None, :]
    first_tile = ~((rows[:4] < 2) & (columns < 2))
    a, b = _digits(1, (4, 2), (2, 6))
    place = "a tile's place in c is the place of its rows in a and its columns in b"
    compare(a, b, (2, 2, 2), otherwise=place, suspects=_sums_over_tiles(_product(a, b), 2), regions={
        "the bounds of the loops are exchanged: rows of tiles run to M, columns of tiles to N": columns >= 4,
        "only the first tile of c is computed: there is a loop over its rows of tiles and one over its columns": first_tile,
        "only the first row of tiles is computed": rows[:4] >= 2,
        "only the first column of tiles is computed": columns >= 2,
    })  # fmt: skip

    a, b = _digits(2, (4, 8), (8, 6))
    compare(a, b, (2, 3, 4), otherwise="rows are cut by block_m, columns by block_n, K by block_k", suspects={
        "K is cut with block_m: block_k elements of K make one step": sum(a[:, k : k + 2] @ b[k : k + 2] for k in (0, 4)),
        "K is cut with block_n: block_k elements of K make one step": sum(a[:, k : k + 3] @ b[k : k + 3] for k in (0, 4)),
    }, regions={"columns are cut with block_m: a tile of c has block_n columns": columns % 3 == 2})  # fmt: skip
    compare(*_digits(3, (6, 8), (8, 4)), (3, 2, 4), otherwise="rows are cut by block_m, columns by block_n, K by block_k", regions={
        "rows are cut with block_n: a tile of c has block_m rows": rows % 3 == 2,
    })  # fmt: skip

    compare(*_digits(6, (6, 6), (6, 8)), (3, 4, 2), otherwise="rows are cut by block_m, columns by block_n, K by block_k")

    a, b = _digits(4, (2, 3), (3, 2))
    ragged = _sizes(2, 2, 3, (2, 2, 2)) + ", so that K's last block is shorter,"
    compare(a, b, (2, 2, 2), ragged, otherwise="a block of K may be shorter", suspects={
        "K's ragged last block is dropped": a[:, :2] @ b[:2],
    })  # fmt: skip
    ragged = _sizes(3, 5, 2, (2, 2, 2)) + ", so that the last tiles are smaller"
    compare(*_digits(5, (3, 2), (2, 5)), (2, 2, 2), ragged, otherwise="a tile may be smaller", regions={
        "the ragged last tiles are never computed": (rows[:3] >= 2) | (columns[:, :5] >= 4),
        "the ragged last row of tiles is never computed": rows[:3] >= 2,
        "the ragged last column of tiles is never computed": columns[:, :5] >= 4,
    })  # fmt: skip
    _grade_accumulator(answer)
    _grade_blocked_on_fresh_inputs(answer)


def _sums_over_tiles(c: torch.Tensor, size: int) -> dict[str, torch.Tensor]:
    """Diagnosis -> c as it is when the accumulator goes on from tile to tile."""
    tiles = c.unflatten(1, (-1, size)).unflatten(0, (-1, size)).transpose(1, 2)  # (rows of tiles, columns of tiles, size, size)

    def by_rows(tiles: torch.Tensor) -> torch.Tensor:
        return tiles.flatten(0, 1).cumsum(0).view_as(tiles)

    sums = {
        "every tile before it, row by row": by_rows(tiles),
        "the tiles to its left": tiles.cumsum(1),
        "every tile before it, column by column": by_rows(tiles.transpose(0, 1).contiguous()).transpose(0, 1),
        "the tiles above it": tiles.cumsum(0),
    }
    return {
        f"the accumulator still holds {words}: it starts at 0 for each tile of c": total.transpose(1, 2).reshape(c.shape)
        for words, total in sums.items()
    }


def _grade_accumulator(answer: Any) -> None:
    """fp16 between 2,048 and 4,096 holds even numbers alone: 2,048 + 1 stays 2,048."""
    diagnoses = {
        1: "the sum is kept in fp16, which rounds after every step: keep it in float32, and round once",
        2: "each tile's product is rounded to fp16 before it is added: turn the tiles into float32, then multiply",
    }
    for block_k, diagnosis in diagnoses.items():
        a, b = torch.tensor([[2048, 1, 1, 0]], dtype=torch.float16), torch.ones(4, 1, dtype=torch.float16)
        on = f"fp16 a = [[2048, 1, 1, 0]], b all 1, block_k = {block_k}"
        c = _run_poisoned(answer, a, b, (1, 1, block_k), on)
        otherwise = "fp16 inputs need a float32 accumulator"
        expect(c, _product(a, b), on=on, otherwise=otherwise, suspects={diagnosis: 2048 * torch.ones(1, 1)}, rtol=0.0)
        if isinstance(c, torch.Tensor) and c.dtype != a.dtype:
            raise Wrong(f"c has dtype {c.dtype}, want a's: {on}. The accumulator is float32, what is stored is not")
    a, b = _normals(8, 8, 4096, torch.float16, 1.0)
    on = "fp16, " + _sizes(8, 8, 4096, (8, 8, 128))
    c = _run_poisoned(answer, a, b, (8, 8, 128), on)
    expect(c, _product(a, b), on=on, otherwise="precision is lost on the way: keep the sum in float32", values=False, **_bound(a, b))


def _grade_blocked_on_fresh_inputs(answer: Any) -> None:
    def compare(a, b, blocks, kind) -> None:
        on = f"{kind}, {_sizes(*a.shape[:1], *b.shape[1:], *b.shape[:1], blocks)}"
        c = _run_poisoned(answer, a, b, blocks, on)
        expect(c, _product(a, b), on=on, otherwise=OTHERS, values=False, **_bound(a, b))

    for dtype, factor in ((torch.float32, 1.0), (torch.float16, 3.0), (torch.bfloat16, 1.0)):
        kind = dtype_name(dtype)
        for (M, N, K), blocks in (((1, 1, 1), (16, 16, 16)), ((15, 17, 16), (4, 8, 5)), ((33, 16, 70), (16, 32, 32))):
            compare(*_normals(M, N, K, dtype, factor), blocks, kind)
    b, a = _normals(13, 9, 11, torch.float32, 1.0)
    compare(a.T, b.T, (4, 8, 3), "transposed views")
    a, b = _normals(9, 26, 11, torch.float32, 1.0)
    compare(a[1:, :], b[:, ::2], (4, 8, 3), "sliced views")


# ---------------------------------------------------------------- 3.2

CUBE: Blocks = (16, 16, 16)
FITS = "an offset is wrong, not a mask, for whole tiles fit here"
LEFT_OUT = "a program leaves out its tile or a part of it"


def _by_rows(rows: int, columns: int) -> tuple[int, int]:
    return columns, 1


def _by_columns(rows: int, columns: int) -> tuple[int, int]:
    return 1, rows


def _padded(rows: int, columns: int) -> tuple[int, int]:
    return columns + 8, 1


def _spaced(rows: int, columns: int) -> tuple[int, int]:
    return 2 * columns + 1, 2


def _run_matmul(kernel: Any, a: torch.Tensor, b: torch.Tensor, blocks: Blocks, layouts: Sequence[Any]) -> torch.Tensor:
    """The kernel's c, float64 on the CPU. layouts: for a, b and c a function from (rows, columns) to strides."""
    (M, K), N = a.shape, b.shape[1]
    block_m, block_n, block_k = blocks
    buffers = (
        input_buffer("a_ptr", a, layouts[0](M, K)),
        input_buffer("b_ptr", b, layouts[1](K, N)),
        output_buffer("c_ptr", (M, N), a.dtype, layouts[2](M, N)),
    )
    strides = [stride for buffer in buffers for stride in buffer.tensor.stride()]
    grid = (-(-M // block_m) * -(-N // block_n),)
    (c,) = run_kernel(kernel, grid, (*buffers, M, N, K, *strides), BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k)
    return c


def grade_matmul_kernel(kernel) -> None:
    def compare(a, b, on, *, otherwise, suspects=None, blocks=CUBE, layouts=(_by_rows,) * 3, stray=FITS, unwritten=LEFT_OUT,
                parts=None) -> None:  # fmt: skip
        """stray, unwritten: the diagnosis where an access misses its tensor, or a part of c is left as it was.

        parts: diagnosis -> the only part of c that this very mistake writes.
        """
        try:
            c = _run_matmul(kernel, a, b, blocks, layouts)
        except Unwritten as wrong:
            diagnosis = next((name for name, part in (parts or {}).items() if torch.equal(part, wrong.written)), unwritten)
            raise Wrong(f"{diagnosis}: {on}, it {wrong}") from wrong
        except Stray as wrong:
            raise Wrong(f"{stray}: {on}, it {wrong.brief}" if stray else f"{on}, it {wrong}") from wrong
        if torch.isnan(c).any():  # on a GPU a stray read shows only so
            raise Wrong(f"{stray or 'a load reads past the end of a or b'}: {on} gives NaN")
        expect(c, _product(a, b), on=on, otherwise=otherwise, suspects=suspects, rtol=1e-6, atol=0.0)

    a, b = _digits(0, (16, 16), (16, 16))
    compare(a, b, "M = N = K = 16, one tile and one step", otherwise="one tile of c is a's tile times b's", suspects={
        "c stays 0: does the loop along K take a step when K = BLOCK_K, and is what tl.dot returns kept in acc?": torch.zeros(16, 16),
        "b's strides are exchanged: stride_bk leads to the next row of b, stride_bn to the next column": a @ b.T,
        "a's strides are exchanged: stride_am leads to the next row of a, stride_ak to the next column": a.T @ b,
        "c is stored transposed: stride_cm leads to the next row of c, stride_cn to the next column": (a @ b).T,
        "the factors are exchanged: a's tile comes first": b @ a,
        "a and b are multiplied element by element: a tile's product is tl.dot": a * b,
    })  # fmt: skip
    _grade_strides(compare, a, b)
    _grade_steps(compare)
    _grade_tiles(compare)
    _grade_ragged(compare)
    _grade_precision(compare)
    _grade_kernel_on_fresh_inputs(kernel)


def _grade_strides(compare: Any, a: torch.Tensor, b: torch.Tensor) -> None:
    """Column-major operands: what the kernel takes for granted about memory shows."""
    i = torch.arange(16)
    diagonals = i[:, None] + i[None, :]
    compare(a, b, "M = N = K = 16, a, b and c column-major", otherwise="each pointer needs both of its strides",
            unwritten="c's strides are not used: element (m, n) of c lies at m · stride_cm + n · stride_cn", layouts=(_by_columns,) * 3, suspects={
        "a's strides are not used: element (m, k) of a lies at m · stride_am + k · stride_ak": a.T @ b,
        "stride_ak is not used: elements of a row of a lie side by side only where a is contiguous": a.T.flatten()[diagonals] @ b,
        "b's strides are not used: element (k, n) of b lies at k · stride_bk + n · stride_bn": a @ b.T,
        "stride_bn is not used: elements of a row of b lie side by side only where b is contiguous": a @ b.T.flatten()[diagonals],
        "c's strides are not used: element (m, n) of c lies at m · stride_cm + n · stride_cn": (a @ b).T,
    })  # fmt: skip


def _grade_steps(compare: Any) -> None:
    a, b = _digits(1, (16, 48), (48, 16))
    a_tiles, b_tiles = a.split(16, dim=1), b.split(16)
    steps = [left @ right for left, right in zip(a_tiles, b_tiles, strict=True)]
    compare(a, b, "M = N = 16, K = 48, three steps along K", otherwise="a tile of c is the sum over all steps along K", suspects={
        "each step along K overwrites the one before: add it to acc": steps[2],
        "only the first step along K is taken: the loop must run to K": steps[0],
        "K's last block is dropped: the loop along K ends one step early": steps[0] + steps[1],
        "neither pointer is advanced: every step reads K's first block again": 3 * steps[0],
        "a's pointers are not advanced: every step reads the same columns of a": sum(a_tiles[0] @ right for right in b_tiles),
        "b's pointers are not advanced: every step reads the same rows of b": sum(left @ b_tiles[0] for left in a_tiles),
        "b's pointers are advanced by BLOCK_K elements, which is one row here, not BLOCK_K rows: multiply by stride_bk": sum(
            left @ b[k : k + 16] for k, left in enumerate(a_tiles)
        ),
    })  # fmt: skip
    a, b = _digits(2, (16, 32), (32, 16))
    compare(a, b, "M = N = 16, K = 32, a, b and c column-major", otherwise="a step goes BLOCK_K columns of a and BLOCK_K rows of b further",
            layouts=(_by_columns,) * 3, suspects={
        "a's pointers are advanced by BLOCK_K elements, which is one column here, not BLOCK_K columns: multiply by stride_ak":
            a[:, :16] @ b[:16] + a[:, 1:17] @ b[16:],
    })  # fmt: skip


def _grade_tiles(compare: Any) -> None:
    order = "program and tile do not match: a row of c has tiles_n tiles, which is what pid is divided by"
    one_dimension = "the grid has one dimension, and program_id(1) is 0 in every program"
    written = torch.zeros(32, 48, dtype=torch.bool)
    compare(*_digits(3, (32, 16), (16, 48)), "M = 32, N = 48, blocks 16 × 16, 2 × 3 tiles", otherwise=order, stray=order, unwritten=order, parts={
        f"only the first column of tiles is computed: {one_dimension}": written.index_fill(1, torch.arange(16), True),
        f"only the first row of tiles is computed: {one_dimension}": written.index_fill(0, torch.arange(16), True),
    })  # fmt: skip
    cut = "BLOCK_M and BLOCK_N are mixed up: c's rows are cut by BLOCK_M, its columns by BLOCK_N"
    compare(*_digits(4, (32, 16), (16, 32)), "M = N = 32, blocks 32 × 16, 1 × 2 tiles", otherwise=cut, stray=cut, unwritten=cut,
            blocks=(32, 16, 16))  # fmt: skip


def _grade_ragged(compare: Any) -> None:
    a, b = _digits(5, (16, 20), (20, 16))
    compare(a, b, "M = N = 16, K = 20", otherwise="K's last block may be shorter", layouts=(_padded, _by_rows, _by_rows),
            stray="the last step reads past K, and 0 · NaN is NaN: mask the columns of a's tile and the rows of b's by what is left of K",
            suspects={
        "K's ragged last block is dropped: the number of steps is rounded up": a[:, :16] @ b[:16],
    })  # fmt: skip
    compare(*_digits(6, (20, 16), (16, 24)), "M = 20, N = 24, blocks 16 × 16", otherwise="the last tiles may be smaller",
            unwritten="the ragged last tiles count too: the number of tiles is rounded up", stray="", layouts=(_by_rows, _by_rows, _padded))  # fmt: skip

    compare(torch.zeros(16, 0), torch.zeros(0, 16), "M = N = 16, K = 0", otherwise="where K is 0, so is all of c",
            stray="where K is 0, a and b have no element to read",
            unwritten="where K is 0, the loop along K takes no step, and c is 0 all the same: tl.store comes after the loop")  # fmt: skip


def _grade_precision(compare: Any) -> None:
    """fp16 cannot count past 2,048 by ones; TF32's 11 significant bits cannot hold 4,097."""
    a, b = torch.zeros(16, 32, dtype=torch.float16), torch.ones(32, 16, dtype=torch.float16)
    a[:, 0], a[:, 1], a[:, 16] = 2048, 1, 1
    compare(a, b, "fp16, rows of a hold 2048 and 1 in one step, 1 in the next, b all 1", otherwise="fp16 inputs need a float32 acc", suspects={
        "sums are rounded to fp16, in which 2048 + 1 is 2048: keep acc, and what tl.dot returns, in float32": torch.full((16, 16), 2048.0),
    })  # fmt: skip
    a, b = torch.full((16, 16), 4097.0), torch.eye(16)
    compare(a, b, "fp32, a all 4097, b the identity", otherwise="fp32 is multiplied in less than IEEE precision", suspects={
        'fp32 is rounded to the 10 bits of mantissa of TF32, as tl.dot does by default: ask for input_precision="ieee"':
            matmul.round_to_tf32(a) @ b,
    })  # fmt: skip


def _grade_kernel_on_fresh_inputs(kernel: Any) -> None:
    cases = [
        ((1, 1, 1), torch.float32, CUBE, 1.0, (_by_rows, _by_rows, _by_rows)),
        ((15, 17, 16), torch.float16, CUBE, 1.0, (_by_rows, _by_rows, _by_rows)),
        ((33, 17, 13), torch.float32, (32, 16, 16), 3.0, (_by_columns, _padded, _spaced)),
        ((16, 40, 33), torch.float16, (16, 32, 32), 3.0, (_padded, _spaced, _by_columns)),
        ((5, 3, 34), torch.float32, (32, 16, 16), 1.0, (_spaced, _by_columns, _padded)),
    ]
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        cases.append(((33, 20, 50), torch.bfloat16, (32, 16, 16), 1.0, (_by_columns, _padded, _padded)))
    for (M, N, K), dtype, blocks, factor, layouts in cases:
        on = f"{str(dtype).removeprefix('torch.')}, {_sizes(M, N, K, blocks)}"
        a, b = _normals(M, N, K, dtype, factor)
        try:
            c = _run_matmul(kernel, a, b, blocks, layouts)
        except (Stray, Unwritten) as wrong:
            raise Wrong(f"{OTHERS}: {on}, it {wrong}") from wrong
        if torch.isnan(c).any():
            raise Wrong(f"a load reads past the end of a or b: {on} gives NaN")
        expect(c, _product(a, b), on=on, otherwise=OTHERS, values=False, **_bound(a, b))


# ---------------------------------------------------------------- 3.3

Order = list[tuple[int, int]]


def _order_of(answer: Any, tiles_m: int, tiles_n: int, group: int, on: str = "") -> Order:
    """The tile of each program, in the order of programs. on: the input in words, where its numbers must not be shown."""
    calls = [(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
    return [_whole_tile(run(answer, *args, on=on or f"grouped_tile{args}")) for args in calls]


def _whole_tile(result: Any) -> tuple[int, int]:
    names = ("tile_m", "tile_n")
    numbers = [float(as_tensor(part, name)) for name, part in zip(names, unpack(result, names), strict=True)]
    for name, number in zip(names, numbers, strict=True):
        if not number.is_integer():
            raise Wrong(f"{name} is {number:g}, want a whole number: divide with //")
    return int(numbers[0]), int(numbers[1])


def _not_each_once(order: Order, tiles_m: int, tiles_n: int) -> str | None:
    """What is wrong with `order` as a list of all the tiles, or None."""
    tiles = [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    outside = next((tile for tile in order if tile not in tiles), None)
    if outside:
        return f"there is no tile {outside} among {tiles_m} × {tiles_n}"
    if set(order) == set(tiles):
        return None
    twice = next(tile for tile in order if order.count(tile) > 1)
    never = next(tile for tile in tiles if tile not in order)
    return f"tile {twice} is computed twice and tile {never} never"


def grade_grouped_tile(answer) -> None:
    def compare(tiles_m, tiles_n, group, otherwise, suspects) -> None:
        got = _order_of(answer, tiles_m, tiles_n, group)
        want = [matmul.grouped_tile(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
        if got == want:
            return
        known = next((name for name, order in suspects.items() if order == got), None)
        diagnosis = known or _not_each_once(got, tiles_m, tiles_n) or otherwise
        pid = next(pid for pid, tile in enumerate(want) if got[pid] != tile)
        raise Wrong(f"{diagnosis}: grouped_tile({pid}, {tiles_m}, {tiles_n}, {group}) gives {got[pid]}, want {want[pid]}")

    def in_order(tiles_m: int, tiles_n: int) -> dict[str, Order]:
        """The two orders without bands."""
        rows = [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
        return {"row order": rows, "column order": sorted(rows, key=lambda tile: (tile[1], tile[0]))}

    bands = [divmod(pid, 6) for pid in range(12)]
    plain, down = in_order(4, 3), [(2 * band + rest % 2, rest // 2) for band, rest in bands]
    compare(4, 3, 2, "go down a band of `group` rows of tiles, then on to its next column", {
        "group changes nothing, this is row order: within a band the row changes fastest": plain["row order"],
        "each column goes down all of c: a band is only `group` rows of tiles": plain["column order"],
        "the bands are made of columns: a band is `group` rows of tiles": [tile[::-1] for tile in _order_of(matmul.grouped_tile, 3, 4, 2)],
        "tile_m and tile_n are exchanged": [(n, m) for m, n in down],
        "within a band // and % are exchanged: the row changes fastest": [(2 * band + rest // 2, rest % 2) for band, rest in bands],
        "the band's first row is missing: every band starts at row 0": [(rest % 2, rest // 2) for _, rest in bands],
        "the band's number is taken for its first row: a band has `group` of them": [(band + rest % 2, rest // 2) for band, rest in bands],
    })  # fmt: skip
    compare(2, 3, 1, "group = 1 is row order", {})

    last = "the last band holds only the rows that are left"
    compare(3, 2, 2, last, {
        f"{last}: the last band here has 1 row, not `group`": [(pid // 4 * 2 + pid % 4 % 2, pid % 4 // 2) for pid in range(6)],
    })  # fmt: skip
    first_band = [(pid % 3, pid // 3) for pid in range(9)]
    compare(5, 3, 3, last, {
        "the last band is in row order: in it too the row changes fastest": first_band + [(3 + pid // 3, pid % 3) for pid in range(6)],
    })  # fmt: skip
    compare(2, 3, 8, "group may be larger than tiles_m: then the only band has tiles_m rows", {})

    for _ in range(12):
        tiles_m, tiles_n, group = random.randint(1, 9), random.randint(1, 9), random.randint(1, 5)
        if _order_of(answer, tiles_m, tiles_n, group, on="a random case") != _order_of(matmul.grouped_tile, tiles_m, tiles_n, group):
            raise Wrong(f"{OTHERS}: a random case")


# ---------------------------------------------------------------- 3.4


def _traffic_suspects(M: int, N: int, K: int, block_m: int, block_n: int, itemsize: int) -> dict[str, float]:
    """Diagnosis -> what this mistake counts."""
    tiles_m, tiles_n = -(-M // block_m), -(-N // block_n)

    def count(a_reads: float, b_reads: float, c_touches: int = 1) -> float:
        return (a_reads * M * K + b_reads * K * N + c_touches * M * N) * itemsize

    rows, columns = tiles_m * block_m, tiles_n * block_n
    padded = tiles_n * rows * K + tiles_m * K * columns
    return {
        "elements are counted, not bytes: multiply by itemsize": count(tiles_n, tiles_m) // itemsize,
        "a and b are each read once: without a cache every tile of c reads its rows of a and its columns of b anew": count(1, 1),
        "a is read once: every column of tiles reads all of it": count(1, tiles_m),
        "b is read once: every row of tiles reads all of it": count(tiles_n, 1),
        "the two factors are exchanged: a is read once for each column of tiles, b once for each row": count(tiles_m, tiles_n),
        "b's factor is that of a: b is read once for each row of tiles": count(tiles_n, tiles_n),
        "a's factor is that of b: a is read once for each column of tiles": count(tiles_m, tiles_m),
        "every tile is charged all of a and all of b: it reads its own rows and its own columns": count(*(tiles_m * tiles_n,) * 2),
        "block sizes stand where the numbers of tiles belong": count(block_n, block_m),
        "a and b are read for every multiply-add, as without tiles": count(N, M),
        "c is not counted: every tile is written once": count(tiles_n, tiles_m, 0),
        "c is counted twice: it is written, never read": count(tiles_n, tiles_m, 2),
        "c is written at every step along K: the accumulator stays in registers": count(tiles_n, tiles_m, K),
        "itemsize multiplies the bytes of c alone: a and b have it too": count(tiles_n, tiles_m, 0) // itemsize + count(0, 0),
        "one tile too many is counted where the block divides the size: a quotient that is whole is not rounded up": count(
            N // block_n + 1, M // block_m + 1
        ),
        "the number of tiles is rounded down: the ragged last ones read too": count(N // block_n, M // block_m),
        "the number of tiles is not rounded: a ragged column of tiles reads all of a, a ragged row all of b": count(N / block_n, M / block_m),
        "ragged tiles are counted whole: masked elements are neither read nor written": (padded + rows * columns) * itemsize,
        "ragged tiles of a and b are counted whole: masked elements are not read": (padded + M * N) * itemsize,
    }  # fmt: skip


def grade_tiled_matmul_bytes(answer) -> None:
    def compare(*args: int, otherwise: str = "a once for each column of tiles, b once for each row of tiles, c once") -> None:
        on = f"tiled_matmul_bytes({', '.join(map(str, args))})"
        want = matmul.tiled_matmul_bytes(*args)
        expect_equal(run(answer, *args, on=on), want, on=on, otherwise=otherwise, suspects=_traffic_suspects(*args))

    compare(6, 8, 5, 2, 4, 1)
    compare(6, 8, 5, 2, 4, 2)
    compare(5, 6, 3, 2, 4, 2, otherwise="ragged tiles count for what they hold")
    compare(3, 5, 2, 16, 16, 4, otherwise="a block larger than the matrix makes one tile")
    compare(99_999, 99_999, 99_999, 65_536, 32_768, 2, otherwise="large counts must be exact: stay with integers")
    for _ in range(20):
        args = (*(random.randint(1, 200) for _ in range(3)), *(random.randint(1, 64) for _ in range(2)), random.choice((1, 2, 4)))
        want = matmul.tiled_matmul_bytes(*args)
        expect_equal(run(answer, *args, on="a random case"), want, on="a random case", otherwise=OTHERS, values=False)


EXERCISES = (
    Exercise(
        "3.1", "blocked_matmul", "Multiply two matrices tile by tile, with a float32 accumulator, into a c of a's dtype.",
        grade_blocked_matmul,
        ("Three loops: over rows of tiles, over columns of tiles, and within a tile along K. Which of them may a step's result be added over?",
         "A slice that runs past the end is cut short by PyTorch, so x[i : i + block] is right for ragged tiles too. "
         "Give acc the shape of the slice of c, not (block_m, block_n).",
         "Turn both tiles into float32 before @; the accumulator starts at 0 for each tile of c, and c gets it once, after the loop along K."),
        matmul.blocked_matmul,
        "A tile of c is the sum over K of products of a tile of a and a tile of b (3.2). Slices make ragged tiles as large as what is there. "
        "The sum is kept in float32 and rounded once, at the end: in fp16 every step would round, and from 2,048 on adding 1 changes nothing.",
    ),
    Exercise(
        "3.2", "matmul_kernel", "Write the matmul kernel: one program computes one tile of c. Accumulate in float32, multiply fp32 in IEEE precision.",
        grade_matmul_kernel,
        ("Which tile is yours? Row order means that programs 0 … tiles_n − 1 compute the first row of tiles. Then build two 2-D blocks of pointers, "
         "one for a and one for b, as in the strided copy of chapter 2.",
         "Three masks: rows of a by M, columns of b by N, and, in both loads, what is left of K in this step. other=0.0 adds nothing to the sum.",
         'In the loop: acc = tl.dot(a, b, acc, input_precision="ieee"), then a_ptrs += BLOCK_K * stride_ak and b_ptrs += BLOCK_K * stride_bk.'),
        matmul.matmul_kernel,
        "pid // tiles_n and pid % tiles_n give the tile (GROUP is for the next section; its default 1 is row order). The K mask is in both loads, because what "
        "lies beyond may be NaN, and 0 · NaN is NaN. acc is float32 and is rounded once, when it is stored under the mask of c's own rows "
        "and columns. Steps along K are counted in elements of each tensor's own stride, so views work. grouped_tile_device with GROUP = 1 is "
        "pid // tiles_n and pid % tiles_n, and dot is tl.dot in IEEE precision.",
        (tiles.dot,),
    ),
    Exercise(
        "3.3", "grouped_tile", "Find the tile of a program when programs go down bands of `group` rows of tiles.", grade_grouped_tile,
        ("Draw 4 × 3 tiles with group = 2 and number them: down the first two rows, column by column, then the next two.",
         "A full band holds group · tiles_n programs: // tells the band, and its first row, % the program's place within it.",
         "Within a band, the place counts down its rows first. How many rows has the last band, when tiles_m is no multiple of group?"),
        matmul.grouped_tile,
        "pid // (group · tiles_n) is the band, pid % (group · tiles_n) the place in it. A band has min(tiles_m − first_row, group) rows, "
        "and dividing the place by that number gives column and row (3.4). Only the last band can be shorter, and only bands before it are skipped, "
        "so the size of a full band is the right divisor for all of them.",
    ),
    Exercise(
        "3.4", "tiled_matmul_bytes", "Count the bytes that a tiled matmul asks for when no cache helps.", grade_tiled_matmul_bytes,
        ("A tile of c needs block_m rows of a and block_n columns of b, each K long. Add that up over one row of tiles: what has been read of a, and of b?",
         "A column of tiles reads all of a between them, a row of tiles all of b. How many of each are there, when the last is ragged?"),
        matmul.tiled_matmul_bytes,
        "There are ceil(N / block_n) columns of tiles, and the tiles of each read all of a; there are ceil(M / block_m) rows of tiles, and each "
        "reads all of b; c is written once (3.6). Larger tiles mean fewer of them: the traffic falls with the side of the tile.",
    ),
)  # fmt: skip
