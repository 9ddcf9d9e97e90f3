"""Right answers to chapter 9 in other words: rounds walked through, phases that toggle, lists of actions, orders by sorting, registers one by one,
a meeting counted by rounds."""

import math

from fa_tutorial.barriers import arrive, ds_rows, load, use, wait

# ---------------------------------------------------------------- 9.1


def phase_by_toggling(i, stages):
    stage, full_parity, empty_parity = 0, 0, 1
    for _ in range(i % (2 * stages)):
        stage += 1
        if stage == stages:
            stage, full_parity, empty_parity = 0, full_parity ^ 1, empty_parity ^ 1
    return [stage, full_parity, empty_parity]


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


# ---------------------------------------------------------------- 9.5


def consumer_by_rounds(c, blocks, full, empty, ds_full):
    """A list of actions; nobody waits for the last releases."""
    actions, parity = [], 0
    for first in range(0, blocks, 2):
        for stage in range(min(2, blocks - first)):
            i = first + stage
            actions += [wait(full[stage], parity), use(i, stage), load(i, ds_rows(stage, c)), arrive(ds_full[stage]), use(i, stage)]
            actions += [arrive(empty[stage])] * (i + 2 < blocks)
            actions += [wait(ds_full[stage], parity), use(i, ds_rows(stage, 1 - c))]
        parity = 1 - parity
    return actions


RIGHT_ANSWERS = (
    ("9.1", phase_by_toggling),
    ("9.2", roles_that_toggle),
    ("9.3", order_by_sorting),
    ("9.4", budget_by_trying),
    ("9.5", consumer_by_rounds),
)
