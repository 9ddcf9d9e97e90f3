"""How much longer the loop without a mask becomes by a reader's function, for 8.2 and 8.5."""

import functools

from fa_tutorial import sass
from fa_tutorial.tuned import steps

MORE = 12  # instructions that are accepted: an edit makes ptxas arrange the whole loop anew
COUNTED = {
    "FFMA": "multiply-adds", "FMUL": "multiplications", "FADD": "additions", "FSETP": "comparisons", "FSEL": "selects",
    "ISETP": "integer comparisons, as of a mask", "LDL": "loads of spilled registers",
}  # fmt: skip


TILES = {"base 2": None, "descriptors": steps.LARGER}  # of 8.2 and 8.5


@functools.cache
def aim(step):
    """sass.counted's rows of the course's step; none where Triton can't compile for a Hopper GPU."""
    try:
        return sass.counted(step, TILES[step])
    except (ValueError, RuntimeError):
        return []


def too_long(words, step, **function):
    """Why the step's loop is too long with `function` in it, "" where it isn't or nothing compiles. words: whose the step's loop is."""
    if not (wanted := aim(step)):
        return ""
    try:
        found = sass.counted(step, TILES[step], **function)
    except ValueError as error:
        return str(error)
    for mine, ours in zip(found, wanted, strict=True):
        if mine["loop"] > ours["loop"] + MORE:
            more = [f"{mine[op] - ours[op]} more {kind}" for op, kind in COUNTED.items() if mine[op] > ours[op] + 2]
            loop = f"at D = {mine['D']} the loop has {mine['loop']} instructions, {words} {ours['loop']}"
            return f"{loop}: {', '.join(more) or 'more of other kinds, such as conversions'}"
    return ""


def not_counted(step):
    """A remark where nothing compiles."""
    return "" if aim(step) else "Triton can't compile for a Hopper GPU here, so the instructions aren't counted"
