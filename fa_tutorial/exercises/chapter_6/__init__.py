"""The exercises of chapter 6: the gradients of a matmul and of a softmax, p from lse, attention's backward, and the same in tiles."""
