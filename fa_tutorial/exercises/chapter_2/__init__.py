"""The exercises of chapter 2: strides and offsets, and the first three kernels."""
