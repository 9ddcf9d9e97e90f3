from fa_tutorial.exercises.gluon_play import RIGHT, adapt, plays
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.hopper.ladder import gl, gluon, left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def attend_by_turns(q, k, v, full, empty, turns, zeros, m, l, acc, scale_log2, blocks, C):
    """As attend; consumer C issues its matmuls when it has the turn. turns: two barriers."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.wait(turns.index(C), 1 - C)
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))  # [D, 128]
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        mbarrier.arrive(turns.index(1 - C), count=1)
        s = warpgroup_mma_wait(0, [s])  # [64, 128]
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        p = left_operand(p, acc, v.dtype)
        acc = rescaled(acc, alpha)
        mbarrier.wait(turns.index(C), (i + C) % 2)
        acc = warpgroup_mma(p, v.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])  # [64, D]
        mbarrier.arrive(empty.index(stage), count=1)
    mbarrier.arrive(turns.index(1 - C), count=1)
    return l, acc


FIRST, TURN = "wait(turns.index(C), 1 - C)", "(i + C) % 2"
MISTAKES = {
    "both consumers wait for one parity, but they are one turn apart: consumer 0's first wait passes on a fresh barrier, and consumer 1's doesn't": [
        (FIRST, "wait(turns.index(C), 1)"), (TURN, "i % 2")],
    "behind the softmax both consumers wait for one parity, but they are one turn apart": (TURN, "i % 2"),
    "consumer 1 begins here: a wait for parity 1 passes on a fresh barrier, and the first one is consumer 0's": [
        (FIRST, "wait(turns.index(C), C)"), (TURN, "(i + 1 + C) % 2")],
    "the parity is that of the stage, but a turn comes once a block: its parity flips from block to block": (TURN, "parity"),
    "the first turn has q kᵀ of block 0 alone: wait for it, too, before the loop": (f"    mbarrier.{FIRST}\n", ""),
    "you wait at the other's barrier: consumer C's turn is turns.index(C)": [
        (FIRST, "wait(turns.index(1 - C), 1 - C)"), (f"turns.index(C), {TURN}", f"turns.index(1 - C), {TURN}")],
}  # fmt: skip

EXERCISE = Exercise(
    task="Write attend_by_turns(q, k, v, full, empty, turns, zeros, m, l, acc, scale_log2, blocks, C): attend, in which consumer C issues p v of a "
    "block and q kᵀ of the next one in one turn, and passes the turn on; return l, acc.",
    hints=(
        "A turn begins before p v, in one block, and ends behind q kᵀ, in the next. So where in the loop do you wait for it, and where do you "
        "pass it on? The first turn has no p v, and the last no q kᵀ: what stands before the loop, and what behind it?",
        "Consumer 0 begins: its first wait must pass on a fresh barrier, and consumer 1's must not. What happens to a barrier's phase "
        "between two of your turns?",
        "Before the loop mbarrier.wait(turns.index(C), parity), with a parity that is 1 for consumer 0 and 0 for consumer 1; the same before p v, with a "
        "parity that flips from block to block, and begins with the other one. mbarrier.arrive(turns.index(1 - C), count=1) behind q kᵀ, and "
        "behind the loop.",
    ),
    solution=attend_by_turns,
    reasoning="Each turn of yours is one phase of turns[C], which the other's arrival completes. So the parity flips from turn to turn: 1 − C before "
    "the loop, then (i + C) % 2. The turn protects the order of issuing alone, so it passes on before q kᵀ is done.",
    inputs=lambda: plays(consumers=(0, 1)),
    truth=lambda *play: RIGHT,
    rule="matmuls are issued in their turn, which is waited for late and passed on early",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
