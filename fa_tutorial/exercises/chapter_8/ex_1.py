import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def one_more_program(num_warps, registers, shared_bytes):
    """(programs, registers_less, bytes_less): how many fit on a Hopper SM, and what one more takes."""
    threads, rounded = 32 * num_warps, -(-registers // 8) * 8  # a thread's registers come in eights
    programs = min(65_536 // (rounded * threads), 233_472 // (shared_bytes + 1024))
    more = programs + 1
    most_registers = 65_536 // (more * threads) // 8 * 8  # that a thread may keep
    most_bytes = 233_472 // more - 1024  # that a program may keep
    return programs, max(0, registers - most_registers), max(0, shared_bytes - most_bytes)


UP, THREADS, MORE = "-(-registers // 8) * 8", "32 * num_warps", "more = programs + 1"
REGISTERS, SHARED = "65_536 // (rounded * threads)", "233_472 // (shared_bytes + 1024)"
MOST_REGISTERS, MOST_BYTES = "65_536 // (more * threads) // 8 * 8", "233_472 // more - 1024"
REGISTERS_LESS, BYTES_LESS = "max(0, registers - most_registers)", "max(0, shared_bytes - most_bytes)"
DOWN = (MOST_REGISTERS, "65_536 // (more * threads)")
MISTAKES = {
    "registers are not rounded up: a thread's come in eights, also those that it may keep": [(UP, "registers"), DOWN],
    "1 KiB is missing: each program costs that much shared memory on top of its own": [
        (SHARED, "233_472 // shared_bytes"), (MOST_BYTES, "233_472 // more")],
    "what a program may keep is a whole number of bytes: divide with //": (MOST_BYTES, "233_472 / more - 1024"),
    "the extra 1,024 bytes are paid by each program, not once for all of them": [
        (SHARED, "(233_472 - 1024) // shared_bytes"), (MOST_BYTES, "(233_472 - 1024) // more")],
    "registers are counted once per warp: each of its 32 threads needs them": (THREADS, "num_warps"),
    "that is the larger of the two numbers: a program needs both registers and shared memory": ("= min(", "= max("),
    "registers that are a multiple of 8 already are rounded up to the next: 128 stay 128": (UP, "(registers // 8 + 1) * 8"),
    "the programs that fit already give up nothing: it is asked for one more than those": (MORE, "more = programs"),
    "each of the two is asked for one program more than it allows by itself: ask both for one more than fit": [
        (MOST_REGISTERS, f"65_536 // (({REGISTERS} + 1) * threads) // 8 * 8"), (MOST_BYTES, f"233_472 // ({SHARED} + 1) - 1024")],
    "a negative number is no loss: of what isn't scarce, a program gives up 0": [
        (REGISTERS_LESS, "registers - most_registers"), (BYTES_LESS, "shared_bytes - most_bytes")],
    "that is what it may keep, not what it gives up": [
        (f"programs, {REGISTERS_LESS}", "programs, most_registers"), (f", {BYTES_LESS}", ", most_bytes")],
    "registers_less counts a thread's registers, not those of all threads of a program": (REGISTERS_LESS, f"{REGISTERS_LESS} * threads"),
}  # fmt: skip


def truth(num_warps, registers, shared_bytes):
    def by_registers(kept):
        return math.floor(65_536 / (32 * num_warps * 8 * math.ceil(kept / 8)))

    programs = min(by_registers(registers), math.floor(233_472 / (shared_bytes + 1024)))
    fewer = next(less for less in range(registers) if by_registers(registers - less) > programs)
    missing = (programs + 1) * (shared_bytes + 1024) - 233_472
    return programs, fewer, max(0, math.ceil(missing / (programs + 1)))


def rules(programs, registers="nothing", shared="nothing"):
    return {"programs": programs, "registers_less": registers, "bytes_less": shared}


def inputs():
    enough = "the registers have room for one more: 0"
    yield case(4, 130, 57_344, otherwise=rules(
        "130 registers are rounded up to 136, and allow 3 programs of 4 warps", "four programs of 128 threads share 65,536: 128 for each thread",
        "four times 57,344 + 1,024 bytes are 233,472, which is all that an SM has: a fourth fits"))  # fmt: skip
    yield case(4, 128, 57_000, otherwise=rules(
        "128 registers allow 4 programs of 4 warps, and 57,000 bytes allow 4", "here both are scarce: five programs of 128 threads share 65,536, 102 for each thread, rounded "
        "down to 96", "five programs share 233,472 bytes, rounded down: 46,694 for each, 1,024 of them on top of its own"))  # fmt: skip
    yield case(4, 106, 57_400, otherwise=rules(
        "four programs of 57,400 + 1,024 bytes need 233,696: too much by 224", enough, "a fourth misses by 224 bytes in all, 56 for each"))  # fmt: skip
    yield case(8, 248, 1_024, otherwise=rules(
        "8 warps of 32 threads with 248 registers each need 63,488 registers", "two programs of 256 threads share 65,536: 128 for each thread",
        "shared memory has room for one more: 0"))  # fmt: skip
    yield case(8, 41, 1_024, otherwise=rules(
        "41 registers are rounded up to 48: 5 programs of 256 threads", "six programs of 256 threads share 65,536: 42 each, rounded down to 40",
        "shared memory has room for one more: 0"))  # fmt: skip
    yield case(4, 64, 116_736, otherwise=rules("two programs of 114 KiB need 2 KiB more", enough, "each of two must give up 1,024 bytes"))
    yield case(4, 64, 38_000, otherwise=rules(
        "each of five programs needs 1,024 bytes more, and a sixth has no room", enough, "six programs share 233,472 bytes: 38,912 for each"))  # fmt: skip
    yield case(4, 64, 57_350, otherwise=rules("1 KiB is 1,024 bytes", enough, "four programs share 233,472 bytes: 58,368 for each"))
    yield case(4, 128, 240_000, otherwise=rules(
        "240,000 bytes are more than an SM has: it holds no such program", enough, "one program may have 233,472 − 1,024 bytes of its own"))  # fmt: skip
    other = "no other limit counts, neither of warps nor of programs"
    yield case(4, 24, 1_024, otherwise=rules(
        f"24 registers allow 21 programs of 4 warps, and {other}", "22 programs of 128 threads share 65,536: 23 each, rounded down to 16",
        "shared memory has room for one more: 0"))  # fmt: skip
    for _ in range(10):
        warps = random.choice((4, 8))
        yield case(warps, random.randint(24, 255), random.randint(1, 200) * 1_000, on="a random tile", fresh=True)


EXERCISE = Exercise(
    task="Say how many programs of a tile an SM holds at once, and what each must give up so that one more fits.",
    hints=(
        "How many programs do the registers allow, and how many shared memory? The scarcer decides. Then share both among one program more.",
        "A program has 32 · num_warps threads, and each takes `registers` registers, rounded up to a multiple of 8. So of 65,536, one of P + 1 "
        "programs may keep 65,536 // ((P + 1) · threads) for a thread, rounded down to a multiple of 8.",
        "By shared memory 233,472 // (shared_bytes + 1024) fit, and one of P + 1 programs may keep 233,472 // (P + 1) − 1,024. What it gives up "
        "is what it has minus what it may keep, at least 0.",
    ),
    solution=one_more_program,
    reasoning="A program is resident on an SM from its first instruction to its last, with all its registers and shared memory. So the "
    "scarcer of the two resources decides, and one more needs its share of both. An SM also has limits of 32 programs and 64 warps, which "
    "these tiles never reach.",
    inputs=inputs,
    truth=truth,
    rule="a program fits only if its registers and its shared memory both fit, and so does one more",
    mistakes=MISTAKES,
    parts=("programs", "registers_less", "bytes_less"),
    exact=True,
)
