"""The exercises of chapter 12: find your loop in FA2's, find the tiles of a window, and let the maximum lag."""
