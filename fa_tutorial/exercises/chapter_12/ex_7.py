from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind


def ruined(S_q, S_k):
    """The rows of o, of 0 to 31, that are wrong without lines 94 to 128."""
    diagonal = S_k - S_q  # row r sees keys up to r + diagonal
    if 32 + diagonal > 0:
        return []  # n_block_max is at least 1, so no key before 0 is read
    return [row for row in range(32) if row + diagonal >= -16]  # of keys −16 … −1


BLIND = "    if 32 + diagonal > 0:\n        return []  # n_block_max is at least 1, so no key before 0 is read\n"
SEES = "row + diagonal >= -16"
MISTAKES = {
    "a row from which the mask hides all 16 keys has p = 0, so its o is 0, as it should be: look at what is left of keys −16 … −1 for each row": (
        f" if {SEES}", ""),
    "you find no row, but without these lines a block that sees nothing still runs the loop once, with n_block = −1, and the mask hides only keys after the diagonal": (
        f"[row for row in range(32) if {SEES}]", "[]"),
    "where one row of a block sees a key, n_block_max is at least 1, so no key before 0 is read: its other rows' keys are all masked": [
        (BLIND, ""), (SEES, "-16 <= row + diagonal < 0")],
    "a row that sees no key isn't wrong by that: its o is 0 unless the loop reads a key before 0, and the mask lets it through": [
        (BLIND, ""), (SEES, "row + diagonal < 0")],
    "a row is missing: row r sees keys up to r + S_k − S_q, and the first key that is read is −16": (SEES, "row + diagonal > -16"),
    "row 31 sees keys up to 31 + S_k − S_q: if that is −1, n_block_max is 0": ("32 + diagonal > 0", "32 + diagonal >= 0"),
    "C++ rounds −1/16 to 0, and Python's // to −1: n_block_max is 0 where no row of the block sees a key, so n_block is −1, never −2": (
        SEES, "row + diagonal >= 16 * ((32 + diagonal + 15) // 16 - 1)"),
}  # fmt: skip


@adapting
def adapt(answer, S_q, S_k):
    """The rows in their order."""
    rows = answer(S_q, S_k)
    rows = rows.tolist() if hasattr(rows, "tolist") else rows  # a tensor of them
    if not isinstance(rows, list | tuple | range | set) or not all(type(row) is int and row in range(32) for row in rows):
        raise Wrong(f"returns {kind(rows)}, want a list of whole numbers from 0 to 31")
    return tuple(sorted(rows))


def truth(S_q, S_k):
    blocks = min(-(-S_k // 16), int((32 + S_k - S_q + 15) / 16))  # int rounds towards 0
    keys = range(16 * (blocks - 1), 16 * blocks)  # the first block that the loop visits
    return tuple(row for row in range(32) if any(key < 0 and key < row + 1 + S_k - S_q for key in keys))


def inputs():
    for S_q, S_k in ((40, 8), (44, 4), (47, 1), (48, 1), (60, 40), (50, 2), (62, 1), (32, 32), (20, 45), (41, 9), (52, 10), (33, 2)):
        yield case(S_q, S_k)


EXERCISE = Exercise(
    task="Find the rows of o that an early exit saves.",
    hints=(
        "When do these lines run? Put a block of rows that sees no key into the bounds above them: what is n_block_max, and so n_block = n_block_max − 1 in line 302?",
        "n_block_max is 0, so the loop reads keys −16 … −1. Line 373 breaks off after them. Which of these keys does mask.h hide from row r? It compares "
        "col_idx with col_idx_limit_right, and with nothing else.",
        "Row r keeps the keys from −16 to r + S_k − S_q. It is wrong if that is at least one key, in a block whose last row, 31, sees no key from 0 on.",
    ),
    solution=ruined,
    reasoning="Where S_q − S_k is at least 32, no row of block 0 sees a key, and n_block_max is 0. The loop has no test before its first "
    "iteration, so it visits block −1, whose keys are whatever lies before k, such as another head's. The mask compares with the diagonal alone, so row r attends to the keys from −16 to "
    "r + S_k − S_q. Rows that keep none of them have p = 0, and their o is right.",
    inputs=inputs,
    truth=truth,
    rule="a row is wrong if the loop reads a key before 0 that the mask doesn't hide from it",
    mistakes=MISTAKES,
    adapt=adapt,
    exact=True,
)
