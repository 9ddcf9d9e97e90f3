import random

from fa_tutorial.exercises.harness import Exercise, case


def cycles_by_model(D, block_m, block_n, num_warps, instructions):
    """An SM's cycles for 64 x 64 scores."""
    tiles = 64 * 64 / (block_m * block_n)  # of this size, in 64 x 64 scores
    matmuls = 2 * 2 * 64 * 64 * D / 4096
    issuing = tiles * num_warps * instructions / 4
    return matmuls + max(256, issuing)


TILES, MATMULS, ISSUING = "64 * 64 / (block_m * block_n)", "2 * 2 * 64 * 64 * D / 4096", "tiles * num_warps * instructions / 4"
MISTAKES = {
    "the instructions are for the program's whole tile: the result is for 64 x 64 scores, whatever the tile": (TILES, "1"),
    "that is for the program's whole tile: the result is for 64 x 64 scores, whatever the tile": (
        "return matmuls + max(256, issuing)", "return (matmuls + max(256, issuing)) / tiles"),
    "a tile of twice as many scores takes half as many of them, not twice: divide by the tile's scores": (
        TILES, "block_m * block_n / (64 * 64)"),
    "half of the matmuls' FLOPs are missing: there are two, q kᵀ and p v, of 2 · 64 · 64 · D each": (MATMULS, "2 * 64 * 64 * D / 4096"),
    "four schedulers issue at the same time: an instruction of each of the num_warps warps takes num_warps / 4 cycles": (
        ISSUING, "tiles * num_warps * instructions"),
    "num_warps is left out: that is right for four warps, one on each scheduler, and a tile may have more": (ISSUING, "tiles * instructions"),
    "the warps share the four schedulers: more warps take longer, not less": (ISSUING, "tiles * 4 / num_warps * instructions"),
    "the model adds the two times, it doesn't take the longer one": ("matmuls + max(256, issuing)", "max(matmuls, issuing)"),
    "where fewer than 256 cycles of instructions are issued, the exponentials decide: 64 x 64 scores take 256 cycles of them": ("max(256, issuing)", "issuing"),
}  # fmt: skip


def truth(D, block_m, block_n, num_warps, instructions):
    flops = 2 * (2 * block_m * block_n * D)
    each = 64 * 64 / (block_m * block_n)
    return each * flops / 4096 + max(each * num_warps * instructions / 4, 256)


def inputs():
    any_tile = ", and 4 · D of matmuls with any tile"
    yield case(64, 64, 64, 4, 468, otherwise="chapter 5's tile: 256 cycles of matmuls and 468 of issuing, the exponentials among them")
    yield case(64, 64, 64, 8, 300, otherwise="8 warps on four schedulers: 300 · 8 / 4, and 4 · D of matmuls with any number of warps")
    yield case(64, 64, 64, 2, 900, otherwise="two programs of 2 warps share four schedulers: 900 · 2 / 4, and 4 · D of matmuls")
    yield case(128, 64, 64, 4, 222, otherwise="222 are issued while the exponentials pass, which take 256 cycles: then those decide")
    yield case(64, 128, 64, 4, 631, otherwise=f"128 x 64 scores are two times 64 x 64: half the instructions, not rounded{any_tile}")
    yield case(64, 64, 128, 4, 455, otherwise=f"455 instructions make 227.5 for 64 x 64 scores, whose exponentials take 256{any_tile}")
    yield case(64, 32, 32, 4, 150, otherwise=f"32 x 32 scores are a quarter of 64 x 64: four times the program's instructions{any_tile}")
    for _ in range(10):
        sides = (random.choice((32, 64, 128)) for _ in range(2))
        yield case(random.choice((64, 128)), *sides, random.choice((2, 4, 8)), random.randint(100, 900), on="a random tile", fresh=True)


EXERCISE = Exercise(
    task="Predict the cycles that an SM takes for 64 x 64 scores by the model, with any tile and number of warps.",
    hints=(
        "How many instructions do all warps of a program issue, and how many of them does an SM issue in one cycle?",
        "Issuing takes num_warps · instructions / 4 cycles for a tile of block_m x block_n scores. How many of these tiles are 64 x 64 "
        "scores? The matmuls take 4 D cycles for 64 x 64 scores, whatever the tile, and the exponentials 256.",
    ),
    solution=cycles_by_model,
    reasoning="Each scheduler issues one instruction a cycle, for whichever of its warps is ready, so what counts is all warps' instructions "
    "for each score. A larger tile has fewer of them, because what is done once a row or once an iteration is shared by more scores. Its exponentials stay.",
    inputs=inputs,
    truth=truth,
    rule="4 · D cycles of matmuls, and all warps' instructions by four schedulers, for each 64 x 64 scores, 256 at least",
    mistakes=MISTAKES,
)  # fmt: skip
