"""The exercises of chapter 10: a mask, its tiles, a loop over their list, a score with its derivative, the backward's step, a sink in the
kernel, the gradients of a sink and of dropout, the tiles of packed rows, the prices of a start and a tile, and when the slots of a GPU fall idle."""
