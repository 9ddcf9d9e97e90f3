from edits import edit
from right_answers.chapter_9 import ROOM_FIRST

from fa_tutorial.barriers import load, use
from fa_tutorial.exercises import catalogue


def roles_in_one(tiles, stages, full, empty):
    for i in range(tiles):
        yield load(i, i % stages)
        yield use(i, i % stages)


# of 9.2
PLACE = "stage, parity = i % stages, i // stages % 2\n            yield wait(empty"
LOCKSTEP = (
    "if i:\n                yield wait(empty[(i - 1) % stages], (i - 1) // stages % 2)\n            yield wait(empty[stage], 1 - parity)"
)
# of 9.3
RELEASED, SCORED = "        mbarrier.arrive(empty.index(stage), count=1)\n", "        s = warpgroup_mma_wait(0, [s])  # [64, 128]\n"
SUMMED = "        acc = warpgroup_mma_wait(0, [acc])  # [64, D]\n"
LAST_RELEASE = "    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)\n"
LATE_RELEASE = "        if i > 0:\n            mbarrier.arrive(empty.index((i - 1) % STAGES), count=1)\n"
LATER = f"{SCORED}        if i > 0:\n            acc = warpgroup_mma_wait(0, [acc])\n{LATE_RELEASE.split(':')[1][1:]}"
# of 9.4
SUM = "        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)\n"
# of 9.6
TURN, PASS = "        mbarrier.wait(turns.index(C), (i + C) % 2)\n", "        mbarrier.arrive(turns.index(1 - C), count=1)\n"
# of 9.7
WRITE, FREE, TELL = "            slot[0] = tile\n", "            yield wait(taken, 1 - turn % 2)\n", "            yield arrive(told)\n"
READ, TAKE = "            tile = slot[0]\n", "            yield arrive(taken)\n"


def moved(line, after):
    """The change of 9.9's solution that moves a line to behind another."""
    return (f'        "{line}",\n', ""), (f'        "{after}",\n', f'        "{after}",\n        "{line}",\n')


WRONG_ANSWERS = (
    ("9.2", roles_in_one, "define two, producer and consumer, inside"),
    edit("9.2", "no yield", ("yield wait(empty", "wait(empty"), ("yield load", "load"), ("yield arrive(full[stage])", "arrive(full[stage])"),
         told="each action must be yielded"),
    edit("9.2", "the consumer at parity 0", ("wait(full[stage], parity)", "wait(full[stage], 0)"), told="after “wait for full[0], parity 0”"),
    edit("9.2", "in lockstep", ("yield wait(empty[stage], 1 - parity)", LOCKSTEP), told="and it could start at 1"),
    edit("9.2", "the last tile missing", (f"for i in range(tiles):\n            {PLACE}", f"for i in range(1, tiles):\n            {PLACE}"),
         told="a deadlock at time 0"),
    edit("9.2", "the last tile not released", ("yield arrive(empty[stage])", "if i < tiles - 1:\n                yield arrive(empty[stage])"),
         told="empty[0] has had 0 of 1 arrivals"),
    edit("9.2", "one stage alone", (PLACE, PLACE.replace("i % stages,", "0,")), told="2 tiles, 2 stages, 1 consumer"),
    edit("9.2", "exchanged", ("return producer, consumer", "return consumer, producer"), told="1 tile, 1 stage, 1 consumer"),
    edit("9.2", "started", ("return producer, consumer", "return producer(), consumer()"), told="return the functions without calling them"),
    edit("9.3", "operands exchanged", ("q, k_t, zeros", "k.index(stage), q.permute((1, 0)), zeros"), told="the product has shape [4, 2]"),
    edit("9.3", "s not waited for", ("s = warpgroup_mma_wait(0, [s])", "pass"), told="s is a matmul that is under way"),
    edit("9.3", "p as it is", ("left_operand(p, acc, v.dtype)", "p"), told="what left_operand gives"),
    edit("9.3", "p in acc's dtype", ("left_operand(p, acc, v.dtype)", "left_operand(p, acc, acc.dtype)"), told="left_operand's dtype is v.dtype"),
    edit("9.3", "acc alone", ("return l, acc", "return acc"), told="want (l, acc)"),
    edit("9.3", "not converted", ("rescaled(acc, alpha)", "acc * alpha[:, None]"), told="rescaled(acc, alpha)"),
    edit("9.3", "not jitted", ("@gluon.jit\n", ""), told="put @gluon.jit above it"),
    edit("9.3", "for both consumers", ("count=1", "count=2"), told="arrivals of yours at empty[0]: 2, blocks in this stage: 1"),
    edit("9.3", "divmod", ("stage, parity = i % STAGES, i // STAGES % 2", "turn, stage = divmod(i, STAGES)\n        parity = turn % 2"),
         told="uses divmod"),
    edit("9.3", "the softmax written out", ("p, m, l, alpha = softmax_step(s, m, l, scale_log2)",
         "m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)\n        p, alpha = gl.exp2(s * scale_log2 - m_new[:, None]), gl.exp2(m - m_new)"),
         told="the loop needs no gl.…"),
    edit("9.3", "arrives at full", ("arrive(empty.index", "arrive(full.index"), told="arrivals of yours at empty[0]: 0, blocks in this stage: 1"),
    edit("9.3", "one matmul under way", ("warpgroup_mma_wait(0, [s])", "warpgroup_mma_wait(1, [s])"), told="leaves q kᵀ of block 0 in flight"),
    edit("9.3", "never waited for k", ("mbarrier.wait(full.index(stage), parity)", "mbarrier.wait(full.index(0), 0)"), told="which holds nothing"),
    edit("9.3", "the last round not released", ("        mbarrier.arrive", "        if i + STAGES < blocks:\n            mbarrier.arrive"),
         told="each block's stage is released once, the last block's, too"),
    edit("9.3", "released before p v is done", (RELEASED, ""), (SUMMED, RELEASED + SUMMED), told="you release block 0 before you have waited"),
    edit("9.3", "released a block late", (RELEASED, LATE_RELEASE), ("    return l", f"{LAST_RELEASE}    return l"), told="you release a stage late"),
    edit("9.3", "p v waited for a block later", (SUMMED, ""), (RELEASED, ""), (SCORED, LATER),
         ("    return l", f"    acc = warpgroup_mma_wait(0, [acc])\n{LAST_RELEASE}    return l"), told="acc is a matmul under way at one end of its body"),
    edit("9.4", "p v in both branches", (SUM, f"        if i > 1:\n    {SUM}        else:\n    {SUM}"),
         told="acc is a matmul under way at one end of its body"),
    ("9.4", catalogue.find("9.3").solution, "p v of block 0 is not under way when the softmax of block 1 begins"),
    edit("9.4", "the last block released before its p v is done", ("    acc = warpgroup_mma_wait(0, [acc])\n    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)\n",
         "    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)\n    acc = warpgroup_mma_wait(0, [acc])\n"), told="before you have waited for p v of block 0"),
    edit("9.4", "the stage before by a difference", ("(i - 1) % STAGES", "i % STAGES - 1"), told="index(-1) of a ring of"),
    edit("9.4", "p not waited for", ("acc, p = warpgroup_mma_wait(0, [acc, p])", "acc = warpgroup_mma_wait(0, [acc])"),
         told="p v reads p's registers until then"),
    edit("9.4", "p overwritten", ("p_new, m", "p, m"), ("p_new, acc", "p, acc"), told="give the new p another name"),
    edit("9.5", "left out where they stick out", ("def share(spans):", "def share(spans):\n        spans = [x for x in spans if x[0] >= start and x[1] <= stop]"),
         told="a softmax that begins before the time that counts is cut, and not left out"),
    edit("9.5", "the time ends with the last end", ("min(first[-1][0], second[-1][0])", "max(first[-1][1], second[-1][1])"), ("max(first[0][0], second[0][0])", "min(first[0][0], second[0][0])"),
         told="longer than that of which both have stamps"),
    edit("9.5", "the time from 0", ("max(first[0][0], second[0][0])", "0"), told="each consumer's own share of the time from the later of the first begins"),
    edit("9.6", "passed when q kᵀ is done", (PASS + SCORED, SCORED + PASS), told="you pass turn 0 on when its q kᵀ is done"),
    edit("9.6", "passed before q kᵀ", (PASS + SCORED, SCORED), ("        mbarrier.wait(full", f"{PASS}        mbarrier.wait(full"),
         told="you pass turn 0 on before its q kᵀ: into that gap the other's p v slips"),
    edit("9.6", "passed behind p v", (PASS, ""), (SUMMED, SUMMED + PASS), told="a softmax begins, and you haven't passed turn 0 on"),
    edit("9.6", "held through the softmax", (TURN, ""), ("        p, m, l, alpha", f"{TURN}        p, m, l, alpha"), told="you wait for turn 1 before a softmax"),
    edit("9.6", "acc rescaled in the turn", ("        acc = rescaled(acc, alpha)\n", ""), ("v.index(stage), acc, is", "v.index(stage), rescaled(acc, alpha), is"),
         told="rescaled comes after the wait for turn 1"),
    edit("9.6", "passed twice", (PASS, PASS + PASS), told="you pass turn 1 on, whose p v is not issued"),
    edit("9.6", "the last turn passed twice", ("    mbarrier.arrive(turns.index(1 - C), count=1)\n    return", "    mbarrier.arrive(turns.index(1 - C), count=2)\n    return"),
         told="you pass turn 2 on, whose p v is not issued"),
    edit("9.6", "passed to oneself", (PASS, PASS.replace("1 - C", "C")), told="the other consumer waits at turns.index(1 - C)"),
    edit("9.6", "the last turn not passed on", ("    mbarrier.arrive(turns.index(1 - C), count=1)\n    return", "    return"), told="you have passed on 1 of 2 turns: the last one, too"),
    edit("9.6", "a turn for each matmul", (SUMMED, PASS + SUMMED), ("        mbarrier.wait(full", f"{TURN}        mbarrier.wait(full"),
         told="a deadlock: wait for turns[0]"),
    edit("9.6", "no turns", (TURN, ""), (PASS, ""), ("    mbarrier.wait(turns.index(C), 1 - C)\n", ""), ("    mbarrier.arrive(turns.index(1 - C), count=1)\n", ""),
         told="p v of block 0 begins turn 1, and you haven't passed turn 0 on"),
    edit("9.6", "no wait", (TURN, ""), told="p v of block 0 is issued when the other consumer has passed 0 turns on, where 1 must come before"),
    edit("9.6", "one parity in all blocks", ("(i + C) % 2", "C"), told="p v of block 1 is issued when the other consumer has passed 1 turns on, where 2 must"),
    edit("9.7", "told after the loads", (TELL, ""), ("                n += 1\n\n", f"                n += 1\n{TELL}\n"),
         told="before it has arrived at told for this work tile"),
    edit("9.7", "the first wait at parity 0", ("1 - turn % 2", "turn % 2"), told="the producer waits for taken, parity 0"),
    edit("9.7", "one drawn ahead", ("n = 0  # blocks so far", "n, ahead = 0, next_tile()  # blocks so far"), ("tile = next_tile()", "tile, ahead = ahead, next_tile()"),
         told="draws numbers ahead"),
    edit("9.7", "nothing stored", ('            yield work("store o")\n', ""), told="ends before “store o”"),
    edit("9.7", "the last stages not released", ("yield arrive(empty[n % stages])", "if n + stages < 3:\n                    yield arrive(empty[n % stages])"),
         told="empty[0] has had 0 of 2 arrivals when all roles have ended"),
    # the same slips, when the producer waits for room before it draws, which is right
    edit("9.7", "room first, never waited for taken", *ROOM_FIRST, (FREE, ""), told="a deadlock"),
    edit("9.7", "room first, read too late", *ROOM_FIRST, (READ + TAKE, TAKE + READ), told="ends before “use tile 1 in stage 2”"),
    edit("9.8", "nothing yielded", ("yield ", "", 8), told="want a generator, which yields each action"),
    edit("9.8", "dq before dk", ("        yield use(i, stage)  # dk\n", ""), ("  # dq", "  # dq\n        yield use(i, stage)  # dk\n"),
         told="where “use tile 0 in stage 0” (dk) is due"),
    edit("9.8", "two arrivals", ("yield arrive(ds_full[stage])", "yield arrive(ds_full[stage])\n        yield arrive(ds_full[stage])"), told="a deadlock at time 7"),
    edit("9.8", "arrives at full", ("arrive(empty[stage])", "arrive(full[stage])"), told="arrives at full[0], which expects the producer"),
    edit("9.8", "the last is not released", ("yield arrive(empty[stage])", "if i < blocks - 1:\n            yield arrive(empty[stage])"),
         told="empty[0] has had 0 of 2 arrivals"),
    edit("9.9", "dq added at the end", *moved("add dq", "wait for dv′"), told="“add dq” comes after the last wait, with no matmul beside it"),
    edit("9.9", "s′ after the meeting", *moved("issue s′", "meet"), told="at “meet”, s′ is not issued, and could run meanwhile"),
    edit("9.9", "ds before dp", *moved("hand over ds", "issue dp"), told="at “hand over ds”, dp has not been waited for"),
    edit("9.9", "a line missing", ('        "meet",\n', ""), told="“meet” stands 0 times"),
    edit("9.9", "another line", ('"meet",', '"meet", "barrier",'), told="“barrier” stands 1 times"),
    edit("9.9", "a string", ('    return [', '    return "dp, ds"\n    return ['), told="returns a str, want a list of the lines"),
)  # fmt: skip
