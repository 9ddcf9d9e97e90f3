"""Every drawing in images/, made by code: `make figures` draws them all again.

A function with @image("NN_name.png", height) above it draws that file. The numbers in a drawing are computed with the package, not
typed. Hatching, labels or line styles repeat what a colour says.
"""

# Each module registers its drawings; nothing else of them is used here.
from draw import (  # noqa: F401
    chapter_8,
    chapter_9,
    chapter_10,
    chapter_11,
    chapter_12,
    chapter_13,
    chapter_14,
    chapters_0_1,
    chapters_2_3,
    chapters_4_5,
    chapters_6_7,
    readme,
)
from draw.drawing import IMAGES

__all__ = ["IMAGES"]
