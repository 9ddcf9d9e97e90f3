"""The exercises of chapter 11: the time of a step, a kernel that merges parts, the split kernel, and the same with pages."""
