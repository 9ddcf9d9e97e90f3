"""Chapter 10: one kernel, many masks and scores.

Masks, windows, soft cap, ALiBi, sinks, dropout, packed sequences, and mods of your own. `mods` holds the functions that
make a variant, `tile_lists` finds the tiles that a mask leaves, `forward` and `backward` hold the kernels and their
launchers, `packed` the rows of sequences without padding. `options` checks a variant's arguments, `attention` runs it
as an operator of PyTorch's, and `user_mods` runs mods that you write.
"""

from fa_tutorial.variants import mods
from fa_tutorial.variants.user_mods import attention_with, make_block_mask

__all__ = ["attention_with", "make_block_mask", "mods"]
