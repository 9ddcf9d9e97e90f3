import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import LargestTensor


def window_kinds(left, S, block_m, block_n):
    """(S / block_m, S / block_n) integers: 0 for each tile that is skipped, 1 for mixed, 2 for whole."""
    top = block_m * torch.arange(S // block_m)[:, None]
    start = block_n * torch.arange(S // block_n)
    nearest = start + block_n - 1 - top  # distance j − i of the last key and the first query
    farthest = start - (top + block_m - 1)  # of the first key and the last query
    is_needed = (farthest <= 0) & (nearest >= -left)
    is_whole = (nearest <= 0) & (farthest >= -left)
    return is_needed.int() + is_whole.int()


NEEDED, WHOLE = "(farthest <= 0) & (nearest >= -left)", "(nearest <= 0) & (farthest >= -left)"
MISTAKES = {
    "the corners of the other diagonal decide: within a tile j − i is largest at the last key and the first query, and least at the first "
    "key and the last query": [("start + block_n - 1 - top", "start - top"),
                               ("start - (top + block_m - 1)", "start + block_n - 1 - (top + block_m - 1)")],
    "a tile counts as whole because the window reaches back far enough: its last key must not lie ahead of its first query either": (
        WHOLE, "farthest >= -left"),
    "a tile counts as whole because it lies in the past: its first key may be too far back for its last query": (WHOLE, "nearest <= 0"),
    "these are the causal mask's kinds, without a window: a key more than `left` before its query is hidden": [
        (NEEDED, "farthest <= 0"), (WHOLE, "nearest <= 0")],
    "a tile is skipped where its first key comes after its first query: a later query of the tile may still see it": (
        NEEDED, "(start <= top) & (nearest >= -left)"),
    "a tile is skipped where one corner is hidden: it is needed as soon as one of its pairs is seen": (NEEDED, WHOLE),
}  # fmt: skip


def truth(left, S, block_m, block_n):
    distance = torch.arange(S) - torch.arange(S)[:, None]
    seen = ((distance <= 0) & (distance >= -left)).view(S // block_m, block_m, S // block_n, block_n)
    return seen.any(3).any(1).double() + seen.all(3).all(1).double()


class Counted(int):
    """A number that counts in `uses` how often it, or what was computed from it, meets another number."""

    uses = 0


def _counting(name):
    def method(self, *other):
        Counted.uses += 1
        result = getattr(int, name)(self, *other)
        return Counted(result) if type(result) is int else result

    return method


for _name in ("neg", "add", "radd", "sub", "rsub", "lt", "le", "gt", "ge"):
    setattr(Counted, f"__{_name}__", _counting(f"__{_name}__"))


class NoPairs(LargestTensor):
    """No tensor as large as a tile of pairs comes up, and no loop compares pair by pair."""

    def __init__(self, left, S, block_m, block_n):
        super().__init__()
        self.pairs, Counted.uses = block_m * block_n, 0
        self.few = 32 * (S // block_m) * (S // block_n)  # a loop over tiles uses `left` a few times at each of a tile's corners

    def complaint(self, result):
        told = "the kinds are right, but they come from single pairs: two corners decide a tile"
        return told if self.pairs > self.few and max(self.largest, Counted.uses) > self.few else ""


def inputs():
    def window(*args, otherwise="", **options):
        left, S, block_m, block_n = args
        on = f"a window of {left} key{'s' * (left != 1)} and the query's own, S = {S}, tiles of {block_m} × {block_n}"
        return case(Counted(left), *args[1:], on=on, otherwise=otherwise, **options)

    yield window(9, 8, 2, 2)
    ends = "a tile is needed only if its last key lies at most `left` before its first query, and whole only if its first key lies so before its last"
    yield window(2, 8, 2, 2, otherwise=ends)
    yield window(5, 16, 2, 2, otherwise=ends)
    yield window(1, 4, 1, 1, otherwise="pairs at distances 0 and −left are seen")
    yield window(4, 8, 4, 1, otherwise="a tile may hold more queries than keys: it has block_m queries, and block_n keys")
    yield window(0, 16, 8, 2, otherwise="a window may be narrower than a tile: then no tile is whole, and the diagonal's are needed")
    yield window(1, 64, 32, 16)
    yield window(int(torch.randint(40, (), generator=generator())), 32, 4, 8, fresh=True)


EXERCISE = Exercise(
    task="Say of each tile of a causal window whether it is skipped, mixed or whole, without looking at a pair.",
    hints=(
        "Within a tile j − i runs from a least to a largest value. At which two corners?",
        "A tile is needed if its distances and the window's, −left … 0, have any in common: the least is at most 0, the largest at least −left.",
        "It is whole if all its distances are in −left … 0: the largest is at most 0, and the least at least −left.",
    ),
    solution=window_kinds,
    reasoning="A tile's distances j − i are all the integers from its first key and last query to its last key and first query. The tile is "
    "needed if this range meets −left … 0, and whole if it lies in it.",
    more="The package decides tiles of a padding mask this way, in ask_keys; for any other mask it asks about every pair.",
    inputs=inputs,
    truth=truth,
    rule="queries go down, keys across, and a pair is seen where −left ≤ j − i ≤ 0: a tile's kind is 0 where none of its pairs is, 2 where all are, and 1 otherwise, from its first key to its first + block_n − 1, and "
    "from its first query to its first + block_m − 1",
    mistakes=MISTAKES,
    watch=NoPairs,
)
