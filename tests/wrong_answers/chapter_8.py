"""Chapter 8: a step that is a plain function, a step that stops, tiles of the wrong shape."""

from edits import edit

WRONG_ANSWERS = (
    edit("8.2", "not jitted", ("@triton.jit\n", ""), told="put @triton.jit above it"),
    edit("8.2", "no alpha", ("axis=1), alpha", "axis=1)"), told="alpha, [BLOCK_M] each, in this order"),
    edit("8.3", "no reshape", ("q_desc.load([b, h, start_m, 0]).reshape([BLOCK_M, D])", "q_desc.load([b, h, start_m, 0])"),
         told="drop the ones by .reshape([rows, D])"),
    edit("8.3", "stored without reshape", ("o.reshape([1, 1, BLOCK_M, D])", "o"),
         told="give o its ones back by .reshape([1, 1, BLOCK_M, D])"),
)  # fmt: skip
