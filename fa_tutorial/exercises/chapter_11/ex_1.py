import random

from fa_tutorial.exercises.harness import Exercise, case


def step_us(B, H_q, H_k, S, D, splits, sms, sm_gb_s, copy_gb_s):
    """µs of one decoding step in fp16; a program takes one of `splits` parts of a key head."""
    bytes_read = 4 * B * H_k * S * D
    busy = min(B * H_k * splits, sms)
    gb_s = min(busy * sm_gb_s, copy_gb_s)
    return bytes_read / gb_s / 1e3


BYTES, PROGRAMS = "4 * B * H_k * S * D", "B * H_k * splits"
RATE, TIME = "min(busy * sm_gb_s, copy_gb_s)", "bytes_read / gb_s / 1e3"
MISTAKES = {
    "keys are counted once per query head: the cache holds H_k heads, and each is read once": (BYTES, "4 * B * H_q * S * D"),
    "the values are missing, or a number's second byte: the cache holds a key and a value for each token, in fp16": (BYTES, "2 * B * H_k * S * D"),
    "a number has 4 bytes: fp16 has 2": (BYTES, "8 * B * H_k * S * D"),
    "keys are counted, and programs started, once per query head: each of the H_k key heads is read once, by one program a part": [
        (BYTES, "4 * B * H_q * S * D"), (PROGRAMS, "B * H_q * splits")],
    "programs are counted once per query head: each of the H_k key heads has one program a part": (PROGRAMS, "B * H_q * splits"),
    "the sequences are counted once: each of the B brings its own cache, and its own programs": [("4 * B", "4"), (PROGRAMS, "H_k * splits")],
    "the larger of the two rates is taken: the slower of SMs and memory decides": (RATE, RATE.replace("min", "max")),
    "the times of the two limits are added: the slower one alone decides": (
        TIME, "(bytes_read / (busy * sm_gb_s) + bytes_read / copy_gb_s) / 1e3"),
    "the time is cut to whole µs: return all of it": (TIME, f"int({TIME})"),
    "that is ns: return µs, a thousand of them": (TIME, "bytes_read / gb_s"),
    "that is seconds: return µs": (TIME, f"{TIME} / 1e6"),
}  # fmt: skip


def truth(B, H_q, H_k, S, D, splits, sms, sm_gb_s, copy_gb_s):
    numbers = 2 * B * H_k * S * D
    return 2 * numbers / min(sm_gb_s * min(splits * H_k * B, sms), copy_gb_s) / 1000


def inputs():
    yield case(
        1, 8, 2, 1000, 10, 1, 100, 5.0, 400.0, otherwise="2 programs on 100 SMs pull 10 GB/s, and 2 key heads are 80,000 bytes; a GB is 10⁹"
    )
    yield case(1, 8, 2, 1000, 10, 4, 100, 5.0, 400.0, otherwise="4 splits of 2 key heads are 8 programs, and all parts are read in a step")
    yield case(3, 6, 2, 1000, 10, 4, 100, 5.0, 400.0, otherwise="3 sequences bring three caches, and 24 programs")
    yield case(
        2,
        12,
        3,
        700,
        10,
        2,
        100,
        5.0,
        400.0,
        otherwise="2 sequences with 3 key heads of 700 tokens are 168,000 bytes, and 12 programs pull 60 GB/s",
    )
    yield case(1, 8, 2, 1000, 10, 64, 100, 3.0, 400.0, otherwise="128 programs on 100 SMs: 100 are busy")
    yield case(1, 8, 2, 1000, 10, 64, 100, 5.0, 400.0, otherwise="the SMs could pull 500 GB/s, and the memory gives 400")
    for _ in range(10):
        B, group, H_k, S, D, splits = (random.randint(1, 9) for _ in range(6))
        yield case(B, group * H_k, H_k, S, D, splits, 50, 2.5, 90.0, on="random sizes", fresh=True)


EXERCISE = Exercise(
    task="Predict the time of a step from the bytes that it reads and the SMs that have a program.",
    hints=(
        "What is read: the keys and values of which heads, and how many bytes has a number? Then: how many SMs pull at once?",
        "There are B · H_k · splits programs, so min of that and sms are busy. Together they pull busy · sm_gb_s, if the memory can give it.",
        "4 · B · H_k · S · D bytes at min(busy · sm_gb_s, copy_gb_s) GB/s, and bytes / GB/s are nanoseconds.",
    ),
    solution=step_us,
    reasoning="Query heads compute and key heads are read, so H_q doesn't appear. While SMs are idle, time goes as 1 / splits; once all are "
    "busy, or the memory gives all that it has, more splits gain nothing.",
    inputs=inputs,
    truth=truth,
    rule="the bytes of the key heads' keys and values in fp16, divided by what the busy SMs pull together, at most a copy's rate",
    mistakes=MISTAKES,
)  # fmt: skip
