"""How every drawing looks: colours, sizes and hatchings."""

DARK = "#444444"
TENSOR_COLOUR = {"q": "blue", "k": "orange", "v": "green", "q kᵀ": "yellow", "s": "yellow", "p": "yellow", "o": "purple"}  # acc: o

DPI = 150
WIDTH = 9.0  # inches
SMALL, BODY, HEAD = 11, 12, 13  # points
MASKED = "////"  # hatching of what a mask leaves out
WHOLE, SEEN = {"colour": "sky", "share": 0.6}, {"colour": "orange", "share": 0.7}  # of tiles: without a mask; with it, seen
WAITS = {"hatch": MASKED}  # somebody who has nothing to do
