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
MISTAKES = {
    "registers are not rounded up: a thread's come in eights, also those that it may keep": [
        (UP, "registers"), (MOST_REGISTERS, "65_536 // (more * threads)")],
    "1 KiB is missing: each program costs that much shared memory on top of its own": [
        (SHARED, "233_472 // shared_bytes"), (MOST_BYTES, "233_472 // more")],
    "registers are counted once per warp: each of its 32 threads needs them": (THREADS, "num_warps"),
    "that is the larger of the two numbers: a program needs both registers and shared memory": ("= min(", "= max("),
    "the programs that fit already give up nothing: it is asked for one more than those": (MORE, "more = programs"),
    "each of the two is asked for one program more than it allows by itself: ask both for one more than fit": [
        (MOST_REGISTERS, f"65_536 // (({REGISTERS} + 1) * threads) // 8 * 8"), (MOST_BYTES, f"233_472 // ({SHARED} + 1) - 1024")],
    "a negative number is no loss: of what isn't scarce, a program gives up 0": [
        (REGISTERS_LESS, "registers - most_registers"), (BYTES_LESS, "shared_bytes - most_bytes")],
    "that is what it may keep, not what it gives up": [
        (f"programs, {REGISTERS_LESS}", "programs, most_registers"), (f", {BYTES_LESS}", ", most_bytes")],
    "it gives up registers from those it has, not from the multiple of 8 that they occupy": (REGISTERS_LESS, "max(0, rounded - most_registers)"),
    "registers_less counts a thread's registers, not those of all threads of a program": (REGISTERS_LESS, f"{REGISTERS_LESS} * threads"),
}  # fmt: skip


def truth(num_warps, registers, shared_bytes):
    def by_registers(kept):
        return math.floor(65_536 / (32 * num_warps * 8 * math.ceil(kept / 8)))

    programs = min(by_registers(registers), math.floor(233_472 / (shared_bytes + 1024)))
    fewer = next(less for less in range(registers) if by_registers(registers - less) > programs)
    missing = (programs + 1) * (shared_bytes + 1024) - 233_472
    return programs, fewer, max(0, math.ceil(missing / (programs + 1)))


RULES = {
    "programs": "as many as both allow, the 65,536 registers and the 233,472 bytes: each of 32 · num_warps threads takes its registers, rounded up to a "
    "multiple of 8, and each program takes 1,024 bytes beside its own",
    "registers_less": "a thread gives up the registers it has beyond its share, 0 where it has fewer, whatever the bytes allow: one program more "
    "than fit shares all registers, and a thread's share is rounded down to a multiple of 8",
    "bytes_less": "a program gives up the bytes it has beyond its share, 0 where it has fewer, whatever the registers allow: one program more than "
    "fit shares all bytes, and of each share, rounded down, 1,024 are on top of the program's own",
}


def inputs():
    for registers, shared_bytes in ((130, 57_344), (128, 57_000), (106, 57_400), (64, 38_000), (64, 57_350), (128, 240_000), (24, 1_024)):
        yield case(4, registers, shared_bytes, otherwise=RULES)
    yield case(8, 248, 1_024, otherwise=RULES)
    yield case(8, 41, 1_024, otherwise=RULES)
    for _ in range(10):
        yield case(
            random.choice((4, 8)), random.randint(24, 255), random.randint(1, 200) * 1_000, on="a random tile", otherwise=RULES, fresh=True
        )


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
    rule=RULES["programs"],
    mistakes=MISTAKES,
    parts=("programs", "registers_less", "bytes_less"),
    exact=True,
)
