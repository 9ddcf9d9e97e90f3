"""The exercises of chapter 12: write what FA2's softmax does, find the tiles of a window, and let the maximum lag."""
