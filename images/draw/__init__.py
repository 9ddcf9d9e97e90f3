"""Every drawing in images/, made by code: `make figures` draws them all again.

A function with @image("NN_name.png", height) above it draws that file. The numbers in a drawing are computed with the package, not
typed. Hatching, labels or line styles repeat what a colour says.
"""

import importlib
import pkgutil

from draw.drawing import IMAGES

for module in pkgutil.iter_modules(__path__, "draw."):  # each registers its drawings
    if module.name != "draw.__main__":
        importlib.import_module(module.name)

__all__ = ["IMAGES"]
