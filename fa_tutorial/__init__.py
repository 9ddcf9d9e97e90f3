"""FlashAttention, derived and built: the finished code behind the notebooks.

Import this package before Triton. Where there is no CUDA GPU, the import switches Triton's interpreter on,
and the switch is read when a kernel is decorated, so it has to come first.
"""

import importlib
import sys

try:
    from fa_tutorial import hardware
except ModuleNotFoundError as error:
    where = f"{error.name} is not installed for {sys.executable}"
    raise ImportError(f"{where}: make setup in the course's folder, then source .venv/bin/activate") from None

__version__ = "0.1.0"

hardware.select_backend()

# The public names, and the modules that have them.
PUBLIC = {
    "flash_attention": "attention",
    "flash_attention_varlen": "attention",
    "attention_with": "variants",
    "make_block_mask": "variants",
    "flash_decode": "decode",
    "append_to_cache": "decode",
    "PagedCache": "decode",
    "quantise_fp8": "decode",
    "flash_attention_fp8": "fp8",
}
__all__ = [*PUBLIC]
MODULES = ("ring", "hugging_face")


def __getattr__(name: str):
    """The public functions and modules, found when they are asked for: their kernels need Triton, and the rest of the
    package does not."""
    if name in MODULES:
        return importlib.import_module(f"fa_tutorial.{name}")
    if name in PUBLIC:
        return getattr(importlib.import_module(f"fa_tutorial.{PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, which are not there until they are asked for."""
    return sorted([*__all__, *MODULES, "__version__"])
