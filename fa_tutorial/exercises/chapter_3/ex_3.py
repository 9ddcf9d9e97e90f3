"""Exercise 3.3, grouped_tile."""

import functools
import operator
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong


def grouped_tile(pid, tiles_m, tiles_n, group):
    """The tile (tile_m, tile_n) of program pid, when programs go down bands of `group` rows."""
    band = pid // (group * tiles_n)
    within = pid % (group * tiles_n)
    first_row = band * group
    rows = min(tiles_m - first_row, group)  # the last band may have fewer
    return first_row + within % rows, within // rows


_LAST = "the last band has only the rows that are left"
MISTAKES = {
    "row_order": "`group` changes nothing, this is row order: within a band the row changes fastest",
    "column_order": "each column runs down all of c: a band has only `group` rows of tiles",
    "bands_of_columns": "the bands are made of columns: a band is `group` rows of tiles",
    "exchanged": "tile_m and tile_n are swapped",
    "column_fastest": "within a band // and % are swapped: the row changes fastest",
    "from_row_0": "the band's first row is missing: every band starts at row 0",
    "band_is_row": "the band's number is used as its first row: a band has `group` rows",
    "slash": "a tile's number is not an integer: divide with //",
    "no_min": f"{_LAST}: the last band here has 1 row, not `group`",
    "clamped": f"{_LAST}: clamping tile_m to the last row computes one tile twice and another never",
    "last_in_row_order": "the last band is in row order: the row changes fastest there, too",
}

CONDITIONS = {"last_band": f"{_LAST}, when tiles_m is not a multiple of group", "large_group": "group may be larger than tiles_m"}


def twin(pid, tiles_m, tiles_n, group, mistake=None):
    if mistake == "bands_of_columns":
        return twin(pid, tiles_n, tiles_m, group)[::-1]
    band, within = divmod(pid, group * tiles_n)
    first = {"from_row_0": 0, "band_is_row": band}.get(mistake, band * group)
    rows = group if mistake in ("no_min", "clamped") else min(tiles_m - band * group, group)
    m, n = first + within % rows, within // rows
    is_last = rows < group and mistake == "last_in_row_order"
    return {
        "row_order": divmod(pid, tiles_n),
        "column_order": (pid % tiles_m, pid // tiles_m),
        "exchanged": (n, m),
        "column_fastest": (first + within // rows, within % rows),
        "slash": (m, within / rows),
        "clamped": (min(m, tiles_m - 1), n),
        "last_in_row_order": (first + within // tiles_n, within % tiles_n) if is_last else (m, n),
    }.get(mistake, (m, n))


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


def adapt(answer):
    """The answer called with KernelIntegers, which are plain integers again in what it returns."""

    @functools.wraps(answer)
    def run(*args):
        result = answer(*map(KernelInteger, args))
        parts = tuple(getattr(part, "value", part) for part in (result if isinstance(result, tuple | list) else (result,)))
        return parts if isinstance(result, tuple | list) else parts[0]

    return run


def inputs():
    def order(tiles_m, tiles_n, group, otherwise="", **options):
        for pid in range(tiles_m * tiles_n):
            yield case(pid, tiles_m, tiles_n, group, otherwise=otherwise, **options)

    yield from order(4, 3, 2, "go down the `group` rows of a band, then on to its next column")
    yield from order(2, 3, 1, "group = 1 is row order")
    yield from order(3, 2, 2, edge="last_band")
    yield from order(5, 3, 3, edge="last_band")
    yield from order(2, 3, 8, "then the only band has tiles_m rows", edge="large_group")
    for _ in range(6):
        bands, tiles_n, group = (random.randint(1, high) for high in (3, 6, 4))
        yield from order(bands * group, tiles_n, group, on="a random case of whole bands", fresh=True)
        if group > 1:
            yield from order(bands * group + 1, tiles_n, group, on="a random case whose last band is shorter", fresh=True, edge="last_band")


EXERCISE = Exercise(
    id="3.3",
    task="Return the tile (tile_m, tile_n) that program `pid` computes in this order.",
    conditions=CONDITIONS,
    hints=(
        "Call `group` rows of tiles a band. How many programs does a full band hold? Which band is pid in, and what is its place there?",
        "A full band holds group · tiles_n programs: pid // that is the band, which gives its first row; pid % that is the place within it.",
        "Within a band the place counts down the rows first. How many rows does the last band have, when tiles_m is not a multiple of group?",
    ),
    solution=grouped_tile,
    reasoning="pid // (group · tiles_n) is the band, and pid % (group · tiles_n) is the place within it. A band has min(tiles_m − first_row, group) rows; "
    "dividing the place by that number gives the column, and the remainder gives the row. Only the last band can be shorter, and every band before it is "
    "full, so group · tiles_n is the right divisor for all of them.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
