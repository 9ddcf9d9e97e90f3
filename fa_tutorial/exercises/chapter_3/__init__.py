"""The exercises of chapter 3: matmul by tiles in PyTorch and in Triton, the order of programs, and (q kᵀ) v in one kernel."""
