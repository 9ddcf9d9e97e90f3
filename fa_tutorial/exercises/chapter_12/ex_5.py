import re

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import verdict
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
HIDDEN = ["mask_fn", "max_get_scale", "online_softmax"]
NO_MASK = "the mask needs s, so q kᵀ must have ended: a wait stands before mask_fn"
NO_SUM = "convert_type_out overwrites p, which p v reads, and rescale_o changes acc: p v must have ended before them"
K_TOO_EARLY = "the producer overwrites k's buffer as soon as it is given back: q kᵀ must have ended before release k"
V_TOO_EARLY = "the producer overwrites v's buffer as soon as it is given back: p v must have ended before release v"
TOO_EARLY = {"mask_fn": NO_MASK, "max_get_scale": NO_MASK, "online_softmax": NO_MASK, "convert_type_out": NO_SUM, "rescale_o": NO_SUM,
             "release k": K_TOO_EARLY, "release v": V_TOO_EARLY}  # fmt: skip
NONE_HIDDEN = "p v has ended before the softmax begins, so the tensor cores idle during it: wait for q kᵀ alone there"
ISSUED_LATE = "the tensor cores idle between q kᵀ and p v: issue both, and then wait for q kᵀ"
SOME_HIDDEN = "p v could run longer: the first call that changes what it reads or writes is convert_type_out"
K_TOO_LATE = "k's buffer is held too long: nothing reads it once q kᵀ has ended, and the producer waits for it"
V_TOO_LATE = "v's buffer is held too long: nothing reads it once p v has ended, and the producer waits for it"
NO_WAIT = "{} waits for nothing there: it waits until at most {} are under way, and no more are"
WAIT_1, WAIT_0, K, V = (
    '        "warpgroup_wait<1>",  # p v, issued last, may be under way\n',
    '        "warpgroup_wait<0>",\n',
    '        "release k",\n',
    '        "release v",\n',
)
GEMM_PV, MASK, CONVERT = '        "gemm p v",\n', '        "mask_fn",\n', '        "convert_type_out",\n'
MISTAKES = {
    NO_MASK: [(WAIT_1 + K, ""), (MASK, MASK + WAIT_1 + K)],
    NO_SUM: [(WAIT_0, ""), (V, ""), ('        "rescale_o",\n', f'        "rescale_o",\n{WAIT_0}{V}')],
    K_TOO_EARLY: [(K, ""), (WAIT_1, K + WAIT_1)],
    V_TOO_EARLY: [(V, ""), (WAIT_0, V + WAIT_0)],
    NONE_HIDDEN: (WAIT_1, WAIT_0),
    ISSUED_LATE: [(WAIT_1, ""), (GEMM_PV, WAIT_0 + GEMM_PV)],
    SOME_HIDDEN: [(WAIT_0, ""), (V, ""), ('        "max_get_scale",\n', f'        "max_get_scale",\n{WAIT_0}{V}')],
    K_TOO_LATE: [(K, ""), (V, K + V)],
    V_TOO_LATE: [(V, ""), (CONVERT, CONVERT + V)],
}  # fmt: skip


def valid(step):
    """The step, a list of calls. Wrong where it isn't one, or not the given calls with waits and releases."""
    if not isinstance(step, tuple | list) or not all(isinstance(call, str) for call in step):
        raise Wrong(f"returns {kind(step)}, want a tuple of calls, as texts")
    for call in step:
        if call not in FA3_CALLS and not re.fullmatch(r"warpgroup_wait<\d>", call):
            raise Wrong(f"{call!r} is no call of this step: beside the seven given it has warpgroup_wait<N>, release k and release v")
    if lost := [call for call in GIVEN if call not in step]:
        raise Wrong(f"{lost[0]} is missing: the seven given calls stay, in their order")
    if twice := [call for call in GIVEN if step.count(call) > 1]:
        raise Wrong(f"{twice[0]} stands there {step.count(twice[0])} times: each of the seven given calls stays there once")
    if [call for call in step if call in GIVEN] != GIVEN:
        raise Wrong(f"the given calls are no longer in their order, once each: {', '.join(GIVEN)}")
    for call in ("release k", "release v"):
        if (times := step.count(call)) != 1:
            never = f"there is no {call}: the producer waits for ever for the buffer, and so do you for the next block"
            raise Wrong(f"{call} stands there {times} times: a buffer is given back once a step" if times else never)
    if (waits := len(step) - len(GIVEN) - 2) > 2:
        raise Wrong(f"has {waits} waits: two are enough")
    if waits < 2:
        raise Wrong(f"has {waits or 'no'} wait{'s' * (waits != 1)}: two are needed, one for q kᵀ and one for p v")
    return list(step)


def told_early(step, call, clash):
    """A call with the matmul that it meets, and why: a wait between them that allows as many matmuls as are under way there, or none."""
    (met,) = (matmul for matmul in MATMULS if matmul in clash)
    for place in range(step.index(met) + 1, step.index(call)):
        wait, before = step[place], under_way([*step[:place], "mask_fn"])[-1][1]
        if wait.startswith("warpgroup_wait") and len(before) <= int(wait[-2]):
            return verdict(f"{call}: {clash}, in spite of {wait}", NO_WAIT.format(wait, wait[-2]))
    return verdict(f"{call}: {clash}", TOO_EARLY[call])


@adapting
def adapt(answer):
    """The answer with what its worst case shows: the first call that comes too early, what runs beside p v, which buffer is held too long."""
    step = valid(answer())
    rows = under_way(step)
    early = next((told_early(step, call, clash) for call, _, clash in rows if clash), "none")
    beside = [call for call, running, _ in rows if "gemm p v" in running and call in GIVEN]
    hidden = ", ".join(beside) or "none"
    if MATMULS[0] not in rows[step.index(MATMULS[1])][1]:
        hidden = verdict("p v is issued after q kᵀ has ended", ISSUED_LATE)
    elif beside != HIDDEN:
        hidden = verdict(hidden, SOME_HIDDEN if beside else NONE_HIDDEN)
    late = "none"
    for matmul, name, cause in ((MATMULS[0], "release k", K_TOO_LATE), (MATMULS[1], "release v", V_TOO_LATE)):
        ended = [call for call, running, _ in rows[step.index(matmul) + 1 :] if matmul not in running]
        if late == "none" and name in ended and any(call in GIVEN for call in ended[: ended.index(name)]):
            late = verdict(name, cause)
    return early, hidden, late


def truth():
    return "none", ", ".join(HIDDEN), "none"


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
    rule="q kᵀ has ended before the mask, p v runs beside the softmax and has ended before p changes, and each buffer is given back at once",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("the first call that comes too early", "the calls beside p v", "the first buffer given back too late"),
    exact=True,
)  # fmt: skip
