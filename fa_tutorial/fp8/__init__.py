"""Chapter 14: attention's forward with 8 bits a number.

`quantise` makes e4m3 of fp16 and bf16, `model` is the arithmetic in PyTorch, with the tensor core's sums, `forward` the
kernel for Hopper and its launcher, `attention` the public function.
"""

from fa_tutorial.fp8.attention import emulated, flash_attention_fp8, quantised
from fa_tutorial.fp8.model import (
    sums_by_blocks,
    sums_in_float32,
    sums_in_one_chain,
    sums_in_two_chains,
    tensor_core_sum,
    to_e4m3,
)
from fa_tutorial.fp8.quantise import (
    BLOCK,
    Quantised,
    as_e4m3,
    key_order,
    key_order_in_triton,
    quantise,
    quantise_kernel,
    random_hadamard,
)

__all__ = [
    "BLOCK",
    "Quantised",
    "as_e4m3",
    "emulated",
    "flash_attention_fp8",
    "key_order",
    "key_order_in_triton",
    "quantise",
    "quantise_kernel",
    "quantised",
    "random_hadamard",
    "sums_by_blocks",
    "sums_in_float32",
    "sums_in_one_chain",
    "sums_in_two_chains",
    "tensor_core_sum",
    "to_e4m3",
]
