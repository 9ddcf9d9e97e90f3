"""Chapter 8: the kernels of chapters 5 and 7, tuned for speed in plain Triton.

The same algorithm with cheaper exponentials, tiles that move by TMA, an order of programs, and tile sizes that are
measured instead of guessed. `forward` and `backward` hold the kernels and their launchers, `autotuning` the candidate
tiles, `descriptors` what TMA can reach.
"""

from fa_tutorial.tuned import autotuning, descriptors, launching
from fa_tutorial.tuned.backward import flash_backward
from fa_tutorial.tuned.forward import applies, flash_forward

__all__ = ["applies", "autotuning", "descriptors", "flash_backward", "flash_forward", "launching"]
