import itertools
import math
import tracemalloc

import torch

from fa_tutorial.exercises import harness, running, watch
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, masked_vectors, vectors
from fa_tutorial.exercises.running import INF, Wrong, adapting


def running_weighted_sum(blocks, D):
    """(o, lse) of one query: o = softmax(scores) · values, lse = log Σ exp(scores).

    blocks: yields (s, v) for each block of keys, s: (n,), v: (n, D). Returns o: (D,) and lse, a number.
    """
    m, l, acc = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(D)
    for s, v in blocks:
        m_new = torch.maximum(m, s.max())
        if m_new == -math.inf:
            continue  # nothing seen yet
        p = torch.exp(s - m_new)
        alpha = torch.exp(m - m_new)
        l = alpha * l + p.sum()
        acc = alpha * acc + p @ v
        m = m_new
    o = acc / l if l > 0 else acc
    return o, m + torch.log(l)


ACC, L, LSE = "alpha * acc + p @", "alpha * l + p.sum()", "m + torch.log(l)"
ALPHA = "alpha = torch.exp(m - m_new)"
MISTAKES = {
    "your acc is not rescaled when the maximum grows, and l is": (ACC, "acc + p @"),
    "your l is not rescaled when the maximum grows, and acc is": (L, "l + p.sum()"),
    "acc and l are rescaled with the wrong sign in the exponent": (ALPHA, "alpha = torch.exp(m_new - m) if l > 0 else 0.0"),
    "m stays −inf, so that alpha is 0 in every block: it becomes m_new once acc and l are measured from it": ("        m = m_new\n", ""),
    "p is measured from its block's own maximum, but acc and l from the running maximum": ("p = torch.exp(s - m_new)", "p = torch.exp(s - s.max())"),
    "p is measured from the old maximum, but acc and l from the new one: it is exp(s − m_new)": (
        "p = torch.exp(s - m_new)", "p = torch.exp(s - (m if m > -math.inf else m_new))"),
    "acc is divided by l in every block, but the next block needs the undivided sum: divide once, at the end": [
        ("        m = m_new\n", "        acc = acc / l\n        m = m_new\n"), ("acc / l if l > 0 else acc", "acc")],
    "exp overflows: the scores must be shifted by the running maximum before exp": [
        ("torch.exp(s - m_new)", "torch.exp(s)"), (ALPHA, "alpha = 1.0"), (LSE, "torch.log(l)")],
    "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN": (
        "        if m_new == -math.inf:\n            continue  # nothing seen yet\n", ""),
    "nothing is seen, and o is 0 / 0 = NaN: it must be 0": ("acc / l if l > 0 else acc", "acc / l"),
    "that is log l, which is measured from m: lse = m + log l": (LSE, "torch.log(l)"),
    "o and lse are swapped: return (o, lse)": ("return o, m + torch.log(l)", "return m + torch.log(l), o"),
}  # fmt: skip

GONE = "a block is used after the next one was asked for, and its memory holds other numbers by then: use it at once"
GROWS = "what you keep grows with every block: carry only m, l and acc to the next one, and use each block at once"
CONDITIONS = {
    "inf": "a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands",
    "nothing": "with no key at all, or only −inf scores, o is 0 and lse is −inf",
    "float64": "float64 inputs give results with float64's accuracy",
}


def stream(scores, values, block, kept=False):
    """(s, v) of each block, v with other strides; once the next is asked for, a block holds NaN, unless it is kept."""
    for start in range(0, len(scores), block):
        s, v = scores[start : start + block].clone(), values[start : start + block]
        wide = v.new_full((len(v), v.shape[1] + 2), math.nan)
        wide[:, 1:-1] = v
        yield s, wide[:, 1:-1]
        if not (torch.equal(s, scores[start : start + block]) and torch.equal(wide[:, 1:-1], v)):
            raise Wrong("changes a block's s or v in place: work on a copy")
        if not kept:
            s.fill_(math.nan), wide.fill_(math.nan)


@adapting
def in_blocks(answer, scores, values, block):
    """The answer, called with an iterator of blocks. Wrong where it uses a block that is gone."""
    result = answer(stream(scores, values, block), values.shape[1])
    if has_nan(result) and not has_nan(answer(stream(scores, values, block, kept=True), values.shape[1])):
        raise Wrong(GONE)
    return result


def has_nan(result):
    parts = result if isinstance(result, tuple | list) else (result,)
    numbers = (torch.as_tensor(part) for part in parts if isinstance(part, int | float | torch.Tensor))
    return any(bool(torch.isnan(x).any()) for x in numbers)


def hoards(answer):
    """Why a right result isn't enough: the answer makes a tensor of all scores, or keeps more in every quarter of 200 blocks."""
    scores, values = torch.arange(800.0), torch.ones(800, 4)
    kept, tracing = [], tracemalloc.is_tracing()

    def counted():
        for block in stream(scores, values, 4):
            kept.append(tracemalloc.get_traced_memory()[0])  # sees lists, and each tensor's Python object
            yield block

    with watch.LargestTensor() as seen:
        answer(stream(scores, values, 4), 4)
    tracemalloc.start()
    try:
        answer(counted(), 4)
    finally:
        if not tracing:
            tracemalloc.stop()
    grown = [later - earlier for earlier, later in itertools.pairwise(kept[7::48])]
    return GROWS if seen.largest >= len(scores) or min(grown) > 48 * 100 else ""  # bytes a block: a tensor takes more


def truth(scores, values, block):
    s = scores.double()
    return torch.softmax(s, 0).nan_to_num() @ values.double(), torch.logsumexp(s, 0)


def tolerance(args, part):
    """o is a mean of values of about 1, and the error of an lse is absolute."""
    rtol, _ = harness.tolerance(args, part)
    rtol = min(rtol, 0.1)  # a single huge score rounds nothing
    return (1e-12 if part == "lse" else rtol), rtol


def inputs():
    def weights(scores, block, **options):
        """With the identity for values, o is the weights themselves."""
        scores = torch.tensor(scores)
        on = f"scores = {running.show(scores)}, values = the identity, block = {block}"
        return case(scores, torch.eye(len(scores)), block, on=on, **options)

    first = {
        "o": "one block: alpha = exp(m − m_new) is 0 and belongs to the old acc and l; o = acc / l, of shape (D,)",
        "lse": "one block: lse = m + log l, one number",
    }
    yield weights([1.0, 2.0], 2, otherwise=first)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    yield case(torch.tensor([1.0, 2.0]), rows, 2, otherwise="o is the sum of the rows of values, each times its key's weight")
    yield weights([1.0, 2.0], 1, otherwise="two blocks: when the maximum grows, rescale the old acc and l by one factor, and set m to it")
    yield weights([2.0, 1.0], 1, otherwise="the maximum is in the first block: measure the second block from it")
    yield weights([1.0, 2.0, 3.0], 1, otherwise="three blocks: carry acc and l from block to block")
    yield weights([1.0, 2.0, 3.0], 2, otherwise="the last block may be ragged: 3 scores are a block of 2 and a block of 1")
    yield weights([1.0, 2.0], 8, otherwise="a block may be longer than the row")
    yield weights([1000.0, 1001.0], 1, otherwise="exp(1000) overflows: shift by the running maximum before exp")
    yield weights([0.0, 1000.0], 1, otherwise="the maximum is far above the first block: m grows, or exp(s − m) overflows")
    yield weights([1000.0, 0.0], 1, otherwise="the maximum is far above the second block: m is the running maximum, so it never falls")
    yield weights([-1000.0, -1001.0], 1, otherwise="exp(−1000) is 0: measure each score from the running maximum")
    yield weights([-2e30], 1, otherwise="a score may be any finite number, however low, and counts like any other")
    thirds = torch.arange(1.0, 8.0, dtype=torch.float64) / 3  # no float32 holds them
    yield case(thirds, torch.outer(thirds, thirds), 3, on="scores = 1/3, 2/3, … 7/3 in float64, block = 3", edge="float64")
    draw = generator()
    for S, D, block in ((1, 1, 4), (33, 4, 8), (100, 5, 16), (64, 64, 64)):
        for words, s in vectors(draw, S):
            v = torch.randn(S, D, generator=draw, dtype=torch.float64)
            on = f"{words}, S = {S}, D = {D}, block = {block}"
            yield case(s.float(), v.float(), block, on=on, fresh=True)
            yield case(s, v, block, on=f"{on}, float64", fresh=True, edge="float64")
    yield weights([1.0, -INF], 1, edge="inf")
    yield weights([-INF, 1.0], 1, edge="inf")
    yield weights([1.0, -INF, 2.0], 1, edge="inf")
    yield weights([1.0, -INF, 2.0], 2, edge="inf")
    for words, s in masked_vectors(draw, 33):
        yield case(s.float(), torch.randn(33, 4, generator=draw), 8, on=f"{words}, S = 33, D = 4, block = 8", fresh=True, edge="inf")
    yield case(torch.tensor([-INF, -INF]), torch.ones(2, 2), 1, on="scores = [−inf, −inf], block = 1", edge="nothing")
    yield case(torch.zeros(0), torch.ones(0, 2), 1, on="no key at all (S = 0)", edge="nothing")


EXERCISE = Exercise(
    task="Compute one query's attention and its log-sum-exp from blocks of keys, each seen once.",
    conditions=CONDITIONS,
    hints=(
        "acc = Σ exp(s − m) · value is measured from m, and so is l. What must you do to both when the maximum grows?",
        "In each block find m_new, p = exp(s − m_new) and alpha = exp(m − m_new). Multiply l and acc by alpha, then add p.sum() to l and p "
        "@ v to acc. Divide once, after the last block. Skip a block while m_new is −inf, and test whether l is 0 before you divide by it.",
    ),
    solution=running_weighted_sum,
    reasoning="acc and l are sums of the same terms exp(s − m), and acc weights them with the values. So the same alpha moves both to the "
    "new maximum, and their ratio is right at the end. lse = m + log l is the logarithm of Σ exp(scores). With no key l stays 0, so o = 0 "
    "and lse = −inf.",
    inputs=inputs,
    truth=truth,
    rule="o is the mean of the rows of values with softmax's weights, and lse = log Σ exp(scores)",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    adapt=in_blocks,
    watch=watch.BlocksOfRows,
    refused=hoards,
)
