import torch

from fa_tutorial.exercises.chapter_14.ex_4 import numbers
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.fp8 import tensor_core_sum, to_e4m3


def join_block(p, v, scale, alpha, l, acc, last_scale):
    """A block joins l and acc. Returns l and acc, this one in units of scale.

    p: (rows, keys), v: (keys, D), numbers of e4m3. The block's real values are v · scale.
    alpha, l: (rows,); acc: (rows, D), in units of last_scale, the scale of the block before.
    """
    new_l = tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]
    new = tensor_core_sum(p, v.T, torch.zeros_like(acc))
    l = alpha * l + new_l
    acc = alpha[:, None] * (last_scale / scale) * acc + new
    return l, acc


ONES = "tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]"
NEW = "tensor_core_sum(p, v.T, torch.zeros_like(acc))"
RATIO = " * (last_scale / scale) * acc"
MISTAKES = {
    "acc's chain goes on from alpha · acc, as in chapter 9, so all blocks are one chain: begin it at zero, and add new outside the tensor core": [
        (NEW, f"tensor_core_sum(p, v.T, alpha[:, None]{RATIO})"), (f"acc = alpha[:, None]{RATIO} + new", "acc = new")],
    "the block's l is an exact sum: let the tensor core add it up, as p times a column of ones": (ONES, "p.sum(dim=1)"),
    "acc keeps the unit of the block before: what is 1 in units of last_scale is last_scale / scale in units of scale": (RATIO, " * acc"),
    "the ratio of the two scales is upside down: what is 1 in units of last_scale is last_scale / scale in units of scale": (
        "last_scale / scale", "scale / last_scale"),
    "acc comes back as real values: it stays in units of scale, which the kernel takes back once, at the end": (
        RATIO + " + new", " * last_scale * acc + scale * new"),
    "v is multiplied by its scale before the tensor core: it stays in units of scale, and so does acc": (NEW, NEW.replace("v.T", "(scale * v).T")),
}  # fmt: skip


def truth(p, v, scale, alpha, l, acc, last_scale):
    ones, zeros = torch.ones(1, p.shape[1], dtype=p.dtype), torch.zeros(len(p), 1, dtype=p.dtype)
    new = [tensor_core_sum(p, column[None], zeros) for column in (*v.T, ones[0])]  # one column at a time
    real = alpha[:, None] * last_scale * acc + scale * torch.cat(new[:-1], dim=1)
    return alpha * l + new[-1][:, 0], real / scale


def inputs():
    one, start = numbers(1.0), (numbers(0.0), numbers([0.0]))
    first = "the first block: l is the sum of p, and acc is p v"
    yield case(numbers([2.0, 3.0]), numbers([1.0], [4.0]), 0.5, one, *start, 0.5, otherwise=first)
    shrink = "the maximum has grown: l and acc shrink by alpha, and the block's own sums don't"
    yield case(numbers([2.0]), numbers([1.0]), 1.0, numbers(0.25), numbers(8.0), numbers([16.0]), 1.0, otherwise=shrink)
    units = "acc was in units of 4, and comes back in units of 0.5; l has no unit"
    yield case(numbers([2.0]), numbers([1.0]), 0.5, one, numbers(8.0), numbers([16.0]), 4.0, otherwise=units)
    cut = "a block is one chain: behind its product of 256 · 256 the tensor core cuts off what is below 8: all that the other keys give, of acc as of l"
    p, v = numbers(256.0, *[15 / 512] * 31)[None], numbers(256.0, *[240.0] * 31)[:, None]
    yield case(p, v, 1.0, one, *start, 1.0, on="p v = 256 · 256 and 31 times 0.029 · 240", otherwise=cut)
    far = "l and acc are far above this block: its two chains begin at zero, so the old sums cut nothing off, and each takes all 8,192 keys"
    p, v = torch.ones(1, 8192, dtype=torch.float64), torch.full((8192, 1), 3.0, dtype=torch.float64)
    old = numbers(2.0**15), numbers([2.0**15])
    yield case(p, v, 1.0, one, *old, 1.0, on="8,192 keys with p = 1 and v = 3, and l = acc = 2¹⁵ before", otherwise=far)
    draw = generator()
    p = to_e4m3(256 * torch.rand(3, 128, generator=draw).double())
    v = to_e4m3(100 + 100 * torch.randn(128, 5, generator=draw).double())
    alpha, l = torch.rand(2, 3, generator=draw).double()
    acc = 1000 * torch.rand(3, 5, generator=draw).double()
    yield case(p, v, 0.013, alpha, 1000 * l, acc, 0.007, on="3 rows, 128 keys, D = 5, numbers of e4m3", fresh=True)


EXERCISE = Exercise(
    task="Let a block join l and acc: the tensor core adds up the block, from zero, and float32 the blocks.",
    hints=(
        "Four things: this block's own sum of p v, from zero; its own sum of p, by the same tensor core; what alpha does to the old sums; and in which unit acc is.",
        "tensor_core_sum(a, b, acc) is acc + a bᵀ. So p v is tensor_core_sum(p, v.T, zeros), and p times a column of ones is tensor_core_sum(p, ones, zeros), "
        "where ones has the shape (1, keys).",
        "What is 1 in units of last_scale is last_scale / scale in units of scale. That ratio and alpha multiply the old acc, and the new sum needs neither.",
    ),
    solution=join_block,
    reasoning="A chain of one block loses little (14.7), and float32 adds up the blocks almost without loss. The tensor core adds up p as well, so that a thread needn't.",
    more="The kernel's loop, fp8.forward.next_block, does this in its last lines.",
    inputs=inputs,
    truth=truth,
    rule="new is the tensor core's sum from zero, l = alpha · l + new_l, and acc = alpha · (last_scale / scale) · acc + new",
    mistakes=MISTAKES,
    parts=("l", "acc"),
    tolerance=lambda args, part: (1e-9, 1e-9),
)
