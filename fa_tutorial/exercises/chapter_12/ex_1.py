"""Exercise 12.1, n_masking_steps."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def n_masking_steps(block_m, block_n, is_causal, is_local, is_even):
    """Key blocks that FA2's loop with masks may take. is_even: S_q and S_k fill their last blocks."""
    if not is_causal and not is_local:
        return 1
    crossed = -(-block_m // block_n)  # rounded up
    return crossed if is_causal and is_even else crossed + 1


MISTAKES = {
    "no_extra": "the + 1 is missing: which of the three cases adds a block, and what does Is_even_MN say?",
    "always_extra": "one block too many: a causal kernel whose lengths fill their blocks (Is_even_MN) adds none",
    "extra_where_even": "Is_even_MN is used the wrong way round: lengths that do not fill their blocks cost one block more",
    "even_window": "Is_even_MN saves a block only in a causal kernel: a window always takes one more",
    "window_as_full": "a window (Is_local) is masked like a causal kernel, not like one without a mask",
    "down": "ceil_div rounds up",
    "upside_down": "it is kBlockM / kBlockN: how many key blocks the diagonal crosses",
    "in_keys": "that is a number of keys: count blocks of kBlockN keys",
    "full_as_window": "a kernel with neither mask nor window takes one step: that is the third case",
    "full_none": "a kernel without a mask still takes one step: its last block of keys may be ragged",
    "full_if_ragged": "without a mask it is one step, whether the lengths fill their blocks or not: Is_even_MN does not matter there",
    "full_crossed": "without a mask there is no diagonal to cross: one step",
}


def twin(block_m, block_n, is_causal, is_local, is_even, mistake=None):
    crossed = {"down": block_m // block_n, "upside_down": -(-block_n // block_m), "in_keys": block_m}.get(mistake, -(-block_m // block_n))
    if not is_causal and (not is_local or mistake == "window_as_full"):
        return {"full_as_window": crossed + 1, "full_none": 0, "full_if_ragged": int(not is_even), "full_crossed": crossed}.get(mistake, 1)
    extra = not (is_causal and is_even)
    extra = {"no_extra": False, "always_extra": True, "extra_where_even": not extra, "even_window": not is_even}.get(mistake, extra)
    return crossed + extra


def inputs():
    def steps(block_m, block_n, *, causal=False, local=False, even=True, **options):
        words = "causal" if causal else "a window" if local else "no mask"
        lengths = "lengths that fill their blocks" if even else "ragged lengths"
        return case(block_m, block_n, causal, local, even, on=f"{words}, blocks of {block_m} x {block_n}, {lengths}", **options)

    yield steps(128, 32, causal=True)
    yield steps(96, 64, causal=True)
    yield steps(64, 128, causal=True)
    yield steps(128, 32, causal=True, even=False)
    yield steps(96, 64, local=True, even=False)
    yield steps(128, 32, local=True)
    yield steps(128, 32)
    yield steps(128, 32, even=False)
    for _ in range(20):
        causal, local = random.choice(((True, False), (False, True), (False, False)))
        half = 16 * random.randint(1, 8)  # so that an even kernel's diagonals cross no more than it masks
        yield steps(half * random.randint(1, 6), 2 * half, causal=causal, local=local, even=random.random() < 0.5, fresh=True)


EXERCISE = Exercise(
    id="12.1",
    task="Read in FA2's source how many key blocks its loop with masks takes, and write that number in Python.",
    hints=(
        "Search flash_fwd_kernel.h for n_masking_steps: it is set right before the first of the two loops. `a ? b : c` is `b if a else c` in Python.",
        "There are three cases: no causal mask and no window; causal, with lengths that fill their blocks; and all others.",
        "ceil_div(a, b) is -(-a // b). The three cases give 1, ceil_div(block_m, block_n), and one more than that.",
    ),
    solution=n_masking_steps,
    reasoning="The diagonal of a block of rows crosses block_m / block_n blocks of keys, rounded up. That is enough if it starts at a block's edge. "
    "It is moved by S_k − S_q, so with ragged lengths it may start inside a block and cross one more. The number is a constant of the compiled "
    "kernel, which serves all lengths of its kind, so it must cover the worst of them.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
