import random

from fa_tutorial.exercises.harness import Exercise, case


def cycles_in_turns(D, block_m, block_n, num_warps, instructions, exponentials):
    """(cycles, removable): an SM's for 64 x 64 scores, a warp's instructions that can still leave."""
    tiles = 64 * 64 / (block_m * block_n)  # of this size, in 64 x 64 scores
    matmuls = 2 * 2 * 64 * 64 * D / 4096
    to_issue = tiles * num_warps / 4  # one instruction of each warp, on four schedulers
    issuing = instructions * to_issue
    exponentiating = tiles * exponentials * num_warps * 32 / 16
    removable = max(0, instructions - int(exponentiating / to_issue))  # until issuing takes no longer
    return matmuls + max(issuing, exponentiating), removable


TILES, MATMULS, TURNS = "64 * 64 / (block_m * block_n)", "2 * 2 * 64 * 64 * D / 4096", "matmuls + max(issuing, exponentiating)"
ISSUING = "issuing = instructions * to_issue"
REMOVABLE = "max(0, instructions - int(exponentiating / to_issue))"
MISTAKES = {
    "that is for the program's whole tile: the result is for 64 x 64 scores, whatever the tile": (TILES, "1"),
    "half of the matmuls' FLOPs are missing: there are two, q kᵀ and p v, of 2 · 64 · 64 · D each": (MATMULS, "2 * 64 * 64 * D / 4096"),
    "four schedulers issue at the same time: an instruction of each of the num_warps warps takes num_warps / 4 cycles": (
        ISSUING, "issuing = 4 * instructions * to_issue"),
    "an instruction computes 32 exponentials, one for each thread of the warp: 32 / 16 cycles of the SM": ("* 32 / 16", "/ 16"),
    "an exponential is one of the instructions: it takes an issue slot, too": (ISSUING, "issuing = (instructions - exponentials) * to_issue"),
    "exponentials are one warp's: all num_warps warps have theirs": ("exponentials * num_warps * 32", "exponentials * 32"),
    "issuing goes on while the exponentials' unit works: the longer of the two counts, not their sum": (
        "max(issuing, exponentiating)", "issuing + exponentiating"),
    "that is the model of 64 x 64 tiles with four warps, whose exponentials are hidden: count all warps, and the tile's share": (
        TURNS, "matmuls + instructions"),
    "num_warps is left out: that is right for four warps, one on each scheduler, and a tile may have more or fewer": [
        ("tiles * num_warps / 4", "tiles"), ("exponentials * num_warps * 32", "exponentials * 4 * 32")],
    "the 16 exponentials a cycle are the SM's: its four schedulers share them": ("* 32 / 16", "* 32 / 16 / 4"),
    "removable is negative: where the exponentials decide, nothing that leaves the loop saves a cycle, so it is 0": (
        REMOVABLE, "instructions - int(exponentiating / to_issue)"),
    "removable counts all that are no exponentials: once issuing takes no longer than the exponentials, one more saves nothing": (
        REMOVABLE, "instructions - exponentials"),
}  # fmt: skip


def truth(D, block_m, block_n, num_warps, instructions, exponentials):
    flops = 2 * (2 * block_m * block_n * D)
    rest = max(num_warps * instructions / 4, num_warps * exponentials * 32 / 16)
    return (flops / 4096 + rest) * 64 * 64 / (block_m * block_n), max(0, instructions - 8 * exponentials)


def inputs():
    def tile(*args, cycles, removable="as many as it takes until issuing takes no longer than the exponentials"):
        return case(*args, otherwise={"cycles": cycles, "removable": removable})

    hide = "the exponentials decide already: what leaves the loop saves nothing"
    yield tile(
        64, 64, 64, 4, 468, 34,
        cycles="chapter 5's tile: 256 cycles of matmuls, then the longer of 468 of issuing and 4 · 34 · 32 / 16 = 272 of exponentials",
        removable="468 cycles of issuing, one for each instruction of the 4 warps; and 34 instructions of 32 exponentials, in each of 4 warps, "
        "at 16 a cycle, take 272",
    )  # fmt: skip
    yield tile(
        64, 64, 64, 2, 200, 160, cycles="160 instructions of 32 exponentials, in each of 2 warps, at 16 a cycle: 640 cycles", removable=hide
    )
    yield tile(
        128, 64, 64, 4, 40, 34, cycles="34 instructions of 32 exponentials, in each of 4 warps, at 16 a cycle: 272 cycles", removable=hide
    )
    yield tile(64, 64, 64, 8, 298, 34, cycles="8 warps on four schedulers: 298 · 8 / 4, not rounded")
    yield tile(64, 128, 64, 4, 630, 68, cycles="128 x 64 scores are two times 64 x 64: half of the tile's cycles are asked for")
    yield tile(
        64, 64, 128, 4, 455, 66, cycles="64 x 128 scores are two times 64 x 64: half of the tile's cycles are asked for", removable=hide
    )
    yield tile(64, 32, 32, 4, 150, 10, cycles="32 x 32 scores are a quarter of 64 x 64: four times the tile's cycles")
    yield tile(32, 128, 128, 4, 90, 4, cycles="128 x 128 scores are four times 64 x 64: 128 cycles of matmuls, and 90 / 4 of issuing")
    yield tile(64, 64, 64, 2, 800, 68, cycles="other programs' warps use the schedulers that 2 warps leave: 800 · 2 / 4")
    for _ in range(10):
        sides = (random.choice((32, 64, 128)) for _ in range(2))
        yield case(
            random.choice((64, 128)), *sides, random.choice((4, 8)), random.randint(100, 900), random.randint(10, 140),
            on="a random tile", fresh=True,
        )  # fmt: skip


EXERCISE = Exercise(
    task="Predict the cycles that an SM takes for 64 x 64 scores with any tile, if its matmuls take turns with everything else, and say how "
    "many instructions can still leave the loop.",
    hints=(
        "Count three numbers of cycles for the program's whole tile: of its matmuls, of issuing its instructions, of its exponentials. "
        "Which run at the same time?",
        "Two matmuls have 2 · 2 · block_m · block_n · D FLOPs. Issuing takes num_warps · instructions / 4 cycles, and the exponentials "
        "num_warps · exponentials · 32 / 16.",
        "The cycles are (matmuls + the longer of the other two), times 64 · 64 / (block_m · block_n). An instruction that leaves saves "
        "something as long as issuing is the longer one. From how many instructions on isn't it?",
    ),
    solution=cycles_in_turns,
    reasoning="Each scheduler issues one instruction a cycle, for whichever of its warps is ready. An exponential is one such instruction, "
    "but it keeps its unit busy for eight cycles, in which the scheduler issues others. So the longer of the two decides: eight "
    "instructions for each exponential are free, and only what is beyond them is worth removing.",
    parts=("cycles", "removable"),
    inputs=inputs,
    truth=truth,
    rule="matmuls, and then the longer of issuing and exponentials, for each 64 x 64 scores",
    mistakes=MISTAKES,
)  # fmt: skip
