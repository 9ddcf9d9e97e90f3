from fa_tutorial.exercises.gluon_play import RIGHT, adapt, plays
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.hopper.ladder import gl, gluon, left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def attend_by_turns(q, k, v, full, empty, turns, zeros, m, l, acc, scale_log2, blocks, C):
    """As attend_overlapped; consumer C issues its matmuls when it has the turn. turns: two barriers."""
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
        mbarrier.wait(turns.index(C), (i - C) % 2)
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        mbarrier.arrive(turns.index(1 - C), count=1)
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


MISTAKES = {
    "both consumers wait for one parity, but in a block i they are one turn apart: consumer 0 begins, so in block 1 its wait passes and consumer 1's doesn't": [
        ("(i - C) % 2", "i % 2")],
    "consumer 1 begins here: a wait for parity 1 passes on a fresh barrier, and in block 1 that is consumer 0's": ("(i - C) % 2", "(i + 1 - C) % 2"),
    "the parity is that of the stage, but a turn comes once a block: its parity flips from block to block": ("(i - C) % 2", "parity"),
    "you wait at the other's barrier: consumer C's turn is turns.index(C)": ("wait(turns.index(C)", "wait(turns.index(1 - C)"),
}  # fmt: skip

EXERCISE = Exercise(
    task="Write attend_by_turns(q, k, v, full, empty, turns, zeros, m, l, acc, scale_log2, blocks, C): attend_overlapped, in which consumer C issues the "
    "two matmuls of a block i ≥ 1 when it has the turn, and passes the turn on; return l, acc.",
    hints=(
        "Two lines are missing: a wait for the turn, and an arrival that gives it to the other. Between which lines is the turn yours?",
        "Consumer 0 begins: in block 1 its wait must pass on a fresh barrier, and consumer 1's must not. What happens to a barrier's phase "
        "between two of your turns?",
        "mbarrier.wait(turns.index(C), parity) before q kᵀ, with a parity that is 1 for consumer 0 and 0 for consumer 1 in block 1, and flips from "
        "block to block. mbarrier.arrive(turns.index(1 - C), count=1) after p v is issued, before the wait for s.",
    ),
    solution=attend_by_turns,
    reasoning="Each turn of yours is one phase of turns[C], which the other's arrival completes. So the parity flips from block to block: (i − C) % 2. "
    "The turn protects the order of issuing alone, so it passes on before the matmuls are done.",
    inputs=lambda: plays(consumers=(0, 1)),
    truth=lambda *play: RIGHT,
    rule="in each block i ≥ 1: wait for the turn, issue both matmuls, pass the turn on, wait for s",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
