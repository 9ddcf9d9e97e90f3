"""Exercise 9.4, register_budget."""

import math

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def register_budget(consumers, producer_warps, producer_registers):
    """Registers that each thread of a consumer can have, by setmaxnreg."""
    producer_groups = -(-producer_warps // 4)  # whole warpgroups, of 4 warps, 128 threads
    groups = consumers + producer_groups
    at_launch = min(65_536 // (128 * groups) // 8 * 8, 256)  # the same for every thread
    left = at_launch * groups - producer_registers * producer_groups  # a thread of each consumer
    return min(left // consumers // 8 * 8, 256)


MISTAKES = {
    "nothing_kept": "producer_registers changes nothing: what the producer keeps is not there to be shared",
    "launch": "that is what every thread has at the launch: the producer gives most of its registers away, and the consumers share them",
    "each_gains": "more than there is for each: the launch gives every thread the same, the producer's 128 too, and what these give up is shared by "
    "all consumers",
    "not_padded": "the producer's warp is taken for 32 threads: setmaxnreg is for whole warpgroups, so 1 warp is padded to 128",
    "padded_down": "the producer's warps are padded to whole warpgroups, 1 warp to one and 5 warps to two: round up",
    "one_more": "4 warps are one whole warpgroup, and need no padding",
    "one_group": "the producer is taken for one warpgroup: 8 warps are two",
    "one_keeps": "every warpgroup of the producer keeps producer_registers, not one of them alone",
    "all_consumers": "that is for all consumers together: return what a thread of one has",
    "gain": "what the consumers gain is returned: what the launch gave them is theirs too",
    "whole_consumer": "the registers of a whole consumer are returned: return those of one of its 128 threads",
    "bytes": "a register has 4 bytes, and registers are counted here: an SM has 65,536 of them",
    "keeps_24": "the producer keeps producer_registers, not 24",
    "not_eights": "setmaxnreg takes multiples of 8: round down",
    "up": "rounded up to a multiple of 8: more than there is cannot be given",
    "nearest": "rounded to the nearest multiple of 8, and that may be up: more than there is cannot be given",
    "two_consumers": "two consumers are taken for granted",
    "whole_SM": "what is shared is what the block was launched with, 384 threads · 168 registers, not all 65,536: the rest of the SM cannot be had",
    "launch_not_eights": "the launch gives multiples of 8 as well, rounded down",
    "no_limit": "no thread can have more than 256",
    "limit_255": "255 is no multiple of 8, and 256 is: no thread can have more than 256",
    "limit_248": "one consumer can have 256: that is setmaxnreg's limit, and the launch gives it already",
    "limit_240": "256 is allowed: 240 is what two consumers get, and no limit",
}


def twin(consumers, producer_warps, producer_registers, mistake=None):
    consumers = 2 if mistake == "two_consumers" else consumers
    whole = -(-producer_warps // 4)
    producers = {"padded_down": producer_warps // 4, "one_more": producer_warps // 4 + 1, "one_group": 1,
                 "not_padded": producer_warps / 4}.get(mistake, whole)  # fmt: skip
    groups = consumers + producers
    fits = (65_536 // 4 if mistake == "bytes" else 65_536) / (128 * groups)
    at_launch = min(int(fits) if mistake == "launch_not_eights" else int(fits) // 8 * 8, 256)
    keeps = 24 if mistake == "keeps_24" else producer_registers
    kept = keeps * {"nothing_kept": 0, "one_keeps": 1}.get(mistake, producers)
    share = ((512 if mistake == "whole_SM" else at_launch * groups) - kept) / consumers
    share = at_launch + (at_launch - keeps) * producers if mistake == "each_gains" else share
    eights = {"not_eights": int(share), "nearest": round(share / 8) * 8, "up": math.ceil(share / 8) * 8}.get(mistake, int(share) // 8 * 8)
    most = {"no_limit": math.inf, "limit_255": 255, "limit_248": 248, "limit_240": 240}.get(mistake, 256)
    right = min(eights, most)
    return {"launch": at_launch, "all_consumers": int(share * consumers), "gain": right - at_launch, "whole_consumer": 128 * right}.get(
        mistake, right
    )


def inputs():
    yield case(2, 1, 24, otherwise="the launch gives every thread the same; what the producer then leaves, the consumers share")
    yield case(2, 1, 56, otherwise="a producer that keeps more leaves less")
    yield case(3, 1, 24, otherwise="three consumers share what the producer leaves")
    yield case(3, 1, 40, otherwise="the largest multiple of 8 that is there")
    yield case(
        2, 1, 32, otherwise="what is shared is what the block was launched with, less producer_registers for each thread of the producer"
    )
    yield case(4, 1, 24, otherwise="five warpgroups: the launch gives every thread 96")
    yield case(1, 1, 24, otherwise="at most 256 a thread")
    yield case(2, 4, 24, otherwise="4 warps are one warpgroup")
    yield case(3, 8, 24, otherwise="8 warps are two warpgroups")
    yield case(2, 5, 24, otherwise="5 warps are padded to two warpgroups")
    for consumers in range(1, 8):  # a block has at most 8 warpgroups
        for producer_warps in range(1, 4 * (8 - consumers) + 1, 3):
            for producer_registers in (24, 40, 64):
                yield case(consumers, producer_warps, producer_registers, otherwise=OTHERS)


EXERCISE = Exercise(
    id="9.4",
    task="Compute the most registers that each thread of a consumer can have.",
    hints=(
        "How many warpgroups are there, the producer's padding included? What does the launch give each of their threads?",
        "Two consumers and one producer are 3 warpgroups: 65,536 / 384 is 170.7, so the launch gives 168. In registers a thread, there are 3 · 168 to "
        "be shared.",
        "left = launch · warpgroups − producer_registers · producer_warpgroups, for one thread of each consumer together; divide, round down to a "
        "multiple of 8, and mind the 256.",
    ),
    solution=register_budget,
    reasoning="A consumer's accumulators are in registers: acc of 64 × 128 in float32 is 64 a thread, the scores of 64 × 128 as many again, and p "
    "beside them. A uniform 168 would leave little room. The producer needs an address and a counter. setmaxnreg moves registers within the block's "
    "own pool, and what the launch did not take, 65,536 − 384 · 168 = 1,024 here, is in nobody's pool. So 240 beside 24 with two consumers, and 160 "
    "with three.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
