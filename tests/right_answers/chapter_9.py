from edits import edit

from fa_tutorial.barriers import arrive, load, use, wait
from fa_tutorial.exercises import catalogue
from fa_tutorial.hopper.ladder import gluon, left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait


def phase_by_toggling(i, stages):
    stage, full_parity, empty_parity = 0, 0, 1
    for _ in range(i % (2 * stages)):
        stage += 1
        if stage == stages:
            stage, full_parity, empty_parity = 0, full_parity ^ 1, empty_parity ^ 1
    return [stage, full_parity, empty_parity]


def roles_that_toggle(tiles, stages, full, empty):
    """A stage and a bit that turns over at the ring's end; the first round does not wait."""

    def places():
        stage, parity = 0, 0
        for i in range(tiles):
            yield i, stage, parity
            stage += 1
            if stage == stages:
                stage, parity = 0, 1 - parity

    def producer():
        for i, stage, parity in places():
            if i >= stages:
                yield wait(empty[stage], parity ^ 1)
            yield load(i, stage)
            yield arrive(full[stage])

    def consumer():
        for i, stage, parity in places():
            yield wait(full[stage], parity)
            yield use(i, stage)
            yield arrive(empty[stage])

    return producer, consumer


@gluon.jit
def attend_one_behind(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """p v of a block under way with the scores of the next; a stage and a parity that toggle."""
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros)
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    before = 0
    parity = 0
    for _ in range(blocks - 1):
        stage = before + 1
        if stage == k.shape[0]:
            stage = 0
            parity ^= 1
        mbarrier.wait(full.index(stage), parity)
        s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, is_async=True)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        s, acc, p = warpgroup_mma_wait(0, [s, acc, p])
        mbarrier.arrive(empty.index(before))
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        acc = rescaled(acc, alpha)
        p = left_operand(p, acc, v.dtype)
        before = stage
    acc = warpgroup_mma(p, v.index(before), acc)
    mbarrier.arrive(empty.index(before))
    return l, acc


@gluon.jit
def attend_that_looks_ahead(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """Waits for the next block's tiles before p v is done; a stage and a parity that toggle; the last release too."""
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False)
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    before = 0
    parity = 0
    for _ in range(blocks - 1):
        stage = before + 1
        if stage == k.shape[0]:
            stage = 0
            parity ^= 1
        mbarrier.wait(full.index(stage), parity)
        s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)
        acc, p = warpgroup_mma_wait(0, [acc, p])
        mbarrier.arrive(empty.index(before))
        acc = rescaled(acc, alpha)
        p = left_operand(p_new, acc, v.dtype)
        before = stage
    acc = warpgroup_mma(p, v.index(before), acc)
    mbarrier.arrive(empty.index(before))
    return l, acc


@gluon.jit
def attend_with_names_of_their_own(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """A matmul under way has a name of its own, which no loop carries."""
    for i in range(blocks):
        stage = i % k.shape[0]
        mbarrier.wait(full.index(stage), i // k.shape[0] % 2)
        scores = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [scores])
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        summed = warpgroup_mma(left_operand(p, acc, v.dtype), v.index(stage), rescaled(acc, alpha), is_async=True)
        acc = warpgroup_mma_wait(0, [summed])
        mbarrier.arrive(empty.index(stage), count=1)
    return l, acc


# 9.7's producer waits for the stage of the next load before it draws, and not again before it loads
DRAW, LOADS = "            tile = next_tile()\n", "            for _ in range(blocks[tile]):\n                yield wait(empty"
ROOM_FIRST = (
    (DRAW, f"            yield wait(empty[n % stages], 1 - n // stages % 2)\n{DRAW}"),
    (LOADS, LOADS.replace("_", "block", 1).replace("yield", "if block:\n                    yield")),
)
CYCLES = "    a, b = (set(range(start, stop)) & {t for x, y in c for t in range(x, y)} for c in (first, second))\n\n"
MEETING, EMPTIED = "# the meeting\n", "        yield arrive(empty[stage])\n"
RIGHT_ANSWERS = (
    ("9.1", phase_by_toggling),
    ("9.2", roles_that_toggle),
    ("9.3", attend_one_behind),
    ("9.3", attend_with_names_of_their_own),
    edit("9.3", "p in v's dtype first", ("left_operand(p, acc", "left_operand(p.to(v.dtype), acc")),
    ("9.3", catalogue.find("9.4").solution),
    ("9.4", attend_that_looks_ahead),
    edit("9.5", "sets of cycles", ("    def share", f"{CYCLES}    def share"), ("p + r - 2 * both", "len(a ^ b) / (stop - start)")),
    # a fresh barrier lets consumer 0's first wait pass
    edit(
        "9.6",
        "consumer 0 does not wait at first",
        ("    mbarrier.wait(turns.index(C), 1 - C)\n", "    if C == 1:\n        mbarrier.wait(turns.index(C), 0)\n"),
    ),
    edit("9.6", "parity by a bit", ("(i + C) % 2", "(i ^ C) & 1")),
    edit(
        "9.6",
        "the first turn in the loop",
        ("    mbarrier.wait(turns.index(C), 1 - C)\n", ""),
        ("        mbarrier.wait(full", "        if i == 0:\n            mbarrier.wait(turns.index(C), 1 - C)\n        mbarrier.wait(full"),
    ),
    edit(
        "9.7", "no wait where it passes at once", ("            yield wait(taken", "            if turn:\n                yield wait(taken")
    ),
    edit("9.7", "room for the next load before a number is drawn", *ROOM_FIRST),
    edit(
        "9.8",
        "phases that toggle",
        ("        stage, parity = i % 2, i // 2 % 2\n", ""),
        ("    for i", "    stage = parity = 0\n    for i"),
        ("1 - c))  # dq", "1 - c))\n        stage, parity = (1, parity) if stage == 0 else (0, 1 - parity)"),
    ),
    # the later consumer's release counts, and the meeting has been by then
    edit("9.8", "released late", (EMPTIED, ""), (MEETING, MEETING + EMPTIED)),
    edit("9.9", "s′ under ds", ('        "issue s′",\n', ""), ('"issue dp",\n', '"issue dp",\n        "issue s′",\n')),
    edit("9.9", "s′ before dk", ('"issue dk",\n        "issue s′"', '"issue s′",\n        "issue dk"')),
    edit("9.9", "a tuple", ("return [", "return ("), ("\n    ]", "\n    )")),
    edit("9.9", "primes as a keyboard gives them", ("s′", "s'", 2), ("p′", "p'"), ("dv′", "dv'", 2)),
)
