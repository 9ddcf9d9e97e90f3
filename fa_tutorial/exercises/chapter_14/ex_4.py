import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def prepare(q, k, R):
    """q and k of a head, ready to be rounded, rotated by R (14.3): softmax(q kᵀ) stays the same.

    q, k: (rows, D). R: (D, D), orthogonal. Returns q, k.
    """
    k = k - k.mean(dim=0)
    return q @ R, k @ R


K, ROTATED = "k - k.mean(dim=0)", "q @ R, k @ R"
MISTAKES = {
    "k keeps its offset: a rotation only spreads it": (f"k = {K}", "k = k.clone()"),
    "q loses its mean, too: q's mean times k differs from key to key, so softmax changes": (
        f"k = {K}", f"q, k = q - q.mean(dim=0), {K}"),
    "that is the mean over a key's channels: an offset is the same for all keys, so take the mean over the keys": (
        K, "k - k.mean(dim=1, keepdim=True)"),
    "that is one mean for all channels: each channel has an offset of its own": (K, "k - k.mean()"),
    "k alone is rotated: q kᵀ stays the same only if both are": (ROTATED, "q, k @ R"),
    "Rᵀ stands where R belongs: (14.3) multiplies q and k by R, from the right": (ROTATED, "q @ R.T, k @ R.T"),
    "k's mean is subtracted after the rotation, but taken before it: rotate both": (f"k = {K}\n    return {ROTATED}", "return q @ R, k @ R - k.mean(dim=0)"),
}  # fmt: skip


def truth(q, k, R):
    return q @ R, (k - k.sum(dim=0) / len(k)) @ R


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def inputs():
    stays, swap = torch.eye(2, dtype=torch.float64), numbers([0.0, 1.0], [-1.0, 0.0])
    offset = "both keys have 10 in channel 1, which gives both scores of a query the same: take each channel's mean over the keys from k, whose rows stay keys"
    yield case(numbers([1.0, 1.0]), numbers([1.0, 10.0], [-1.0, 10.0]), stays, otherwise=offset)
    mean = "channel 1 of k is 0, 0 and 9: its mean, 3, goes, and 4.5 is its middle"
    yield case(numbers([1.0, 1.0]), numbers([1.0, 0.0], [-1.0, 0.0], [0.0, 9.0]), stays, otherwise=mean)
    kept = "q keeps its mean: times k it differs from key to key"
    yield case(numbers([5.0, 1.0], [7.0, 1.0]), numbers([1.0, 10.0], [-1.0, 10.0]), stays, otherwise=kept)
    both = "q and k are both multiplied by R from the right, so that R Rᵀ = 1 stands between them"
    yield case(numbers([3.0, 1.0]), numbers([1.0, 0.0], [-1.0, 0.0]), swap, otherwise=both)
    draw = generator()
    q, k = (torch.randn(rows, 16, generator=draw).double() for rows in (3, 20))
    k += 10 * torch.randn(16, generator=draw)
    R = torch.linalg.qr(torch.randn(16, 16, generator=draw).double())[0]
    yield case(q, k, R, on="randn with offsets, 3 queries, 20 keys, D = 16", fresh=True)


EXERCISE = Exercise(
    task="Make q and k ready for e4m3, with outliers at random places and with offsets that all keys share. softmax(q kᵀ) must stay the same.",
    hints=(
        "Add the same vector c to all keys: by how much does q · k change from key to key? And if you add it to all queries?",
        "q · c is the same for all keys of a query, and softmax doesn't see what all scores of a row share. So take k's mean over the keys from k, and only from k. "
        "Then multiply both by R.",
    ),
    solution=prepare,
    reasoning="softmax doesn't change where all scores of a row move by the same. q · mean is the same for all keys, so k may lose its mean, and nothing is added back. "
    "The rotation is for what is left.",
    more="The package's quantiser rotates by random_hadamard with a tl.dot; k's mean it leaves to you.",
    inputs=inputs,
    truth=truth,
    rule="q becomes q R, and k becomes (k − its mean over the keys) R",
    mistakes=MISTAKES,
    parts=("q", "k"),
    tolerance=lambda args, part: (1e-9, 1e-9),
)
