"""The exercises of chapter 1: safe softmax, the online normaliser, merging, blocks, the running weighted sum."""
