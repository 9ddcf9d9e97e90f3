import re

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind
from fa_tutorial.reading import FA3_CALLS, MATMULS, under_way


def fa3_step():
    """The calls of FA3's step in their order, with two waits and two releases."""
    return (
        "gemm q kᵀ",
        "gemm p v",
        "warpgroup_wait<1>",  # p v, issued last, may be under way
        "release k",
        "mask_fn",
        "max_get_scale",
        "online_softmax",
        "warpgroup_wait<0>",
        "release v",
        "convert_type_out",
        "rescale_o",
    )


GIVEN = [call for call in FA3_CALLS if not call.startswith("release")]
WAIT_1, WAIT_0 = '        "warpgroup_wait<1>",  # p v, issued last, may be under way\n', '        "warpgroup_wait<0>",\n'
K, V, MASK, MAX, CONVERT, LAST = (
    f'        "{call}",\n' for call in ("release k", "release v", "mask_fn", "max_get_scale", "convert_type_out", "rescale_o")
)
MISTAKES = {
    "the mask needs s, so q kᵀ must have ended: a wait stands before mask_fn": [(WAIT_1 + K, ""), (MASK, MASK + WAIT_1 + K)],
    "convert_type_out overwrites p, which p v reads, and rescale_o changes acc: p v must have ended before them": [
        (WAIT_0 + V, ""), (LAST, LAST + WAIT_0 + V)],
    "the producer overwrites k's buffer as soon as it is given back: q kᵀ must have ended before release k": [(K, ""), (WAIT_1, K + WAIT_1)],
    "the producer overwrites v's buffer as soon as it is given back: p v must have ended before release v": [(V, ""), (WAIT_0, V + WAIT_0)],
    "p v has ended before the softmax begins, so the tensor cores idle during it: wait for q kᵀ alone there": (WAIT_1, WAIT_0),
    "p v could run longer: the first call that changes what it reads or writes is convert_type_out": [
        (WAIT_0 + V, ""), (MAX, MAX + WAIT_0 + V)],
    "k's buffer is held too long: nothing reads it once q kᵀ has ended, and the producer waits for it": [(K, ""), (V, K + V)],
    "v's buffer is held too long: nothing reads it once p v has ended, and the producer waits for it": [(V, ""), (CONVERT, CONVERT + V)],
}  # fmt: skip


@adapting
def adapt(answer):
    """The answer with what its worst case shows: the first call that comes too early, what runs beside p v, which buffer is held too long."""
    step = answer()
    if not isinstance(step, tuple | list) or not all(isinstance(call, str) for call in step):
        raise Wrong(f"returns {kind(step)}, want a tuple of calls, as texts")
    if [call for call in step if call in GIVEN] != GIVEN:
        raise Wrong(f"the seven given calls stay, once each and in their order: {', '.join(GIVEN)}")
    added = ", ".join(sorted(call for call in step if call not in GIVEN))
    if not re.fullmatch(r"release k, release v, warpgroup_wait<\d>, warpgroup_wait<\d>", added):
        raise Wrong(f"adds {added or 'nothing'} to the seven calls, want release k, release v and two of warpgroup_wait<N>")
    between = step[step.index(MATMULS[0]) + 1]
    if between != MATMULS[1]:
        raise Wrong(f"{between} stands between the two matmuls: issue both first")
    rows = under_way(step)
    early = next((f"{call}: {clash}" for call, _, clash in rows if clash), "none")
    beside = [call for call, running, _ in rows if "gemm p v" in running and call in GIVEN]
    late = "none"
    for matmul, name in zip(MATMULS, ("release k", "release v"), strict=True):
        ended = [call for call, running, _ in rows[step.index(matmul) + 1 :] if matmul not in running]
        if late == "none" and name in ended and any(call in GIVEN for call in ended[: ended.index(name)]):
            late = name
    return early, ", ".join(beside) or "none", late


def truth():
    return "none", "mask_fn, max_get_scale, online_softmax", "none"


def inputs():
    yield case(on="in the worst case")


EXERCISE = Exercise(
    task="Place FA3's two waits and two releases so that p v runs beside the softmax, and nothing comes too early or too late.",
    hints=(
        "Go down the calls. Which is the first to touch s, which q kᵀ writes? Which is the first to change what p v reads or writes?",
        "The mask needs s, so q kᵀ must have ended there. p v may still run, and it was issued last: which N does warpgroup_wait<N> need? "
        "convert_type_out overwrites p: what must have ended there?",
        "warpgroup_wait<1> before mask_fn, warpgroup_wait<0> before convert_type_out, and each release right after the wait that makes it safe.",
    ),
    solution=fa3_step,
    reasoning="Matmuls end in the order in which they were issued. So warpgroup_wait<1> waits for q kᵀ alone, and the mask and the softmax run beside "
    "p v. convert_type_out writes the p that p v reads, so there p v must have ended. A buffer is free once the matmul that reads it has ended.",
    inputs=inputs,
    truth=truth,
    rule="wanted: q kᵀ has ended before the mask, p v runs beside the softmax and has ended before p changes, and each buffer is given back at once",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("the first call that comes too early", "the calls beside p v", "the first buffer given back too late"),
    exact=True,
)  # fmt: skip
