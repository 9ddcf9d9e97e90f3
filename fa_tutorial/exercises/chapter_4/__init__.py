"""The exercises of chapter 4: the step of the running softmax, the tiled forward, causal tiles, bytes through HBM."""
