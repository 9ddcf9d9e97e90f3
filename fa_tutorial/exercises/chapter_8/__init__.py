"""The exercises of chapter 8: TFLOP/s, tiles that fit, tensor descriptors, delta once for the whole backward."""
