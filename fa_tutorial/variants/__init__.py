"""Chapter 10: one kernel, many masks and scores.

Masks, windows, soft cap, ALiBi, sinks, dropout, packed sequences, and mods of your own. `mods` holds the functions that
make a variant, `tile_lists` finds the tiles that a mask leaves, `forward` and `backward` hold the kernels and their
launchers, `packed` the rows of sequences without padding. `options` checks a variant's arguments, `attention` runs it
as an operator of PyTorch's, and `user_mods` runs mods that you write.
"""

from fa_tutorial.variants import mods

__all__ = ["attention_with", "make_block_mask", "mods"]


def __getattr__(name: str):
    """attention_with and make_block_mask, found when they are asked for: torch.compiler.disable, which the first one
    needs, imports TorchDynamo, and that takes as long as all else that flash_attention needs."""
    if name in __all__:
        from fa_tutorial.variants import user_mods

        return getattr(user_mods, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
