"""The exercises of chapter 11: the cost of a step, the keys of a split, merging parts, the split kernel, a key's place in pages."""
