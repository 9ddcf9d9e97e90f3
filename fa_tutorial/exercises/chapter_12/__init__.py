"""The exercises of chapter 12: join the parts of a split cache, and find the tiles of a window."""
