import functools
import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind
from fa_tutorial.source import defined, edited, source_of


def telling_row(block):
    """A row of finite scores on which each wrong loop misses lse by more than 0.01."""
    low, high = torch.full((block,), -2e4), torch.full((block,), -2e4 + 1)
    return torch.cat([low, high, low[:-1]])


def pair_of_blocks(x, block):
    """(m, l) of a row, block by block: the right loop."""
    m, l = torch.tensor(-math.inf), torch.tensor(0.0)
    for part in x.split(block):
        m_part = part.max()
        l_part = torch.exp(part - m_part).sum()
        m_new = torch.maximum(m, m_part)
        l = l * torch.exp(m - m_new) + l_part * torch.exp(m_part - m_new)
        m = m_new
    return m, l


LOOPS = {
    "A": ("l * torch.exp(m - m_new)", "l"),
    "B": ("l_part * torch.exp(m_part - m_new)", "l_part"),
    "C": ("torch.tensor(-math.inf)", "torch.tensor(-1e4)"),
    "D": ("x.split(block)", "x[: len(x) // block * block].split(block)"),
}
ALL = "one on which all are wrong"
TOLERANCE = 0.01  # of lse: more than rounding at a score of 1e4

REASONS = {
    "A": "A goes wrong only if the maximum grows from one block to a later one",
    "B": "B goes wrong only if a block's maximum is below an earlier one's",
    "C": "C goes wrong only if every score is so far below −1e4 that its exponential is 0",
    "D": "D goes wrong only if the row ends in a shorter block, whose scores count",
}


@functools.cache
def loop(name):
    """The right loop, or one of the wrong ones."""
    changes = [LOOPS[name]] if name in LOOPS else []
    return defined(edited(source_of(pair_of_blocks), *changes), {"torch": torch, "math": math})["pair_of_blocks"]


def miss(name, row, block):
    """By how much a wrong loop misses lse on this row."""
    right, wrong = (m.double() + torch.log(l.double()) for m, l in (loop(which)(row, block) for which in ("", name)))
    return abs(float(wrong - right))


@adapting
def by_survivors(answer, block):
    """block -> ALL; Wrong where a wrong loop is right on the answer's row."""
    row = answer(block)
    if not isinstance(row, torch.Tensor) or row.ndim != 1 or not len(row):
        raise Wrong(f"returns {kind(row)}, want a vector of scores")
    row = row.float()
    if not torch.isfinite(row).all():
        raise Wrong("holds a score that is not finite: here every wrong loop must fail on ordinary scores")
    if len(row) < block:
        raise Wrong(f"has {len(row)} scores, fewer than one block of {block}")
    if not torch.equal(row, answer(block).float()):
        raise Wrong("is another row in each call: a test needs the same row each time (seed its generator)")
    found = {name: by for name in LOOPS if (by := miss(name, row, block)) <= TOLERANCE}
    if not found:
        return ALL
    same = " (your row is the same for every block)" if torch.equal(row, answer(2 * block).float()) else ""
    if (row == row[0]).all():
        same = f" (all your scores are equal: far from 0, a float can't hold small differences){same}"
    for name, by in found.items():
        if by > 1e-4:  # what a score's float32 rounds is less
            share = "what it gets wrong is too small a share of the sum"
            raise Wrong(f"gives a row on which {name} misses lse by only {by:.3g}, want more than {TOLERANCE:g}: {share}{same}")
    *others, last = found
    right = f"gives a row on which {', '.join(others)}{' and ' if others else ''}{last} {'are' if others else 'is'} right"
    raise Wrong(f"{right}: {'; '.join(REASONS[name] for name in found)}{same}")


def truth(block):
    return ALL


def inputs():
    for block in (2, 3, 8, 128):
        yield case(block)


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
    inputs=inputs,
    adapt=by_survivors,
    truth=truth,
    rule="each of the four loops must miss lse by more than 0.01",
    mistakes={},
    exact=True,
)
