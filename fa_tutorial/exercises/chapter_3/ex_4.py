import ast
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.matmul import tl  # noqa: F401, for the interpreter, where a kernel calls grouped_tile
from fa_tutorial.source import source_of, unwrapped


def grouped_tile(pid, tiles_m, tiles_n, group):
    """The tile (tile_m, tile_n) of program pid, when programs go down bands of `group` rows."""
    band = pid // (group * tiles_n)
    within = pid % (group * tiles_n)
    first_row = band * group
    rows = min(tiles_m - first_row, group)  # the last band may have fewer
    return first_row + within % rows, within // rows


ROW, ROWS, BAND = "first_row + within % rows", "rows = min(tiles_m - first_row, group)", "band = pid // (group * tiles_n)"
MISTAKES = {
    "tile_m and tile_n are swapped": (f"{ROW}, within // rows", f"within // rows, {ROW}"),
    "within a band // and % are swapped: the row changes fastest": [("within % rows", "within / rows"), ("within // rows", "within % rows"), (" / ", " // ")],
    "the tiles come in row order: within a band the row changes fastest": (f"return {ROW}, within // rows", "return pid // tiles_n, pid % tiles_n"),
    "a full band is counted with tiles_m: it has `group` rows of tiles_n tiles": ("(group * tiles_n)", "(group * tiles_m)", 2),
    "the band is pid // (group · tiles_m) here, and a full band holds group · tiles_n programs": (BAND, "band = pid // (group * tiles_m)"),
    "the band's first row is missing: every band starts at row 0": (ROW, "within % rows"),
    "tile_n is counted from pid: divide the place within the band": ("within // rows", "pid // rows"),
    "tile_m is counted from pid: take the remainder of the place within the band": (ROW, "first_row + pid % rows"),
    "the last band has only the rows that are left: here it is counted with `group` rows": (ROWS, "rows = group"),
}  # fmt: skip


def truth(pid, tiles_m, tiles_n, group):
    tiles = [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    return sorted(tiles, key=lambda tile: (tile[0] // group, tile[1], tile[0]))[pid]  # by band, then column, then row


def inputs():
    def order(tiles_m, tiles_n, group, on="", **options):
        return [case(pid, tiles_m, tiles_n, group, on=on, **options) for pid in range(tiles_m * tiles_n)]

    yield from order(4, 3, 2)
    yield from order(5, 3, 3, edge="last_band")
    yield from order(2, 3, 8, otherwise="then the only band has tiles_m rows", edge="large_group")
    for _ in range(6):
        bands, tiles_n, group = (random.randint(1, high) for high in (3, 6, 4))
        yield from order(bands * group, tiles_n, group, "a random case of whole bands", fresh=True)
        yield from order(bands * group + random.randint(1, group), tiles_n, group, "a random case", fresh=True, edge="last_band")


def refused(answer):
    """What the task leaves out, as only Python takes it, or only a kernel, where `group` is a tl.constexpr."""
    group = unwrapped(answer).__code__.co_varnames[3]
    for node in ast.walk(ast.parse(source_of(answer))):
        is_call = isinstance(node, ast.Call) and not (ast.unparse(node.func) == "min" and len(node.args) == 2)
        if is_call or isinstance(getattr(node, "op", None), ast.Div):
            return f"the task doesn't allow `{ast.unparse(node)}`: use only +, -, *, //, %, min of two numbers, and if"
        stored = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        if isinstance(node, ast.If | ast.While) and group in stored:
            return f"Triton's compiler refuses it: `{group}` is a constant in the kernel, so no `if` may assign to it; take another name"
    return ""


EXERCISE = Exercise(
    task="Return the tile (tile_m, tile_n) that program `pid` computes in this order.",
    conditions={
        "last_band": "the last band has only the rows that are left, when tiles_m is not a multiple of group",
        "large_group": "group may be larger than tiles_m",
    },
    hints=(
        "Call `group` rows of tiles a band. How many programs does a full band hold? Which band is pid in, and what is its place there?",
        "A full band holds group · tiles_n programs: pid // that is the band, which gives its first row; pid % that is the place within "
        "it.",
        "Within a band the place counts down the rows first. How many rows does the last band have, when tiles_m is not a multiple of "
        "group?",
    ),
    solution=grouped_tile,
    reasoning="pid // (group · tiles_n) is the band, and pid % (group · tiles_n) is the place within it. A band has min(tiles_m − "
    "first_row, group) rows; dividing the place by that number gives the column, and the remainder gives the row. Only the last band can "
    "be shorter, and every band before it is full, so group · tiles_n is the right divisor for all of them.",
    inputs=inputs,
    truth=truth,
    rule="the numbers go down the `group` rows of a band, then on to its next column, and after its last column to the next band",
    mistakes=MISTAKES,
    exact=True,
    refused=refused,
)
