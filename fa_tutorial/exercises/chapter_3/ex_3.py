import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def pick_tile(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    """The (block_m, block_n) of tiles that fits an SM and does the most FLOPs per byte that it reads."""
    best, most = None, 0.0
    for block_m, block_n in tiles:
        flops_per_byte = 2 * block_m * block_n / ((block_m + block_n) * itemsize)
        acc = block_m * block_n * 4  # bytes: float32
        buffers = num_stages * block_k * (block_m + block_n) * itemsize
        if acc <= registers / 2 and buffers <= shared_memory and flops_per_byte > most:
            best, most = (block_m, block_n), flops_per_byte
    return best


RATE = "2 * block_m * block_n / ((block_m + block_n) * itemsize)"
ACC, BUFFERS = "acc = block_m * block_n * 4", "buffers = num_stages * block_k * (block_m + block_n) * itemsize"
MISTAKES = {
    "the largest tile is taken: a long one reads more bytes for each FLOP than a square one": (RATE, "block_m * block_n"),
    "the tile that reads the fewest bytes is taken: count its FLOPs for each of these bytes": (RATE, "1 / (block_m + block_n)"),
    "acc is counted with itemsize: it is float32 whatever the inputs are": (ACC, "acc = block_m * block_n * itemsize"),
    "acc is kept in shared memory here: it stays in registers": ("buffers <= shared", "acc + buffers <= shared"),
    "shared memory is counted for one step, and it holds the tiles of num_stages steps": (BUFFERS, BUFFERS.replace("num_stages * ", "")),
    "shared memory is counted in numbers: multiply by itemsize": (BUFFERS, BUFFERS.replace(" * itemsize", "")),
}


def truth(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    fitting = [
        (m, n) for m, n in tiles if 2 * m * n * 4 <= registers and num_stages * (m * block_k + block_k * n) * itemsize <= shared_memory
    ]
    return max(fitting, key=lambda tile: tile[0] * tile[1] / sum(tile))  # max takes the first of equals


@adapting
def found(answer, *args):
    tile = answer(*args)
    if tile is None:
        raise Wrong("returns None, and a tile fits: is its room counted too large, or is the return missing?")
    return tile


def inputs():
    KIB = 1024
    large = 1024 * KIB
    squares = [(16, 16), (64, 64), (128, 128), (128, 256), (256, 256)]
    rate = "all fit: the (block_m, block_n) with the most FLOPs per byte wins, whatever its size"
    for tiles in ([(16, 16), (32, 32)], [(64, 64), (32, 256), (16, 1024)], [(16, 32), (64, 16)]):
        yield case(tiles, 64, 1, 2, large, large, otherwise=rate)
    unrounded = f"{rate}, and don't round them: here they are 7.88 and 7.94"
    yield case([(16, 1024), (16, 2048)], 16, 1, 4, large, large, otherwise=unrounded)
    acc = "acc has block_m · block_n float32 numbers, which may take at most half of the registers"
    for itemsize in (4, 2):
        yield case(squares, 16, 1, itemsize, 64 * KIB, large, otherwise=acc)
    half = f"{acc}: exactly half is enough, and a's and b's tiles aren't in them"
    yield case([(64, 64), (64, 128)], 16, 1, 2, 64 * KIB, large, otherwise=half)
    steps = "shared memory holds num_stages tiles of a, block_m × block_k, and as many of b, block_k × block_n"
    yield case([(16, 16), (32, 32)], 256, 1, 2, large, 20 * KIB, otherwise=steps)
    yield case(squares, 64, 3, 2, large, 48 * KIB, otherwise=f"{steps}, and may be filled exactly")
    yield case(squares, 64, 2, 4, large, 64 * KIB, otherwise=f"{steps}, here of 4 bytes each")
    yield case(squares, 64, 3, 2, 128 * KIB, 100 * KIB, otherwise="each memory has its own limit, and acc is in registers")
    for equals in ([(256, 128), (128, 256), (16, 16)], [(128, 256), (256, 128), (16, 16)]):
        yield case(equals, 64, 3, 2, 256 * KIB, 227 * KIB, otherwise="of two equally good tiles, return the first")
    for _ in range(20):
        tiles = [(16, 16), *((2 ** random.randint(4, 8), 2 ** random.randint(4, 8)) for _ in range(12))]
        block_k, num_stages, itemsize = random.choice((16, 32, 64)), random.randint(1, 4), random.choice((2, 4))
        registers, shared = random.choice((64, 128, 256)) * KIB, random.choice((64, 99, 163, 227)) * KIB
        yield case(tiles, block_k, num_stages, itemsize, registers, shared, on="a random case", fresh=True)


EXERCISE = Exercise(
    task="Of the tiles that fit an SM, pick the one that does the most FLOPs for each byte that it reads.",
    hints=(
        "For one step along K: how many FLOPs does a tile do, and how many bytes of a and b does it read? "
        "How does their quotient depend on the step's length?",
        "FLOPs per byte: 2 · block_m · block_n / ((block_m + block_n) · itemsize). acc takes block_m · block_n · 4 bytes of registers; "
        "the tiles of a and b take num_stages · block_k · (block_m + block_n) · itemsize bytes of shared memory.",
        "Go through the tiles, skip those that don't fit, and keep the best so far. With > a later tile that is only as good "
        "doesn't replace it.",
    ),
    solution=pick_tile,
    reasoning="A step along K does 2 · block_m · block_n · block_k FLOPs on (block_m + block_n) · block_k elements, so block_k cancels (3.3). "
    "acc grows with the tile's area and lives in registers; the tiles of a and b grow with its sides and wait in shared memory.",
    inputs=inputs,
    truth=truth,
    rule="the tile fits both memories, and none that fits does more FLOPs per byte",
    mistakes=MISTAKES,
    parts=("block_m", "block_n"),
    adapt=found,
    exact=True,
)
