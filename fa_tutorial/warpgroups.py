"""Chapter 9: cycles counted on one Hopper multiprocessor, whose tensor cores and exponential units one warpgroup or two
keep busy."""

import heapq
import itertools
from typing import NamedTuple

ROWS, KEYS = 64, 128  # a tile of scores: the rows of a warpgroup, the keys of a block
TENSOR_FLOPS, EXPONENTIALS = 4096, 16  # of a Hopper SM in a cycle: dense fp16 matmul, and base-2 exponentials


class Operation(NamedTuple):
    """kind: "s" for q kᵀ, "o" for p v, "exp" for the exponentials; block: of keys, as its warpgroup counts them; start
    and end in cycles."""

    kind: str
    warpgroup: int
    block: int
    start: int
    end: int


def matmul_cycles(D: int) -> int:
    """Cycles of one matmul of a tile, ROWS x KEYS x D, with an SM's tensor cores to itself (9.1)."""
    return 2 * ROWS * KEYS * D // TENSOR_FLOPS


def timeline(D: int, warpgroups: int = 1, overlap: bool = False, blocks: int = 3) -> list[Operation]:
    """What the tensor cores and the exponential units of one SM do for each warpgroup, in the order of its beginning.

    Without `overlap` (chapter 9's "one stop") a warpgroup issues p v of the last block and q kᵀ of this one, waits for
    both, and exponentiates. With it ("overlapped"), the warpgroup issues q kᵀ first and waits for that alone, so p v of
    the last block runs beside the exponentials. A unit does one thing at a time, and serves whoever asks first.
    """
    matmuls = [("s", 0)]
    for j in range(1, blocks):
        matmuls += [("s", j), ("o", j - 1)] if overlap else [("o", j - 1), ("s", j)]
    orders = {"matmul": [*matmuls, ("o", blocks - 1)], "exp": [("exp", j) for j in range(blocks)]}
    queues = {(w, unit): [*order] for w in range(warpgroups) for unit, order in orders.items()}
    free, done, found = {"matmul": 0, "exp": 0}, {}, []
    while any(queues.values()):
        ready = []
        for (w, unit), queue in queues.items():
            needed = [(w, kind, j) for kind, j in _needed(*queue[0], overlap)] if queue else []
            if queue and all(one in done for one in needed):
                asked = max((done[one] for one in needed), default=0)
                ready.append((max(free[unit], asked), asked, w, unit))
        start, _, w, unit = min(ready)
        kind, block = queues[w, unit].pop(0)
        cycles = ROWS * KEYS // EXPONENTIALS if unit == "exp" else matmul_cycles(D)  # (9.1)
        free[unit] = done[w, kind, block] = start + cycles
        found.append(Operation(kind, w, block, start, free[unit]))
    return found


def _needed(kind: str, block: int, overlap: bool) -> list[tuple[str, int]]:
    """The operations that must be done before this one can begin. Nothing comes before block 0."""
    before = {
        "s": [("exp", block - 1), ("o", block - 2)],
        "o": [("exp", block), ("o", block - 1)],
        "exp": [("s", block), ("o", block - 2 if overlap else block - 1)],
    }[kind]
    return [(other, j) for other, j in before if j >= 0]


def cycles_per_round(D: int, warpgroups: int = 1, overlap: bool = False) -> float:
    """Cycles of a round, two blocks, whichever warpgroups', once the timeline has become regular."""
    short, long = (max(op.end for op in timeline(D, warpgroups, overlap, blocks)) for blocks in (20, 40))
    return (long - short) / (10 * warpgroups)


class Loop(NamedTuple):
    """Cycles of a consumer's block, D = 128: its matmuls, of which the first ends with q kᵀ; softmax; from its end to
    the next matmul."""

    matmuls: tuple[int, ...]
    softmax: int
    rest: int


# The matmuls by (9.1); softmax, rest and, with two stops, the gap between p v and the next q kᵀ by an H200's stamps.
TWO_STOPS, ONE_STOP, GAP = Loop((512, 512), 1190, 121), Loop((1024,), 1141, 447), 137


def two_consumers(loop: Loop, gap: int = GAP, late: int = 0, blocks: int = 300) -> tuple[float, list[float]]:
    """Cycles a round of an SM whose tensor cores serve whoever of two consumers asks first; the shares of the time in
    which 0, 1, 2 of them are at a softmax. gap: from the end of a block's last matmul until its consumer asks for the
    next q kᵀ, in a loop with two stops; late: when consumer 1 starts. images/explore/in_step.html draws it."""
    free, changes = 0, []  # when the tensor cores are free; when a softmax begins (+1) and ends (-1)
    asked = [(0, 0, 0), (late, 1, 0)]  # when, who, which of its matmuls
    for _ in range(2 * blocks * len(loop.matmuls)):
        time, consumer, which = heapq.heappop(asked)
        free = max(free, time) + loop.matmuls[which]
        asks = free + gap
        if which == 0:  # q kᵀ is done
            changes += [(free, 1), (free + loop.softmax, -1)]
            asks = free + loop.softmax + loop.rest
        heapq.heappush(asked, (asks, consumer, (which + 1) % len(loop.matmuls)))
    times, n = [0, 0, 0], 0
    for (start, change), (end, _) in itertools.pairwise(sorted(changes)):
        n += change
        times[n] += end - start
    return free / blocks, [time / sum(times) for time in times]
