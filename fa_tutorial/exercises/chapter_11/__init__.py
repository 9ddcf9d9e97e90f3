"""The exercises of chapter 11: the time of a step, a kernel that merges parts, the split kernel, the number of splits, the same kernel with pages,
and with a window."""
