"""The exercises of chapter 0: count FLOPs and bytes, bound what fusing gains, and find what fills the memory."""
