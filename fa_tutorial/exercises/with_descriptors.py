"""Launches a kernel with tensor descriptors in place of tensors, for exercise 8.3, and says in its terms why a tile has the wrong shape."""

import traceback
from typing import Any

from fa_tutorial import hardware
from fa_tutorial.exercises.harness_kernel import launched_by
from fa_tutorial.exercises.running import Wrong, chain, where_in

hardware.require_triton("Exercise 8.3")
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402


@launched_by
def with_descriptors(kernel: Any, grid: Any, *args: Any, **meta: int) -> None:
    """The kernel gets a descriptor in place of each of its first four arguments, the tensors q, k, v and o."""
    rows = (meta["BLOCK_M"], meta["BLOCK_N"], meta["BLOCK_N"], meta["BLOCK_M"])
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, n, x.shape[3]]) for x, n in zip(args[:4], rows, strict=True)]
    try:
        kernel[grid](*descriptors, *args[4:], **meta)
        return
    except Exception as error:
        if not (why := _shape_fault(error)):
            raise
        why += where_in(error, kernel)
    raise Wrong(why)


def _shape_fault(error: BaseException) -> str:
    """Words for a tile that is still of four dimensions, or no longer; "" for another error."""
    root = chain(error)[-1]
    if isinstance(root, AssertionError) and "equal ranks" in str(root):
        return "a descriptor loads a tile of shape [1, 1, rows, D], and tl.dot takes two dimensions: drop the ones by .reshape([rows, D])"
    if isinstance(root, AssertionError) and any("store" in frame.name for frame in traceback.extract_tb(root.__traceback__)):
        return "o_desc.store takes a tile of shape [1, 1, BLOCK_M, D]: give o its ones back by .reshape([1, 1, BLOCK_M, D])"
    return ""
