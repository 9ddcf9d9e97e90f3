"""Exercise 12.1, n_masking_steps."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def n_masking_steps(block_m, block_n, is_causal, is_local, is_even):
    """Key blocks that FA2's loop with masks may take. is_even: S_q and S_k fill their last blocks."""
    if not is_causal and not is_local:
        return 1
    crossed = -(-block_m // block_n)  # rounded up
    return crossed if is_causal and is_even else crossed + 1


CROSSED = "-(-block_m // block_n)"
LAST = "crossed if is_causal and is_even else crossed + 1"
NEITHER = "if not is_causal and not is_local"
MISTAKES = {
    "no case adds a block to the ⌈block_m / block_n⌉ that the diagonal crosses: which of the three does, and what does Is_even_MN say?": (
        LAST, "crossed"),
    "one block too many: a causal kernel whose lengths fill their blocks (Is_even_MN) adds none": (LAST, "crossed + 1"),
    "Is_even_MN is used the wrong way round: lengths that do not fill their blocks cost one block more": ("and is_even", "and not is_even"),
    "Is_even_MN saves a block only in a causal kernel: a window always takes one more": (LAST, "crossed + (not is_even)"),
    "a window (Is_local) is masked like a causal kernel, not like one without a mask": (NEITHER, "if not is_causal"),
    "the number of blocks that the diagonal crosses is rounded down: ceil_div rounds up": (CROSSED, "block_m // block_n"),
    "block_n / block_m is taken: the diagonal of block_m rows crosses ⌈block_m / block_n⌉ key blocks": (CROSSED, "-(-block_n // block_m)"),
    "without a mask the steps are counted as with one: there is no diagonal to cross, so it is one step": ((f"    {NEITHER}:\n        "
                                                                                                           f"return 1\n"), ""),
    "a kernel without a mask takes no step: its last block of keys may be ragged, so it takes one": ("return 1", "return 0"),
    "without a mask it is one step, whether the lengths fill their blocks or not: Is_even_MN does not matter there": (
        "return 1", "return int(not is_even)"),
}  # fmt: skip


def truth(block_m, block_n, is_causal, is_local, is_even):
    crossed = len(range(0, block_m, block_n))
    return (crossed + 1 if is_local else crossed + (not is_even)) if is_causal or is_local else 1


def inputs():
    def steps(block_m, block_n, *, causal=False, local=False, even=True, **options):
        words = "causal" if causal else "a window" if local else "no mask"
        lengths = "lengths that fill their blocks" if even else "ragged lengths"
        return case(block_m, block_n, causal, local, even, on=f"{words}, blocks of {block_m} x {block_n}, {lengths}", **options)

    even = "the diagonal starts at a block's edge, so that none is added to the {} of {} keys that it crosses in {} rows"
    yield steps(128, 32, causal=True, otherwise=even.format(4, 32, 128))
    yield steps(96, 64, causal=True, otherwise=even.format(2, 64, 96))
    yield steps(64, 128, causal=True, otherwise=even.format(1, 128, 64))
    yield steps(128, 32, causal=True, even=False, otherwise="the diagonal may start inside a block: it crosses one more")
    yield steps(96, 64, local=True, even=False, otherwise="a window: one block more than the diagonal crosses")
    yield steps(128, 32, local=True, otherwise="a window: one block more than the diagonal crosses, Is_even_MN or not")
    yield steps(128, 32, otherwise="no mask and no window: one step, for a last block that may be ragged")
    yield steps(128, 32, even=False, otherwise="no mask and no window: one step, Is_even_MN or not")
    for _ in range(20):
        causal, local = random.choice(((True, False), (False, True), (False, False)))
        half = 16 * random.randint(1, 8)  # so that an even kernel's diagonals cross no more than it masks
        yield steps(half * random.randint(1, 6), 2 * half, causal=causal, local=local, even=random.random() < 0.5, fresh=True)


EXERCISE = Exercise(
    id="12.1",
    task="Read in FA2's source how many key blocks its loop with masks takes, and write that number in Python.",
    hints=(
        (
            "Search flash_fwd_kernel.h for n_masking_steps: it is set right before the first of the two loops. `a ? b : c` is `b if a else "
            "c` in Python."
        ),
        "There are three cases: no causal mask and no window; causal, with lengths that fill their blocks; and all others.",
        "ceil_div(a, b) is -(-a // b). The three cases give 1, ceil_div(block_m, block_n), and one more than that.",
    ),
    solution=n_masking_steps,
    reasoning="The diagonal of a block of rows crosses block_m / block_n blocks of keys, rounded up. That is enough if it starts at a "
    "block's edge. It is moved by S_k − S_q, so with ragged lengths it may start inside a block and cross one more. The number is a "
    "constant of the compiled kernel, which serves all lengths of its kind, so it must cover the worst of them.",
    inputs=inputs,
    truth=truth,
    rule="1 without mask and window; else ⌈block_m / block_n⌉, and one more unless the kernel is causal and Is_even_MN",
    mistakes=MISTAKES,
    exact=True,
)
