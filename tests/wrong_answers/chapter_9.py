"""Wrong answers to the exercises of chapter 9, each with words that its diagnosis must hold.

Those of 9.2 to 9.4 are one function each, right with the flaw "".
"""

from __future__ import annotations

from typing import Any

from fa_tutorial.barriers import arrive, load, use, wait
from wrong_answers import WrongAnswer

# ---------------------------------------------------------------- 9.1


def _by_parity(parities):
    def ring_phase(i, stages):
        return i % stages, *parities(i, stages)

    return ring_phase


def _by_stage(stage):
    def ring_phase(i, stages):
        return stage(i, stages), i // stages % 2, 1 - i // stages % 2

    return ring_phase


def _stage_last(i, stages):
    return i // stages % 2, 1 - i // stages % 2, i % stages


def _stage_between(i, stages):
    return i // stages % 2, i % stages, 1 - i // stages % 2


def _phase_without_stage(i, stages):
    return i // stages % 2, 1 - i // stages % 2


PARITIES = (
    (lambda i, stages: (1 - i // stages % 2, i // stages % 2), "the two parities are exchanged"),
    (lambda i, stages: (i // stages % 2, i // stages % 2), "nothing has been loaded yet: deadlock"),
    (lambda i, stages: (1 - i // stages % 2, 1 - i // stages % 2), "the consumer passes a fresh full barrier"),
    (lambda i, stages: (i % 2, 1 - i % 2), "the parities flip with every tile"),
    (lambda i, stages: (i // stages % 2, 1 - i // (stages - 1) % 2), "every stage of the first round is fresh"),
    (lambda i, stages: (0, 1), "the parities never flip"),
    (lambda i, stages: (0, 1 - i // stages % 2), "full_parity does not flip"),
    (lambda i, stages: (i // stages % 2, 1), "empty_parity does not flip"),
    (lambda i, stages: (min(i // stages, 1), 1 - min(i // stages, 1)), "the parities flip once and stay"),
    (lambda i, stages: (i // stages % 2, int(i < stages)), "empty_parity is 1 in the first round alone"),
    (lambda i, stages: (i // stages, 1 - i // stages), "a parity is the last bit"),
    (lambda i, stages: (i // stages % 2, i // stages % 2 - 1), "a parity is the last bit"),
    (lambda i, stages: (i // 2 % 2, 1 - i // 2 % 2), "a ring of two is taken for granted"),
    (lambda i, stages: (i // max(stages, 2) % 2, 1 - i // max(stages, 2) % 2), "with one stage every tile begins a round"),
)
STAGES = (
    (lambda i, stages: i // stages, "that is the round"),
    (lambda i, stages: i, "the tile's own number is no stage"),
    (lambda i, stages: (i + 1) % stages, "the first tile goes to stage 0"),
    (lambda i, stages: i % 2, "one of two stages"),
    (lambda i, stages: min(i, stages - 1), "the stages are taken in turn"),
)


# ---------------------------------------------------------------- 9.2


def _roles(flaw: str) -> Any:
    def ring_roles(tiles, stages, full, empty):
        def stage_of(i):
            return 0 if flaw == "one stage alone" else i % stages

        def parity(i):
            if flaw == "parity flips with every tile":
                return i % 2
            return 0 if flaw == "parity never flips" else i // stages % 2

        def producer():
            for i in range(tiles - 1 if flaw == "last tile not loaded" else tiles):
                stage = stage_of(i)
                if flaw == "lockstep" and i > 0:
                    yield wait(empty[stage_of(i - 1)], parity(i - 1))
                if flaw == "waits for full":
                    yield wait(full[stage], parity(i))
                elif flaw == "first round waits":
                    yield wait(empty[stage], parity(i))
                elif flaw == "empty of the next stage":
                    yield wait(empty[(i + 1) % stages], 1 - parity(i))
                elif flaw == "empty waits for the first round alone":
                    yield wait(empty[stage], 1 if i < stages else 0)
                elif flaw not in ("no wait for empty", "empty after the load"):
                    yield wait(empty[stage], 1 - parity(i))
                if flaw == "full before the load":
                    yield arrive(full[stage])
                if flaw == "load not yielded":
                    load(i, stage)
                else:
                    yield load(i, stage)
                if flaw == "empty after the load":
                    yield wait(empty[stage], 1 - parity(i))
                if flaw == "arrives at empty":
                    yield arrive(empty[stage])
                elif flaw not in ("never full", "full before the load"):
                    yield arrive(full[stage])
                if flaw == "full twice":
                    yield arrive(full[stage])
                while flaw == "endless":
                    yield arrive(full[stage])
            if flaw == "one wait too many":
                yield wait(empty[0], parity(tiles))

        def consumer():
            for i in range(tiles):
                stage = stage_of(i)
                if flaw == "full parity exchanged":
                    yield wait(full[stage], 1 - parity(i))
                elif flaw == "full parity of the first round":
                    yield wait(full[stage], 0)
                elif flaw not in ("no wait for full", "full after the use"):
                    yield wait(full[stage], parity(i))
                if flaw == "empty before the use":
                    yield arrive(empty[stage])
                yield use(i, stage)
                if flaw == "full after the use":
                    yield wait(full[stage], parity(i))
                if flaw == "consumer loads":
                    yield load(i, stage)
                if flaw == "released a tile late" or (flaw == "late where the ring allows it" and stages > 1):
                    if i > 0:
                        yield arrive(empty[stage_of(i - 1)])
                elif flaw not in ("never empty", "empty before the use"):
                    yield arrive(empty[stage])
                if flaw == "empty twice":
                    yield arrive(empty[stage])
                if flaw == "empty for all":
                    yield from [arrive(empty[stage])] * (empty[stage].count - 1)

        if flaw == "started":
            return producer(), consumer()
        if flaw == "exchanged":
            return consumer, producer
        if flaw == "producer alone":
            return producer
        return producer, consumer

    return ring_roles


def _roles_in_one(tiles, stages, full, empty):
    for i in range(tiles):
        yield load(i, i % stages)
        yield use(i, i % stages)


def _roles_without_yield(tiles, stages, full, empty):
    def producer():
        for i in range(tiles):
            wait(empty[i % stages], 1 - i // stages % 2)
            load(i, i % stages)
            arrive(full[i % stages])

    return producer, producer


ROLE_FLAWS = {
    "first round waits": "in the first round the producer's wait must pass at once",
    "full parity exchanged": "and that passes at once: an earlier phase had it",
    "no wait for empty": "The producer does not wait for empty[0] before it loads tile 1",
    "no wait for full": "The consumer does not wait for full[0] before it uses tile 0",
    "empty after the load": "The producer waits for empty[0] after it has loaded tile 1: the wait comes first",
    "full after the use": "The consumer waits for full[0] after it has used tile 0: the wait comes first",
    "never full": "the producer does not arrive at full[0] after it has loaded tile 0",
    "never empty": "consumer does not arrive at empty[0] after it has used tile 0",
    "full before the load": "The producer arrives at full[0] before it has loaded tile 0",
    "empty before the use": "The consumer arrives at empty[0] before it has used tile 0",
    "parity never flips": "in round 1 of the ring that is not the phase that tile 1 needs",
    "parity flips with every tile": "uses tile 1 at time 3, and its load ends at time 6. The consumer waits for parity 1 of full[1]",
    "full parity of the first round": "The consumer waits for parity 0 of full[0], and that passes at once",
    "empty waits for the first round alone": "The producer waits for parity 0 of empty[0], and that passes at once",
    "lockstep": "The producer waits for empty[0], and it needs empty[1] alone",
    "released a tile late": "and whoever needs that stage waits for it",
    "late where the ring allows it": "must do so as soon as it has finished with the stage",
    "full twice": "the producer arrives at full[0] twice, for 1 tile",
    "empty twice": "the consumer arrives at empty[0] twice, for 1 tile",
    "empty for all": "the consumer 0 arrives at empty[0] twice, for 1 tile",
    "arrives at empty": "the producer arrives at empty[0]: the producer arrives at full",
    "waits for full": "at which it is to arrive itself",
    "empty of the next stage": "The producer waits for empty[1], and it needs empty[0] alone",
    "one stage alone": "the tiles go round the ring",
    "last tile not loaded": "never loads tile 0",
    "load not yielded": "never loads tile 0",
    "one wait too many": "waits once more after its last load",
    "consumer loads": "the producer loads, and consumers use",
    "exchanged": "the producer loads, and consumers use",
    "endless": "the roles have not ended",
    "started": "without calling them",
    "producer alone": "want (producer, consumer)",
}


# ---------------------------------------------------------------- 9.3


def _order(flaw: str) -> Any:
    def longest_first(S_q, S_k, block_m, block_n, heads, is_causal):
        if flaw == "blocks exchanged":
            block_m, block_n = block_n, block_m
        rows = S_q // block_m if flaw == "row blocks rounded down" else -(-S_q // block_m)
        work = []
        for head in range(1 if flaw == "one head" else heads):
            for row_block in range(rows):
                last = (row_block + 1) * block_m if flaw == "ragged row block whole" else min((row_block + 1) * block_m, S_q)
                if flaw == "first row":
                    last = row_block * block_m + 1
                if flaw == "diagonal left out":
                    last -= 1
                offset = 0 if flaw == "top left" else S_k - S_q
                masked = not is_causal if flaw == "is_causal turned round" else is_causal
                keys = last + offset if masked and flaw != "mask forgotten" else S_q if flaw == "S_q for both" else S_k
                if flaw == "mask always":
                    keys = last + offset
                if flaw != "negative":
                    keys = max(0, keys) if flaw == "ragged row block whole" else min(max(0, keys), S_k)
                key_blocks = keys // block_n if flaw == "key blocks rounded down" else -(-keys // block_n)
                if flaw == "keys":
                    key_blocks = keys
                if flaw == "whole key blocks" and is_causal:
                    key_blocks = max(0, row_block * block_m + 1 + S_k - S_q) // block_n
                if flaw == "rounded down under the mask" and is_causal:
                    key_blocks = keys // block_n
                if flaw == "masked key blocks" and is_causal:
                    key_blocks -= min(max(0, row_block * block_m + 1 + S_k - S_q), S_k) // block_n
                if flaw == "by the row block's number" and is_causal:
                    key_blocks = row_block + 1
                if key_blocks or flaw != "empty left out":
                    work.append((row_block, head, key_blocks) if flaw == "head second" else (head, row_block, key_blocks))
        if flaw == "pairs":
            return [entry[:2] for entry in work]
        if flaw == "key blocks first":
            return [(key_blocks, row_block, head) for head, row_block, key_blocks in sorted(work, key=lambda entry: -entry[2])]
        if flaw == "twice":
            work += work[:1]
        if flaw == "head by head":
            return sorted(work, key=lambda entry: (entry[0], -entry[2]))
        if flaw == "shortest first":
            return sorted(work, key=lambda entry: entry[2])
        return work if flaw == "not sorted" else sorted(work, key=lambda entry: -entry[2])

    return longest_first


def _order_sorts_in_place(S_q, S_k, block_m, block_n, heads, is_causal):
    return _order("")(S_q, S_k, block_m, block_n, heads, is_causal).sort()


ORDER_FLAWS = {
    "blocks exchanged": "block_m and block_n are exchanged",
    "row blocks rounded down": "the ragged last row block is left out",
    "one head": "the other heads are missing",
    "ragged row block whole": "a ragged last row block is taken for a whole one",
    "first row": "its last row sees the most",
    "diagonal left out": "the diagonal is not counted",
    "top left": "the mask starts at the top left",
    "is_causal turned round": "is_causal changes nothing",
    "mask forgotten": "is_causal changes nothing",
    "mask always": "the mask is used where there is none",
    "S_q for both": "S_q is used for both lengths",
    "negative": "visits 0 key blocks, never less",
    "key blocks rounded down": "the number of key blocks is rounded down",
    "keys": "keys are counted, not blocks",
    "whole key blocks": "only the key blocks that are seen whole",
    "rounded down under the mask": "the number of key blocks is rounded down",
    "masked key blocks": "end − full is counted",
    "by the row block's number": "row block r is given r + 1 key blocks",
    "key blocks first": "the parts come as (key_blocks, row_block, head)",
    "empty left out": "somebody must still write their o = 0",
    "head second": "head and row_block are exchanged",
    "pairs": "an entry is of 2 parts",
    "twice": "is there twice",
    "head by head": "the next head begins with its longest again",
    "shortest first": "the shortest come first",
    "not sorted": "the shortest come first",
}


# ---------------------------------------------------------------- 9.4


def _budget(flaw: str) -> Any:
    def register_budget(consumers, producer_warps, producer_registers):
        eights = (lambda n: n) if flaw == "launch not in eights" else lambda n: int(n) // 8 * 8
        producer_groups = {
            "padded down": producer_warps // 4, "one more group": producer_warps // 4 + 1, "one group": 1, "not padded": producer_warps / 4,
        }.get(flaw, -(-producer_warps // 4))  # fmt: skip
        groups = consumers + producer_groups
        registers = 65_536 // 4 if flaw == "bytes" else 65_536
        at_launch = min(eights(registers // int(128 * groups)), 256)
        if flaw == "launch":
            return at_launch
        keeps = 24 if flaw == "producer keeps 24" else producer_registers
        pool = 512 if flaw == "the whole SM" else at_launch * groups
        left = pool - keeps * (0 if flaw == "nothing kept" else 1 if flaw == "one group keeps" else producer_groups)
        if flaw == "one consumer gains":
            return min(at_launch + (at_launch - keeps) * producer_groups, 256) // 8 * 8
        if flaw == "all consumers":
            return left
        share = left / consumers
        if flaw == "not in eights":
            return min(int(share), 256)
        if flaw == "nearest":
            return min(round(share / 8) * 8, 256)
        if flaw == "rounded up":
            return min(-int(-share // 8) * 8, 256)
        most = {"no limit": 10**6, "limit 240": 240, "limit 255": 255, "limit 248": 248}.get(flaw, 256)
        return min(int(share) // 8 * 8, most)

    return register_budget


BUDGET_FLAWS = {
    "launch": "that is what every thread has at the launch",
    "padded down": "more than there is for each",
    "not padded": "the producer's warp is taken for 32 threads",
    "one more group": "4 warps are one whole warpgroup",
    "one group": "the producer is taken for one warpgroup",
    "one group keeps": "every warpgroup of the producer keeps producer_registers",
    "nothing kept": "producer_registers changes nothing",
    "bytes": "a register has 4 bytes",
    "producer keeps 24": "the producer keeps producer_registers, not 24",
    "the whole SM": "not all 65,536",
    "launch not in eights": "the launch gives multiples of 8 as well",
    "one consumer gains": "more than there is for each",
    "all consumers": "that is for all consumers together",
    "not in eights": "setmaxnreg takes multiples of 8",
    "nearest": "rounded to the nearest multiple of 8",
    "rounded up": "rounded up to a multiple of 8",
    "no limit": "no thread can have more than 256",
    "limit 240": "240 is what two consumers get",
    "limit 248": "that is setmaxnreg's limit",
    "limit 255": "255 is no multiple of 8",
}

WRONG_ANSWERS = (
    *(WrongAnswer("9.1", _by_parity(parities), diagnosis) for parities, diagnosis in PARITIES),
    *(WrongAnswer("9.1", _by_stage(stage), diagnosis) for stage, diagnosis in STAGES),
    WrongAnswer("9.1", _stage_last, "the parts come as (full_parity, empty_parity, stage)"),
    WrongAnswer("9.1", _stage_between, "the parts come as (full_parity, stage, empty_parity)"),
    WrongAnswer("9.1", _phase_without_stage, "want a tuple (stage, full_parity, empty_parity)"),
    *(WrongAnswer("9.2", _roles(flaw), diagnosis) for flaw, diagnosis in ROLE_FLAWS.items()),
    WrongAnswer("9.2", _roles_in_one, "it defines two, producer and consumer, inside"),
    WrongAnswer("9.2", _roles_without_yield, "each action must be yielded"),
    *(WrongAnswer("9.3", _order(flaw), diagnosis) for flaw, diagnosis in ORDER_FLAWS.items()),
    WrongAnswer("9.3", _order_sorts_in_place, "is the return missing?"),
    *(WrongAnswer("9.4", _budget(flaw), diagnosis) for flaw, diagnosis in BUDGET_FLAWS.items()),
)
