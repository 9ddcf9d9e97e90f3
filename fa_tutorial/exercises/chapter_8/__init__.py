"""The exercises of chapter 8: programs on an SM, softmax in base 2, descriptors, the order of programs, a shorter loop."""
