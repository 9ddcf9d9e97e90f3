"""The exercises of chapter 10: a mask, its tiles, a score's derivative, a sink's gradient, and the rows of packed sequences."""
