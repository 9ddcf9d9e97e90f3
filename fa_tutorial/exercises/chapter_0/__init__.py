"""The exercises of chapter 0: count FLOPs and bytes, find what fills the memory, bound what fusing gains, choose what to fuse."""
