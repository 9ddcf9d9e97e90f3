"""The exercises of chapter 3: matmul by tiles in PyTorch and in Triton, its tile, (q kᵀ) v in one kernel, and the order of programs."""
