"""Exercise 6.1, matmul_backward."""

import torch

from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator, views
from fa_tutorial.exercises.watch import MatmulJacobian


def matmul_backward(a, b, dc):
    """(da, db) of c = a b. a: (…, M, K); b: (…, K, N); dc: (…, M, N)."""
    da = dc @ b.transpose(-1, -2)
    db = a.transpose(-1, -2) @ dc
    return da, db


_REVERSED = "all dimensions are reversed, the batch too: transpose the last two, x.transpose(-1, -2)"
_FIRST_TWO = "dimensions 0 and 1 are transposed: transpose the last two"
MISTAKES = {
    "exchanged": "da and db are exchanged: return (da, db)",
    "no_dc": "dc has no effect: each gradient is a product with dc",
    "dc_transposed": "dc is transposed: da = dc bᵀ and db = aᵀ dc",
    "wrong_way": "the factors of both products are in the wrong order: da = dc bᵀ and db = aᵀ dc",
    "by_element": "the products are taken element by element: da = dc bᵀ and db = aᵀ dc are matmuls",
    "forward": "c is returned, not a gradient",
    "da_b": "b is not transposed: da = dc bᵀ",
    "da_dc_transposed": "dc is transposed in da: da = dc bᵀ",
    "da_wrong_way": "the factors of da are in the wrong order: da = dc bᵀ, with dc where a was",
    "da_from_a": "a stands where b belongs: da = dc bᵀ",
    "da_from_a_as_it_is": "a stands where b belongs, and is not transposed: da = dc bᵀ",
    "da_transposed": "da is transposed: each gradient has the shape of its factor",
    "da_no_dc": "dc is missing in da: da = dc bᵀ",
    "da_is_b": "da is bᵀ: multiply by dc",
    "da_sign": "da has the wrong sign",
    "db_a": "a is not transposed: db = aᵀ dc",
    "db_dc_transposed": "dc is transposed in db: db = aᵀ dc",
    "db_wrong_way": "the factors of db are in the wrong order: db = aᵀ dc, with dc where b was",
    "db_from_b": "b stands where a belongs: db = aᵀ dc",
    "db_from_da": "da stands where dc belongs: db = aᵀ dc",
    "db_transposed": "db is transposed: each gradient has the shape of its factor",
    "db_no_dc": "dc is missing in db: db = aᵀ dc",
    "db_is_a": "db is aᵀ: multiply by dc",
    "db_sign": "db has the wrong sign",
    "reversed": _REVERSED,
    "da_reversed": _REVERSED,
    "db_reversed": _REVERSED,
    "first_two": _FIRST_TWO,
    "da_first_two": _FIRST_TWO,
    "db_first_two": _FIRST_TWO,
    "summed": "the batch is summed over: each matrix of the batch has a gradient of its own",
    "first": "every matrix of the batch gets the gradient of the first",
}

CONDITIONS = {
    "float64": "float64 in gives float64's accuracy out",
    "half": "fp16 comes in, and fp16 goes out",
    "views": "a, b and dc may be views: any strides work",
}


def twin(a, b, dc, mistake=None):
    a, b, dc = a.double(), b.double(), dc.double()
    mistake, ones = mistake or "", torch.ones_like(dc)
    if mistake in ("no_dc", "dc_transposed"):
        dc = ones if mistake == "no_dc" else dc.mT
    da, db = dc @ b.mT, a.mT @ dc
    if mistake.removeprefix("da_").removeprefix("db_") in ("reversed", "first_two"):
        turned = (lambda x: x.permute(*reversed(range(x.ndim)))) if mistake.endswith("reversed") else (lambda x: x.transpose(0, 1))
        return da if mistake.startswith("db") else dc @ turned(b), db if mistake.startswith("da") else turned(a) @ dc
    return {
        "exchanged": lambda: (db, da),
        "wrong_way": lambda: (b.mT @ dc, dc @ a.mT),
        "by_element": lambda: (dc * b.mT, a.mT * dc),
        "forward": lambda: (a @ b, a @ b),
        "da_b": lambda: (dc @ b, db),
        "da_dc_transposed": lambda: (dc.mT @ b.mT, db),
        "da_wrong_way": lambda: (b.mT @ dc, db),
        "da_from_a": lambda: (dc @ a.mT, db),
        "da_from_a_as_it_is": lambda: (dc @ a, db),
        "da_transposed": lambda: (da.mT, db),
        "da_no_dc": lambda: (ones @ b.mT, db),
        "da_is_b": lambda: (b.mT, db),
        "da_sign": lambda: (-da, db),
        "db_a": lambda: (da, a @ dc),
        "db_dc_transposed": lambda: (da, a.mT @ dc.mT),
        "db_wrong_way": lambda: (da, dc @ a.mT),
        "db_from_b": lambda: (da, b.mT @ dc),
        "db_from_da": lambda: (da, a.mT @ da),
        "db_transposed": lambda: (da, db.mT),
        "db_no_dc": lambda: (da, a.mT @ ones),
        "db_is_a": lambda: (da, a.mT),
        "db_sign": lambda: (da, -db),
        "summed": lambda: (da, db.sum(0) if db.ndim > 2 else db),
        "first": lambda: tuple(x[:1].expand(x.shape) if x.ndim > 2 else x for x in (da, db)),
    }.get(mistake, lambda: (da, db))()


def tolerance(args, part):
    """Relative to the largest sum of absolute values that an element is added up from."""
    a, b, dc = (x.double().abs() for x in args)
    rtol = RTOL[args[0].dtype]
    return rtol, rtol * float((dc @ b.mT if part == "da" else a.mT @ dc).max())


def inputs():
    seed, rule = torch.Generator().manual_seed(0), "da = dc bᵀ and db = aᵀ dc"

    def product(batch, sizes, words, draw=seed, change=lambda x: x, **options):
        (M, K, N), name = sizes, options.pop("name", "")
        drawn = [change(torch.randn(*batch, *shape, generator=draw)) for shape in ((M, K), (K, N), (M, N))]
        on = f"{name}a of shape {(*batch, M, K)}, b of shape {(*batch, K, N)}"
        return case(*drawn, on=on, otherwise=words, fresh=draw is not seed, **options)

    a, b, dc = (torch.tensor(x) for x in ([[1.0, 2.0], [3.0, 5.0]], [[2.0, 0.0], [1.0, 4.0]], [[1.0, 3.0], [2.0, 7.0]]))
    yield case(a, b, dc, otherwise=rule)
    batch = "leading dimensions are a batch: each of its matrices has gradients of its own"
    yield product((), (1, 3, 4), rule)
    yield product((2,), (2, 2, 2), batch)
    yield product((2, 3), (1, 4, 5), batch)
    yield product((), (5, 6, 7), rule)
    draw = generator()
    for shape, sizes in (((), (1, 1, 1)), ((), (7, 5, 9)), ((3,), (4, 6, 2)), ((2, 2), (16, 33, 17))):
        for words, change in (("randn", lambda x: x), ("3·randn", lambda x: 3 * x), ("randn near −1e3", lambda x: x - 1e3)):
            yield product(shape, sizes, "", draw, change, name=f"{words}, ")
        yield product(shape, sizes, "", draw, torch.Tensor.half, name="float16, ", edge="half")
    thirds = torch.arange(1.0, 5.0, dtype=torch.float64).view(2, 2) / 3  # no float32 holds most of them
    yield product((), (3, 4, 5), "", change=torch.Tensor.half, name="float16, ", edge="half")
    yield case(thirds, thirds + 1, thirds + 2, on="a = [[1/3, 2/3], [1, 4/3]], b = a + 1, dc = a + 2 in float64", edge="float64")
    for n in range(3):
        yield product((2,), (3, 4, 2), "", draw, lambda x, n=n: list(views(x))[n][1], name="views, ", edge="views")


EXERCISE = Exercise(
    id="6.1",
    task="Write the gradients of c = a b as two matmuls.",
    conditions=CONDITIONS,
    hints=(
        "In da_ik = Σ_j dc_ij b_kj, the sum runs over the last index of dc and the last index of b. Which of the two must be transposed for a matmul?",
        "da = dc bᵀ is (M, N) × (N, K), and db = aᵀ dc is (K, M) × (M, N): where M, K and N differ, no other product has these shapes. In a "
        "batch, x.transpose(-1, -2) swaps the last two dimensions.",
    ),
    solution=matmul_backward,
    reasoning="da_ik = Σ_j dc_ij b_kj is row i of dc times row k of b, so da = dc bᵀ. db_kj = Σ_i a_ik dc_ij is column k of a times column j of dc, so "
    "db = aᵀ dc.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("da", "db"),
    tolerance=tolerance,
    watch=MatmulJacobian,
)
