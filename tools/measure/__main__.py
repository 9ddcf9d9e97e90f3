"""Measure what the chapters show of a GPU, all but the sweep of attention, into a file of results.

Writes after every row. Rows that stand in the file already are kept, so an interrupted run goes on where it stopped.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fa_tutorial.bench.sweep import Measurement, opened, run
from fa_tutorial.bench.timing import require_gpu
from measure import (
    chapter_8,
    chapter_9,
    chapter_10,
    chapter_11,
    chapter_12,
    chapter_14,
    chapters_0_to_7,
    matmul_pieces,
)

Cases = Callable[[], Iterator[Measurement]]
# Chapter -> its measurements: "rows" are cases of attention, "kernels" calls of a chapter's own kernels. Those of
# chapters 5 and 7 draw on chapter 0's cases of attention, too.
MEASURED: dict[int, dict[str, Sequence[Cases]]] = {
    0: {
        "rows": [chapters_0_to_7.attention_cases],
        "kernels": [chapters_0_to_7.naive_step_cases, chapters_0_to_7.naive_traffic_cases],
    },
    2: {"kernels": [chapters_0_to_7.first_kernel_cases]},
    3: {"kernels": [chapters_0_to_7.matmul_cases, matmul_pieces.piece_cases, chapters_0_to_7.fusion_cases]},
    5: {"kernels": [chapters_0_to_7.loop_cases, chapters_0_to_7.forward_tile_cases]},
    6: {"kernels": [chapters_0_to_7.naive_backward_cases]},
    7: {
        "kernels": [
            chapters_0_to_7.transposed_cases,
            chapters_0_to_7.one_loop_cases,
            chapters_0_to_7.masked_loop_cases,
            chapters_0_to_7.gradient_error_cases,
        ]
    },
    8: {"kernels": [chapter_8.kernels_cases]},
    9: {"rows": [chapter_9.speed_cases], "kernels": [chapter_9.kernels_cases]},
    10: {"kernels": [chapter_10.kernels_cases]},
    11: {"kernels": [chapter_11.kernels_cases]},
    12: {"kernels": [chapter_12.kernels_cases]},
    14: {"kernels": [chapter_14.kernels_cases]},
}


def measurements(chapter: int, key: str) -> list[Measurement]:
    """Those of a chapter that `key`, "rows" or "kernels", holds."""
    return [measurement for cases in MEASURED[chapter].get(key, ()) for measurement in cases()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a measurement failed, 130 where it was interrupted."""
    words = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tools python -m measure", **words)
    parser.add_argument("file", type=Path, help="JSON file to write; rows that it holds are kept")
    parser.add_argument(
        "--chapters", type=int, nargs="+", choices=MEASURED, default=list(MEASURED), metavar="N", help="these alone"
    )
    options = parser.parse_args(arguments)
    failed = []
    try:
        require_gpu()
        kept = opened(options.file)
        for chapter in options.chapters:
            for key in MEASURED[chapter]:
                failed += run(options.file, kept, key, measurements(chapter, key))
    except KeyboardInterrupt:
        print(
            f"\nStopped. {options.file} holds every finished row; the same command goes on from there.", file=sys.stderr
        )
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.file}: {len(failed)} failed" if failed else f"{options.file}: complete")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
