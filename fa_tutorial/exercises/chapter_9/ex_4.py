from fa_tutorial.exercises.gluon_play import RIGHT, adapt, plays
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.hopper.ladder import gl, gluon, left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def attend_overlapped(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """As attend, with p v of a block under the softmax of the next: l, acc. Two stages or more."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s])
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    for i in range(1, blocks):
        stage, parity, before = i % STAGES, i // STAGES % 2, (i - 1) % STAGES
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(1, [s])  # p v, which was issued last, may be under way
        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)
        acc, p = warpgroup_mma_wait(0, [acc, p])
        mbarrier.arrive(empty.index(before), count=1)
        acc = rescaled(acc, alpha)
        p = left_operand(p_new, acc, v.dtype)
    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)
    return l, acc


SCORES = "        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)\n"
SUM = "        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)\n"
STEP = "        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)\n"
RESCALED = "        acc = rescaled(acc, alpha)\n"
MISTAKES = {
    "in the simulator, which keeps your order, nothing is under way beside the softmax: issue p v of the block before it, and then wait for the scores alone": (
        "warpgroup_mma_wait(1, [s])", "warpgroup_mma_wait(0, [s])"),
    "a wait that leaves one matmul in flight leaves the last that was issued, and here that is q kᵀ: issue p v behind it and before this wait, or wait for all that is in flight": (
        SCORES + SUM, SUM + SCORES),
    "p belongs to the block before, and you multiply it by this block's v": ("v.index(before), acc", "v.index(stage), acc"),
    "the stage to release is the one that p v has read, that of the block before": ("arrive(empty.index(before)", "arrive(empty.index(stage)"),
    "acc is rescaled by an earlier alpha: take the one that this block's softmax_step returns": (STEP, STEP.replace("alpha =", "alpha_new =")),
    "acc is not rescaled: what was added before must shrink by alpha": (RESCALED, ""),
    "you rescale acc before p v, but not before the last p v, after the loop: it needs the last block's alpha": [
        (RESCALED, ""), (SUM, SUM.replace("acc, is", "rescaled(acc, alpha), is"))],
    "the last p v is missing: the loop adds that of the block before": [
        ("    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES), acc, is_async=True)\n    acc = warpgroup_mma_wait(0, [acc])\n", "")],
    "the loop ends one block early: it goes on to block blocks − 1, and what stands after it is that block's p v": (
        "range(1, blocks)", "range(1, blocks - 1)"),
}  # fmt: skip

EXERCISE = Exercise(
    task="Write attend_overlapped(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks): attend, with p v of a block under way while "
    "the next block's softmax is computed; return l, acc.",
    hints=(
        "The softmax of block i needs the scores of block i, and p v of block i − 1 needs none of it. Which of the two matmuls do you issue "
        "first, so that you can wait for one alone?",
        "Block 0 has no p v beside it, and the last p v no softmax: one stands before the loop, the other after it. In the loop, wait(1, [s]) "
        "leaves in flight what was issued last. When is nothing reading the stage of block i − 1 any more?",
        "In the loop, for block i: wait for full; issue s = q kᵀ; issue acc + p v with the v of block i − 1; warpgroup_mma_wait(1, [s]); "
        "softmax_step; warpgroup_mma_wait(0, [acc, p]); arrive at empty of block i − 1's stage; rescale acc; make the new p a left operand. The "
        "last block's stage is released after the loop.",
    ),
    solution=attend_overlapped,
    reasoning="Matmuls end in the order in which they were issued, so the scores go first, and a wait that leaves one in flight waits for them "
    "alone. p v reads v, and p's registers, until the second wait: the release comes after it, and acc is rescaled after it.",
    inputs=lambda: plays(overlap=True),
    truth=lambda *play: RIGHT,
    rule="l and acc as attend gives them, and beside each softmax but the first p v of the block before",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
