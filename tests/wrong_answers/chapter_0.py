from edits import edit

WRONG_ANSWERS = (
    edit("0.1", "float32", ("return B * H * pairs * per_pair", "import torch\n    return int(torch.tensor([B, H, pairs, per_pair]).float().prod())"),
         told="a large count is exact too"),
    edit("0.1", "causal halved twice", ("S * (S + 1) // 2", "S * (S + 1) // 4"), told="count 2 matmuls"),
    edit("0.1", "no heads", ("B * H * pairs", "B * pairs"), told="in each of B·H heads"),
    edit("0.2", "a kernel", ("return best, ", "return ways[best][1], "), told="compute what each of q kᵀ, s and p saves"),
    edit("0.2", "always p", ("max(saved, key=saved.get)", '"p"'), told="compute what each of q kᵀ, s and p saves"),
    edit("0.2", "other kernels", ('("softmax", "p v"', '("divide", "p v"'), ('("divide", "softmax"', '("q kᵀ", "softmax"'), told="the times of the kernel that writes it"),
    edit("0.2", "o not written", ("scores + 2 * vectors", "scores + vectors"), told="48 bytes"),
    edit("0.2", "rounded", ("return best, saved[best]", "return best, round(saved[best], 2)"), told="is not rounded"),
    edit("0.3", "the newest first", ("list(now)", "list(now)[::-1]"), told="in the order they were made"),
    edit("0.3", "frees the newest", ("del now[name]", "last, kept = now.popitem()\n            now |= {name: kept} if last != name else {}"), told="an event frees the tensor that it names"),
    edit("0.3", "frees the oldest", ("del now[name]", "first = next(iter(now))\n            kept = now.pop(first)\n            now |= {name: kept} if first != name else {}"), told="an event frees the tensor that it names"),
    edit("0.3", "looks before the event", ("        if size > 0:", "        if sum(now.values()) > most:\n            "
         "most, held = sum(now.values()), list(now)\n        if size > 0:"),
         ("            del now[name]\n        if sum(now.values()) > most:\n            most, held = sum(now.values()), list(now)",
          "            del now[name]"), told="a +1, b +9"),
    edit("0.3", "most tensors", ("sum(now.values()) > most", "len(now) > len(held)"), told="c +2, b +9"),
    edit("0.4", "q per block", ("2 * S * D + blocks * 2", "S * D + blocks * 3"), told="q and o travel once"),
    edit("0.4", "whole blocks", ("-(-S // block_m)", "(S // block_m)"), told="one edge is left: a smaller last block reads all of k and v too"),
    edit("0.4", "rows of whole blocks", ("2 * S * D + blocks", "2 * blocks * block_m * D + blocks"), told="but only its own rows of q"),
    edit("0.5", "one number", ("return products + exponentials, max(products, exponentials)", "return products + exponentials"),
         told="want a tuple (in_series, at_once)"),
    edit("0.5", "whole cycles", ("scores * 4 * D / 4096", "scores * 4 * D // 4096"), told="nothing is rounded"),
    edit("0.5", "whole scores", ("heads * S * S / sms", "heads * S * S // sms"), told="nothing is rounded"),
    edit("0.5", "whole heads", ("heads * S * S / sms", "-(-heads // sms) * S * S"), told="SMs share the scores equally"),
)  # fmt: skip
