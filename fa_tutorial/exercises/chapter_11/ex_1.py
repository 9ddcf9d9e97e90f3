import math

from fa_tutorial.exercises.harness import Exercise, case


def step_us(B, H_q, H_k, S, D, splits, sms, tile_us, copy_gb_s):
    """µs of one decoding step in fp16; a program takes one of `splits` parts of a key head."""
    part = math.ceil(math.ceil(S / 64) / splits)
    programs = math.ceil(B * H_k * splits / sms)
    bytes_read = 4 * B * H_k * S * D
    return max(part * programs * tile_us, bytes_read / copy_gb_s / 1e3)


PART, PROGRAMS = "math.ceil(math.ceil(S / 64) / splits)", "math.ceil(B * H_k * splits / sms)"
BYTES, MEMORY = "4 * B * H_k * S * D", "bytes_read / copy_gb_s / 1e3"
TIME = f"max(part * programs * tile_us, {MEMORY})"
MISTAKES = {
    "keys are counted once per query head: the cache holds H_k heads, and each is read once": (BYTES, "4 * B * H_q * S * D"),
    "the values are missing, or a number's second byte: the cache holds a key and a value for each token, in fp16": (BYTES, "2 * B * H_k * S * D"),
    "keys and values are counted with 4 bytes a number: fp16 has 2": (BYTES, "8 * B * H_k * S * D"),
    "the bytes are counted once a split, but each split reads only its own part": (BYTES, "4 * B * H_k * S * D * splits"),
    "q and o are counted: leave them out": (BYTES, "4 * B * H_k * S * D + 4 * B * H_q * D"),
    "programs are counted once per query head: each of the H_k key heads has one program a part": (PROGRAMS, "math.ceil(B * H_q * splits / sms)"),
    "the programs of one split are counted: each key head has one program a part": (PROGRAMS, "math.ceil(B * H_k / sms)"),
    "the faster of SMs and memory is taken: the slower one decides": (TIME, TIME.replace("max", "min")),
    "the times of SMs and memory are added: both go on at once, so the slower one alone decides": (
        TIME, f"part * programs * tile_us + {MEMORY}"),
    "an SM with several programs computes only one of them: it computes them one after another": (PROGRAMS, "1"),
    "the programs of the busiest SM are not rounded up, though it has a whole number of them": (PROGRAMS, "(B * H_k * splits / sms)"),
    "programs whose part has no tile are left out: count every program, as a whole part": (
        PROGRAMS, "math.ceil(B * H_k * math.ceil(math.ceil(S / 64) / part) / sms)"),
    "the parts are not rounded up: a part is whole tiles, ceil(tiles / splits)": (PART, "math.ceil(S / 64) / splits"),
    "the memory's time is in ns: bytes / (GB/s) are ns, a thousandth of a µs": (MEMORY, "bytes_read / copy_gb_s"),
}  # fmt: skip


def truth(B, H_q, H_k, S, D, splits, sms, tile_us, copy_gb_s):
    tiles, programs = -(-S // 64), -(-splits * H_k * B // sms)
    return max(programs * -(-tiles // splits) * tile_us, 4 * B * H_k * S * D / copy_gb_s / 1000)


def inputs():
    for numbers, otherwise in (
        (
            (1, 8, 2, 640, 10, 1, 100, 2.0),
            "2 key heads are 2 programs, each with 10 tiles on one SM, so 20 µs; their 51,200 bytes take 12.8 µs",
        ),
        ((1, 8, 2, 640, 10, 1, 100, 1.0), "10 tiles take 10 µs, and 51,200 bytes at 4 GB/s take 12.8 µs; a GB is 10⁹"),
        ((1, 6, 3, 640, 10, 1, 100, 0.5), "3 key heads are 76,800 bytes, so 19.2 µs, and 10 tiles take 5 µs"),
        ((1, 8, 2, 610, 10, 9, 100, 8.0), "610 keys are 10 tiles, the last of them with 34 keys, so the longest of 9 parts has 2"),
        ((1, 8, 2, 640, 10, 4, 100, 8.0), "10 tiles in 4 parts: the longest has ceil(10 / 4) = 3, and all parts are read in a step"),
        ((3, 6, 2, 640, 10, 5, 100, 8.0), "3 sequences bring three caches, so 153,600 bytes, and 30 programs on 100 SMs"),
        ((1, 8, 2, 610, 10, 1, 100, 0.5), "610 keys are read, so 48,800 bytes, though a tile has room for more"),
        ((1, 8, 2, 640, 10, 5, 5, 8.0), "10 programs on 5 SMs are 2 on each, of 2 tiles"),
        ((1, 8, 2, 640, 10, 5, 4, 8.0), "10 programs on 4 SMs: some SMs have 3, one after another"),
        ((1, 8, 2, 128, 10, 6, 10, 8.0), "12 programs on 10 SMs are 2 on some; each counts as a whole part, also one without a tile"),
        ((25, 12, 3, 640, 10, 2, 5, 80.0), "25 sequences with 3 key heads in 2 splits are 150 programs, 30 on each of 5 SMs"),
    ):
        yield case(*numbers, 4.0, otherwise=otherwise)


EXERCISE = Exercise(
    task="Predict the time of a step: the busiest SM's time for its tiles, or the memory's for the bytes, whichever is longer.",
    hints=(
        "What is read: the keys and values of which heads, and how many bytes has a number? How many programs are there, and how many "
        "of them has the busiest SM?",
        "There are B · H_k · splits programs, and the busiest SM has ceil(programs / sms) of them. How many tiles has each?",
        "A part has ceil(ceil(S / 64) / splits) tiles. The 4 · B · H_k · S · D bytes at copy_gb_s GB/s take bytes / copy_gb_s nanoseconds.",
    ),
    solution=step_us,
    reasoning="Query heads compute and key heads are read, so H_q doesn't appear. While SMs are idle, time goes as 1 / splits; once the "
    "memory is the slower side, more splits gain nothing.",
    inputs=inputs,
    truth=truth,
    rule="the tiles of the busiest SM times tile_us, or the bytes of the key heads' keys and values in fp16 at a copy's rate, whichever is longer",
    mistakes=MISTAKES,
)  # fmt: skip
