"""Chapter 9: flash attention for Hopper in Gluon, where each warp has one job: one loads, the others multiply.

After FlashAttention-3 (Shah et al., 2024). `pipeline` holds the rings of tiles and their barriers, `tile_scheduler` the
order of work, `softmax` what a consumer computes between its matmuls, `forward` and `backward` the kernels and their
launchers, `ladder` the small kernels that lead to them.
"""

from fa_tutorial.hopper import ladder
from fa_tutorial.hopper.backward import flash_backward
from fa_tutorial.hopper.forward import applies, flash_forward

__all__ = ["applies", "flash_backward", "flash_forward", "ladder"]
