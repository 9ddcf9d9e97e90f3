"""The exercises of chapter 4: softmax_step, the tiled forward, causal tiles, the causal forward, FA1's bytes."""
