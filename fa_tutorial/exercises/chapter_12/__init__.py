"""The exercises of chapter 12: write what FA2's softmax does, find the tiles of a window, read their bound, let the maximum lag, and test for what hides."""
