"""The exercises of chapter 4: softmax_step, the tiled forward, causal tiles, the causal forward, its test, FA1's bytes."""
