import random

from fa_tutorial.exercises.harness import Exercise, case


def smallest_tile(gb_s, ns, warps, sms):
    """The side of the smallest square tile of floats with which a transpose can move gb_s GB/s.

    ns: how long a program takes. sms: how many SMs the GPU has.
    """
    programs = min(64 // warps, 32)  # on an SM
    in_flight = gb_s / 2 * ns / sms  # bytes that an SM must load in the time of a program (2.5)
    side = 1
    while programs * side**2 * 4 < in_flight:
        side *= 2
    return side


PROGRAMS = "min(64 // warps, 32)"
MISTAKES = {
    "64 // warps programs have warps enough, but an SM has room for 32 programs only": (PROGRAMS, "64 // warps"),
    "an SM has room for 64 warps, so fewer programs fit if each has more warps": (PROGRAMS, "32"),
    "you ask for twice the bytes: half of gb_s are stores, and a float has 4 bytes": ("gb_s / 2", "gb_s"),
    "gb_s is the rate of all SMs together, and (2.5) is about one": (" / sms", ""),
    "you ask for four times the bytes that are needed: half of gb_s are loads, and a float has 4 bytes": (" * 4", ""),
    "a square tile has side · side floats": ("side**2", "side"),
    "a program isn't alone on its SM: all that fit there load at the same time": ("programs * side", "side"),
    "a tile's side is a power of two": ("side *= 2", "side += 1"),
    "you return the floats of the tile: return its side": ("return side", "return side**2"),
    "that tile is too small: double its side once more": ("return side", "return side // 2"),
    "a tile that has just enough bytes is enough": ("< in_flight", "<= in_flight"),
}  # fmt: skip


def truth(gb_s, ns, warps, sms):
    programs = 32 if warps == 1 else 64 // warps
    return next(2**n for n in range(40) if 2 * sms * programs * 4 * 4**n >= gb_s * ns)


def inputs():
    yield case(2, 1024, 4, 1, otherwise="1,024 bytes must be in flight, in 16 programs: 64 each, which are 4 × 4 floats")
    yield case(4, 1000, 1, 1, otherwise="2,000 bytes must be in flight, in 32 programs: 62.5 each, and 4 × 4 floats are enough")
    yield case(4, 1040, 1, 1, otherwise="2,080 bytes must be in flight, in 32 programs: 65 each, and 4 × 4 floats are too few")
    yield case(7, 1000, 1, 1, otherwise="3,500 bytes must be in flight, in 32 programs: 109.4 each, and 4 × 4 floats are too few")
    yield case(
        16, 1000, 8, 4, otherwise="each of 4 SMs must have 2,000 bytes in flight, in 8 programs: 250 each, and 4 × 4 floats are too few"
    )
    yield case(4000, 1000, 4, 100)
    for _ in range(20):
        sizes = random.randint(100, 5000), random.randint(300, 3000), random.choice((1, 2, 4, 8, 16)), random.randint(20, 150)
        yield case(*sizes, on="random sizes", fresh=True)


EXERCISE = Exercise(
    task="Find the smallest square tile with which a transpose can reach a rate, by Little's law.",
    hints=(
        "How many programs does an SM hold? How many bytes must they load together, in the time of one program?",
        "An SM loads gb_s / 2 / sms bytes a nanosecond, so its min(64 // warps, 32) programs must have gb_s / 2 / sms * ns bytes in "
        "flight. Double the side until their tiles hold as many.",
    ),
    solution=smallest_tile,
    reasoning="By (2.5) the rate and the time of a program say how many bytes must be in flight. The room on an SM says how many programs "
    "share them, and so how much each must load at once.",
    inputs=inputs,
    truth=truth,
    rule="the tiles of all programs that an SM holds must have the bytes that it loads in the time of one program",
    mistakes=MISTAKES,
    exact=True,
)
