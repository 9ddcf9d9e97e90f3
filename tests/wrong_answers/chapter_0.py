from edits import edit

RAGGED = "one edge is left: a smaller last block reads all of k and v too, but only its own rows of q, and it writes only its own rows"

WRONG_ANSWERS = (
    edit("0.1", "not returned", ("return B", "B"), told="None (is the return missing?)"),
    edit("0.1", "float's pairs", ("S * (S + 1) // 2", "int(S * S / 2 * (1 + 1 / S))"), told="a whole number that no float may round"),
    edit("0.1", "float32", ("return B * H * pairs * per_pair", ("import torch\n    return int(torch.tensor([B, H, pairs, "
                                                               "per_pair]).float().prod())")),
         told="a large count is exact too"),
    edit("0.1", "S pairs", ("S * (S + 1) // 2 if is_causal else S * S", "S"), told="in each of B·H heads: attention_flops(1, 1, 3"),
    edit("0.2", "a set", ("list(now)", "set(now)"), told="held = a set, want ('a', 'b')"),
    edit("0.2", "the newest first", ("list(now)", "list(now)[::-1]"), told="in the order they were made"),
    edit("0.2", "most tensors", ("sum(now.values()) > most", "len(now) > len(held)"), told="c +2, b +9"),
    edit("0.3", "q per block", ("2 * S * D + blocks * 2", "S * D + blocks * 3"), told="q and o travel once"),
    edit("0.3", "rounded blocks", ("-(-S // block_m)", "round(S / block_m + 0.49)"), told=RAGGED),
    edit("0.4", "no limit", ("return before / after, limit", "return before / after"), told="want a tuple (gain, limit)"),
    edit("0.4", "another word", ('else "memory"', 'else "bandwidth"'), told='limit is the text "bandwidth", want "memory" or "arithmetic"'),
    edit("0.4", "words of the roofline", ('"arithmetic" if after == arithmetic else "memory"',
                                          '"compute" if after == arithmetic else "memory"'),
         told='limit is the text "compute", want "memory" or "arithmetic"'),
    edit("0.4", "seconds", ("before / after", "before - after"), told="the bytes still decide, so the gain is 100 s / 20 s"),
    edit("0.4", "a number for the limit", ("after, limit", "after, 1.0"), told="gives limit = 1, want memory"),
    edit("0.4", "whole gains", ("before / after", "before // after"), told="20 s of FLOPs and then 100 s of bytes become 80 s of bytes"),
    edit("0.4", "always memory", ('"arithmetic" if after == arithmetic else "memory"', '"memory"'), told="and then the FLOPs decide"),
    edit("0.4", "no pair without FLOPs", ("moved / bandwidth) for flops, moved in kernels", "moved / bandwidth) for flops, moved in kernels if flops"),
         told="100 s of bytes become 4 s, and then the FLOPs decide"),
    edit("0.4", "the roof as it stands", ("max(flops / peak_flops, moved / bandwidth)", "flops / min(peak_flops, flops / moved * bandwidth)"),
         told="ZeroDivisionError"),
    edit("0.5", "two kernels", ("return best, ", "return ways[best][:2], "), told="want the name of one between two kernels"),
    edit("0.5", "a kernel", ("return best, ", "return ways[best][1], "), told="the tensor is 'p v', want the name of one between two kernels"),
    edit("0.5", "always p", ("max(saved, key=saved.get)", '"p"'), told="compute what each of the three saves by these times"),
    edit("0.5", "other kernels", ('("softmax", "p v"', '("divide", "p v"'), ('("divide", "softmax"', '("q kᵀ", "softmax"'), told="a tensor joins the kernel that"),
    edit("0.5", "a vector too many", ("2 * vectors + scores)", "3 * vectors + scores)"), ("scores + 2 * vectors", "scores + 3 * vectors"), told="48 bytes"),
    edit("0.5", "seconds", ("ms[a] + ms[b] - moved / bandwidth * 1e3", "(ms[a] + ms[b]) / 1e3 - moved / bandwidth"), told="that is in seconds"),
    edit("0.5", "s by 1,000", ("bandwidth * 1e3", "bandwidth / 1e3"), told="your fused kernel takes no time, or next to none"),
)  # fmt: skip
