"""FlashAttention, derived and built: the finished code behind the notebooks.

Import this package before Triton. Where there is no CUDA GPU, the import switches Triton's interpreter on,
and the switch is read when a kernel is decorated, so it has to come first.
"""

from fa_tutorial import hardware

__version__ = "0.1.0"

hardware.select_backend()


def __getattr__(name: str):
    """flash_attention, found when it is asked for: its kernels need Triton, and the rest of the package does not."""
    if name == "flash_attention":
        from fa_tutorial.attention import flash_attention

        return flash_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
