"""Chapter 11: one number where two are wanted, a merge that returns o alone, a merge kernel without masks, an offset in int32;
split kernels that take the row for the token, or store every row of their tile.
"""

from edits import edit

WRONG_ANSWERS = (
    edit("11.1", "flops alone", ("return flops, bytes_read", "return flops"), told="flops"),
    edit("11.3", "o alone", ("return o, lse", "return o"), told="o"),
    edit("11.4", "no masks", (', mask=offs_s < splits, other=-float("inf")', ""), (", mask=mask, other=0.0", ""), (", mask=offs_d < D", ""),
         told="offs_s < splits"),
    edit("11.5", "row taken for the token", ("offs_m % S_q", "offs_m"), told="the row is taken for the token"),
    edit("11.5", "stores every row", (", mask=offs_m < rows", ""), told="r < rows"),
    edit("11.6", "in int32", (".long()", ".int()"), ("offs_n % page_size", "offs_n.int() % page_size"), told="int64"),
)  # fmt: skip
