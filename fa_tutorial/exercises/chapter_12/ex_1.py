"""Exercise 12.1, fa2_line."""

import functools

from fa_tutorial.exercises.harness import Exercise, case


def fa2_line(step):
    """(file, line) at v2.8.3 of a step of your loop; file: "kernel" or "softmax"."""
    return {
        "load k": ("kernel", 335),
        "q kᵀ": ("kernel", 319),
        "scale": ("softmax", 88),
        "mask": ("kernel", 328),
        "m": ("softmax", 148),
        "alpha": ("softmax", 157),
        "p": ("softmax", 162),
        "l": ("softmax", 165),
        "alpha · acc": ("softmax", 160),
        "load v": ("kernel", 310),
        "p v": ("kernel", 367),
    }[step]


# Lines that are as right as the solution's: the rest of the statement, the same step for the first block, the called function's own lines.
ALSO = {
    "load k": {("kernel", n) for n in (269, 270)},
    "q kᵀ": {("kernel", n) for n in (320, 321, 322)},
    "scale": {("softmax", n) for n in (67, 76, 86, 143, 157, 162)},
    "mask": {("kernel", n) for n in (329, 330)},
    "m": {("softmax", n) for n in (142,)},
    "p": {("softmax", n) for n in (86, 88, 143)},
    "l": {("softmax", n) for n in (144, 158)},
    "alpha · acc": {("softmax", 159)},
    "load v": {("kernel", n) for n in (309, 311, 313, 314, 315)},
}
MISTAKES = {
    "q kᵀ: that line multiplies p by v, which gemm_rs says: its first factor is in registers (r), its second in shared memory (s)": (
        '"q kᵀ": ("kernel", 319)', '"q kᵀ": ("kernel", 367)'),
    "load k: that copies v: `tVgV` is v in global memory, as the habits of CuTe's names say": ('"kernel", 335', '"kernel", 310'),
    "load v: that copies k, the next block's: `tKgK` is k in global memory": ('"load v": ("kernel", 310)', '"load v": ("kernel", 335)'),
    "mask: that is the second loop, from line 378 on: take the first, which has the masks of a causal kernel": ('"kernel", 328', '"kernel", 403'),
    "scale: gemm multiplies q by k alone, without the scale": ('("softmax", 88)', '("kernel", 319)'),
    "alpha · acc: softmax_rescale_o is called there, and acc is rescaled inside it, in softmax.h": ('("softmax", 160)', '("kernel", 344)'),
    "alpha: that line multiplies l by alpha, which stands above it": ('"softmax", 157', '"softmax", 158'),
    "p: that exponential is alpha's: it takes a maximum, not the scores": ('"p": ("softmax", 162)', '"p": ("softmax", 157)'),
    "p v: that line only rounds p to fp16 or bf16: the product comes after it": ('"p v": ("kernel", 367)', '"p v": ("kernel", 347)'),
    "l: softmax_rescale_o doesn't add over threads: quad_allreduce_ does that once, after the loop": ('("softmax", 165)', '("softmax", 172)'),
}  # fmt: skip
WORDS = {
    "load k": "a tile of k comes from global memory: a copy of `tKgK`",
    "q kᵀ": "acc_s, the scores, are the result of a matmul in the first loop",
    "scale": "the scale comes with the exponential, as in (8.3)",
    "mask": "scores that a row doesn't see become −∞ after the first matmul",
    "m": "the new maximum is a reduction of the scores, in softmax_rescale_o",
    "alpha": "alpha is the exponential of the old maximum minus the new one",
    "p": "all scores become exponentials at once, in softmax_rescale_o",
    "l": "the sum of p joins row_sum, in softmax_rescale_o",
    "alpha · acc": "acc_o is multiplied by alpha, in softmax_rescale_o",
    "load v": "a tile of v comes from global memory: a copy of `tVgV`",
    "p v": "the second matmul adds to acc_o",
}


def truth(step):
    return step


def adapt(answer):
    """What the line does that the answer names, so that a message tells this, and not the right line."""

    @functools.wraps(answer)
    def what_it_does(step):
        found = answer(step)
        if not isinstance(found, tuple | list) or len(found) != 2:
            return found
        found, steps = tuple(found), (step, *WORDS)
        exact = [other for other in steps if found == fa2_line(other)]
        near = [other for other in steps if found in ALSO.get(other, ())]
        return step if step in near else (*exact, *near, "line {1} of {0}".format(*found))[0]

    return what_it_does


def inputs():
    for step, words in WORDS.items():
        yield case(step, otherwise=words)


EXERCISE = Exercise(
    id="12.1",
    task="Find the lines of your loop in FA2's.",
    hints=(
        "Start at line 302 of flash_fwd_kernel.h: names say what is copied (`tKgK`, `tVgV`), multiplied (`gemm`) and masked.",
        "Between the two matmuls one function is called that isn't in this file: softmax_rescale_o, in softmax.h from line 137 on. Take its "
        "branch for all blocks but the first.",
        "The scale isn't in the matmul: look for the line of scale_apply_exp2 that calls exp2f.",
    ),
    solution=fa2_line,
    reasoning="The order is yours but for the copies, which start one matmul before they are needed. alpha · acc stands inside the softmax, "
    "because there each thread has its rows' alpha in registers.",
    inputs=inputs,
    truth=truth,
    rule="the line does that step, for a block that isn't the first, in the loop with masks or in a function that it calls",
    adapt=adapt,
    mistakes=MISTAKES,
    exact=True,
)
