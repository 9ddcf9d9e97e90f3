from edits import edit
from right_answers.chapter_9 import ROOM_FIRST

from fa_tutorial.barriers import load, use
from fa_tutorial.exercises import catalogue
from fa_tutorial.source import source_of


def roles_in_one(tiles, stages, full, empty):
    for i in range(tiles):
        yield load(i, i % stages)
        yield use(i, i % stages)


RELEASE = "yield arrive(full[stage])"
ROLES = "return producer, consumer"
PLACE = "stage, parity = i % stages, i // stages % 2\n            yield wait(empty"
LOCKSTEP = (
    "if i:\n                yield wait(empty[(i - 1) % stages], (i - 1) // stages % 2)\n            yield wait(empty[stage], 1 - parity)"
)
USED, LATE = "yield arrive(empty[stage])", "if i:\n                yield arrive(empty[(i - 1) % stages])"
MISSING = "for i in range(1, tiles):\n            stage, parity = i % stages, i // stages % 2\n            yield wait(empty"
# 9.3's loop with the next block's q kᵀ under its softmax: the overlap that chapter 8 tried
READY = "        mbarrier.wait(full.index(stage), parity)\n        k_t = k.index(stage).permute((1, 0))  # [D, 128]\n"
ISSUED = "        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)\n        s = warpgroup_mma_wait(0, [s])  # [64, 128]\n"
FIRST = (
    "    mbarrier.wait(full.index(0), 0)\n"
    "    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)\n"
    "    s = warpgroup_mma_wait(0, [s])\n"
)
AHEAD = (
    "        s_next = s\n"
    "        if i + 1 < blocks:\n"
    "            mbarrier.wait(full.index((i + 1) % STAGES), (i + 1) // STAGES % 2)\n"
    "            k_t = k.index((i + 1) % STAGES).permute((1, 0))\n"
    "            s_next = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)\n"
)
LOOP, SUMMED = "    for i in range(blocks):\n", "        acc = warpgroup_mma_wait(0, [acc])  # [64, D]\n"
SCORES_AHEAD = edit(
    "9.3",
    "scores ahead",
    (LOOP, FIRST + LOOP),
    (READY + ISSUED, AHEAD),
    (SUMMED, "        acc, s = warpgroup_mma_wait(0, [acc, s_next])\n"),
)[1]
SUM = "        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)\n"
RELEASED = "        mbarrier.arrive(empty.index(stage), count=1)\n"
SCORED = "        s = warpgroup_mma_wait(0, [s])  # [64, 128]\n"
LAST_RELEASE = "    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)\n"
LATE_RELEASE = "        if i > 0:\n            mbarrier.arrive(empty.index((i - 1) % STAGES), count=1)\n"
LATER_END = f"    acc = warpgroup_mma_wait(0, [acc])\n{LAST_RELEASE}"
LATER = (
    f"{SCORED}        if i > 0:\n            acc = warpgroup_mma_wait(0, [acc])\n"
    "            mbarrier.arrive(empty.index((i - 1) % STAGES), count=1)\n"
)
FIRST_BLOCK = source_of(catalogue.find("9.4").solution).split("= k.shape[0]\n")[1].split("    for i in")[0]
FIRST_P = "    p = left_operand(zeros, acc, v.dtype)\n"
WAIT_S = "        s = warpgroup_mma_wait(1, [s])  # p v, which was issued last, may be under way\n"
WAITED = "        acc, p = warpgroup_mma_wait(0, [acc, p])\n"
BEFORE_RELEASED = "        mbarrier.arrive(empty.index(before), count=1)\n"
NEXT_P = "        p = left_operand(p_new, acc, v.dtype)\n"
TELL = "            yield arrive(told)\n"
WRITE, FREE = "            slot[0] = tile\n", "            yield wait(taken, 1 - turn % 2)\n"
READ, TAKE = "            tile = slot[0]\n", "            yield arrive(taken)\n"
STORE, NEXT = '            yield work("store o")\n', "                yield arrive(empty[n % stages])\n"
TURN, PASS = "        mbarrier.wait(turns.index(C), (i - C) % 2)\n", "        mbarrier.arrive(turns.index(1 - C), count=1)\n"


def moved(line, after):
    """The change of 9.9's solution that moves a line to behind another."""
    return (f'        "{line}",\n', ""), (f'        "{after}",\n', f'        "{after}",\n        "{line}",\n')


def meeting_moved(step):
    """The change of 9.8's solution that moves a use to its end."""
    line = "        yield use(i, stage)  " + step + "\n"
    return (line, ""), ("  # dq", f"  # dq\n{line}")


WRONG_ANSWERS = (
    ("9.2", roles_in_one, "define two, producer and consumer, inside"),
    edit("9.2", "no yield", ("yield wait(empty", "wait(empty"), ("yield load", "load"), (RELEASE, "arrive(full[stage])"),
         told="each action must be yielded"),
    edit("9.2", "a list waited for", ("empty[stage], 1", "empty, 1"),
         told="the producer waits for a list of barriers: each stage has a barrier of its own"),
    edit("9.2", "a list arrived at", ("arrive(full[stage])", "arrive(full)"), told="the producer arrives at a list of barriers"),
    edit("9.2", "the consumer at parity 0", ("wait(full[stage], parity)", "wait(full[stage], 0)"), told="a stage's parity flips once a round"),
    edit("9.2", "a release a tile late", (USED, LATE), told="the consumer ends, where “arrive at empty[0]” is due"),
    edit("9.2", "producer at empty", ("arrive(full", "arrive(empty"), told="the producer yields “arrive at empty[0]”, where “arrive at full[0]” is due"),
    edit("9.2", "in lockstep", ("yield wait(empty[stage], 1 - parity)", LOCKSTEP), told="the producer yields “wait for empty[0], parity 0”, where “load tile 1 into stage 1” is due"),
    edit("9.2", "full twice", ("yield arrive(full[stage])", "yield arrive(full[stage])\n            yield arrive(full[stage])"),
         told="right after “arrive at full[0]”, the producer yields “arrive at full[0]”"),
    edit("9.2", "the last tile missing", (("for i in range(tiles):\n            stage, parity = i % stages, i // stages % 2\n            "
                                          "yield wait(empty"), MISSING),
         told="the producer ends, where “wait for empty[0], parity 1” is due"),
    edit("9.2", "the last round not released", (USED, "if i + stages < tiles:\n                yield arrive(empty[stage])"),
         told="what comes next in a kernel takes the same ring"),
    edit("9.2", "the last tile not released", (USED, "if i < tiles - 1:\n                yield arrive(empty[stage])"),
         told="what comes next in a kernel takes the same ring"),
    edit("9.2", "another stage released", (USED, "yield arrive(empty[(i + 1) % stages])"),
         told="the consumer yields “arrive at empty[1]”, where “arrive at empty[0]” is due"),
    edit("9.2", "one stage alone", (PLACE, PLACE.replace("i % stages,", "0,")), told="the tiles go round the ring"),
    edit("9.2", "consumer loads", ("yield use", "yield load"), told="the producer loads, and consumers use"),
    edit("9.2", "exchanged", (ROLES, "return consumer, producer"), told="the producer loads, and consumers use"),
    edit("9.2", "endless", (RELEASE, f"while True:\n                {RELEASE}"), told="the roles have not ended"),
    edit("9.2", "started", (ROLES, "return producer(), consumer()"), told="return the functions without calling them"),
    edit("9.2", "producer alone", (ROLES, "return producer"), told="want (producer, consumer)"),
    edit("9.3", "no ring", ("i % STAGES, i", "i, i"), told="the stages are 0 … 1"),
    edit("9.3", "not transposed", (".permute((1, 0))", ""), told="the inner sizes differ"),
    edit("9.3", "s not waited for", ("s = warpgroup_mma_wait(0, [s])", "pass"), told="s is a matmul that is under way"),
    edit("9.3", "nothing named", ("warpgroup_mma_wait(0, [s])", "warpgroup_mma_wait(0)"), told="takes a list of what it waits for"),
    edit("9.3", "p as it is", ("left_operand(p, acc, v.dtype)", "p"), told="what left_operand gives"),
    edit("9.3", "p in float32", ("left_operand(p, acc, v.dtype)", "left_operand(p, acc, gl.float32)"), told=("left_operand's dtype is "
                                                                                                            "v.dtype")),
    edit("9.3", "p in acc's dtype", ("left_operand(p, acc, v.dtype)", "left_operand(p, acc, acc.dtype)"), told="left_operand's dtype is v.dtype"),
    edit("9.3", "permuted by gl", ("k.index(stage).permute((1, 0))", "gl.permute(k.index(stage), (1, 0))"), told="tile.permute((1, 0)) transposes"),
    edit("9.3", "transposed as in PyTorch", (".permute((1, 0))", ".T"), told="has no .T"),
    edit("9.3", "transposed as in Triton", (".permute((1, 0))", ".trans()"), told="has no .T or .trans"),
    edit("9.3", "permuted as in PyTorch", ("permute((1, 0))", "permute(1, 0)"), told="permute takes one tuple"),
    edit("9.3", "a wait without a list", ("warpgroup_mma_wait(0, [s])", "warpgroup_mma_wait(0, s)"), told=("takes a list of what it "
                                                                                                          "waits for")),
    edit("9.3", "a stage in brackets", ("k.index(stage)", "k[stage]"), told="k.index(stage)"),
    edit("9.3", "acc not waited for", ("acc = warpgroup_mma_wait(0, [acc])", "pass"), told="acc is a matmul that is under way"),
    edit("9.3", "acc alone", ("return l, acc", "return acc"), told="want (l, acc)"),
    edit("9.3", "three values", ("return l, acc", "return m, l, acc"), told="returns a tuple of 3, want (l, acc)"),
    edit("9.3", "a wait at empty", ("mbarrier.wait(full", "mbarrier.wait(empty"), told="a consumer waits for full[stage], and arrives at empty[stage]"),
    edit("9.3", "not converted", ("rescaled(acc, alpha)", "acc * alpha[:, None]"), told="rescaled(acc, alpha)"),
    edit("9.3", "not jitted", ("@gluon.jit\n", ""), told="put @gluon.jit above it"),
    edit("9.3", "for both consumers", ("count=1", "count=2"), told="each consumer arrives once, count=1"),
    edit("9.3", "divmod", ("stage, parity = i % STAGES, i // STAGES % 2", "turn, stage = divmod(i, STAGES)\n        parity = turn % 2"),
         told="uses divmod, which Gluon's compiler refuses here"),
    edit("9.3", "int", ("i // STAGES % 2", "int(i / STAGES) % 2"), told="uses int, which Gluon's compiler refuses here"),
    edit("9.3", "another function", ("stage, parity = i % STAGES, i // STAGES % 2", "stage, parity, _ = ring_phase(i, STAGES)"),
         told="uses ring_phase, which Gluon's compiler refuses here: it sees this function alone"),
    edit("9.3", "arrives at full", ("arrive(empty.index", "arrive(full.index"), told="you arrive at full[0], where the producer arrives"),
    edit("9.3", "operands exchanged", ("q, k_t, zeros", "k.index(stage), q.permute((1, 0)), zeros"), told="warpgroup_mma's second operand is q"),
    edit("9.3", "scores added to acc", ("q, k_t, zeros", "q, k_t, acc"), told="third argument has the shape of the product"),
    edit("9.3", "a maximum of gl", ("        p, m, l", "        m = gl.maximum(m, gl.max(s, axis=1))\n        p, m, l"),
         told="the check has no function of gl"),
    edit("9.3", "the softmax written out", ("p, m, l, alpha = softmax_step(s, m, l, scale_log2)",
         "m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)\n        p, alpha = gl.exp2(s * scale_log2 - m_new[:, None]), gl.exp2(m - m_new)"),
         told="softmax_step and rescaled compute"),
    edit("9.3", "the stages by len", ("k.shape[0]", "len(full)"), told="its number of stages is full.shape[0]"),
    edit("9.3", "no parity", (", parity)", ")"), told="mbarrier.wait() missing 1 required positional argument: 'phase'"),
    edit("9.3", "stage 0 alone", ("i % STAGES,", "0,"), told="block 1 lies in stage 1"),
    edit("9.3", "one matmul under way", ("warpgroup_mma_wait(0, [s])", "warpgroup_mma_wait(1, [s])"),
         told="leaves up to n matmuls in flight, the last that were issued"),
    edit("9.3", "never waited for k", ("mbarrier.wait(full.index(stage), parity)", "mbarrier.wait(full.index(0), 0)"),
         told="no wait for its full barrier comes before"),
    edit("9.3", "the last round not released", ("        mbarrier.arrive", "        if i + STAGES < blocks:\n            mbarrier.arrive"),
         told="each block's stage is released once, the last block's, too"),
    edit("9.3", "released a block late", (RELEASED, LATE_RELEASE), ("    return l", f"{LAST_RELEASE}    return l"), told="you release a stage late"),
    edit("9.2", "no wait yielded", ("yield wait(empty", "wait(empty"), ("yield wait(full", "wait(full"), told="where “wait for full[0], parity 0” is due (is the wait yielded?)"),
    edit("9.3", "p v waited for a block later", (SUMMED, ""), (RELEASED, ""), (SCORED, LATER), ("    return l", f"{LATER_END}    return l"),
         told="acc is a matmul under way at one end of an if or of a loop's body"),
    edit("9.4", "block 0 in the loop", ("for i in range(1, blocks)", "for i in range(blocks)"), (FIRST_BLOCK, FIRST_P), (SUM, ""), (WAIT_S, f"{SCORED}        if i > 0:\n    {SUM}"),
         (WAITED + BEFORE_RELEASED, f"        if i > 0:\n    {WAITED}    {BEFORE_RELEASED}"),
         told="acc is a matmul under way at one end of an if or of a loop's body"),
    edit("9.4", "p v in both branches", (SUM, f"        if i > 1:\n    {SUM}        else:\n    {SUM}"),
         told="acc is a matmul under way at one end of an if or of a loop's body"),
    edit("9.4", "an operand under way", (WAITED + BEFORE_RELEASED + "        acc = rescaled(acc, alpha)\n" + NEXT_P,
         NEXT_P.replace("p =", "p_new =") + WAITED + BEFORE_RELEASED + "        acc = rescaled(acc, alpha)\n        p = p_new\n"),
         told="acc is a matmul that is under way, and has no layout for left_operand yet"),
    ("9.4", catalogue.find("9.3").solution, "p v of block 0 is not under way when the softmax of block 1 begins"),
    ("9.4", SCORES_AHEAD, "beside a softmax you have q kᵀ of the next block under way"),
    edit("9.4", "two left in flight", ("warpgroup_mma_wait(1, [s])", "warpgroup_mma_wait(2, [s])"),
         told="leaves up to n matmuls in flight, the last that were issued"),
    edit("9.4", "alpha a block late", ("p_new, m, l, alpha =", "p_new, m, l, alpha_new ="),
         ("        acc = rescaled(acc, alpha)\n", "        acc = rescaled(acc, alpha)\n        alpha = alpha_new\n"),
         told="l and acc as attend gives them"),
    edit("9.4", "released when acc is rescaled", (BEFORE_RELEASED, ""), ("        acc = rescaled(acc, alpha)\n", f"        acc = rescaled(acc, alpha)\n{BEFORE_RELEASED}"),
         told="you release a stage late: once p v is done nothing reads it"),
    edit("9.4", "released when the next p is there", (BEFORE_RELEASED, ""), (NEXT_P, NEXT_P + BEFORE_RELEASED), told="you release a stage late"),
    edit("9.4", "l rescaled again", ("return l, acc", "return alpha * l, acc"), told="acc is right. softmax_step has rescaled l"),
    edit("9.3", "the two results exchanged", ("return l, acc", "return acc, l"), told="returns (acc, l), want (l, acc)"),
    edit("9.3", "p's layout by a number", ("left_operand(p, acc,", "left_operand(p, blocks,"), told="left_operand takes p, acc and v.dtype"),
    edit("9.4", "acc rescaled under way", ("        acc = rescaled(acc, alpha)\n", ""),
         ("        acc, p = warpgroup_mma_wait", "        acc = rescaled(acc, alpha)\n        acc, p = warpgroup_mma_wait"),
         told="acc is a matmul that is under way: acc, p = warpgroup_mma_wait(0, [acc, p])"),
    edit("9.4", "released twice", ("        acc = rescaled(acc, alpha)\n",
                                   "        acc = rescaled(acc, alpha)\n        if i + 1 == blocks:\n            mbarrier.arrive(empty.index(before), count=1)\n"),
         told="a stage is released more than once for a block"),
    edit("9.4", "p overwritten", ("p_new, m, l, alpha =", "p, m, l, alpha ="), ("left_operand(p_new", "left_operand(p"),
         told="p in the list is the new block's"),
    edit("9.4", "both named", ("warpgroup_mma_wait(1, [s])", "warpgroup_mma_wait(1, [s])[0]"), ("(1, [s])[0]", "(1, [s, acc])[0]"),
         told="warpgroup_mma_wait(1, …) returns p v of block 0, which is still under way"),
    edit("9.4", "the last block not released", ("    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)\n    return", "    return"),
         told="each block's stage is released once, the last block's, too"),
    edit("9.4", "p not waited for", ("acc, p = warpgroup_mma_wait(0, [acc, p])", "acc = warpgroup_mma_wait(0, [acc])"),
         told="p v reads p's registers until you have waited for it"),
    edit("9.4", "s not waited for", ("s = warpgroup_mma_wait(1, [s])", "pass"),
         told="s = warpgroup_mma_wait(1, [s]) waits for it alone, and leaves in flight what was issued later"),
    edit("9.4", "another tensor waited for", ("acc, p = warpgroup_mma_wait(0, [acc, p])", "acc, l = warpgroup_mma_wait(0, [acc, l])"),
         told="p v reads p's registers until you have waited for it"),
    edit("9.4", "block 0 twice", ("range(1, blocks)", "range(blocks)"), told="each block of k is read once"),
    edit("9.4", "acc not waited for", ("acc, p = warpgroup_mma_wait(0, [acc, p])", "pass"), told="acc is a matmul that is under way"),
    edit("9.7", "told after the loads", (TELL, ""), ("                n += 1\n\n", f"                n += 1\n{TELL}\n"),
         told="where “arrive at told” is due"),
    edit("9.7", "parities by the block", ("n // stages % 2", "n % 2", 2), told="where “wait for empty[1], parity 1” is due: a stage's parity flips once a round"),
    edit("9.7", "the first wait at parity 0", ("1 - turn % 2", "turn % 2"), told="where “wait for taken, parity 1” is due"),
    edit("9.7", "taken's parity by the number", ("1 - turn % 2", "1 - (turn if tile is None else tile) % 2"), told="taken's parity flips with every work tile"),
    edit("9.7", "all drawn at once", ("        n = 0  # blocks so far, of all work tiles\n", "        n, drawn = 0, iter([*iter(next_tile, None), None])\n"),
         ("tile = next_tile()", "tile = next(drawn)"), told="draws numbers ahead"),
    edit("9.7", "the next drawn before this one's loads", ("        n = 0  # blocks so far", "        n, tile = 0, next_tile()  # blocks so far"),
         ("            tile = next_tile()\n", ""), ("            for _ in range(blocks[tile]):\n                yield wait(empty", "            now, tile = tile, next_tile()\n            for _ in range(blocks[now]):\n                yield wait(empty"),
         ("load(tile, n", "load(now, n"), told="draw one when the loads of the work tile before are over"),
    edit("9.7", "told at parity 0 alone", ("wait(told, turn % 2)", "wait(told, 0)"), told="told's parity flips with every work tile"),
    edit("9.7", "one drawn ahead", ("n = 0  # blocks so far", "n, ahead = 0, next_tile()  # blocks so far"), ("tile = next_tile()", "tile, ahead = ahead, next_tile()"),
         told="draws numbers ahead"),
    edit("9.7", "nobody told", (TELL, ""), told="where “arrive at told” is due"),
    edit("9.7", "numbers written early, None in time", (FREE + WRITE, f"            if tile is not None:\n    {WRITE}{FREE}            if tile is None:\n    {WRITE}"),
         told="slot is written before both consumers have taken the number before"),
    edit("9.7", "told after the first load", (TELL, f"            if tile is None:\n    {TELL}"), ("for _ in range(blocks[tile]):\n                yield wait(empty", "for block in range(blocks[tile]):\n                yield wait(empty"),
         ("                n += 1\n\n", f"                n += 1\n                if block == 0:\n        {TELL}\n"), told="before it has arrived at told"),
    edit("9.7", "told after the first load, but of the first work tile", (TELL, f"            if turn == 0 or tile is None:\n    {TELL}"),
         ("for _ in range(blocks[tile]):\n                yield wait(empty", "for block in range(blocks[tile]):\n                yield wait(empty"),
         ("                n += 1\n\n", f"                n += 1\n                if block == 0 and turn > 0:\n        {TELL}\n"), told="before it has arrived at told"),
    edit("9.7", "nothing stored", ('            yield work("store o")\n', ""), told="where “store o” is due"),
    edit("9.7", "blocks numbered", ("load(tile, n", "load(n, n"), told="yields “load tile 1 into stage 1”, where “load tile 0 into stage 1” is due"),
    edit("9.7", "the last stages not released", ("yield arrive(empty[n % stages])", "if n + stages < 3:\n                    yield arrive(empty[n % stages])"),
         told="where “arrive at empty[0]” is due"),
    # the same slips, when the producer waits for room before it draws, which is right
    edit("9.7", "room first, nothing stored", *ROOM_FIRST, (STORE, ""), told="where “store o” is due"),
    edit("9.7", "room first, nothing released", *ROOM_FIRST, (NEXT, ""), told="where “arrive at empty[0]” is due"),
    edit("9.7", "room first, told before the number is written", *ROOM_FIRST, (WRITE + TELL, TELL + WRITE),
         told="consumer 0 ends, where “wait for full[0], parity 0” is due"),
    edit("9.7", "room first, the first wait at parity 0", *ROOM_FIRST, ("1 - turn % 2", "turn % 2"),
         told="where “wait for taken, parity 1” is due"),
    edit("9.7", "room first, the ring's index anew", *ROOM_FIRST, ("            tile = next_tile()", "            n = 0\n            tile = next_tile()"),
         told="where “wait for empty[1], parity 0” is due: a stage's parity flips once a round of its ring"),
    edit("9.7", "room first, never waited for taken", *ROOM_FIRST, (FREE, ""), told="where “wait for taken, parity 0” is due"),
    edit("9.7", "room first, read too late", *ROOM_FIRST, (READ + TAKE, TAKE + READ), told="consumer 1 ends, where “wait for full[2], parity 0” is due"),
    edit("9.5", "in percent", ("return p + r - 2 * both", "return 100 * (p + r - 2 * both)"), told="one is at a softmax all the time, and that is a share of 1"),
    edit("9.5", "left out where they stick out", ("def share(spans):", "def share(spans):\n        spans = [x for x in spans if x[0] >= start and x[1] <= stop]"),
         told="a softmax that begins before the time that counts is cut, and not left out"),
    edit("9.5", "cut ones compared by their index", ("    def share(", "    first, second = ([(max(a, start), min(b, stop)) for a, b in of if b > start and a < stop]"
         " for of in (first, second))\n\n    def share("), ("for a, b in first for c, d in second", "for (a, b), (c, d) in zip(first, second)"),
         told="a softmax may meet two of the other's"),
    edit("9.5", "chance left out", (", p * (1 - r) + r * (1 - p)", ""), told="want"),
    edit("9.5", "the time from 0", ("max(first[0][0], second[0][0])", "0"), told="each consumer's own share of the time that counts"),
    edit("9.5", "half of the time by chance", ("p * (1 - r) + r * (1 - p)", "0.5"), told="own share of the time that counts: alternation("),
    edit("9.5", "each consumer's own time", ("def share(spans):", "def share(spans, start=0, stop=0):\n        start, stop = spans[0][0], spans[-1][0]"),
         told="want"),
    edit("9.6", "passed when the matmuls are done", (PASS + WAIT_S, WAIT_S + PASS), told="pass the turn on as soon as both are issued"),
    edit("9.6", "passed before p v", (SUM + PASS, PASS + SUM), told="pass the turn on when both matmuls are issued"),
    edit("9.6", "passed before the matmuls", (PASS, ""), (TURN, TURN + PASS), told="passed on once a block, when both matmuls are issued"),
    edit("9.6", "passed twice", (PASS, PASS + PASS), told="passed on once a block"),
    edit("9.6", "passed to oneself", ("arrive(turns.index(1 - C)", "arrive(turns.index(C)"), told="the other consumer waits at turns.index(1 - C)"),
    edit("9.6", "never passed", (PASS, ""), told="pass it on once a block, in the last block, too"),
    edit("9.6", "not passed in the last block", (PASS, f"        if i + 1 < blocks:\n    {PASS}"), told="in the last block, too"),
    edit("9.6", "no wait", (TURN, ""), told="in each block wait at turns.index(C) before the first matmul"),
    edit("9.6", "neither", (TURN, ""), (PASS, ""), told="pass it on once a block, in the last block, too"),
    edit("9.6", "the wait after q kᵀ", (TURN, ""), (SUM, TURN + SUM), told="in each block wait at turns.index(C) before the first matmul"),
    edit("9.6", "the parity of block 1", ("(i - C) % 2", "1 - C"), told="the wait passes too early: its parity is that of a turn that is over"),
    edit("9.6", "exchanged in block 1", ("(i - C) % 2", "(i - 1) % 2"), told="in block 1 consumer 0 begins"),
    edit("9.6", "the next turn before the softmax", (TURN, ""), (PASS, PASS + TURN.replace("i - C", "i - C + 1")),
         ("    for i in", f"    {TURN.replace('i - C', '1 - C').strip()}\n    for i in"), told="a softmax needs no turn"),
    edit("9.6", "a turn for the last p v", ("    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES)",
         "    mbarrier.wait(turns.index(C), (blocks - C) % 2)\n    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES)"),
         told="there is one turn for each block i ≥ 1, and none for the last p v"),
    edit("9.8", "nothing yielded", ("yield ", "", 8), told="want a generator, which yields each action"),
    edit("9.8", "dq before dk", *meeting_moved("# dk"), told="where “use tile 0 in stage 0” (dk) is due"),
    edit("9.8", "full never waited for", ("        yield wait(full[stage], parity)\n", ""), told="where “wait for full[0], parity 0” is due"),
    edit("9.8", "it meets one parity too early", ("wait(ds_full[stage], parity)", "wait(ds_full[stage], 1 - parity)"),
         told="a stage's parity flips once a round of its ring"),
    edit("9.8", "two arrivals", ("yield arrive(ds_full[stage])", "yield arrive(ds_full[stage])\n        yield arrive(ds_full[stage])"),
         told="yields “arrive at ds_full[0]”, where “use tile 0 in stage 0” is due"),
    edit("9.8", "arrives at full", ("arrive(empty[stage])", "arrive(full[stage])"), told="arrives at full[0], which expects the producer"),
    edit("9.8", "the last is not released", ("yield arrive(empty[stage])", "if i < blocks - 1:\n            yield arrive(empty[stage])"),
         told="where “arrive at empty[0]” is due"),
    edit("9.8", "a barrier for each consumer", ("arrive(ds_full[stage])", "arrive(ds_full[c])"), told="a consumer does not arrive at ds_full[stage]"),
    edit("9.8", "a stage by the parity", ("write(i, ds_rows(stage, c))", "write(i, ds_rows(parity, c))"), told="in the stage of the block before"),
    edit("9.8", "three stages", ("i % 2, i // 2 % 2", "i % 3, i // 3 % 2"),
         told="asks for stage 2, but a ring has two stages here, 0 and 1: block 2 takes stage 0 again"),
    edit("9.9", "dq added at the end", *moved("add dq", "wait for dv′"), told="“add dq” can stand before the last wait, while a matmul runs"),
    edit("9.9", "ds before dp", *moved("hand over ds", "issue dp"), told="ds = p ∘ dp"),
    edit("9.9", "added before it is there", *moved("add dq", "p′"), told="once it is there"),
    edit("9.9", "dv′ before p′", *moved("p′", "issue dv′"), told="dv += p_t′ do′"),
    edit("9.9", "p′ before s′", *moved("p′", "issue s′"), told="p′ = exp2(s′)"),
    edit("9.9", "waits first", *moved("issue dp", "wait for dp"), told="a wait is for a matmul that was issued before"),
    edit("9.9", "a line missing", ('        "meet",\n', ""), told="“meet” stands 0 times"),
    edit("9.9", "another line", ('"meet",', '"meet", "barrier",'), told="'barrier' is none of the 14 lines"),
    edit("9.9", "a string", ('    return [', '    return "dp, ds"\n    return ['), told="returns a str, want a list of the lines"),
)  # fmt: skip
