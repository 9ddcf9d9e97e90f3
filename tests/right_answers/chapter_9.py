"""Right answers to chapter 9 in other words: rounds walked through, phases that toggle, lists of actions, orders by sorting, registers one by one."""

import math

import numpy as np

from fa_tutorial.algorithm import causal_tiles
from fa_tutorial.barriers import arrive, load, use, wait

# ---------------------------------------------------------------- 9.1


def phase_by_toggling(i, stages):
    stage, full_parity, empty_parity = 0, 0, 1
    for _ in range(i % (2 * stages)):
        stage += 1
        if stage == stages:
            stage, full_parity, empty_parity = 0, full_parity ^ 1, empty_parity ^ 1
    return [stage, full_parity, empty_parity]


def phase_from_the_barriers(i, stages):
    loads_before = i // stages  # phases of full[stage] that are complete, each with a release after it
    return np.int64(i - loads_before * stages), loads_before & 1 == 1, (loads_before - 1) % 2


# ---------------------------------------------------------------- 9.2


def roles_that_toggle(tiles, stages, full, empty):
    """A stage and a bit that turns over at the ring's end; the first round does not wait."""

    def places():
        stage, parity = 0, 0
        for i in range(tiles):
            yield i, stage, parity
            stage += 1
            if stage == stages:
                stage, parity = 0, 1 - parity

    def producer():
        for i, stage, parity in places():
            if i >= stages:
                yield wait(empty[stage], parity ^ 1)
            yield load(i, stage)
            yield arrive(full[stage])

    def consumer():
        for i, stage, parity in places():
            yield wait(full[stage], parity)
            yield use(i, stage)
            if i + stages < tiles:  # nobody waits for the last round's releases
                yield arrive(empty[stage])

    return producer, consumer


def roles_as_lists(tiles, stages, full, empty):
    """Nothing depends on what the others do, so the actions can be listed beforehand."""
    rounds = [(i, *reversed(divmod(i, stages))) for i in range(tiles)]  # (tile, stage, round)

    def actions(before, bit, work, after):
        return [action for i, s, r in rounds for action in (wait(before[s], (r + bit) % 2), work(i, s), arrive(after[s]))]

    return [lambda: actions(empty, 1, load, full), lambda: actions(full, 0, use, empty)]


def roles_round_by_round(tiles, stages, full, empty):
    """The loop over rounds outside, the one over stages inside; producer and consumer share it."""

    def role(before, first, work, after):
        parity = first
        for start in range(0, tiles, stages):
            for stage in range(min(stages, tiles - start)):
                yield wait(before[stage], parity)
                yield work(start + stage, stage)
                yield arrive(after[stage])
            parity = not parity

    return lambda: role(empty, True, load, full), lambda: role(full, False, use, empty)


# ---------------------------------------------------------------- 9.3


def order_by_sorting(S_q, S_k, block_m, block_n, heads, is_causal):
    """Row by row, with the longest row of each block; heads backwards."""
    offset = S_k - S_q
    work = []
    for head in reversed(range(heads)):
        for row_block in range(math.ceil(S_q / block_m)):
            rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
            keys = max(max(0, i + 1 + offset) if is_causal else S_k for i in rows)
            work.append([head, row_block, math.ceil(keys / block_n)])
    return sorted(work, key=lambda entry: entry[2], reverse=True)


def order_by_program_id(S_q, S_k, block_m, block_n, heads, is_causal):
    """A generator, as the kernel counts: program n is the n-th entry."""
    row_blocks = (S_q + block_m - 1) // block_m
    for n in range(row_blocks * heads):
        row_block = row_blocks - 1 - n // heads
        yield n % heads, row_block, causal_tiles(row_block, block_m, block_n, S_q, S_k)[1] if is_causal else (S_k + block_n - 1) // block_n


# ---------------------------------------------------------------- 9.4


def budget_by_trying(consumers, producer_warps, producer_registers):
    """From the launch upwards, in steps of 8, as long as everything fits."""
    producer_threads = math.ceil(producer_warps / 4) * 128
    threads = producer_threads + consumers * 128
    launch = max(registers for registers in range(8, 257, 8) if threads * registers <= 65_536)
    registers = launch
    while registers < 256 and consumers * 128 * (registers + 8) + producer_threads * producer_registers <= threads * launch:
        registers += 8
    return registers


def budget_by_gain(consumers, producer_warps, producer_registers):
    """What the producer gives away, shared."""
    groups = (producer_warps + 3) // 4
    launch = min(256, 512 // (consumers + groups) // 8 * 8)
    gain = (launch - producer_registers) * groups / consumers
    return min(256.0, launch + math.floor(gain / 8) * 8)


RIGHT_ANSWERS = (
    ("9.1", phase_by_toggling), ("9.1", phase_from_the_barriers),
    ("9.2", roles_that_toggle), ("9.2", roles_as_lists), ("9.2", roles_round_by_round),
    ("9.3", order_by_sorting), ("9.3", order_by_program_id),
    ("9.4", budget_by_trying), ("9.4", budget_by_gain),
)  # fmt: skip
