"""The exercises of chapter 12: write what FA2's softmax does, find the tiles of a window, write a step of its backward, let the maximum lag, and test for what hides."""
