from fa_tutorial.exercises.gluon_play import RIGHT, adapt, plays
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.hopper.ladder import gl, gluon, left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """All blocks of keys for 64 rows of q: l, acc. zeros: [64, 128]; m, l: [64]; acc: [64, D]."""
    STAGES: gl.constexpr = k.shape[0]
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))  # [D, 128]
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])  # [64, 128]
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        p = left_operand(p, acc, v.dtype)
        acc = warpgroup_mma(p, v.index(stage), rescaled(acc, alpha), is_async=True)
        acc = warpgroup_mma_wait(0, [acc])  # [64, D]
        mbarrier.arrive(empty.index(stage), count=1)
    return l, acc


SUMMED = "        acc = warpgroup_mma_wait(0, [acc])  # [64, D]\n"
STEP, RESCALED = "p, m, l, alpha = softmax_step(", "rescaled(acc, alpha), is_async"
MISTAKES = {
    "acc is not rescaled: what was added before must shrink by alpha": (RESCALED, "acc, is_async"),
    "acc is rescaled after p v: this block's p is already relative to the new maximum, so shrink acc before p v is added": [
        (RESCALED, "acc, is_async"), (SUMMED, f"{SUMMED}        acc = rescaled(acc, alpha)\n")],
    "p v starts from nothing in every block: only q kᵀ has use_acc=False": (RESCALED, "rescaled(acc, alpha), use_acc=False, is_async"),
    "s still holds the scores of the blocks before: it starts from zeros each time (use_acc=False)": [
        ("zeros, use_acc=False,", "zeros,"), ("p, m, l, alpha = softmax_step(", "zeros = s\n        p, m, l, alpha = softmax_step(")],
    "the second matmul reads k's tile: it multiplies p by v": ("p, v.index(stage)", "p, k.index(stage)"),
    "s is scaled twice: softmax_step multiplies it by scale_log2": ("softmax_step(s,", "softmax_step(s * scale_log2,"),
    "the maximum is not carried on: keep the m that softmax_step returns": (STEP, "p, _, l, alpha = softmax_step("),
    "acc is divided by l here: return both, the consumer around your loop divides once, at the end": (
        "return l, acc", "return l, acc / l[:, None]"),
    "l and acc are exchanged": ("return l, acc", "return acc, l"),
    "m and l are swapped: softmax_step returns p, m, l, alpha": (STEP, "p, l, m, alpha = softmax_step("),
}  # fmt: skip

EXERCISE = Exercise(
    task="Write attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks), the loop of one consumer in Gluon; return l, acc.",
    hints=(
        "The loop is exercise 9.2's consumer, and its use of a tile is two matmuls with softmax_step between them. Which of the two needs "
        "use_acc=False?",
        "Both matmuls return before they are done. Which wait must come before softmax_step, and which before the release?",
        "Wait for full[stage]; s = warpgroup_mma(q, k's tile transposed, zeros, use_acc=False, is_async=True); wait for s; softmax_step; "
        "acc = warpgroup_mma(left_operand(p, acc, v.dtype), v's tile, rescaled(acc, alpha), is_async=True); wait for acc; arrive at "
        "empty[stage]. Each wait returns the tensor: s = warpgroup_mma_wait(0, [s]).",
    ),
    solution=attend,
    reasoning="The stage is released after the second wait, because p v reads v until then. A release after the first would be early for "
    "v, though not for k, which is why the chapter's forward has a ring for each.",
    inputs=plays,
    truth=lambda *play: RIGHT,
    rule="for each block: wait, q kᵀ, softmax_step, p v, release",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
