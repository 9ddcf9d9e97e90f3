import torch
from edits import edit


def round_by_pytorch(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def worst_of_the_octave(x, largest):
    return 1 / 16


def key_by_one_group(position):
    return [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15][position]


def heavy_key_first(forward):
    """A heavy key has one column's value, the light ones another's. From the last key on acc and l lose nearly the same share."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.ones(8, 64).double(), torch.randn(16_384, 64, generator=draw).double() - 9 / 8, torch.ones(16_384, 64).double()
    k[0], v[0, 1], v[:, 0], v[0, 0] = 0, 0, 0, 1
    o = forward(q, k, v)
    return bool((torch.stack([o[:, 0] + o[:, 1], o[:, 2]]) - 1).abs().max() < 0.02)


NEW = "tensor_core_sum(p, v.T, torch.zeros_like(acc))"
SCALE = "tl.where(largest > 0, largest / 448, 1.0)"
WRONG_ANSWERS = (
    ("14.1", round_by_pytorch, "PyTorch's conversion"),
    edit("14.1", "in float32", ("torch.round(x / step) * step", "(torch.round(x / step) * step).float()"), told="in x's dtype"),
    edit("14.1", "an exponent too small", ("min=-6", "min=-7"), told="are multiples of 2⁻⁹"),
    edit("14.2", "in e4m3", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row).to(torch.float8_e4m3fn), scales"), told="in x's dtype"),
    edit("14.2", "blocks of one size", ("x.split(block)", "x.unflatten(0, (-1, block))"), told="so the last block has one row: raises RuntimeError"),
    edit("14.2", "448 over the largest", ("rows.abs().max() / 448", "448 / rows.abs().max()"), ("x / of_row", "x * of_row"), told="the largest number in size / 448"),
    edit("14.2", "scales of rows", ("of_row), scales", "of_row), scales[:, None]"), told="gives scales of shape (1, 1), want (1,)"),
    edit("14.3", "0 too early", ("min(step / 2 / y, 1.0)", "(step / 2 / y if y >= 2.0**-9 else 1.0)"), told="it is rounded to 2⁻⁹, not to 0"),
    edit("14.3", "a power of two as the largest", ("448", "256"), told="y is 1, where the step is 1/8"),
    ("14.3", worst_of_the_octave, "half a step is 1/28 of y"),
    edit("14.4", "the mean of q and k", ("k = k - k.mean(dim=0)", "q, k = (x - torch.cat([q, k]).mean(dim=0) for x in (q, k))"), told="gives q"),
    edit("14.4", "the middle", ("k.mean(dim=0)", "(k.amax(dim=0) + k.amin(dim=0)) / 2"), told="its mean, 3, goes, and 4.5 is its middle"),
    edit("14.4", "k alone", ("return q @ R, k @ R", "return k @ R"), told="q"),
    edit("14.5", "o at once", ("return m_new, l, acc", "return m_new, l, acc / l[:, None]"), told="and acc is 2⁸ · (1.1 + 0)"),
    edit("14.5", "v in e4m3", ("p @ v", "p @ to_e4m3(v)"), told="with v as it came"),
    edit("14.5", "one maximum", ("s.amax(dim=1)", "s.max()"), told="with each row's m"),
    edit("14.6", "v untransposed", ("tensor_core_sum(p, v.T,", "tensor_core_sum(p, v,"), told="the last dimension of both is summed"),
    edit("14.6", "chains of 128", (NEW, "sum(tensor_core_sum(p[:, i : i + 128], v[i : i + 128].T, 0 * acc) for i in range(0, len(v), 128))"),
         told="each takes all 8,192 keys"),
    edit("14.6", "no last scale", ("alpha[:, None] * (last_scale / scale) * acc", "alpha[:, None] * acc / scale"), told="acc was in units of 4, and comes back in units of 0.5"),
    edit("14.6", "the product of the scales", ("last_scale / scale", "last_scale * scale"), told="acc was in units of 4, and"),
    edit("14.6", "both chains go on", (NEW, "tensor_core_sum(p, v.T, alpha[:, None] * (last_scale / scale) * acc)"), ("alpha[:, None] * (last_scale / scale) * acc + new", "new"),
         ("torch.zeros_like(l[:, None]))", "(alpha * l)[:, None])"), ("alpha * l + new_l", "new_l"), told="its two chains begin at zero"),
    ("14.7", key_by_one_group, "key_at(16): raises IndexError"),
    edit("14.7", "a float", ("return 16 *", "return 16.0 *"), told="no whole number"),
    edit("14.7", "half as far", ("8 * (slot // 2)", "4 * (slot // 2)"), told="keys 0, 1, 8 and 9"),
    edit("14.7", "pairs exchanged", ("+ slot % 2", "+ 1 - slot % 2"), told="the first of its keys in ascending order"),
    edit("14.8", "the largest, not in size", ("tl.max(tl.abs(tile))", "tl.max(tile)"), (SCALE, "largest / 448"), told="gives scale = [−0.002232]"),
    edit("14.8", "the scale by the position's mask", ("tl.abs(tile)", "tl.where(position[:, None] < S, tl.abs(tile), 0.0)"), told="the scale is the largest number in size"),
    # on a GPU those with gpu="quantise_columns" race, or read what happens to lie there: what is told differs from run to run
    edit("14.8", "the position's mask", ("mask=key[:, None] < S", "mask=position[:, None] < S"), told="no key from S on is read", gpu="quantise_columns"),
    edit("14.8", "no mask of the store", (", mask=position[None, :] < columns", ""), told="no column from `columns` on is written"),
    edit("14.8", "the store's mask by the key", ("mask=position[None, :] < columns", "mask=key[None, :] < S"), told="with 0 where there is no key"),
    edit("14.8", "rows of y by S", ("(head * D + offs_d[:, None]) * columns", "head * D * columns + offs_d[:, None] * S"), told="y has `columns` columns all the same",
         gpu="quantise_columns"),
    edit("14.8", "no other", (", other=0.0", ""), told="with 0 where there is no key", gpu=None),
    edit("14.8", "a scale for each key", ("tl.max(tl.abs(tile))", "tl.max(tl.abs(tile), axis=1)"), told="a block is stored at one address"),
    edit("14.8", "y by each key's scale", ("tile / scale", "tile / (tl.max(tl.abs(tile), axis=1) / 448)[:, None]"), told="all of a block's numbers have one scale"),
    edit("14.8", "a scale of all heads", ("scale_ptr + head * blocks + block", "scale_ptr + block"), told="scale[head, block]", gpu="quantise_columns"),
    edit("14.8", "converted", ("as_e4m3(tile / scale)", "(tile / scale).to(tl.float8e4nv)"), told="rounds otherwise", gpu=None),
    ("14.9", heavy_key_first, "v with which acc and l lose different shares"),
    edit("14.9", "v of both signs", ("v + 3", "v"), told="the rounding of q, k, p and v"),
    edit("14.9", "v + 1", ("v + 3", "v + 1"), ("0.005", "0.01"), told="the shares are alike"),
    edit("14.9", "8,192 keys", ("16_384, 16_384", "8192, 8192"), told="right below 16,384 keys: take as many"),
    edit("14.9", "a wide bound", ("0.005", "0.025"), told="the shares are alike, so choose v with which they differ more, or a lower bound"),
    edit("14.9", "a wider bound", ("0.005", "0.1"), told="or a lower bound: a forward with acc and l in one chain each"),
    edit("14.9", "no room for blocks", ("0.005", "0.001"), told="what blocks of 128 keys lose"),
    edit("14.9", "512 queries", ("(8, 16_384", "(512, 16_384"), told="your test asks for 512 queries"),
    edit("14.9", "all rows together", ("(off.sqrt() < 0.005).all()", "off.sqrt().mean() < 0.01"), told="each row's own error"),
    edit("14.9", "the last row", (".all()", "[-1]"), told="row 2's acc in chains"),
    edit("14.9", "four queries", ("(8, 16_384", "(4, 16_384"), told="one row's acc is wrong"),
    edit("14.9", "the error itself", ("bool((off.sqrt() < 0.005).all())", "off.max().sqrt()"), told="want True"),
)  # fmt: skip
