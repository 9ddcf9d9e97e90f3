"""The exercises of chapter 6: the gradient of a softmax, attention's backward from p, delta and p without a stored matrix, and the backward in tiles."""
