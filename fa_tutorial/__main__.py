"""The command line: `python -m fa_tutorial` says what there is."""

import argparse
import importlib
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType

import fa_tutorial
from fa_tutorial.bench.cases import DTYPES, GRIDS, LABELS, MODES, Case, Shape

WHAT_ELSE = """in a clone:
  make help                                  list what else it can do
  CONTRIBUTING.md                            the tools: measure what the chapters show, compile for other GPUs

in Python:
  from fa_tutorial import flash_attention    the kernels, for your own tensors
  from fa_tutorial.exercises import check    the exercises: check, hint, solution, answer, progress
"""


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parser() -> argparse.ArgumentParser:
    """Each command sets `run`, a function of the parsed options that imports what it needs and returns the exit status,
    0 where it returns nothing. Its docstring is what --help says, unless a text is given."""

    def command(within: argparse._SubParsersAction, name: str, run, text: str = "") -> argparse.ArgumentParser:
        text = " ".join((text or run.__doc__).split())
        made = within.add_parser(name, help=text, description=text, formatter_class=Formatter)
        made.set_defaults(run=run, passes_on=name == "lab")
        return made

    def module(name: str) -> ModuleType:
        return importlib.import_module(f"fa_tutorial.{name}")

    def sizes(of: argparse.ArgumentParser, **options: tuple[int | None, str, str]) -> None:
        for name, (default, metavar, text) in options.items():
            of.add_argument("--" + name.replace("_", "-"), type=int, default=default, metavar=metavar, help=text)

    top = argparse.ArgumentParser("python -m fa_tutorial", formatter_class=argparse.RawDescriptionHelpFormatter)
    top.description, top.epilog = "FlashAttention, derived and built: a course in Jupyter notebooks.", WHAT_ELSE
    top.add_argument("--version", action="version", version=fa_tutorial.__version__)
    top.set_defaults(run=lambda options: top.print_help(), passes_on=False)
    commands = top.add_subparsers(title="commands")

    command(commands, "doctor", _doctor)
    progress = command(
        commands, "progress", lambda its: module("exercises").progress(its.chapter), "which exercises are done"
    )
    progress.add_argument("chapter", nargs="?", type=int, help="this chapter's alone")
    text = """copy the notebooks into work/, where you solve them, and open the first in JupyterLab; JupyterLab's own
        arguments are passed on, such as --no-browser --port=8889"""
    command(commands, "lab", lambda its: module("work").lab(its.others), text)
    text = """your copies of the notebooks, in work/; without a command of its own: copy those that are missing, and say
        which chapters are newer"""
    work = command(commands, "work", lambda its: module("work").fill(), text)
    copies, chapters = work.add_subparsers(title="with your copies"), {"type": int, "metavar": "CHAPTER"}
    text = "take the course's chapter as it is now; your copy stays, under a dated name"
    take = command(copies, "take", lambda its: module("work").take(its.chapters), text)
    take.add_argument("chapters", nargs="+", **chapters, help="a chapter's number")
    text = "run your copies, and print what their checks say; status 1 where an answer is wrong or a cell raises"
    check = command(copies, "check", lambda its: int(not module("work").check(its.chapters)), text)
    check.add_argument("chapters", nargs="*", **chapters, help="a chapter's number; every copy, if none is named")

    ring = command(commands, "ring", _ring)
    sizes(
        ring,
        ranks=(4, "RANKS", "processes; each gets a GPU of its own where there are enough"),
        seq_len=(256, "S", "tokens of all ranks together, a multiple of 2 · ranks"),
        num_heads=(4, "H", "query heads"),
        kv_heads=(2, "H_K", "key heads"),
        head_dim=(32, "D", "size of a head"),
    )
    ring.add_argument("--full", action="store_true", help="without the causal mask")

    case = command(commands, "bench", _bench)
    sizes(
        case,
        seq_len=(4096, "S", "queries and keys of a head"),
        batch_size=(4, "B", "sequences"),
        num_heads=(16, "H", "query heads"),
        kv_heads=(None, "H_K", "key heads of grouped-query attention, if fewer"),
        head_dim=(128, "D", "size of a head"),
    )
    case.add_argument("--causal", action="store_true", help="query i sees keys 0 to i")
    case.add_argument("--dtype", default="fp16", choices=DTYPES, help="of every tensor")
    case.add_argument("--mode", default="fwd", choices=MODES, help="what is timed")
    files = case.add_subparsers(title="with a file of results")
    runs = {"sweep": _bench_sweep, "plot": _bench_plot, "table": _bench_table}
    sweep, plot, table = (command(files, name, run) for name, run in runs.items())
    sweep.add_argument("--modes", nargs="+", choices=MODES, help="what is timed, if not what the grid names")
    sweep.add_argument("--dtypes", nargs="+", choices=DTYPES, help="of every tensor, if not those that the grid names")
    text = "results to write and to go on from, if not the GPU's name and .json, in this folder"
    sweep.add_argument("--file", type=Path, help=text)
    plot.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNG files")
    text = "compare this one, and show TFLOP/s at every point, instead of the summary"
    table.add_argument("--of", choices=list(LABELS), help=text)
    for measuring in (case, sweep):
        text = "peers, and the course's kernels"
        measuring.add_argument("--providers", nargs="+", default=[*LABELS], choices=LABELS, metavar="NAME", help=text)
    for reading in (plot, table):
        text = "a JSON file, or a stored card's name such as h200; all that are stored, if none is named"
        reading.add_argument("results", nargs="*", type=_results, metavar="RESULTS", help=text)
    for stored in (sweep, plot, table):
        stored.add_argument("--grid", default="literature", choices=GRIDS, help="the shapes")
    return top


def _results(name: str) -> str | Path:
    return Path(name) if name.endswith(".json") else name


def _doctor(options: Namespace) -> int:
    """what this machine can run, and what is wrong with the installation; status 1 where something is broken"""
    needed = {line for course in metadata.distributions(name="fa_tutorial") for line in course.requires}
    # A line with a marker is an extra's, or Triton's, which has findings of its own.
    names = sorted(re.match(r"[\w.-]+", line)[0] for line in needed if ";" not in line)
    if missing := [name for name in names if not any(metadata.distributions(name=name))]:
        print(f"broken  Not installed: {', '.join(missing)}.\n        {fa_tutorial.hardware.HOW_TO_INSTALL}")
        return 1
    from fa_tutorial import doctor  # which imports some of them

    return doctor.main()


def _ring(options: Namespace) -> int:
    """ring attention in processes of this machine, checked against attention in one (chapter 13); status 1 where it is
    wrong"""
    from fa_tutorial.bench import chapter_13

    shape = (1, options.num_heads, options.kv_heads, options.seq_len, options.head_dim)
    return int(not chapter_13.show(options.ranks, shape, not options.full))


def _bench(options: Namespace) -> int:
    """speed and memory of one case, beside the peers (needs a GPU); sweep measures a grid, plot and table show stored
    results"""
    from fa_tutorial.bench import measure, sweep, tables, timing

    timing.require_gpu()
    S, H_q, H_k = options.seq_len, options.num_heads, options.kv_heads
    shape = Shape(options.batch_size, H_q, H_q if H_k is None else H_k, S, S, options.head_dim, options.causal)
    cases = [measure.check(Case(name, options.mode, options.dtype, shape)) for name in options.providers]
    failed = 0
    print(tables.case_head())
    for case in cases:
        try:
            print(tables.case_line(case.about() | measure.measure(case)), flush=True)
        except Exception as error:  # a peer that breaks leaves the others to be measured
            failed = 1
            print(f"{case.provider}: {sweep.error_in_words(error)}", file=sys.stderr)
    return failed


def _bench_sweep(options: Namespace) -> int:
    """measure a grid into a file of results; rows that it holds are not measured again"""
    from fa_tutorial.bench import results, sweep, timing

    timing.require_gpu()
    path = options.file or results.path_here()
    try:
        which = {"modes": options.modes, "dtypes": options.dtypes}
        failed = sweep.sweep(path, GRIDS[options.grid], options.providers, **which)
    except KeyboardInterrupt:
        print(f"\nStopped. {path} holds every finished row; the same command goes on from there.", file=sys.stderr)
        return 130
    print(f"{path}: {len(failed)} failed" if failed else f"{path}: complete")
    return int(bool(failed))


def _bench_plot(options: Namespace) -> None:
    """draw TFLOP/s against S, a file for each mode and dtype; the cards below one another"""
    from fa_tutorial import figures
    from fa_tutorial.bench import plots, results, tables

    grid, cards = GRIDS[options.grid], [results.load(name) for name in options.results] or results.cards()
    parts = dict.fromkeys(part for card in cards for part in tables.parts(card["rows"], grid))
    if options.out.is_file():
        raise ValueError(f"--out takes a folder for the PNG files, and {options.out} is a file")
    options.out.mkdir(parents=True, exist_ok=True)
    figures.style()
    for dtype, mode in parts:
        path = options.out / f"bench_{options.grid}_{dtype}_{mode}.png"
        plots.draw(cards, grid, mode, dtype).savefig(path, dpi=150)
        print(path)


def _bench_table(options: Namespace) -> None:
    """print how many times as fast as its peers the course's kernels are, in Markdown"""
    from fa_tutorial.bench import results, tables

    grid = GRIDS[options.grid]
    for stored in [results.load(name) for name in options.results] or results.cards():
        print(f"{tables.source(stored['provenance'])}; {grid.about}.")
        parts = tables.parts(stored["rows"], grid)
        if options.of is None:
            for dtype in dict.fromkeys(dtype for dtype, mode in parts if mode != "fwd_bwd"):
                print(f"\n{dtype}, how many times as fast: geometric mean (range) of the points where both are stored")
                print(f"\n{tables.speed_table(stored['rows'], grid, dtype)}\n")
            continue
        for dtype, mode in parts:
            print("\n" + tables.comparison_table(stored["rows"], grid, mode, dtype, options.of))
            print(f"\nTFLOP/s, {MODES[mode]}, {dtype}:\n\n{tables.tflops_table(stored['rows'], grid, mode, dtype)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, sys.argv's unless given, and return its exit status."""
    options, others = parser().parse_known_args(arguments)
    if others and not options.passes_on:
        parser().error(f"unrecognized arguments: {' '.join(others)}")
    options.others = others
    try:
        return options.run(options) or 0
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
