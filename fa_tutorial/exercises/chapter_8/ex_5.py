"""Exercise 8.5, cycles_in_turns."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def cycles_in_turns(D, block_m, block_n, num_warps, instructions, exponentials):
    """Cycles an SM takes for 64 x 64 scores. instructions, exponentials: one warp's, for its tile."""
    tiles = 64 * 64 / (block_m * block_n)  # of this size, in 64 x 64 scores
    matmuls = 2 * 2 * 64 * 64 * D / 4096
    issuing = tiles * instructions * num_warps / 4
    exponentiating = tiles * exponentials * num_warps * 32 / 16
    return matmuls + max(issuing, exponentiating)


TILES, MATMULS, TURNS = "64 * 64 / (block_m * block_n)", "2 * 2 * 64 * 64 * D / 4096", "matmuls + max(issuing, exponentiating)"
MISTAKES = {
    "that is for the program's whole tile: the result is for 64 x 64 scores, whatever the tile": (TILES, "1"),
    "the share is upside down: a tile of 128 x 64 scores has two times 64 x 64": (TILES, "(block_m * block_n) / (64 * 64)"),
    "only the rows of the tile are counted: it has block_m · block_n scores": (TILES, "64 / block_m"),
    "half of the matmuls' FLOPs are missing: there are two, q kᵀ and p v, of 2 · 64 · 64 · D each": (MATMULS, "2 * 64 * 64 * D / 4096"),
    "the warps are spread over four schedulers, which issue at the same time": ("instructions * num_warps / 4", "instructions * num_warps"),
    "an SM does 16 exponentials a cycle, not one: divide by 16": ("* 32 / 16", "* 32"),
    "the 16 exponentials a cycle are an SM's, not a scheduler's": ("* 32 / 16", "* 32 / 64"),
    "an exponential keeps its scheduler's unit busy for 8 cycles, but four schedulers have such a unit: 32 / 16 cycles of the SM": ("* 32 / 16", "* 8"),
    "an exponential is one of the instructions: it takes an issue slot, too": ("instructions * num_warps", "(instructions - exponentials) * num_warps"),
    "an exponential is one of the instructions: it isn't added to them": ("instructions * num_warps", "(instructions + exponentials) * num_warps"),
    "fewer than four warps leave schedulers to other programs: two warps issue in 2 / 4 of the cycles": (
        "instructions * num_warps / 4", "instructions * -(-num_warps // 4)"),
    "exponentials are one warp's: all num_warps warps have theirs": ("exponentials * num_warps * 32", "exponentials * 32"),
    "issuing goes on while the exponentials' unit works: the longer of the two counts, not their sum": (
        "max(issuing, exponentiating)", "issuing + exponentiating"),
    "the exponentials never decide here: an instruction is 32 of them, and an SM does 16 a cycle for all num_warps warps": (TURNS, "matmuls + issuing"),
    "issuing never decides here: each of num_warps warps issues its instructions, on four schedulers": (TURNS, "matmuls + exponentiating"),
    "here everything overlaps: if the matmuls take turns with the rest, add their cycles": (
        TURNS, "max(matmuls, issuing, exponentiating)"),
    "issuing is hidden behind the matmuls here: it takes turns with them, and goes on while the exponentials' unit works": (
        TURNS, "max(matmuls, issuing) + exponentiating"),
    "that is the model of 64 x 64 tiles with four warps, whose exponentials are hidden: count all warps, and the tile's share": (
        TURNS, "matmuls + instructions"),
    "a part of a cycle is cut off: divide with /": (TILES, "64 * 64 // (block_m * block_n)"),
}  # fmt: skip


def truth(D, block_m, block_n, num_warps, instructions, exponentials):
    flops = 2 * (2 * block_m * block_n * D)
    rest = max(num_warps * instructions / 4, num_warps * exponentials * 32 / 16)
    return (flops / 4096 + rest) * 64 * 64 / (block_m * block_n)


def inputs():
    yield case(64, 64, 64, 4, 468, 34, otherwise="chapter 5's tile: 256 cycles of matmuls and 468 of issuing")
    yield case(64, 64, 64, 2, 40, 34, otherwise="34 instructions of 32 exponentials, in each of 2 warps, at 16 a cycle: 136 cycles")
    yield case(128, 64, 64, 4, 40, 34, otherwise="34 instructions of 32 exponentials, in each of 4 warps, at 16 a cycle: 272 cycles")
    yield case(64, 64, 64, 8, 298, 34, otherwise="8 warps on four schedulers: each issues for two warps")
    yield case(64, 128, 64, 4, 630, 68, otherwise="128 x 64 scores are two times 64 x 64: half of the tile's cycles are asked for")
    yield case(64, 64, 128, 4, 455, 66, otherwise="64 x 128 scores are two times 64 x 64: half of the tile's cycles are asked for")
    yield case(64, 32, 32, 4, 150, 10, otherwise="32 x 32 scores are a quarter of 64 x 64: four times the tile's cycles")
    yield case(64, 64, 64, 2, 800, 68, otherwise="other programs' warps use the schedulers that 2 warps leave: 800 · 2 / 4")
    for _ in range(10):
        tile = (random.choice((32, 64, 128)) for _ in range(2))
        yield case(
            random.choice((64, 128)), *tile, random.choice((4, 8)), random.randint(100, 900), random.randint(10, 140),
            on="a random tile", fresh=True,
        )  # fmt: skip


EXERCISE = Exercise(
    id="8.5",
    task="Predict the cycles that an SM takes for 64 x 64 scores with any tile, if its matmuls take turns with everything else.",
    hints=(
        "Count three numbers of cycles for the program's whole tile: of its matmuls, of issuing its instructions, of its exponentials. "
        "Which run at the same time?",
        "Two matmuls have 2 · 2 · block_m · block_n · D FLOPs. Issuing takes num_warps · instructions / 4 cycles, and the exponentials "
        "num_warps · exponentials · 32 / 16.",
        "The result is (matmuls + the longer of the other two), times 64 · 64 / (block_m · block_n).",
    ),
    solution=cycles_in_turns,
    reasoning="Each scheduler issues one instruction a cycle, for whichever of its warps is ready. An exponential is one such instruction, "
    "but it keeps its unit busy for eight cycles, in which the scheduler issues others. So the longer of the two decides.",
    inputs=inputs,
    truth=truth,
    rule="matmuls, and then the longer of issuing and exponentials, for each 64 x 64 scores",
    mistakes=MISTAKES,
)  # fmt: skip
