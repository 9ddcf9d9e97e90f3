"""Chapter 0: a count that is not returned, k and v counted twice, a fixed itemsize, wrong ways to round up, a float's root, and half of S."""

from edits import edit

WRONG_ANSWERS = (
    edit("0.1", "not returned", ("return B", "B"), told="None (is the return missing?)"),
    edit("0.2", "always one block more", ("-(-S // block_m)", "S // block_m + 1"),
         told="you count k and v once more than there are blocks"),
    edit("0.2", "k and v in the vectors too", ("2 * S * D + blocks", "4 * S * D + blocks"), told="a 4·S·D does, which holds them already"),
    edit("0.2", "bytes of fp16", ("elements * itemsize", "elements * 2"), told="you fix the bytes of an element at 2"),
    edit("0.2", "rows of full blocks", ("= 2 * S", "= 2 * blocks * block_m"), ("4 * S", "4 * blocks * block_m"),
         told="q, o and the float32 have S rows"),
    edit("0.2", "floats of full blocks", ("4 * S", "4 * blocks * block_m"), told="for each query of a full last block"),
    edit("0.2", "keys in full blocks", ("blocks * 2 * S", "blocks * 2 * blocks * block_m"), told="you round the number of keys up"),
    edit("0.3", "half of S", ("2 * B * H * itemsize", "B * H * itemsize"), ("// per_pair)", "// per_pair) // 2"), told="S shrinks by √2"),
    edit("0.3", "bytes of fp16", ("2 * B * H * itemsize", "4 * B * H"), told="you fix the bytes of an element at 2"),
    edit("0.3", "root of a float", ("memory_bytes // per_pair", "memory_bytes / per_pair"), told="raises TypeError"),
)  # fmt: skip
