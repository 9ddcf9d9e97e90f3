"""Exercise 11.6, key_offsets."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def key_offsets(offs_n, table, page_size, page_stride, row_stride):
    """Where keys offs_n of a sequence stand in the cache, in elements.

    offs_n: (n,) positions in the sequence; table: (pages,), the sequence's row of the block table.
    """
    page = table[offs_n // page_size].long()
    row = offs_n % page_size
    return page * page_stride + row * row_stride


PAGE, ROW, PLACE = "table[offs_n // page_size]", "row = offs_n % page_size", "page * page_stride + row * row_stride"
OVERFLOWS = "the offset overflows int32: make the page number int64 before you multiply"
MISTAKES = {
    "the strides are swapped: a page is page_stride long, a row row_stride": (PLACE, "page * row_stride + row * page_stride"),
    "the key's position is taken for its row: its row in the page is position mod page_size": (ROW, "row = offs_n"),
    "the pages are taken in the order of memory: look the page up in the block table": (PAGE, "(offs_n // page_size)"),
    "page and row are swapped: position // page_size counts pages, position mod page_size is the row": [
        (ROW, "row = offs_n // page_size"), (PAGE, "table[offs_n % page_size]")],
    "the block table has an entry for each page, not for each key: divide by page_size first": (PAGE, "table[offs_n]"),
    "every key stands at the beginning of its page: add its row": (PLACE, "page * page_stride"),
    "every key stands in page 0: add the page's offset": (PLACE, "row * row_stride"),
    "rows are taken to be one element long: multiply by row_stride": (PLACE, "page * page_stride + row"),
    "a page is taken to be page_size · row_stride long: its own stride is page_stride, since a page holds all heads": (
        PLACE, "page * page_size * row_stride + row * row_stride"),
    OVERFLOWS: (f"{PAGE}.long()", PAGE),
}  # fmt: skip


def truth(offs_n, table, page_size, page_stride, row_stride):
    return table.double()[offs_n // page_size] * page_stride + offs_n % page_size * row_stride


def tolerance(args, part):
    return 0.0, 0.0


def inputs():
    for key, entry in ((0, 0), (1, 0), (4, 1)):
        rule = f"pages of 4 keys: key {key} is row {key % 4} of page table[{entry}]"
        yield case(torch.tensor([key]), torch.tensor([2, 0 if key < 4 else 1]), 4, 100, 3, otherwise=rule)
    yield case(torch.tensor([5, 0, 6]), torch.tensor([1, 0]), 4, 100, 3, otherwise="keys may come in any order")
    yield case(torch.arange(12), torch.tensor([3, 1, 4]), 4, 100, 3, otherwise="12 keys in three pages, which lie in any order")
    far = torch.tensor([1]), torch.tensor([30_000], dtype=torch.int32)
    yield case(
        *far, 16, 2**17, 128, otherwise="an offset may be larger than 2³¹, so that int32 overflows: make the page number int64 first"
    )
    draw = generator()
    for _ in range(3):
        page_size = int(torch.randint(1, 20, (), generator=draw))
        table = torch.randperm(9, generator=draw)
        yield case(torch.randint(0, 9 * page_size, (7,), generator=draw), table, page_size, 2_000, 7, on="random pages", fresh=True)


EXERCISE = Exercise(
    id="11.6",
    task="Say where a key stands, through the block table.",
    hints=(
        "A page holds page_size keys. In which of the sequence's pages is key n, and in which row of it?",
        "table[offs_n // page_size] is the page's number in the cache, and offs_n % page_size is the row.",
        "Return page · page_stride + row · row_stride, with the page number in int64.",
    ),
    solution=key_offsets,
    reasoning=(
        "The table turns the place of a page in the sequence into its place in memory. Inside a page, keys follow one another as "
        "they always did."
    ),
    more="The package's key_pointers adds the key head and the columns, and loads the table's entries under a mask.",
    inputs=inputs,
    truth=truth,
    rule="key n is row n mod page_size of page table[n // page_size]: at page · page_stride + row · row_stride",
    mistakes=MISTAKES,
    tolerance=tolerance,
)
