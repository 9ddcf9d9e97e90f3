"""Exercise 8.1, tflops."""

import random

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def tflops(B, H, S_q, S_k, D, is_causal, mode, seconds):
    """TFLOP/s of a call that takes `seconds`: the FLOPs that the task needs, not what a kernel does."""
    seen = [max(0, i + 1 + S_k - S_q) if is_causal else S_k for i in range(S_q)]  # keys of each query
    forward = 4 * B * H * sum(seen) * D  # 2 matmuls, 2 FLOPs a multiply-add
    flops = {"fwd": forward, "bwd": 2.5 * forward, "fwd_bwd": 3.5 * forward}[mode]
    return flops / seconds / 1e12


MISTAKES = {
    "flops": "FLOP/s are not turned to TFLOP/s: divide by 10¹²",
    "giga": "these are GFLOP/s, or the time is taken for milliseconds: tera is 10¹², and the time is in seconds",
    "tebi": "tera is 10¹² here, not 2⁴⁰",
    "milliseconds": "the time is divided by 1,000: it is in seconds already",
    "multiplied": "the time is multiplied: FLOPs divided by seconds",
    "half": "half is missing: 2 matmuls forward, 5 backward, and 2 FLOPs a multiply-add",
    "quarter": "both the second matmul and the addition of a multiply-add are missing",
    "no_batch": "the batch is missing: every head of every batch entry counts",
    "no_heads": "the heads are missing: every head of every batch entry counts",
    "one_head": "batch and heads are missing: every head of every batch entry counts",
    "S_q_twice": "S_q is used for both lengths: a head has S_q · S_k pairs",
    "S_k_twice": "S_k is used for both lengths: a head has S_q · S_k pairs",
    "hidden": "pairs that the causal mask hides are counted",
    "half_of_all": "half of all pairs are counted: a causal row i sees i + 1 + S_k − S_q keys, so a square has S · (S + 1) / 2 pairs",
    "strict": "the diagonal is not counted: query i sees key i too",
    "top_left": "the mask starts at the top left: the last query sees the last key",
    "negative": "a query that sees no key costs nothing, never less than nothing: with S_q > S_k the first S_q − S_k queries see none",
    "bwd_as_fwd": "backward is counted as a forward: it has 5 matmuls, not 2",
    "bwd_twice": "backward is counted as twice the forward: s is computed again, so 5 matmuls, not 4",
    "bwd_seven": "7 matmuls are counted backward: two kernels do that many, each with its own s and dp, but the task needs 5",
    "bwd_five_forwards": "5 forwards are counted: backward is 5 matmuls, and a forward has 2 already",
    "both_bwd": "fwd_bwd counts the backward alone: forward and backward together",
    "both_fwd": "fwd_bwd counts the forward alone: forward and backward together",
    "both_nine": "fwd_bwd counts 9 matmuls: 2 forward and 5 backward, whatever the kernels repeat",
    "both_six": "fwd_bwd counts 6 matmuls: 2 forward and 5 backward",
    "both_mean": "fwd_bwd is the mean of the two: their FLOPs add, because seconds is the time of both",
    "whole": "the result is cut to a whole number, and a slow run does less than one TFLOP/s: divide by /, and round nothing",
    **{f"decimals_{n}": f"the result is rounded to {n} decimal{'s' * (n > 1)}: return it as it is" for n in range(1, 6)},
}

MODES = ("fwd", "bwd", "fwd_bwd")
MATMULS = {  # of each mode
    "half": (1, 2.5, 3.5),
    "quarter": (0.5, 1.25, 1.75),
    "bwd_as_fwd": (2, 2, 4),
    "bwd_twice": (2, 4, 6),
    "bwd_seven": (2, 7, 9),
    "bwd_five_forwards": (2, 10, 12),
    "both_bwd": (2, 5, 5),
    "both_fwd": (2, 5, 2),
    "both_nine": (2, 5, 9),
    "both_six": (2, 5, 6),
    "both_mean": (2, 5, 3.5),
}
FACTORS = {"flops": 1e12, "giga": 1e3, "tebi": 1e12 / 2**40, "milliseconds": 1e-3}


def _pairs(S_q, S_k, is_causal, mistake):
    S_q, S_k = (S_k if mistake == "S_k_twice" else S_q), (S_q if mistake == "S_q_twice" else S_k)
    if not is_causal or mistake == "hidden":
        return S_q * S_k
    if mistake == "half_of_all":
        return S_q * S_k / 2
    if mistake == "top_left":
        return sum(min(i + 1, S_k) for i in range(S_q))
    seen = [i + 1 + S_k - S_q - (mistake == "strict") for i in range(S_q)]
    return sum(seen) if mistake == "negative" else sum(max(0, keys) for keys in seen)


def twin(B, H, S_q, S_k, D, is_causal, mode, seconds, mistake=None):
    B = 1 if mistake in ("no_batch", "one_head") else B
    H = 1 if mistake in ("no_heads", "one_head") else H
    matmuls = dict(zip(MODES, MATMULS.get(mistake, (2, 5, 7)), strict=True))[mode]
    flops = 2 * matmuls * B * H * D * _pairs(S_q, S_k, is_causal, mistake)
    rate = (flops * seconds if mistake == "multiplied" else flops / seconds) / 1e12 * FACTORS.get(mistake, 1)
    if mistake and mistake.startswith("decimals"):
        return round(rate, int(mistake[-1]))
    return int(rate) if mistake == "whole" else rate


def inputs():
    def rate(*args, otherwise="", on=""):
        on = on or f"tflops({', '.join(f'{arg!r}' if isinstance(arg, str) else str(arg) for arg in args)})".replace("'", '"')
        return case(*args, on=on, otherwise=otherwise, fresh=on.startswith("a random"))

    # With seconds = 10⁻¹² the result is the number of FLOPs.
    yield rate(1, 1, 4, 4, 8, False, "fwd", 1e-12,
               otherwise="forward: FLOPs / seconds / 10¹², with 2 matmuls of 2 · S_q · S_k · D FLOPs a head")  # fmt: skip
    yield rate(3, 5, 4, 4, 8, False, "fwd", 1e-12, otherwise="every head of every batch entry counts")
    yield rate(1, 1, 4, 7, 8, False, "fwd", 1e-12, otherwise="a head has S_q · S_k pairs")
    yield rate(1, 1, 4, 4, 8, True, "fwd", 1e-12, otherwise="causal: only the pairs that are seen count")
    yield rate(1, 1, 2, 5, 8, True, "fwd", 1e-12, otherwise="causal, S_q < S_k: query i sees keys 0 … i + S_k − S_q")
    yield rate(1, 1, 5, 2, 8, True, "fwd", 1e-12, otherwise="causal, S_q > S_k: the first S_q − S_k queries see no key and cost nothing")
    yield rate(1, 1, 4, 4, 8, False, "bwd", 1e-12, otherwise="backward counts 5 matmuls, 2.5 times the forward")
    yield rate(1, 1, 4, 4, 8, False, "fwd_bwd", 1e-12, otherwise="fwd_bwd is forward and backward together, 7 matmuls")
    yield rate(1, 1, 4, 4, 8, False, "fwd", 7e-9,  # 0.0731429, another number with each number of decimals
               otherwise="something is rounded on the way: return FLOPs / seconds / 10¹² as it is, in float32 or float64")  # fmt: skip
    for mode in MODES * 3:
        sizes = [random.randint(1, high) for high in (4, 8, 90, 90, 128)]
        for is_causal in (False, True):
            yield rate(*sizes, is_causal, mode, 10 ** random.uniform(-5, 0), on=f'a random case, is_causal = {is_causal}, "{mode}"',
                       otherwise=OTHERS)  # fmt: skip


EXERCISE = Exercise(
    id="8.1",
    task="Turn seconds into TFLOP/s: count the pairs that are seen, 2 matmuls forward and 5 backward.",
    hints=(
        "Exercise 0.1 counts the forward. What does a backward have to compute, and how many matmuls is that?",
        "forward = 4 · B · H · pairs · D, and backward is 2.5 times that. fwd_bwd is their sum, because seconds is then the time of both.",
        "ledger.visible_pairs(S_q, S_k, is_causal) counts the pairs; 10¹² FLOPs a second are one TFLOP/s.",
    ),
    solution=tflops,
    reasoning="The count is of what has to be done, not of what a kernel does: a kernel that computes tiles of hidden pairs, or s twice, gets no "
    "credit for it. So the number compares implementations on one task, and set against the chip's peak it says how much of the peak the task got. Under a causal "
    "mask flash-attn's benchmark counts half of all pairs, which is S / (S + 1) of this count.",
    more="The package's ledger.attention_flops and ledger.backward_flops count the pairs by a formula, and check their arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
)
