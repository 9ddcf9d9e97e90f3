"""FlashAttention, derived and built: the finished code behind the notebooks.

Import this package before Triton. Where there is no CUDA GPU, the import switches Triton's interpreter on,
and the switch is read when a kernel is decorated, so it has to come first.
"""

from fa_tutorial import hardware

__version__ = "0.1.0"

hardware.select_backend()


def __getattr__(name: str):
    """The public functions, found when they are asked for: their kernels need Triton, and the rest of the package does not."""
    if name in ("flash_attention", "flash_attention_varlen"):
        from fa_tutorial import attention

        return getattr(attention, name)
    if name == "attention_with":
        from fa_tutorial.variants import attention_with

        return attention_with
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
