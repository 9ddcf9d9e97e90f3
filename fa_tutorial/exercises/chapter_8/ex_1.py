"""Exercise 8.1, programs_an_sm."""

import random

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def programs_an_sm(num_warps, registers, shared_bytes):
    """How many programs a Hopper SM holds at once. registers: a thread's; shared_bytes: a program's."""
    rounded = -(-registers // 8) * 8  # a thread's registers come in eights
    by_registers = 65_536 // (rounded * 32 * num_warps)
    by_shared_memory = 233_472 // (shared_bytes + 1024)
    return min(by_registers, by_shared_memory)


MISTAKES = {
    "registers_alone": "shared memory doesn't count here: it allows fewer programs than the registers do",
    "shared_alone": "registers don't count here: they allow fewer programs than shared memory does",
    "larger": "that is the larger of the two numbers: a program needs both registers and shared memory",
    "a_warp": "registers are counted once per warp: each of its 32 threads needs them",
    "one_warp": "a program has num_warps warps: all of them need registers",
    "not_rounded": "registers are not rounded up: a thread's come in eights",
    "always_up": "registers that are a multiple of 8 already are rounded up to the next: 128 stay 128",
    "rounded_down": "registers are rounded down to a multiple of 8: round up",
    "no_kilobyte": "1 KB is missing: each program costs that much shared memory on top of its own",
    "kilobyte_once": "the extra 1,024 bytes are paid by each program, not once for all of them",
    "thousand": "1 KB is 1,024 bytes, not 1,000",
    "not_whole": "half a program doesn't run: divide with //",
}
FEWER = "a program fits only if its registers and its shared memory both fit"


def twin(num_warps, registers, shared_bytes, mistake=None):
    rounded = {"not_rounded": registers, "rounded_down": registers // 8 * 8, "always_up": registers // 8 * 8 + 8}.get(
        mistake, -(-registers // 8) * 8
    )
    threads = {"a_warp": 1, "one_warp": 32}.get(mistake, 32)
    by_registers = 65_536 / (rounded * threads * (1 if mistake == "one_warp" else num_warps))
    by_shared = 233_472 / (shared_bytes + {"no_kilobyte": 0, "thousand": 1000}.get(mistake, 1024))
    if mistake == "kilobyte_once":
        by_shared = (233_472 - 1024) / shared_bytes
    if mistake == "not_whole":
        return min(by_registers, by_shared)
    by_registers, by_shared = int(by_registers), int(by_shared)
    chosen = {"registers_alone": by_registers, "shared_alone": by_shared, "larger": max(by_registers, by_shared)}
    return chosen.get(mistake, min(by_registers, by_shared))


def inputs():
    yield case(4, 128, 57_000, otherwise="128 registers allow 4 programs of 4 warps, and 57,000 bytes allow 4")
    yield case(8, 248, 1_024, otherwise="8 warps of 32 threads with 248 registers each need 63,488 registers")
    yield case(8, 128, 40_000, otherwise=FEWER)
    yield case(4, 64, 60_000, otherwise=FEWER)
    yield case(4, 100, 1_024, otherwise="100 registers are rounded up to 104")
    yield case(2, 129, 1_024, otherwise="129 registers are rounded up to 136")
    yield case(4, 64, 116_736, otherwise="two programs of 114 KB need 2 KB more")
    yield case(4, 64, 38_000, otherwise="each of five programs needs 1,024 bytes more, and a sixth has no room")
    yield case(4, 64, 57_350, otherwise="1 KB is 1,024 bytes")
    for _ in range(20):
        warps = random.choice((4, 8))
        yield case(warps, random.randint(24, 255), random.randint(1, 200) * 1_000, on="a random tile", fresh=True, otherwise=OTHERS)


EXERCISE = Exercise(
    id="8.1",
    task="Say how many programs of a tile an SM holds at once.",
    hints=(
        "Compute two numbers: how many programs the registers allow, and how many shared memory allows. Which of them decides?",
        "A program has 32 · num_warps threads, and each takes `registers` registers, rounded up to a multiple of 8. An SM has 65,536.",
        "By shared memory: 233,472 // (shared_bytes + 1024). Return the smaller number.",
    ),
    solution=programs_an_sm,
    reasoning="A program is resident on an SM from its first instruction to its last, with all its registers and shared memory. So the scarcer of the "
    "two resources decides. An SM also has limits of 32 programs and 64 warps, which these tiles never reach.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
