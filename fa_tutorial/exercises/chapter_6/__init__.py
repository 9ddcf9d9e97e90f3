"""The exercises of chapter 6: the gradient of a softmax, attention's backward from p, delta, p and ds of a tile, and the backward in tiles."""
