"""Chapter 10: mods that are plain functions, stop, or ask for a tile's truth value; missing brackets; kinds as floats; a list found by the
program's number; an exponential that overflows; sequences' first keys alone.
"""

from edits import edit

from fa_tutorial.matmul import tl, triton


@triton.jit
def cap_grad_by_growing_exponentials(s, b, h, i, j, aux):
    e = tl.exp(2 * s / aux[0])
    return 4 * e / ((e + 1) * (e + 1))


BOTH = "(distance <= 0) & (distance >= -aux[0])"
NOT_JITTED = ("@triton.jit\n", "")

WRONG_ANSWERS = (
    edit("10.1", "not jitted", NOT_JITTED, told="put @triton.jit above it"),
    edit("10.1", "by names", ("i + aux[1]", "i + aux.shift"), ("-aux[0]", "-aux.left"), told="stops with"),
    edit("10.1", "no brackets", (BOTH, "distance <= 0 & distance >= -aux[0]"),
         told="join masks by &, not by `and`, with each comparison in brackets", gpu="stops with"),
    edit("10.1", "no brackets around the second", (BOTH, "(distance <= 0) & distance >= -aux[0]"),
         told="each in its own brackets, because & binds tighter than <= and >="),
    edit("10.1", "no brackets around the first", (BOTH, "distance <= 0 & (distance >= -aux[0])"),
         told="with each comparison in its own brackets, because & binds tighter than <="),
    edit("10.1", "and", (") & (", ") and ("), told="join masks by &, not by `and`", gpu=None),
    edit("10.1", "numbers", (BOTH, f"tl.where({BOTH}, 1, 0)"), told="a mask mod returns booleans"),
    edit("10.2", "in float32", (".int()", ".float()", 2), told="the kinds are right, but they are in float32"),
    edit("10.3", "lists overlap", ("row * across + t", "row + t"), told="index_ptr[row · ceil(S_k / BLOCK_N) + t]"),
    edit("10.3", "lists without the ragged tile", ("row * across + t", "row * (S_k // BLOCK_N) + t"),
         told="the last tiles may be ragged"),
    edit("10.3", "BLOCK_M for BLOCK_N", ("+ t) * BLOCK_N", "+ t) * BLOCK_M"), told="BLOCK_M and BLOCK_N may differ"),
    edit("10.3", "no end of the keys", ("(j < S_k) & ", ""),
         told="where the mask mod shows a key past S_k, j < S_k must hide it"),
    edit("10.3", "one key too many", ("(j < S_k)", "(j <= S_k)"), told="where the mask mod shows a key past S_k, j < S_k"),
    edit("10.3", "b and h exchanged", ("MASK_MOD(b, h,", "MASK_MOD(h, b,"),
         told="MASK_MOD gets the numbers of batch entry, head, query and key"),
    edit("10.3", "H for h", ("MASK_MOD(b, h,", "MASK_MOD(b, H,"),
         told="MASK_MOD gets the numbers of batch entry, head, query and key"),
    edit("10.3", "by program", ("count_ptr + row", "count_ptr + tl.program_id(0)"), ("row * across", "tl.program_id(0) * across"),
         told="a program's row of the lists is the number of its block of rows"),
    edit("10.4", "not jitted", NOT_JITTED, told="put @triton.jit above it"),
    ("10.4", cap_grad_by_growing_exponentials, "one edge is left: a score may lie far beyond the cap"),
    edit("10.4", "missing tanh", ("t = tanh", "t = tl.no_such_tanh"), told="stops with AttributeError"),
    edit("10.5", "the first sink for all", ("sinks[:, None]", "sinks[0]"),
         told="each head has its own sink and its own gradient"),
    edit("10.5", "mean over the batch", (".sum(dim=(0, 2))", ".sum(dim=2).mean(dim=0)"), told=("all batch entries use the same sinks: "
                                                                                              "add up over the batch")),
    edit("10.6", "first alone", (", cu_k[1:].repeat_interleave(lengths)", ""), told="want a tuple (first, end)"),
)  # fmt: skip
