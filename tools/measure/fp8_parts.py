"""Chapter 14: its kernel with one part of a block's work made cheap or left out, so that o is wrong: what is left takes
how long?"""

from functools import cache
from typing import Any

from fa_tutorial.fp8 import forward
from fa_tutorial.source import defined, edited, source_of

EXPONENTIALS = ("return gl.exp2(s * scale_log2 - (shift - P_LOG2)[:, None]), m_new,",
                "return s * scale_log2 - (shift - P_LOG2)[:, None], m_new,", 1)  # fmt: skip
SUM_OF_P = (
    ("new_l, new = warpgroup_mma_wait(0, [issue_pv(p, ones), issue_pv(p, columns)])",
     "new = warpgroup_mma_wait(0, [issue_pv(p, columns)])", 1),
    ("    l = rescaled(l, alpha, half_of(new_l))\n", "", 1),
)  # fmt: skip
JOINING = (  # acc's chain goes on through all blocks, without alpha
    ("new_l, new = warpgroup_mma_wait(0, [issue_pv(p, ones), issue_pv(p, columns)])",
     "new_l, acc = warpgroup_mma_wait(0, [issue_pv(p, ones), warpgroup_mma(p, columns.permute((1, 0)), acc, "
     "is_async=True)])", 1),
    ("    acc = rescaled(acc, alpha * (v_scale / new_scale), new)\n", "", 1),
)  # fmt: skip
PARTS = {
    "the whole kernel": (),
    "without exponentials": (EXPONENTIALS,),
    "without the sum of p": SUM_OF_P,
    "without joining acc": JOINING,
}


@cache
def module_of(part: str) -> dict[str, Any]:
    """The names of fp8.forward, changed for one of PARTS."""
    text = edited(source_of(forward), ('key = ("fp8", ', f'key = ("fp8, {part}", ', 1), *PARTS[part])
    return defined(text, {"__name__": forward.__name__})


def flash_forward(part: str, *args: Any):
    """fp8.forward.flash_forward by the kernel of one of PARTS."""
    return module_of(part)["flash_forward"](*args)
