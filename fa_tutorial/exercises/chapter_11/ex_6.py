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


MISTAKES = {
    "position": "the key's position is taken for its row: its row in the page is position mod page_size",
    "in_order": "the pages are taken in the order of memory: look the page up in the block table",
    "swapped": "page and row are swapped: position // page_size counts pages, position mod page_size is the row",
    "table_by_key": "the block table has an entry for each page, not for each key: divide by page_size first",
    "no_row": "every key stands at the beginning of its page: add its row",
    "no_page": "every key stands in page 0: add the page's offset",
    "row_stride": "rows are taken to be one element long: multiply by row_stride",
    "page_of_rows": "a page is taken to be page_size · row_stride long: its own stride is page_stride, since a page holds all heads",
}


def twin(offs_n, table, page_size, page_stride, row_stride, mistake=None):
    offs_n, table = offs_n.long(), table.long()
    place, row = offs_n // page_size, offs_n % page_size
    if mistake == "swapped":
        place, row = row, place
    if mistake == "table_by_key":
        place = offs_n
    page = place if mistake == "in_order" else table[place]
    page = page * {"no_page": 0, "page_of_rows": page_size * row_stride}.get(mistake, page_stride)
    row = {"position": offs_n, "no_row": 0 * row}.get(mistake, row)
    return page + row * (1 if mistake == "row_stride" else row_stride)


def tolerance(args, part):
    return 0.0, 0.0


def inputs():
    yield case(torch.tensor([0]), torch.tensor([2, 0]), 4, 100, 3, otherwise="key 0 is row 0 of page table[0]")
    yield case(torch.tensor([1]), torch.tensor([2, 0]), 4, 100, 3, otherwise="key 1 is row 1 of page table[0]")
    yield case(torch.tensor([4]), torch.tensor([2, 1]), 4, 100, 3, otherwise="pages of 4 keys: key 4 is row 0 of page table[1]")
    yield case(torch.tensor([5, 0, 6]), torch.tensor([1, 0]), 4, 100, 3, otherwise="keys may come in any order")
    yield case(torch.arange(12), torch.tensor([3, 1, 4]), 4, 100, 3, otherwise="12 keys in three pages")
    yield case(
        torch.tensor([1]),
        torch.tensor([30_000], dtype=torch.int32),
        16,
        2**17,
        128,
        otherwise="the offset overflows int32: make the page number int64 before you multiply",
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
    reasoning="The table turns the place of a page in the sequence into its place in memory. Inside a page, keys follow one another as they always did.",
    more="The package's key_pointers adds the key head and the columns, and loads the table's entries under a mask.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
)
