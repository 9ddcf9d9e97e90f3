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


DA, DB = "dc @ b.transpose(-1, -2)", "a.transpose(-1, -2) @ dc"
MISTAKES = {
    "da is dc b, which sums down the columns of b: in Σ_j dc_ij b_kj, j runs along a row of b": (DA, "dc @ b"),
    "db is a dc, which sums along the rows of a: in Σ_i a_ik dc_ij, i runs down a column of a": (DB, "a @ dc"),
    "da sums down the columns of b and db along the rows of a: compare with the sums over j and over i": (".transpose(-1, -2)", ""),
    "the factors of da are in the wrong order": (DA, "b.transpose(-1, -2) @ dc"),
    "the factors of db are in the wrong order": (DB, "dc @ a.transpose(-1, -2)"),
    "da and db are exchanged: return (da, db)": ("return da, db", "return db, da"),
    "a stands where b belongs, in da": (DA, "dc @ a.transpose(-1, -2)"),
    "dimensions 0 and 1 are transposed: transpose the last two": ("(-1, -2)", "(0, 1)"),
    "all dimensions are reversed, the batch too: transpose the last two, x.transpose(-1, -2)": (".transpose(-1, -2)", ".permute(*range(a.ndim)[::-1])"),
}  # fmt: skip

RULE = "da = Σ dc b sums over the columns of dc and b, db = Σ a dc over the rows of a and dc"
CONDITIONS = {
    "float64": "float64 in gives float64's accuracy out",
    "half": "fp16 comes in, and fp16 goes out",
    "views": "a, b and dc may be views: any strides work",
}


def truth(a, b, dc):
    a, b, dc = a.double(), b.double(), dc.double()
    return dc @ b.mT, a.mT @ dc


def tolerance(args, part):
    """Relative to the largest sum of absolute values that an element is added up from."""
    a, b, dc = (x.double().abs() for x in args)
    rtol = RTOL[args[0].dtype]
    return rtol, rtol * float((dc @ b.mT if part == "da" else a.mT @ dc).max())


def inputs():
    seed = torch.Generator().manual_seed(0)

    def product(batch, sizes, words, draw=seed, change=lambda x: x, **options):
        (M, K, N), name = sizes, options.pop("name", "")
        drawn = [change(torch.randn(*batch, *shape, generator=draw)) for shape in ((M, K), (K, N), (M, N))]
        on = f"{name}a of shape {(*batch, M, K)}, b of shape {(*batch, K, N)}"
        return case(*drawn, on=on, otherwise=words, fresh=draw is not seed, **options)

    a, b, dc = (torch.tensor(x) for x in ([[1.0, 2.0], [3.0, 5.0]], [[2.0, 0.0], [1.0, 4.0]], [[1.0, 3.0], [2.0, 7.0]]))
    yield case(a, b, dc, otherwise=RULE)
    batch = "leading dimensions are a batch: each of its matrices has gradients of its own"
    yield product((), (1, 3, 4), RULE)
    yield product((2,), (2, 2, 2), batch)
    yield product((2, 3), (1, 4, 5), batch)
    yield product((), (5, 6, 7), RULE)
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
    task="Write the gradients of c = a b as two matmuls.",
    conditions=CONDITIONS,
    hints=(
        "In da_ik = Σ_j dc_ij b_kj, the sum runs over the last index of dc and the last index of b. Which of the two must be transposed "
        "for a matmul?",
        "da = dc bᵀ is (M, N) × (N, K), and db = aᵀ dc is (K, M) × (M, N): where M, K and N differ, no other product has these shapes. In "
        "a batch, x.transpose(-1, -2) swaps the last two dimensions.",
    ),
    solution=matmul_backward,
    reasoning="da_ik = Σ_j dc_ij b_kj is row i of dc times row k of b, so da = dc bᵀ. db_kj = Σ_i a_ik dc_ij is column k of a times "
    "column j of dc, so db = aᵀ dc.",
    inputs=inputs,
    truth=truth,
    rule=RULE,
    mistakes=MISTAKES,
    parts=("da", "db"),
    tolerance=tolerance,
    watch=MatmulJacobian,
)
