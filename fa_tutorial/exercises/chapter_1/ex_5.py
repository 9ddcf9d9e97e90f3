import gc
import math

import torch

from fa_tutorial.exercises import harness, running
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, vectors
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


LSE = "m + torch.log(l)"
MISTAKES = {
    "your acc is not rescaled when the maximum grows, and l is": ("alpha * acc", "acc"),
    "your l is not rescaled when the maximum grows, and acc is": ("alpha * l", "l"),
    "neither l nor acc is rescaled when the maximum grows: both take the factor exp(m − m_new)": [
        ("alpha * l", "l"), ("alpha * acc", "acc")],
    "the new block's p v is rescaled as well: rescale only what was summed before it": ("alpha * acc + p @ v", "alpha * (acc + p @ v)"),
    "alpha is upside down: the old sums take the factor exp(m − m_new)": ("torch.exp(m - m_new)", "torch.exp(m_new - m)"),
    "acc is never divided by l: o = acc / l": ("acc / l if l > 0 else acc", "acc"),
    "m stays −inf, so that alpha is 0 in every block: it becomes m_new once acc and l are measured from it": ("        m = m_new\n", ""),
    "acc is divided by l in every block, but the next block needs the undivided sum: divide once, at the end": [
        ("        m = m_new\n", "        acc = acc / l\n        m = m_new\n"), ("acc / l if l > 0 else acc", "acc")],
    "exp overflows: the scores must be shifted by the running maximum before exp": [
        ("s - m_new", "s"), ("torch.exp(m - m_new)", "1.0"), (LSE, "torch.log(l)")],
    "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN": (
        "        if m_new == -math.inf:\n            continue  # nothing seen yet\n", ""),
    "nothing is seen, and o is 0 / 0 = NaN: it must be 0": ("acc / l if l > 0 else acc", "acc / l"),
    "that is log l, which is measured from m: lse = m + log l": (LSE, "torch.log(l)"),
    "o and lse are swapped: return (o, lse)": (f"return o, {LSE}", f"return {LSE}, o"),
}  # fmt: skip


def stream(scores, values, block):
    """(s, v) of each block, which holds NaN once the next is asked for."""
    for start in range(0, len(scores), block):
        s, v = mine = [x[start : start + block].clone() for x in (scores, values)]
        yield s, v
        if not running.same(mine, [x[start : start + block] for x in (scores, values)]):
            raise Wrong("changes a block's s or v in place: work on a copy")
        s.fill_(math.nan), v.fill_(math.nan)


def hoards(answer):
    """Why a right result isn't enough: tensors and long lists grow with the number of blocks."""
    alive = []
    gc.collect()  # what others left must not go meanwhile

    def size(one):
        return one.numel() if type(one) is torch.Tensor else len(one) if type(one) is list and len(one) > 100 else 0

    def blocks():
        for number, block in enumerate(stream(torch.arange(800.0), torch.ones(800, 4), 4)):
            if number in (1, 199):
                alive.append(sum(map(size, gc.get_objects())))
            yield block

    answer(blocks(), 4)
    grows = "what you keep grows with every block: carry only m, l and acc to the next one, and use each block at once"
    return grows if alive[-1] - alive[0] > 100 else ""


def truth(scores, values, block):
    s = scores.double()
    return torch.softmax(s, 0).nan_to_num() @ values.double(), torch.logsumexp(s, 0)


def inputs():
    def weights(scores, block, **options):
        """With the identity for values, o is the weights themselves."""
        scores = torch.tensor(scores)
        on = f"scores = {running.show(scores)}, values = the identity, block = {block}"
        return case(scores, torch.eye(len(scores)), block, on=on, **options)

    first = {
        "o": "one block: o = acc / l, of shape (D,), with acc = p @ v and l = Σ p; divide once, return o before lse; blocks come once, so a second loop finds none",
        "lse": "one block: lse = m + log l, and p is measured from m",
    }
    nan = "NaN: a block is used late (its memory holds NaN after you ask for the next, and list(blocks) asks for all), a second loop over blocks finds none, or you compute ∞ · 0, ∞ − ∞ or 0 / 0"
    yield weights([1.0, 2.0], 2, otherwise=first, infinite=nan)
    grows = "two blocks: when the maximum grows, measure the new block from it, rescale the old acc and l by one factor, and set m to it"
    grows += "; divide by l only at the end"
    yield weights([1.0, 2.0], 1, otherwise=grows)
    yield weights([1.0, 3.0, 2.0], 1, otherwise="the maximum is in the second block: measure the third from it, too")
    far = "one maximum is far above the other: measure both blocks from the running one, which never falls, so that no exponent is positive"
    for scores in ([0.0, 1000.0], [1000.0, 0.0]):
        yield weights(scores, 1, otherwise=far)
    yield weights([-2e30], 1, otherwise="a score may be any finite number, however low, and counts like any other")
    for words, s in vectors(generator(), 33):
        v = torch.linspace(-1.0, 2.0, 132, dtype=torch.float64).view(33, 4)
        yield case(s.float(), v.float(), 8, on=f"{words}, S = 33, D = 4, block = 8", fresh=True)
        yield case(s, v, 8, on=f"{words}, S = 33, D = 4, block = 8, float64", fresh=True, edge="float64")
    for scores, block in (([-INF, 1.0], 1), ([1.0, -INF, 2.0], 1), ([1.0, -INF, 2.0], 2)):
        yield weights(scores, block, edge="inf")
    yield case(torch.tensor([-INF, -INF]), torch.ones(2, 2), 1, on="scores = [−inf, −inf], block = 1", edge="nothing")
    yield case(torch.zeros(0), torch.ones(0, 2), 1, on="no key at all (S = 0)", edge="nothing")


EXERCISE = Exercise(
    task="Compute one query's attention and its log-sum-exp from blocks of keys, each seen once.",
    conditions={
        "inf": "a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands",
        "nothing": "with no key at all, or only −inf scores, o is 0 and lse is −inf",
        "float64": "float64 inputs give results with float64's accuracy",
    },
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
    tolerance=lambda args, part: (min(harness.tolerance(args, part)[0], 0.1),) * 2,  # of values and an lse of about 1
    adapt=adapting(lambda answer, scores, values, block: answer(stream(scores, values, block), values.shape[1])),
    refused=hoards,
)
