"""The exercises of chapter 10: a mask, its tiles, a loop over their list, a score's derivative, a sink's gradient, the rows of packed
sequences."""
