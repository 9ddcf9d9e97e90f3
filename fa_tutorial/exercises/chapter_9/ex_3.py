"""Exercise 9.3, attend: a consumer's loop in Gluon."""

import functools

from fa_tutorial.exercises.gluon_play import Play
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.hardware import require_triton
from fa_tutorial.hopper.ladder import left_operand, rescaled, softmax_step

require_triton("Exercise 9.3")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonJITFunction  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait  # noqa: E402


@gluon.jit
def attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """All blocks of keys for 64 rows of q: l, acc. zeros: [64, 128]; m, l: [64]; acc: [64, D]."""
    STAGES: gl.constexpr = k.shape[0]
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))  # [D, 128]
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])  # [64, 128]
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        p = left_operand(p, acc, v.dtype)
        acc = warpgroup_mma(p, v.index(stage), rescaled(acc, alpha), is_async=True)
        acc = warpgroup_mma_wait(0, [acc])  # [64, D]
        mbarrier.arrive(empty.index(stage), count=1)
    return l, acc


MISTAKES = {
    "no_full": "you do not wait for full[stage] before you read the stage",
    "full_other": "you wait for the other parity of full[stage], which passes at once: an earlier phase had it",
    "parity_never": "you wait for parity 0 of full[stage] in every round: its phase grows by one every STAGES blocks",
    "parity_every_block": "the parities flip with every block: a stage's phase grows once a round, i // STAGES",
    "waits_empty": "you wait at empty[stage], as the producer does: a consumer waits for full[stage]",
    "two_stages": "you count with two stages, but the ring may have more: k.shape[0]",
    "wait_one": "warpgroup_mma_wait(1, …) lets one matmul go on, and here that is the one you need: wait until 0 are under way",
    "no_release": "you never arrive at empty[stage], and the producer waits for it",
    "release_early": "you arrive at empty[stage] before v is read: the next load may overwrite it",
    "release_not_waited": "you arrive at empty[stage] while p v is under way: wait for it first",
    "release_twice": "you arrive at empty[stage] for both consumers: it expects one arrival from each",
    "release_full": "you arrive at full[stage]: the load arrives there, and consumers arrive at empty[stage]",
    "one_stage": "you always read stage 0: block i lies in stage i % STAGES",
    "not_rescaled": "acc is not rescaled: what was added before must shrink by alpha",
    "rescaled_after": "acc is rescaled after p v is added: alpha is for what was added before",
    "acc_lost": "p v starts from nothing in every block: only q kᵀ has use_acc=False",
    "k_for_v": "the second matmul reads k's tile: it multiplies p by v",
    "m_for_l": "m and l are swapped: softmax_step returns p, m, l, alpha",
    "m_kept": "m stays what it was: softmax_step returns the new one",
    "l_kept": "l stays what it was: softmax_step returns the new one",
    "scale": "scale_log2 is not passed on: softmax_step takes scores that are not scaled",
    "exchanged": "l and acc are swapped: return l, acc",
    "divided": "acc is divided by l: return it as it is, the consumer around your loop divides",
    "last_missing": "the last block is missing: 0 … blocks − 1",
    "not_jitted": "@gluon.jit is missing above def",
}
PLAIN, JITTED = "a Python function", "a Gluon function"


def _flawed(mistake):
    """attend with one mistake."""

    def flawed(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
        STAGES = 2 if mistake == "two_stages" else k.shape[0]
        for i in range(blocks - (mistake == "last_missing")):
            stage = 0 if mistake == "one_stage" else i % STAGES
            parity = i // STAGES % 2
            release = full if mistake == "release_full" else empty
            if mistake != "no_full":
                wanted = {"full_other": 1 - parity, "parity_never": 0, "parity_every_block": i % 2}.get(mistake, parity)
                mbarrier.wait((empty if mistake == "waits_empty" else full).index(stage), wanted)
            s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(int(mistake == "wait_one"), [s])
            if mistake == "release_early":
                mbarrier.arrive(release.index(stage), count=1)
            p, m_new, l_new, alpha = softmax_step(s, m, l, 1.0 if mistake == "scale" else scale_log2)
            m_new, l_new = (l_new, m_new) if mistake == "m_for_l" else (m_new, l_new)
            m, l = (m if mistake == "m_kept" else m_new), (l if mistake == "l_kept" else l_new)
            acc = acc if mistake in ("not_rescaled", "rescaled_after") else rescaled(acc, alpha)
            right = (k if mistake == "k_for_v" else v).index(stage)
            acc = warpgroup_mma(left_operand(p, acc, v.dtype), right, acc, use_acc=mistake != "acc_lost", is_async=True)
            if mistake == "release_not_waited":
                mbarrier.arrive(release.index(stage), count=1)
            acc = warpgroup_mma_wait(0, [acc])
            acc = rescaled(acc, alpha) if mistake == "rescaled_after" else acc
            if mistake not in ("no_release", "release_early", "release_not_waited"):
                mbarrier.arrive(release.index(stage), count=2 if mistake == "release_twice" else 1)
        acc = acc / l[:, None] if mistake == "divided" else acc
        return (acc, l) if mistake == "exchanged" else (l, acc)

    return flawed


def twin(play, mistake=None):
    if play is None:
        return PLAIN if mistake == "not_jitted" else JITTED
    return play.run(_flawed(mistake))


def adapt(answer):
    def played(play):
        if play is None:
            return JITTED if isinstance(answer, GluonJITFunction) else PLAIN
        return play.run(answer)

    return functools.wraps(getattr(answer, "fn", answer))(played)


def inputs():
    for blocks, stages in ((1, 2), (2, 2), (3, 2), (5, 2), (4, 3), (9, 2)):
        for early in (False, True):
            one = Play(blocks, stages, early)
            yield case(one, on=str(one), otherwise="for each block: wait, q kᵀ, softmax_step, p v, release")
    yield case(None, on="the compiler takes no plain function", edge="jitted", fresh=True)  # not shown: there are no numbers


EXERCISE = Exercise(
    id="9.3",
    task="Write attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks), the loop of one consumer in Gluon; return l, acc.",
    hints=(
        "The loop is exercise 9.2's consumer, and its use of a tile is two matmuls with softmax_step between them. Which of the two needs "
        "use_acc=False?",
        "Both matmuls return before they are done. Which wait must come before softmax_step, and which before the release?",
        "Wait for full[stage]; s = warpgroup_mma(q, k's tile transposed, zeros, use_acc=False, is_async=True); wait for s; softmax_step; "
        "acc = warpgroup_mma(left_operand(p, acc, v.dtype), v's tile, rescaled(acc, alpha), is_async=True); wait for acc; arrive at "
        "empty[stage]. Each wait returns the tensor: s = warpgroup_mma_wait(0, [s]).",
    ),
    solution=attend,
    reasoning="The stage is released after the second wait, because p v reads v until then. A release after the first would be early for v, though not "
    "for k, which is why the chapter's forward has a ring for each.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    conditions={"jitted": "attend is a Gluon function"},
    exact=True,
    adapt=adapt,
)
