"""Chapter 9: results of the wrong kind, roles that do what no role of a ring does, a Gluon loop that does not compile."""

from fa_tutorial.barriers import arrive, ds_rows, load, use, wait
from fa_tutorial.hardware import require_triton
from fa_tutorial.hopper.ladder import left_operand, rescaled, softmax_step

require_triton("Exercise 9.3")
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait  # noqa: E402


def phase_without_stage(i, stages):
    return i // stages % 2, 1 - i // stages % 2


def roles_in_one(tiles, stages, full, empty):
    for i in range(tiles):
        yield load(i, i % stages)
        yield use(i, i % stages)


def roles_without_yield(tiles, stages, full, empty):
    def producer():
        for i in range(tiles):
            wait(empty[i % stages], 1 - i // stages % 2)
            load(i, i % stages)
            arrive(full[i % stages])

    return producer, producer


def _roles(flaw):
    """ring_roles with one flaw."""

    def ring_roles(tiles, stages, full, empty):
        def producer():
            for i in range(tiles):
                stage = 0 if flaw == "one stage alone" else i % stages
                yield wait(empty[stage], 1 - i // stages % 2)
                yield load(i, stage)
                yield arrive(full[stage])
                while flaw == "endless":
                    yield arrive(full[stage])

        def consumer():
            for i in range(tiles):
                stage = i % stages
                yield wait(full[stage], i // stages % 2)
                yield load(i, stage) if flaw == "consumer loads" else use(i, stage)
                yield arrive(empty[stage])

        if flaw == "started":
            return producer(), consumer()
        if flaw == "producer alone":
            return producer
        return (consumer, producer) if flaw == "exchanged" else (producer, consumer)

    ring_roles.__name__ = flaw.replace(" ", "_")
    return ring_roles


def order_of_pairs(S_q, S_k, block_m, block_n, heads, is_causal):
    return [(head, row_block) for row_block in reversed(range(-(-S_q // block_m))) for head in range(heads)]


def order_sorted_in_place(S_q, S_k, block_m, block_n, heads, is_causal):
    return [(head, row_block, 1) for row_block in range(-(-S_q // block_m)) for head in range(heads)].sort()


def _attend(flaw):
    """attend with one flaw, which the compiler would refuse."""

    def attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
        for i in range(blocks):
            stage = i if flaw == "no ring" else i % k.shape[0]
            mbarrier.wait(full.index(stage), i // k.shape[0] % 2)
            k_t = k.index(stage) if flaw == "not transposed" else k.index(stage).permute((1, 0))
            s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
            s = s if flaw == "s not waited for" else warpgroup_mma_wait(0) if flaw == "nothing named" else warpgroup_mma_wait(0, [s])
            p, m, l, alpha = softmax_step(s, m, l, scale_log2)
            p = p if flaw == "p as it is" else left_operand(p, acc, v.dtype)
            acc = warpgroup_mma(p, v.index(stage), rescaled(acc, alpha), is_async=True)
            acc = acc if flaw == "acc not waited for" else warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(empty.index(stage), count=1)
        return acc if flaw == "acc alone" else (l, acc)

    attend.__name__ = flaw.replace(" ", "_")
    return attend


def consumer_without_yield(c, blocks, full, empty, ds_full):
    for i in range(blocks):
        wait(full[i % 2], i // 2 % 2)
        use(i, i % 2)


def _consumer(flaw):
    """meeting_consumer with one flaw."""

    def meeting_consumer(c, blocks, full, empty, ds_full):
        for i in range(blocks - (flaw == "last block missing")):
            stage, parity = i % 2, i // 2 % 2
            yield wait(full[stage], parity)
            yield use(i, stage)
            yield load(i, ds_rows(stage, c))
            yield arrive(ds_full[stage])
            while flaw == "endless":
                yield arrive(empty[stage])
            yield use(i, stage)
            yield arrive(empty[stage])
            yield wait(ds_full[stage], parity)
            yield "dq" if flaw == "a word" else use(i, ds_rows(stage, 1 - c))
            if flaw == "dq twice":
                yield use(i, ds_rows(stage, 1 - c))

    meeting_consumer.__name__ = flaw.replace(" ", "_")
    return meeting_consumer


WRONG_ANSWERS = (
    ("9.1", phase_without_stage, "want a tuple (stage, full_parity, empty_parity)"),
    ("9.2", roles_in_one, "it defines two, producer and consumer, inside"),
    ("9.2", roles_without_yield, "each action must be yielded"),
    ("9.2", _roles("one stage alone"), "the tiles go round the ring"),
    ("9.2", _roles("consumer loads"), "the producer loads, and consumers use"),
    ("9.2", _roles("exchanged"), "the producer loads, and consumers use"),
    ("9.2", _roles("endless"), "the roles have not ended"),
    ("9.2", _roles("started"), "without calling them"),
    ("9.2", _roles("producer alone"), "want (producer, consumer)"),
    ("9.3", _attend("no ring"), "the stages are 0 … 1"),
    ("9.3", _attend("not transposed"), "the inner sizes differ"),
    ("9.3", _attend("s not waited for"), "s is a matmul that is under way"),
    ("9.3", _attend("nothing named"), "takes a list of what it waits for"),
    ("9.3", _attend("p as it is"), "what left_operand gives"),
    ("9.3", _attend("acc not waited for"), "acc is a matmul that is under way"),
    ("9.3", _attend("acc alone"), "want (l, acc)"),
    ("9.4", order_of_pairs, "an entry is of 2 parts"),
    ("9.4", order_sorted_in_place, "is the return missing?"),
    ("9.5", consumer_without_yield, "each action must be yielded"),
    ("9.5", _consumer("a word"), "yields 'dq', want wait(…)"),
    ("9.5", _consumer("endless"), "the roles have not ended"),
    ("9.5", _consumer("dq twice"), "goes on after its last block"),
    ("9.5", _consumer("last block missing"), "ends before"),
)
