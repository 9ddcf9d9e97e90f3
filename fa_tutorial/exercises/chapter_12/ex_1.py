import operator

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting

ROWS, PIECES = 64, 8  # of a tile with D = 64 in fp16; a read takes a piece of eight rows


def place(row, piece):
    """The place of a row's piece in its 128 bytes of shared memory, 0 to 7."""
    return piece ^ (row % 8)


MISTAKES = {
    "a piece stands at the same place in eight rows, so in the same four banks: eight accesses": ("piece ^ (row % 8)", "piece"),
}


@adapting
def adapt(answer):
    """The accesses that the slowest read takes: of the eight rows' pieces, the most that stand at one place."""
    places = [[operator.index(answer(row, piece)) for piece in range(PIECES)] for row in range(ROWS)]
    for row, of_row in enumerate(places):
        if sorted(of_row) != [*range(PIECES)]:
            raise Wrong(f"the pieces of row {row} stand at {of_row}: each place from 0 to 7 must hold one")
    reads = [[of_row[piece] for of_row in places[row : row + 8]] for row in range(0, ROWS, 8) for piece in range(PIECES)]
    return (max(read.count(found) for read in reads for found in read),)


def truth():
    return (1,)


def inputs():
    yield case(on="64 rows of 8 pieces")


EXERCISE = Exercise(
    task="Order the pieces of each row so that a piece of eight rows is read in one access.",
    hints=(
        "Rows 8j to 8j + 7 are read together. So their piece must stand at eight places, and what tells these eight rows apart is row % 8.",
        "Let the place depend on piece and row % 8. For a fixed row it must take each value from 0 to 7 once, and for a fixed piece, too.",
        "Such as piece ^ (row % 8), or (piece + row) % 8.",
    ),
    solution=place,
    reasoning="For a fixed row, piece ^ (row % 8) only exchanges the pieces, and for a fixed piece it is another place in each of eight rows. "
    "So neither a row nor a column of pieces meets a bank twice.",
    inputs=inputs,
    truth=truth,
    rule="a piece of rows 8j to 8j + 7 stands at eight places, so all 32 banks give it in one access",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("accesses",),
    exact=True,
)
