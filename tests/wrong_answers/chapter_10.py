"""Chapter 10: mods that are plain functions, stop, or ask for a tile's truth value; a list found by the program's number; sequences' first keys alone."""

from edits import edit

BOTH = "(distance <= 0) & (distance >= -aux[0])"
NOT_JITTED = ("@triton.jit\n", "")

WRONG_ANSWERS = (
    edit("10.1", "not jitted", NOT_JITTED, told="put @triton.jit above it"),
    edit("10.1", "by names", ("i + aux[1]", "i + aux.shift"), ("-aux[0]", "-aux.left"), told="stops with"),
    edit("10.1", "no brackets", (BOTH, "distance <= 0 & distance >= -aux[0]"),
         told="join masks by &, not by `and`, with each comparison in brackets", gpu="stops with"),
    edit("10.1", "and", (") & (", ") and ("), told="join masks by &, not by `and`", gpu=None),
    edit("10.1", "numbers", (BOTH, f"tl.where({BOTH}, 1, 0)"), told="a mask mod returns booleans"),
    edit("10.3", "no end", ("(j < S_k) & ", ""), told="a key past S_k gets a score of 0, and softmax counts it"),
    edit("10.3", "by program", ("count_ptr + row", "count_ptr + tl.program_id(0)"), ("row * across", "tl.program_id(0) * across"),
         told="all heads and batch entries share the lists"),
    edit("10.4", "not jitted", NOT_JITTED, told="put @triton.jit above it"),
    edit("10.4", "missing tanh", ("t = tanh", "t = tl.no_such_tanh"), told="stops with AttributeError"),
    edit("10.5", "mean over the batch", (".sum(dim=(0, 2))", ".sum(dim=2).mean(dim=0)"), told="the mean over the batch is taken"),
    edit("10.6", "first alone", (", cu_k[1:].repeat_interleave(lengths)", ""), told="want a tuple (first, end)"),
)  # fmt: skip
