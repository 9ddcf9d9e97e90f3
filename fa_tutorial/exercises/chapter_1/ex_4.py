import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind


def telling_row(block):
    """A row of finite scores on which each wrong loop misses lse by more than 0.01."""
    low, high = torch.full((block,), -2e4), torch.full((block,), -2e4 + 1)
    return torch.cat([low, high, low[:-1] - 0.5])


def lse_of(row, block, wrong=""):
    """log Σ exp(row), block by block: by the right loop, or by one of the wrong ones."""
    m, l = torch.tensor(-1e4 if wrong == "C" else -math.inf), torch.tensor(0.0)
    seen = len(row) // block * block if wrong == "D" else len(row)
    for part in row[:seen].split(block):
        m_part = part.max()
        l_part = torch.exp(part - m_part).sum()
        m_new = torch.maximum(m, m_part)
        alpha, beta = torch.exp(m - m_new), torch.exp(m_part - m_new)
        l = l * (1 if wrong == "A" else alpha) + l_part * (1 if wrong == "B" else beta)
        m = m_new
    return float(m.double() + torch.log(l.double()))


ALL = "one on which all are wrong"
REASONS = {
    "A": "the maximum grows from one block to a later one",
    "B": "a block's maximum is below an earlier one's",
    "C": "every score is so far below −1e4 that its exponential is 0",
    "D": "the row ends in a shorter block, whose scores count",
}


@adapting
def by_survivors(answer, block):
    """block -> ALL; Wrong where a wrong loop is right on the answer's row."""
    row = answer(block)
    if not isinstance(row, torch.Tensor) or row.ndim != 1 or len(row) < block:
        raise Wrong(f"returns {kind(row)}, want a vector of at least {block} scores")
    row = row.float()
    if not torch.isfinite(row).all():
        raise Wrong("holds a score that is not finite: here every wrong loop must fail on ordinary scores")
    missed = {name: abs(lse_of(row, block, wrong=name) - lse_of(row, block)) for name in REASONS}
    right = [f"{name} by {by:.2g} (it goes wrong only if {REASONS[name]})" for name, by in missed.items() if by <= 0.01]
    if right:  # more than 0.01, because a score of 1e4 is rounded
        raise Wrong(f"gives a row on which not every loop misses lse by more than 0.01: {', '.join(right)}")
    return ALL


EXERCISE = Exercise(
    task="Write one row on which each of four wrong loops misses lse by more than 0.01.",
    hints=(
        "Take the loops one by one. Which factor is missing, and on which rows is that factor 1? Your row must be another one.",
        "The maximum must grow from one block to the next (A) and a later block must stay below it (B). Each score must lie far "
        "below −1e4 (C), and the row must end in a shorter block that counts (D). Three blocks are enough.",
    ),
    solution=telling_row,
    reasoning="The second block's maximum is larger than the first's, so A's old sum is on the wrong scale. The third block's is "
    "smaller, so B's new one is. All scores lie near −2e4, so that each exponential measured from C's −1e4 underflows to 0. And the "
    "third block is shorter, so that D never sees it; it has enough scores to count.",
    inputs=lambda: map(case, (2, 3, 8, 128)),
    adapt=by_survivors,
    truth=lambda block: ALL,
    rule="each of the four loops must miss lse by more than 0.01",
    mistakes={},
    exact=True,
)
