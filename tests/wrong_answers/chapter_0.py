"""Chapter 0: a count that is not returned, floats that round, a set of names, padded blocks, words."""

from edits import edit

ROWS, KEYS, FLOATS = (
    ("= 2 * S", "= 2 * blocks * block_m"),
    ("blocks * 2 * S", "blocks * 2 * blocks * block_m"),
    ("4 * S", "4 * blocks * block_m"),
)


def flops_without_the_batch(B, H, S, D, is_causal):
    return 4 * H * D * (S * (S + 1) // 2 if is_causal else S * S)


def flops_masked_once(B, H, S, D, is_causal):
    return 2 * B * H * D * S * S + (B * H * D * S * (S + 1) if is_causal else 2 * B * H * D * S * S)


def memory_that_only_grows(events):
    most, total, held, now = 0, 0, [], []
    for name, size in events:
        if size > 0:
            total += size
            now.append(name)
        else:
            now.remove(name)
        if total > most:
            most, held = total, list(now)
    return most, held


def memory_first_in_first_out(events):
    most, held, now = 0, [], []
    for name, size in events:
        if size > 0:
            now.append((name, size))
        else:
            now.pop(0)
        if sum(size for _, size in now) > most:
            most, held = sum(size for _, size in now), [name for name, _ in now]
    return most, held


def names_first_in_first_out(events):
    most, total, held, now = 0, 0, [], []
    for name, size in events:
        total += size
        if size > 0:
            now.append(name)
        else:
            now.pop(0)
        if total > most:
            most, held = total, list(now)
    return most, held


RAGGED = "one edge is left: a smaller last block reads all of k and v too, but only its own rows of q, and it writes only its own rows"

WRONG_ANSWERS = (
    edit("0.1", "not returned", ("return B", "B"), told="None (is the return missing?)"),
    edit("0.1", "float's pairs", ("S * (S + 1) // 2", "int(S * S / 2 * (1 + 1 / S))"), told="a whole number that no float may round"),
    edit("0.1", "float32", ("return B * H * pairs * per_pair", ("import torch\n    return int(torch.tensor([B, H, pairs, "
                                                               "per_pair]).float().prod())")),
         told="a large count is exact too"),
    edit("0.1", "S pairs", ("S * (S + 1) // 2 if is_causal else S * S", "S"), told="in each of B·H heads: attention_flops(1, 1, 3"),
    ("0.1", flops_without_the_batch, "B is missing"),
    ("0.1", flops_masked_once, "in one matmul only"),
    ("0.2", memory_that_only_grows, "take off what an event frees"),
    ("0.2", memory_first_in_first_out, "you free the oldest tensor"),
    ("0.2", names_first_in_first_out, "held loses the oldest tensor"),
    edit("0.2", "the most alone", ("return most, held", "return most"), told="want a tuple (most, held)"),
    edit("0.2", "a set", ("list(now)", "set(now)"), told="held = a set, want ('a', 'b')"),
    edit("0.2", "the newest first", ("list(now)", "list(now)[::-1]"), told="in the order they were made"),
    edit("0.2", "most tensors", ("sum(now.values()) > most", "len(now) > len(held)"), told="c +2, b +9"),
    edit("0.2", "names in order", ("list(now)", "sorted(now)"), told="c +2, b +9"),
    edit("0.3", "q per block", ("2 * S * D + blocks * 2", "S * D + blocks * 3"), told="q and o travel once"),
    edit("0.3", "o twice", ("2 * S * D + blocks", "3 * S * D + blocks"), told="each block of queries reads all of k and v"),
    edit("0.3", "nothing twice, no floats", ("blocks * 2 * S * D", "2 * S * D"), ("* itemsize + 4 * S", "* itemsize"),
         told="each block of queries reads all of k and v"),
    edit("0.3", "scores", ("2 * S * D + blocks", "2 * S * D + 6 * S * S + blocks"), told="nothing else goes through HBM"),
    edit("0.3", "rows of full blocks", ROWS, FLOATS, told=RAGGED),
    edit("0.3", "floats of full blocks", FLOATS, told=RAGGED),
    edit("0.3", "its own keys", ("blocks * 2 * S", "blocks * 2 * block_m"), told="each block of queries reads all of k and v"),
    edit("0.3", "keys in full blocks", KEYS, told=RAGGED),
    edit("0.3", "rounded blocks", ("-(-S // block_m)", "round(S / block_m + 0.49)"), told=RAGGED),
    edit("0.3", "without o", ("elements * itemsize", "(elements - S * D) * itemsize"), told="one of q and o is missing"),
    edit("0.4", "no limit", ("return before / after, limit", "return before / after"), told="want a tuple (gain, limit)"),
    edit("0.4", "another word", ('else "memory"', 'else "bandwidth"'), told='limit is the text "bandwidth", want "memory" or "arithmetic"'),
    edit("0.4", "words of the roofline", ('"arithmetic" if after == arithmetic else "memory"',
                                          '"compute" if after == arithmetic else "memory"'),
         told='limit is the text "compute", want "memory" or "arithmetic"'),
    edit("0.4", "seconds", ("before / after", "before - after"), told="the bytes still decide, so the gain is 100 s / 20 s"),
    edit("0.4", "a number for the limit", ("after, limit", "after, 1.0"), told="gives limit = 1, want memory"),
    edit("0.4", "whole gains", ("before / after", "before // after"), told="20 s of FLOPs and then 100 s of bytes become 80 s of bytes"),
    edit("0.4", "always memory", ('"arithmetic" if after == arithmetic else "memory"', '"memory"'), told="and then the FLOPs decide"),
    edit("0.4", "all FLOPs, then the bytes", ("sum(max(flops / peak_flops, moved / bandwidth) for flops, moved in kernels)",
                                              "max(sum(f for f, _ in kernels) / peak_flops, sum(b for _, b in kernels) / bandwidth)"),
         told="no kernel's FLOPs hide the bytes of another"),
    edit("0.4", "FLOPs that take no time in a fused kernel", ("max(arithmetic, ", "max(0 * arithmetic, "), told="its FLOPs may take longer"),
    edit("0.4", "no pair without FLOPs", ("moved / bandwidth) for flops, moved in kernels", "moved / bandwidth) for flops, moved in kernels if flops"),
         told="100 s of bytes become 4 s, and then the FLOPs decide"),
    edit("0.4", "the roof as it stands", ("max(flops / peak_flops, moved / bandwidth)", "flops / min(peak_flops, flops / moved * bandwidth)"),
         told="ZeroDivisionError"),
    edit("0.5", "the saving alone", ("return best, ", "return "), told="want a tuple (tensor, saved)"),
    edit("0.5", "two kernels", ("return best, ", "return ways[best][:2], "), told="want the name of one between two kernels"),
    edit("0.5", "a kernel", ("return best, ", "return ways[best][1], "), told="the tensor is 'p v', want the name of one between two kernels"),
    edit("0.5", "always p", ("max(saved, key=saved.get)", '"p"'), told="compute what each of the three saves by these times"),
    edit("0.5", "other kernels", ('("softmax", "p v"', '("divide", "p v"'), ('("divide", "softmax"', '("q kᵀ", "softmax"'), told="a tensor joins the kernel that"),
    edit("0.5", "one kernel's time", ("ms[a] + ms[b]", "ms[a]"), told="the times of two kernels less the floor of one"),
    edit("0.5", "a vector too many", ("2 * vectors + scores)", "3 * vectors + scores)"), ("scores + 2 * vectors", "scores + 3 * vectors"), told="48 bytes"),
    edit("0.5", "seconds", ("ms[a] + ms[b] - moved / bandwidth * 1e3", "(ms[a] + ms[b]) / 1e3 - moved / bandwidth"), told="that is in seconds"),
    edit("0.5", "s by 1,000", ("bandwidth * 1e3", "bandwidth / 1e3"), told="your fused kernel takes no time, or next to none"),
)  # fmt: skip
