"""The exercises of chapter 5: a tile by its strides, the forward kernel, causal, grouped heads and the log-sum-exp."""
