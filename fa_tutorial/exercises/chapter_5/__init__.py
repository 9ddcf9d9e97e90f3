"""The exercises of chapter 5: load a tile, attend to one, loop over the keys, any length, causal, and the finished kernel."""
