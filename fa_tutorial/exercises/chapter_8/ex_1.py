"""Exercise 8.1, programs_an_sm."""

import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def programs_an_sm(num_warps, registers, shared_bytes):
    """How many programs a Hopper SM holds at once. registers: a thread's; shared_bytes: a program's."""
    rounded = -(-registers // 8) * 8  # a thread's registers come in eights
    by_registers = 65_536 // (rounded * 32 * num_warps)
    by_shared_memory = 233_472 // (shared_bytes + 1024)
    return min(by_registers, by_shared_memory)


REGISTERS, SHARED = "65_536 // (rounded * 32 * num_warps)", "233_472 // (shared_bytes + 1024)"
UP, SCARCER = "-(-registers // 8) * 8", "min(by_registers, by_shared_memory)"
MISTAKES = {
    "registers are not rounded up: a thread's come in eights": (UP, "registers"),
    "1 KiB is missing: each program costs that much shared memory on top of its own": ("(shared_bytes + 1024)", "shared_bytes"),
    "the extra 1,024 bytes are paid by each program, not once for all of them": (SHARED, "(233_472 - 1024) // shared_bytes"),
    "an SM has 233,472 bytes for its programs: 232,448 is the most that a single one may ask for": (SHARED, "232_448 // (shared_bytes + 1024)"),
    "registers are counted once per warp: each of its 32 threads needs them": ("rounded * 32 * num_warps", "rounded * num_warps"),
    "a program has num_warps warps: all of them need registers": ("rounded * 32 * num_warps", "rounded * 32"),
    "that is the larger of the two numbers: a program needs both registers and shared memory": ("min(", "max("),
    "shared memory limits nothing here: it allows fewer programs than the registers do": (SCARCER, "by_registers"),
    "the registers limit nothing here: they allow fewer programs than shared memory does": (SCARCER, "by_shared_memory"),
    "registers that are a multiple of 8 already are rounded up to the next: 128 stay 128": (UP, "(registers // 8 + 1) * 8"),
    "half a program doesn't run: divide with //": [(REGISTERS, "65_536 / (rounded * 32 * num_warps)"), (SHARED, "233_472 / (shared_bytes + 1024)")],
    "an SM holds no program here: don't round up to 1": (SCARCER, f"max(1, {SCARCER})"),
    "an SM's 64 warps count here, and the task says to ignore all other limits": (SCARCER, f"min({SCARCER}, 64 // num_warps)"),
}  # fmt: skip


def truth(num_warps, registers, shared_bytes):
    by_registers = math.floor(65_536 / (32 * num_warps * 8 * math.ceil(registers / 8)))
    return min(by_registers, math.floor(233_472 / (shared_bytes + 1024)))


def inputs():
    yield case(4, 128, 57_000, otherwise="128 registers allow 4 programs of 4 warps, and 57,000 bytes allow 4")
    yield case(8, 248, 1_024, otherwise="8 warps of 32 threads with 248 registers each need 63,488 registers")
    yield case(4, 100, 1_024, otherwise="100 registers are rounded up to 104")
    yield case(8, 41, 1_024, otherwise="41 registers are rounded up to 48")
    yield case(4, 64, 116_736, otherwise="two programs of 114 KiB need 2 KiB more")
    yield case(4, 64, 57_344, otherwise="four times 57,344 + 1,024 bytes are 233,472, which is all that an SM has: they fit")
    yield case(4, 64, 38_000, otherwise="each of five programs needs 1,024 bytes more, and a sixth has no room")
    yield case(4, 64, 57_350, otherwise="1 KiB is 1,024 bytes")
    yield case(4, 128, 240_000, otherwise="240,000 bytes are more than an SM has: it holds no such program")
    yield case(16, 255, 1_024, otherwise="16 warps with 256 registers a thread need 131,072: an SM holds none")
    other = "no other limit counts, neither of warps nor of programs"
    yield case(4, 24, 1_024, otherwise=f"24 registers allow 21 programs of 4 warps, and {other}")
    yield case(1, 32, 1_024, otherwise=f"32 registers allow 64 programs of one warp, and {other}")
    for _ in range(10):
        warps = random.choice((4, 8))
        yield case(warps, random.randint(24, 255), random.randint(1, 200) * 1_000, on="a random tile", fresh=True)


EXERCISE = Exercise(
    id="8.1",
    task="Say how many programs of a tile an SM holds at once.",
    hints=(
        "Compute two numbers: how many programs the registers allow, and how many shared memory allows. Which of them decides?",
        "A program has 32 · num_warps threads, and each takes `registers` registers, rounded up to a multiple of 8. An SM has 65,536.",
        "By shared memory: 233,472 // (shared_bytes + 1024). Return the smaller number.",
    ),
    solution=programs_an_sm,
    reasoning="A program is resident on an SM from its first instruction to its last, with all its registers and shared memory. So the "
    "scarcer of the two resources decides. An SM also has limits of 32 programs and 64 warps, which these tiles never reach.",
    inputs=inputs,
    truth=truth,
    rule="a program fits only if its registers and its shared memory both fit",
    mistakes=MISTAKES,
    exact=True,
)
