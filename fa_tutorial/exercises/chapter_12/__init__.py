"""The exercises of chapter 12: count the masked key blocks of FA2's loop, find the tiles of a window, and let the maximum lag."""
