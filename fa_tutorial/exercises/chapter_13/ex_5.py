import random

from fa_tutorial.exercises.harness import Exercise, case


def least_shard(H_q, H_k, D, itemsize, flops, bandwidth):
    """The tokens in a shard with which a causal step in zigzag order computes as long as it sends.

    flops: FLOP/s that the kernel reaches.
    bandwidth: byte/s that a rank sends to the next one.
    """
    # rows² / 2 pairs, 2 matmuls, 2 FLOPs each:  seconds = 2 · H_q · rows² · D / flops
    # k and v:                                   seconds = 2 · H_k · rows · D · itemsize / bandwidth
    return H_k * itemsize * flops / (H_q * bandwidth)


RESULT = "H_k * itemsize * flops / (H_q * bandwidth)"
MISTAKES = {
    "that is half of it: k and v are both sent, half of the pairs are computed, and the link's rate is one way's": (RESULT, f"{RESULT} / 2"),
    "that is twice as much: a pair takes part in two matmuls, a multiply-add is 2 FLOPs, and k and v leave once": (RESULT, f"2 * {RESULT}"),
    "flops and bandwidth are exchanged: a faster GPU needs a longer shard, a faster link a shorter one": (
        RESULT, "H_k * itemsize * bandwidth / (H_q * flops)"),
    "// rounds H_k / H_q down, to 0 where H_q is larger: divide by /": (RESULT, "H_k // H_q * itemsize * flops / bandwidth"),
    "the heads of k and v are H_k: grouped-query attention sends less": (RESULT, "itemsize * flops / bandwidth"),
    "the two groups of heads are exchanged: computing has H_q heads, sending H_k": (RESULT, "H_q * itemsize * flops / (H_k * bandwidth)"),
    "the numbers of k and v are sent, but their bytes aren't counted: multiply by itemsize": (RESULT, "H_k * flops / (H_q * bandwidth)"),
    "itemsize is a parameter: a number doesn't always have 2 bytes": (RESULT, "2 * H_k * flops / (H_q * bandwidth)"),
    "D cancels: both the FLOPs and the bytes are proportional to it": (RESULT, f"{RESULT} / D"),
}  # fmt: skip


def truth(H_q, H_k, D, itemsize, flops, bandwidth):
    compute = 4 * H_q * D / 2 / flops  # seconds for each rows²
    send = 2 * H_k * D * itemsize / bandwidth  # seconds for each row
    return send / compute


def inputs():
    yield case(
        1, 1, 1, 1, 100.0, 10.0, otherwise="half of a step's pairs are seen, each in two matmuls; k and v are sent, itemsize bytes a number"
    )
    yield case(1, 1, 64, 2, 100.0, 10.0, otherwise="D doesn't matter, and the bytes of a number do")
    yield case(8, 2, 64, 2, 100.0, 10.0, otherwise="k and v have H_k heads, q has H_q")
    yield case(32, 8, 128, 2, 6e14, 4e11, otherwise="two times say how long a step computes and sends: set them equal")
    yield case(3, 2, 64, 2, 100.0, 10.0, otherwise="don't round: both times are equal for a length that need not be whole")
    for _ in range(5):
        H_k = random.randint(1, 8)
        sizes = H_k * random.randint(1, 8), H_k, random.choice((64, 128)), random.choice((2, 4))
        yield case(*sizes, 1e12 * random.uniform(1, 900), 1e9 * random.uniform(1, 400), on="random machines", fresh=True)


EXERCISE = Exercise(
    task="Find the number of tokens in a shard from which on sending hides behind computing.",
    hints=(
        "How many FLOPs has a step of `rows` queries and `rows` keys, half of whose pairs are seen? How many bytes has the k and v that travel meanwhile?",
        "2 · H_q · rows² · D FLOPs, and 2 · H_k · rows · D · itemsize bytes. Each divided by its rate is a time.",
        "Set the two times equal and solve for rows.",
    ),
    solution=least_shard,
    reasoning="FLOPs grow with rows², bytes with rows. So there is one length from which on computing takes longer, and it depends on nothing but the machine, the "
    "group of heads and the bytes of a number.",
    inputs=inputs,
    truth=truth,
    rule="rows is where 2 · H_q · rows² · D / flops equals 2 · H_k · rows · D · itemsize / bandwidth",
    mistakes=MISTAKES,
)
