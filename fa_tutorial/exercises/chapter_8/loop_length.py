"""How much longer the loop without a mask becomes by a reader's function, for 8.2 and 8.5."""

from fa_tutorial import sass

MORE = 12  # instructions that are accepted: an edit makes ptxas arrange the whole loop anew
COUNTED = {
    "FFMA": "multiply-adds", "FMUL": "multiplications", "FADD": "additions", "FSETP": "comparisons", "FSEL": "selects",
    "ISETP": "integer comparisons, as of a mask", "LDL": "loads of spilled registers",
}  # fmt: skip


def counts(step, tiles, **function):
    """Pairs of sass.counted's rows, for the step with `function` in it and for the step; none where Triton can't compile for a Hopper GPU."""
    try:
        aim = sass.counted(step, tiles)
    except (ValueError, RuntimeError):
        return []
    return list(zip(sass.counted(step, tiles, **function), aim, strict=True))


def too_long(words, step, tiles=None, **function):
    """Why the loop is too long, "" where it isn't or where nothing compiles. words: whose loop the step's is."""
    try:
        found = counts(step, tiles, **function)
    except ValueError as error:
        return str(error)
    for mine, aim in found:
        if mine["loop"] > aim["loop"] + MORE:
            more = [f"{mine[op] - aim[op]} more {kind}" for op, kind in COUNTED.items() if mine[op] > aim[op] + 2]
            loop = f"at D = {mine['D']} the loop has {mine['loop']} instructions, {words} {aim['loop']}"
            return f"{loop}: {', '.join(more) or 'of other kinds than floating-point arithmetic'}"
    return ""


def not_counted(step, tiles=None, **function):
    """A remark where nothing compiles."""
    return "" if counts(step, tiles, **function) else "Triton can't compile for a Hopper GPU here, so the instructions aren't counted"
