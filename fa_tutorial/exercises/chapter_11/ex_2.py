import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.matmul import tl, triton


@triton.jit
def merge_kernel(
    o_parts_ptr, lse_parts_ptr, o_ptr, lse_ptr, rows, splits, D,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows of o and lse from those of their parts; program i takes row i."""
    row = tl.program_id(0)
    offs_s, offs_d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    part = offs_s * rows + row  # [BLOCK_S]
    s = tl.load(lse_parts_ptr + part, mask=offs_s < splits, other=-float("inf"))
    mask = (offs_s < splits)[:, None] & (offs_d < D)[None, :]
    v = tl.load(o_parts_ptr + part[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    m = tl.max(s, axis=0)
    p = tl.exp(s - m)
    l = tl.sum(p, axis=0)
    tl.store(o_ptr + row * D + offs_d, tl.sum(p[:, None] * v, axis=0) / l, mask=offs_d < D)
    tl.store(lse_ptr + row, m + tl.log(l))


MERGED, LSE = "tl.sum(p[:, None] * v, axis=0)", "m + tl.log(l)"
MISTAKES = {
    "the parts are averaged: a part's share is exp(its lse − m) / l": (f"{MERGED} / l", "tl.sum(v, axis=0) / splits"),
    "p is 2^(s − m): take exp, since an lse is a natural logarithm": ("tl.exp(s - m)", "tl.exp2(s - m)"),
    "o is not divided by l": (f"{MERGED} / l", MERGED),
    "missing parts count as parts with lse = 0: load them as −∞": ('-float("inf")', "0.0"),
    "lse has a logarithm in base 2: it is a natural one, m + log l": (LSE, "m + tl.log2(l)"),
    "lse is m alone: add log l": (LSE, "m"),
}  # fmt: skip


def truth(o_parts, lse_parts, BLOCK_S, BLOCK_D):
    return (torch.softmax(lse_parts.double(), dim=0)[:, :, None] * o_parts.double()).sum(dim=0), torch.logsumexp(lse_parts.double(), dim=0)


def launch(o_parts, lse_parts, BLOCK_S, BLOCK_D):
    splits, rows, D = o_parts.shape
    outs = Out((rows, D), torch.float32), Out((rows,), torch.float32)
    return Launch((rows,), (In(o_parts), In(lse_parts), *outs, rows, splits, D), {"BLOCK_S": BLOCK_S, "BLOCK_D": BLOCK_D})


PLACE = """part s of row i is number s · rows + i of lse_parts, and its o begins at D times that in o_parts; row i of o begins at i · D; the
masks are offs_s < splits and offs_d < D"""


def inputs():
    def parts(o_parts, lse_parts, BLOCK_S, BLOCK_D, otherwise="", **options):
        splits, rows, D = o_parts.shape
        on = f"{splits} part{'s' * (splits > 1)} of {rows} row{'s' * (rows > 1)}, D = {D}, BLOCK_S = {BLOCK_S}, BLOCK_D = {BLOCK_D}"
        return case(o_parts, lse_parts, BLOCK_S, BLOCK_D, on=on, otherwise=otherwise, stray=PLACE, **options)

    identity = torch.eye(2)[:, None]
    rule = "attention with the parts' lse as scores and their o as values"
    by_part = {"o": f"{rule}: sum p · v over the parts, and divide by l", "lse": "the parts' lse are the scores, so lse is m + log l"}
    yield parts(torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]]), torch.tensor([[1.0], [2.0]]), 2, 2, by_part)
    large = "an lse may be large: exp(1000) overflows, so only differences from the largest lse may be exponents"
    yield parts(identity, torch.tensor([[1000.0], [1001.0]]), 2, 2, large)
    three, lse = torch.arange(1.0, 19.0).view(3, 2, 3), torch.tensor([[0.0, 2.0], [1.0, -1.0], [-2.0, 3.0]])
    yield parts(three[:2, :, :2].contiguous(), lse[:2], 2, 2, "two rows: row i of part s is row s · rows + i, and program i stores row i")
    masked = "BLOCK_S and BLOCK_D may be larger than splits and D: give masked places other=, since 0 · NaN is NaN"
    yield parts(three, lse - 3, 4, 4, masked)
    low = "an lse may be far below 0: only differences from the largest lse may be exponents, and missing parts have −∞"
    yield parts(three[:1], torch.full((1, 2), -(2.0**31)), 4, 4, low)
    empty = torch.tensor([[-float("inf")] * 2, [-float("inf")] * 2, [1.0, 2.0]])
    nothing = "a part without keys has lse = −∞: its share is 0, and before any part with keys −∞ − (−∞) would be NaN"
    yield parts(three, empty, 4, 4, nothing)


EXERCISE = Exercise(
    task="Write the kernel that merges the parts: program i takes row i, and BLOCK_S is at least splits.",
    hints=(
        "It is a softmax over the parts: which numbers are the scores, and which are the values?",
        "Part s of row i: its lse is at s · rows + i, and its o begins at (s · rows + i) · D. The missing parts have lse = −∞.",
        "From then on it is chapter 1's softmax: m, p and l of the scores, and a sum of the vectors, each times its p. The lse is a softmax's, too.",
    ),
    solution=merge_kernel,
    reasoning="By (11.2), o is a weighted sum with the weights e^(lse of a part − lse): attention once more, to as many keys as there are "
    "parts.",
    more="The package's combine_kernel takes BLOCK_S parts at a time with an online softmax, and gives o = 0 and lse = −∞ to a row without "
    "keys.",
    inputs=inputs,
    truth=truth,
    rule="attention with the parts' lse as scores and their o as values",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (1e-5, 1e-4),
)
