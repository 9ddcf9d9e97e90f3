"""The exercises of chapter 12: order a tile in shared memory, write what FA2's softmax does, write a step of its backward, test for what hides, place FA3's waits, and let the maximum lag."""
