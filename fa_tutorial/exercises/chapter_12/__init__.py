"""The exercises of chapter 12: order a tile in shared memory, write what FA2's softmax does, write a step of its backward, let the maximum lag, and test for what hides."""
