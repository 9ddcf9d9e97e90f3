import ast
import operator
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting
from fa_tutorial.matmul import tl  # noqa: F401, for the interpreter, where a kernel calls grouped_tile
from fa_tutorial.source import source_of


def grouped_tile(pid, tiles_m, tiles_n, group):
    """The tile (tile_m, tile_n) of program pid, when programs go down bands of `group` rows."""
    band = pid // (group * tiles_n)
    within = pid % (group * tiles_n)
    first_row = band * group
    rows = min(tiles_m - first_row, group)  # the last band may have fewer
    return first_row + within % rows, within // rows


_LAST = "the last band has only the rows that are left"
ROW, ROWS = "first_row + within % rows", "rows = min(tiles_m - first_row, group)"
MISTAKES = {
    "tile_m and tile_n are swapped": ("first_row + within % rows, within // rows", "within // rows, first_row + within % rows"),
    "within a band // and % are swapped: the row changes fastest": [("within % rows", "within / rows"), ("within // rows", "within % rows"), (" / ", " // ")],
    "the tiles come in row order: within a band the row changes fastest": (
        "return first_row + within % rows, within // rows", "return pid // tiles_n, pid % tiles_n"),
    "these are bands of columns: a band is `group` rows of tiles": [
        ("(group * tiles_n)", "(group * tiles_m)", 2), ("tiles_m - first_row", "tiles_n - first_row"),
        (f"{ROW}, within // rows", "within // rows, first_row + within % rows")],
    "a full band is counted with tiles_m: it has `group` rows of tiles_n tiles": ("(group * tiles_n)", "(group * tiles_m)", 2),
    "the band is found with tiles_m: a full band holds group · tiles_n programs": [
        ("band = pid // (group * tiles_n)", "band = pid // (group * tiles_m)"), ("pid % (group * tiles_n)", "pid - band * group * tiles_n")],
    "the band is pid // (group · tiles_m) here, and a full band holds group · tiles_n programs": (
        "band = pid // (group * tiles_n)", "band = pid // (group * tiles_m)"),
    "the band's first row is missing: every band starts at row 0": (ROW, "within % rows"),
    "the band's number is used as its first row: a band has `group` rows": ("band * group", "band"),
    "`rows` is the row where the band ends: subtract its first row": (ROWS, "rows = min(first_row + group, tiles_m)"),
    "tile_n is counted from pid: divide the place within the band": ("within // rows", "pid // rows"),
    "tile_m is counted from pid: take the remainder of the place within the band": (ROW, "first_row + pid % rows"),
    "the last band's own rows are used to find where it begins: every band before it has `group` rows": (ROW, "band * rows + within % rows"),
    f"{_LAST}: here it is counted with `group` rows": (ROWS, "rows = group"),
    "the last band's rows are cut before its first row and the place within it are found: every band before it has `group` rows": [
        ("    within = pid % (group * tiles_n)\n", ""), (ROWS, f"{ROWS}\n    within = pid % (rows * tiles_n)"), (ROW, "band * rows + within % rows")],
}  # fmt: skip

CONDITIONS = {"last_band": f"{_LAST}, when tiles_m is not a multiple of group", "large_group": "group may be larger than tiles_m"}


def truth(pid, tiles_m, tiles_n, group):
    tiles = [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    return sorted(tiles, key=lambda tile: (tile[0] // group, tile[1], tile[0]))[pid]  # by band, then column, then row


class KernelInteger:
    """An integer as a kernel has it: integer arithmetic and comparisons work; what Python alone can do is Wrong."""

    def __init__(self, value):
        self.value = value

    def __bool__(self):
        return self.value != 0

    def __neg__(self):
        return KernelInteger(-self.value)

    def _leaves(self, *_):
        raise Wrong(
            "this works in Python only: /, int(), divmod(), range(), math and NumPy are not for a kernel's integers; use //, %, * and min"
        )

    __truediv__ = __rtruediv__ = __divmod__ = __rdivmod__ = __float__ = __int__ = __index__ = __floor__ = __ceil__ = __round__ = _leaves


def _operation(name):
    compute = getattr(operator, name)

    def forward(self, other):
        result = compute(self.value, getattr(other, "value", other))
        return result if isinstance(result, bool) else KernelInteger(result)

    return forward


for _name in ("add", "sub", "mul", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(KernelInteger, f"__{_name}__", _operation(_name))
for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(KernelInteger, f"__r{_name}__", lambda self, other, name=_name: getattr(KernelInteger(other), f"__{name}__")(self))


@adapting
def adapt(answer, *args):
    """The answer called with KernelIntegers, which are plain integers again in what it returns."""
    try:
        result = answer(*map(KernelInteger, args))
    except Exception as error:
        if "add @triton.jit" in f"{error}" or f"{error}".endswith("to tensor"):
            raise Wrong(
                "tl.minimum and its kin work in a kernel alone, and Python calls this function, too: use //, %, * and min"
            ) from None
        if "KernelInteger" in f"{error}":
            raise Wrong("this works in Python only: use //, %, * and min") from None
        raise
    parts = tuple(getattr(part, "value", part) for part in (result if isinstance(result, tuple | list) else (result,)))
    return parts if isinstance(result, tuple | list) else parts[0]


def inputs():
    def order(tiles_m, tiles_n, group, otherwise="", **options):
        for pid in range(tiles_m * tiles_n):
            yield case(pid, tiles_m, tiles_n, group, otherwise=otherwise, **options)

    yield from order(4, 3, 2)
    yield from order(2, 3, 1, "group = 1 is row order")
    yield from order(3, 2, 2, edge="last_band")
    yield from order(5, 3, 3, edge="last_band")
    yield from order(2, 3, 8, "then the only band has tiles_m rows", edge="large_group")
    for _ in range(6):
        bands, tiles_n, group = (random.randint(1, high) for high in (3, 6, 4))
        yield from order(bands * group, tiles_n, group, on="a random case of whole bands", fresh=True)
        if group > 1:
            yield from order(bands * group + 1, tiles_n, group, on="a random case whose last band is shorter", fresh=True, edge="last_band")


def refused(answer):
    """What Python takes and Triton's compiler doesn't, where `group` is a tl.constexpr."""
    group = answer.__code__.co_varnames[3]
    for node in ast.walk(ast.parse(source_of(answer))):
        stored = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        if isinstance(node, ast.If | ast.While) and group in stored:
            return f"Triton's compiler refuses it: `{group}` is a constant in the kernel, so no `if` may assign to it; take another name"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max") and len(node.args) == 1:
            return "Triton's compiler refuses it: in a kernel min takes two numbers, not a list of them"
    return ""


EXERCISE = Exercise(
    task="Return the tile (tile_m, tile_n) that program `pid` computes in this order.",
    conditions=CONDITIONS,
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
    adapt=adapt,
    refused=refused,
)
