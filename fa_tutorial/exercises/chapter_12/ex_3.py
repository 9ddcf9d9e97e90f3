"""Exercise 12.3, fa4_full_0."""

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong


def fa4_full_0(row_block, block_m, block_n, S_q, S_k, left):
    """What FA4's get_n_block_min_before_local_mask returns, with n_block_min = 0."""
    past = (row_block + 1) * block_m  # the row after a full block's last
    low = past + S_k - S_q - left  # the first key that it sees
    return max(0, -(-low // block_n))  # rounded up


ROW, LOW, RESULT = "(row_block + 1) * block_m", "past + S_k - S_q - left", "max(0, -(-low // block_n))"
MISTAKES = {
    "that's full_0 of 12.2, by the block's last row: their m_idx_max is another row": (ROW, f"min({ROW}, S_q) - 1"),
    "m_idx_max is one row too small: nothing is subtracted from (m_block + 1) · m_block_size": (ROW, f"{ROW} - 1"),
    "m_idx_max is cut at S_q: theirs isn't, in a ragged last block either": (ROW, f"min({ROW}, S_q)"),
    "m_idx_max is the block's first row: it's (m_block + 1) · m_block_size": (ROW, "row_block * block_m"),
    "the quotient is rounded down: ceil_div rounds up": (RESULT, "max(0, low // block_n)"),
    "the result may be below n_block_min: the larger of the two is returned": (RESULT, "-(-low // block_n)"),
    "S_k − S_q is left out: n_idx is the key at which row m_idx_max stands": (LOW, "past - left"),
    "S_k − S_q has the wrong sign: n_idx is the key at which row m_idx_max stands": (LOW, "past + S_q - S_k - left"),
    "left is added: n_idx_left lies before n_idx": (LOW, LOW.replace("- left", "+ left")),
    "left is left out: n_idx_left is n_idx minus window_size_left": (LOW, "past + S_k - S_q"),
    "n_idx_left is returned, a key: a block of keys is asked for": (RESULT, "max(0, low)"),
}  # fmt: skip


def truth(row_block, block_m, block_n, S_q, S_k, left):
    low = (row_block + 1) * block_m + S_k - S_q - left
    return len(range(0, low, block_n))  # the blocks of keys that begin before it


def inputs():
    yield case(31, 128, 64, 4096, 4096, 1000)
    yield case(31, 128, 64, 4096, 4096, 1023)
    yield case(5, 128, 64, 4096, 4096, 1023)
    yield case(9, 32, 16, 320, 417, 40)
    yield case(9, 32, 16, 320, 300, 13)
    yield case(32, 128, 64, 4100, 4100, 1000)


def adapt(answer):
    def whole(*args):
        bound = answer(*args)
        if isinstance(bound, float) and bound == truth(*args):
            raise Wrong("gives a float: a block's number is an integer, as // of integers gives it")
        return bound

    return whole


EXERCISE = Exercise(
    id="12.3",
    task="Write what FA4's get_n_block_min_before_local_mask returns.",
    hints=(
        "Only its last branch counts, in which there is a limit on the left. Which row does it call m_idx_max?",
        "m_idx_max is (m_block + 1) · m_block_size. n_idx is the key at which that row stands, and n_idx_left the first one that it sees.",
        "The result is n_idx_left / n_block_size, rounded up, and at least n_block_min, which is 0 here.",
    ),
    solution=fa4_full_0,
    reasoning="In a full block m_idx_max is the row after the last, so its window begins one key after the last row's. In a ragged last block "
    "it lies further past the end. So the bound is never too early, which would be wrong, but it may be late, which costs masks.",
    inputs=inputs,
    truth=truth,
    rule="the first key that row m_idx_max sees, divided by n_block_size and rounded up, and at least 0",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
