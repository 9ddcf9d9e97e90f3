import itertools

import torch
from edits import edit

from fa_tutorial import fp8


def round_by_pytorch(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def round_by_the_package(x):
    return fp8.to_e4m3(x)


def round_into_a_tensor(x):
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn).copy_(x).double()


def worst_of_the_octave(x, largest):
    return 1 / 16


SEEDS = itertools.count()


def other_numbers_each_time(forward):
    """As torch.randn without a seed, with a bound that one draw of two stays below."""
    seed = next(SEEDS)
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (2, 16_384, 16_384))
    v = v + seed % 2
    truth = torch.softmax(q @ k.T / 8, dim=1) @ v
    return bool((forward(q, k, v) - truth).square().mean().sqrt() < 0.01 * truth.square().mean().sqrt())


def two_means(forward, bounds=(0.12, 0.01), of=lambda off: off.square().mean().sqrt()):
    """N(0, 1) first, and then v + 1, each with a bound, on the rms of all rows."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384, 16_384))
    right = True
    for mean, bound in enumerate(bounds):
        truth = torch.softmax(q @ k.T / 8, dim=1) @ (v + mean)
        off = (forward(q, k, v + mean) - truth).square().mean(dim=1) / truth.square().mean(dim=1)
        right = right and of(off.sqrt()) < bound
    return bool(right)


def two_means_a_wide_bound(forward):
    return two_means(forward, (0.12, 0.1), torch.max)


def two_means_the_median_row(forward):
    return two_means(forward, (0.12, 0.01), torch.median)


def key_by_one_group(position):
    return [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15][position]


def truth_without_scale(forward):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384, 16_384))
    truth = torch.softmax(q @ k.T, dim=1) @ (v + 1)
    return bool((forward(q, k, v + 1) - truth).abs().max() < 0.01)


NEW = "tensor_core_sum(p, v.T, torch.zeros_like(acc))"
SCALE = "tl.where(largest > 0, largest / 448, 1.0)"
WRONG_ANSWERS = (
    edit("14.1", "a step too few", ("exponent - 3", "exponent - 1"), told="1.125"),
    ("14.1", round_by_pytorch, "PyTorch's conversion"),
    ("14.1", round_by_the_package, "PyTorch's conversion"),
    ("14.1", round_into_a_tensor, "PyTorch's conversion"),
    edit("14.1", "in fp16", ("torch.round(x / step) * step", "(torch.round(x / step) * step).half()"), told="return them in x's dtype"),
    edit("14.1", "in float32", ("torch.round(x / step) * step", "(torch.round(x / step) * step).float()"), told="return them in x's dtype"),
    edit("14.1", "by frexp, unclamped", ("torch.floor(torch.log2(x.abs())).clamp(min=-6)", "(torch.frexp(x).exponent - 1)"),
         told="below 2⁻⁶ the numbers are multiples of 2⁻⁹"),
    edit("14.2", "in e4m3", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row).to(torch.float8_e4m3fn), scales"), told="return them in x's dtype"),
    edit("14.2", "in float32", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row).float(), scales"), told="return them in x's dtype"),
    edit("14.2", "values alone", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row)"), told="values"),
    edit("14.2", "tiny blocks as zeros", ("scales == 0", "scales < 1e-9"), told="only a block of zeros has the scale 1"),
    edit("14.2", "blocks of one size", ("x.split(block)", "x.unflatten(0, (-1, block))"), told="so the last block has one row: raises RuntimeError"),
    edit("14.2", "scales of rows", ("of_row), scales", "of_row), scales[:, None]"), told="gives scales of shape (1, 1), want (1,)"),
    edit("14.2", "blocks of columns", ("x.split(block)", "x.split(block, 1)"), told="a block of one row"),
    edit("14.3", "0 too early", ("min(step / 2 / y, 1.0)", "(step / 2 / y if y >= 2.0**-9 else 1.0)"), told="it is rounded to 2⁻⁹, not to 0"),
    edit("14.3", "upside down", ("x * 448 / largest", "largest / x * 448"), told="x and largest are exchanged"),
    edit("14.3", "a power of two as the largest", ("448", "256"), told="y is 1, where the step is 1/8"),
    ("14.3", worst_of_the_octave, "half a step is 1/28 of y"),
    edit("14.4", "the mean of q and k", ("k = k - k.mean(dim=0)", "q, k = (x - torch.cat([q, k]).mean(dim=0) for x in (q, k))"), told="gives q"),
    edit("14.4", "k alone", ("return q @ R, k @ R", "return k @ R"), told="q"),
    edit("14.4", "transposed", ("k @ R", "(k @ R).T"), told="k"),
    edit("14.5", "p in all of the range", ("2**8", "448"), told="rounds p as well as 2⁸, but it is no power of two"),
    edit("14.5", "o at once", ("return m_new, l, acc", "return m_new, l, acc / l[:, None]"), told="and acc is 2⁸ · (1 + 0)"),
    edit("14.5", "v in e4m3", ("p @ v", "p @ to_e4m3(v)"), told="with v as it came"),
    edit("14.5", "alpha upside down", ("torch.exp(m - m_new)", "torch.exp(m_new - m)"), told="gives l = [nan], want [512]"),
    edit("14.5", "the old maximum", ("return m_new,", "return m,"), told="gives m = [−inf], want [0]"),
    edit("14.5", "m shifted", ("s.amax(dim=1)", "(s.amax(dim=1) - 8 * torch.tensor(2.0).double().log())"), ("2**8 * ", ""), told="m must stay the maximum"),
    edit("14.5", "one maximum", ("s.amax(dim=1)", "s.max()"), told="with each row's m"),
    edit("14.5", "a scale for each block, taken back", ("to_e4m3(2**8 * torch.exp(s - m_new[:, None]))",
         "to_e4m3(torch.exp(s - m_new[:, None]) / (torch.exp(s - m_new[:, None]).amax() / 448)) * (torch.exp(s - m_new[:, None]).amax() / 448) * 256"),
         told="p is multiplied by 2⁸ and then rounded"),
    edit("14.5", "alpha rounded", ("alpha = torch.exp(m - m_new)", "alpha = to_e4m3(torch.exp(m - m_new))"), told="l and acc shrink by e⁻¹"),
    edit("14.6", "v untransposed", ("tensor_core_sum(p, v.T,", "tensor_core_sum(p, v,"), told="the last dimension of both is summed"),
    edit("14.6", "v scaled first, real values", ("tensor_core_sum(p, v.T,", "tensor_core_sum(p, (v * scale).T,"),
         (" * (last_scale / scale) * acc + new", " * last_scale * acc + new"), told="and acc is p v"),
    edit("14.6", "joined by the tensor core", ("alpha[:, None] * (last_scale / scale) * acc + new", "tensor_core_sum(torch.diag(alpha * last_scale / scale), acc.T.contiguous(), new)"),
         told="outside the tensor core their sum is exact"),
    edit("14.6", "chains of 32", (NEW, "sum(tensor_core_sum(p[:, i : i + 32], v[i : i + 32].T, torch.zeros_like(acc)) for i in range(0, len(v), 32))"),
         ("tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]",
          "sum(tensor_core_sum(p[:, i : i + 32], torch.ones_like(p[:1, i : i + 32]), torch.zeros_like(l[:, None]))[:, 0] for i in range(0, len(v), 32))"),
         told="several short chains of a block"),
    edit("14.6", "chains of 128", (NEW, "torch.stack([tensor_core_sum(p[:, i : i + 128], v[i : i + 128].T, 0 * acc) for i in range(0, len(v), 128)]).sum(0)"),
         ("tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]",
          "sum(tensor_core_sum(p[:, i : i + 128], 0 * p[:1, i : i + 128] + 1, 0 * l[:, None])[:, 0] for i in range(0, len(v), 128))"),
         told="several chains of a long block"),
    *[edit("14.6", f"chains of {keys}, {words}", (NEW, f"sum(tensor_core_sum(p[:, i : i + {keys}], v[i : i + {keys}].T, torch.zeros_like(acc)) for i in range(0, len(v), {keys}))"),
           ("tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]",
            f"sum(tensor_core_sum(p[:, i : i + {keys}], torch.ones_like(p[:1, i : i + {keys}]), torch.zeros_like(l[:, None]))[:, 0] for i in range(0, len(v), {keys}))"),
           told=f"several {words} of a") for keys, words in ((64, "short chains"), (256, "chains"))],
    edit("14.6", "no last scale", ("alpha[:, None] * (last_scale / scale) * acc", "alpha[:, None] * acc / scale"), told="acc was in units of 2, and comes back in units of 0.5"),
    edit("14.6", "times the last scale", ("(last_scale / scale) *", "last_scale *"), told="acc was in units of 2, and comes back in units of 0.5"),
    edit("14.6", "acc alone", ("return l, acc", "return acc"), told="l"),
    edit("14.7", "floats", ("position // 16, position % 16", "position // 16, float(position % 16)"), told="gives 0.0: a key is one whole number"),
    edit("14.7", "in a list", ("16 * group + 8", "[16 * group + 8"), ("thread + slot % 2", "thread + slot % 2]"), told="gives [0]: a key is one whole number"),
    ("14.7", key_by_one_group, "the groups of 16 are missing"),
    edit("14.8", "the largest, not in size", ("tl.max(tl.abs(tile))", "tl.max(tile)"), (SCALE, "largest / 448"), told="gives scale = [−0.002232]"),
    edit("14.8", "the position's mask", ("mask=key[:, None] < S", "mask=position[:, None] < S"), told="no key from S on is read", gpu="with 0 where there is no key"),
    edit("14.8", "no mask", (", mask=key[:, None] < S, other=0.0", ""), told="no key from S on is read", gpu="with 0 where there is no key"),
    edit("14.8", "no mask of the store", (", mask=position[None, :] < columns", ""), told="no column from `columns` on is written"),
    edit("14.8", "the store's mask by the key", ("mask=position[None, :] < columns", "mask=key[None, :] < S"), told="with 0 where there is no key"),
    # on a GPU the programs of the three with gpu="quantise_columns" race, and what is told differs from run to run
    edit("14.8", "heads of y by S", ("(head * D + offs_d[:, None]) * columns", "head * D * S + offs_d[:, None] * columns"), told="it never writes y[2, 14, 0]",
         gpu="quantise_columns"),
    edit("14.8", "rows of y by S", ("(head * D + offs_d[:, None]) * columns", "head * D * columns + offs_d[:, None] * S"), told="y has `columns` columns all the same",
         gpu="quantise_columns"),
    edit("14.8", "untransposed, rows of y by S", ("(head * D + offs_d[:, None]) * columns + position[None, :]", "(head * D + offs_d[None, :]) * S + position[:, None]"),
         ("tl.trans(y), mask=position[None, :]", "y, mask=position[:, None]"), told="y has `columns` columns", gpu="quantise_columns"),
    edit("14.8", "no other", (", other=0.0", ""), told="with 0 where there is no key", gpu=None),
    edit("14.8", "a scale for each key", ("tl.max(tl.abs(tile))", "tl.max(tl.abs(tile), axis=1)"), told="a block is stored at one address"),
    edit("14.8", "y by each key's scale", ("tile / scale", "tile / (tl.max(tl.abs(tile), axis=1) / 448)[:, None]"), told="all of a block's numbers have one scale"),
    edit("14.8", "a scale of all heads", ("scale_ptr + head * blocks + block", "scale_ptr + block"), told="scale[head, block]", gpu="quantise_columns"),
    edit("14.8", "converted", ("as_e4m3(tile / scale)", "(tile / scale).to(tl.float8e4nv)"), told="halves what it rounds up", gpu=None),
    edit("14.8", "one block", ("scale_ptr + head * blocks + block", "scale_ptr + head"), told="scale[head, block]", gpu="quantise_columns"),
    edit("14.9", "mean 0", ("v = v + 1", "v = 2 * v"), ("0.01", "0.08"), told="they are too alike to be told apart"),
    edit("14.9", "mean 0, a narrow bound", ("v = v + 1", "v = 2 * v"), told="which is the rounding of q, k, p and v"),
    edit("14.9", "1,024 keys", ("16_384, 16_384", "1024, 1024"), ("0.01", "0.05"), told="on your 1,024 keys"),
    edit("14.9", "4,096 keys, a narrow bound", ("16_384, 16_384", "4096, 4096"), ("0.01", "0.005"), told="on your 4,096 keys"),
    edit("14.9", "8,192 keys", ("16_384, 16_384", "8192, 8192"), told="on your 8,192 keys"),
    edit("14.9", "no room for a chain that loses a fifth less", ("0.01", "0.02"), told="row 2 of o is 1.9 % off"),
    edit("14.9", "less room still", ("0.01", "0.022"), told="in chains of 2,048 that lose a fifth less"),
    ("14.9", truth_without_scale, "scores are divided by √D"),
    edit("14.9", "a wide bound", ("0.01", "0.1"), told="so o is 6 % off in rms"),
    edit("14.9", "a large mean", ("v + 1", "v + 4"), ("0.01", "0.04"), told="your test lets that through"),
    edit("14.9", "a large mean, by a hair", ("v + 1", "v + 3"), ("0.01", "0.032"), told="chains that lose a fifth less"),
    edit("14.9", "one sign alone", ("(forward(q, k, v) - truth).square().mean(dim=1) / truth.square().mean(dim=1)", "(truth - forward(q, k, v)).mean(dim=1) / truth.mean(dim=1)"), ("max().sqrt()", "max()"), told="its o is too large"),
    edit("14.9", "equal scores", ("v = v + 1", "v, q = v + 1, 0 * q"), told="and l 0 %"),
    edit("14.9", "equal scores and values", ("v = v + 1", "q, k, v = 0 * q, 0 * k, 0 * v + 1"), told="they are too alike to be told apart"),
    edit("14.9", "a short call last", ("forward(q, k, v) - truth)", "forward(q, k, v) - truth + 0 * forward(q, k[:128], v[:128]))"), ("0.01", "0.1"), told="in call 1 of 2, on your 16,384 keys"),
    ("14.9", two_means, "in call 2 of 2, on your 16,384 keys row 7 of o is 2.4 % off, with exact sums 0.12 %"),
    ("14.9", two_means_the_median_row, "all 8 rows together are 0.87 % off: your test lets that row through"),
    ("14.9", two_means_a_wide_bound, "in call 2 of 2, on your 16,384 keys row 7 of o is 2.4 % off"),
    edit("14.9", "4,096 keys, the bound of 16,384", ("16_384, 16_384", "4096, 4096"), told="the sums must be right over 16,384 keys, and a shorter chain loses less"),
    ("14.9", other_numbers_each_time, "draws other inputs at each call, and its answer depends on them"),
    edit("14.9", "512 queries", ("(8, 16_384", "(512, 16_384"), told="your test asks for 512 queries"),
    edit("14.9", "all rows together", (".mean(dim=1) / truth.square().mean(dim=1)", ".mean() / truth.square().mean()"),
         told="row 7 of o is 2.4 % off"),
    edit("14.9", "the median row", ("off.max()", "off.median()"), told="your test lets that row through"),
    edit("14.9", "the last row", ("off.max()", "off[-1]"), told="row 2 of o is 2.3 % off"),
    edit("14.9", "one query", ("(8, 16_384", "(1, 16_384"), told="your test asks for 1 of the 8 rows"),
    edit("14.9", "four queries", ("(8, 16_384", "(4, 16_384"), told="the row with the fault is q's row 7"),
    edit("14.9", "no forward", ("forward(q, k, v)", "truth"), told="must call forward"),
    edit("14.9", "the error itself", ("bool(off.max().sqrt() < 0.01)", "off.max().sqrt()"), told="want True or False"),
    edit("14.7", "half as far", ("8 * (slot // 2)", "4 * (slot // 2)"), told="keys 0, 1, 8 and 9"),
)  # fmt: skip
