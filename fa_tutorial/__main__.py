"""The command line: `python -m fa_tutorial doctor`, `python -m fa_tutorial progress` and `python -m fa_tutorial bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Shows the whole help with an error, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.print_help(sys.stderr)
        self.exit(2, f"\n{message}\n")


def parser() -> Parser:
    """Each command sets `run`, a function of the parsed options that imports what it needs and returns the exit status."""
    top = Parser(prog="python -m fa_tutorial", description="FlashAttention, derived and built: a course.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "what this machine can run, and what is wrong with the installation; exit status 1 where something is broken"
    commands.add_parser("doctor", help=text, description=text).set_defaults(run=_doctor)
    text = "which exercises are done"
    commands.add_parser("progress", help=text, description=text).set_defaults(run=_progress)
    _add_bench(commands)
    return top


def _add_bench(commands: argparse._SubParsersAction) -> None:
    """`bench` measures one case; `bench sweep`, `bench plot` and `bench table` work with a file of results."""
    text = "speed and memory of one case, beside the peers (needs a GPU); sweep measures a grid, plot and table show stored results"
    case = commands.add_parser("bench", help="speed and memory, measured or stored", description=text)
    case.set_defaults(run=_bench_case)
    case.add_argument("--seq-len", type=int, default=4096, metavar="S", help="queries and keys of a head (default: 4096)")
    case.add_argument("--batch-size", type=int, default=4, metavar="B", help="default: 4")
    case.add_argument("--num-heads", type=int, default=16, metavar="H", help="default: 16")
    case.add_argument("--kv-heads", type=int, metavar="H_K", help="key heads of grouped-query attention (default: as many as heads)")
    case.add_argument("--head-dim", type=int, default=128, metavar="D", help="default: 128")
    case.add_argument("--causal", action="store_true", help="query i sees keys 0 to i")
    case.add_argument("--dtype", default="fp16", help="fp16, bf16 or fp32 (default: fp16)")
    case.add_argument("--mode", default="fwd", help="fwd, bwd or fwd_bwd (default: fwd)")
    _add_names(
        case, "--providers", "what is measured: peers, basic, tuned, hopper, and the steps of chapters 8 and 9 (default: all but the steps)"
    )

    inner = case.add_subparsers(title="with a file of results", metavar="COMMAND")
    text = "measure a grid into a file of results; rows that it holds are not measured again, so that an interrupted sweep can go on"
    sweep = inner.add_parser("sweep", help=text.partition(";")[0], description=text)
    sweep.set_defaults(run=_bench_sweep)
    _add_file_and_grid(sweep, "file to write (default: the package's own file for this GPU)")
    _add_names(sweep, "--providers", "as for bench")
    _add_names(sweep, "--modes", "default: the grid's")
    _add_names(sweep, "--dtypes", "default: the grid's")

    plot = inner.add_parser("plot", help="draw TFLOP/s against S", description="draw TFLOP/s against S, a file for each mode and dtype")
    plot.set_defaults(run=_bench_plot)
    _add_file_and_grid(plot, "file to read (default: the stored results of an H200)")
    plot.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNG files (default: the current one)")

    table = inner.add_parser(
        "table", help="print the comparison in Markdown", description="print the comparison with each peer in Markdown"
    )
    table.set_defaults(run=_bench_table)
    _add_file_and_grid(table, "file to read (default: the stored results of an H200)")
    table.add_argument("--of", default="tuned", metavar="PROVIDER", help="what is compared with the others (default: tuned)")


def _add_names(command: argparse.ArgumentParser, option: str, text: str) -> None:
    command.add_argument(option, nargs="+", metavar="NAME", help=text)


def _add_file_and_grid(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--file", type=Path, metavar="FILE", help=text)
    command.add_argument("--grid", default="literature", help="literature, small or points (default: literature)")


def _doctor(options: argparse.Namespace) -> int:
    from fa_tutorial import doctor

    return doctor.main()


def _progress(options: argparse.Namespace) -> int:
    from fa_tutorial.exercises import progress

    progress()
    return 0


def _bench_case(options: argparse.Namespace) -> int:
    if not _can_measure():
        return 1
    from fa_tutorial.bench import cases, measure, sweep, tables

    heads = options.num_heads
    kv_heads = heads if options.kv_heads is None else options.kv_heads
    try:
        shape = cases.Shape(options.batch_size, heads, kv_heads, options.seq_len, options.seq_len, options.head_dim, options.causal)
        names = options.providers or list(cases.LABELS)
        asked = [measure.check(cases.Case(name, options.mode, options.dtype, shape)) for name in names]
    except ValueError as error:
        return _refused(error)
    failed = False
    print(tables.case_head())
    for case in asked:
        try:
            print(tables.case_line(case.about() | measure.measure(case)), flush=True)
        except Exception as error:  # a peer that breaks leaves the others to be measured
            failed = True
            print(f"{case.provider}: {sweep.error_in_words(error)}", file=sys.stderr)
    return int(failed)


def _bench_sweep(options: argparse.Namespace) -> int:
    if not _can_measure():
        return 1
    import torch

    from fa_tutorial.bench import cases, results, sweep

    path = options.file or results.path_here()
    try:
        failed = sweep.sweep(path, cases.grid(options.grid), options.providers or list(cases.LABELS), options.modes, options.dtypes)
    except ValueError as error:
        return _refused(error)
    except KeyboardInterrupt:
        print(f"\nStopped. {path} holds every finished row; the same command goes on from there.", file=sys.stderr)
        return 130
    except torch.AcceleratorError:
        print(f"Nothing runs on the GPU after this error in this process. {path} holds every finished row.", file=sys.stderr)
        return 1
    print(f"{path}: {len(failed)} failed" if failed else f"{path}: complete")
    return int(bool(failed))


def _bench_plot(options: argparse.Namespace) -> int:
    import matplotlib

    from fa_tutorial import figures
    from fa_tutorial.bench import cases, plots

    try:
        grid, stored = cases.grid(options.grid), _stored(options)
        curves = cases.curves(stored["rows"], grid)
    except ValueError as error:
        return _refused(error)
    options.out.mkdir(parents=True, exist_ok=True)
    for dtype, mode in curves:
        path = options.out / f"bench_{options.grid}_{dtype}_{mode}.png"
        with matplotlib.rc_context():
            figures.style()
            plots.draw(stored["rows"], grid, mode, dtype, stored["provenance"]["gpu"]).savefig(path, dpi=150)
        print(path)
    return 0


def _bench_table(options: argparse.Namespace) -> int:
    from fa_tutorial.arguments import check_name
    from fa_tutorial.bench import cases, tables

    try:
        grid, stored = cases.grid(options.grid), _stored(options)
        curves = cases.curves(stored["rows"], grid)
        check_name("--of", options.of, sorted({row["provider"] for row in stored["rows"]}))
        parts = [f"{tables.source(stored['provenance'])}; {grid.about}."]
        for dtype, mode in curves:
            parts.append(tables.comparison_table(stored["rows"], grid, mode, dtype, options.of))
            parts.append(f"TFLOP/s, {cases.MODES[mode]}, {dtype}:\n\n{tables.tflops_table(stored['rows'], grid, mode, dtype)}")
    except ValueError as error:
        return _refused(error)
    print("\n\n".join(parts))
    return 0


def _can_measure() -> bool:
    """True where there is a GPU to measure; else says that there is none."""
    from fa_tutorial.bench import timing

    try:
        timing.require_gpu()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _stored(options: argparse.Namespace) -> dict[str, Any]:
    """The results that were asked for; ValueError for a file without them."""
    from fa_tutorial.bench import cases, results

    if not options.file:
        return results.load()
    stored = results.read(options.file)
    cases.check_rows(stored["rows"], options.file)
    for field in ("gpu", "torch", "triton", "date"):
        if not isinstance(stored["provenance"].get(field), str):
            raise ValueError(f"{options.file} does not say in its provenance what {field} its rows are from")
    return stored


def _refused(error: ValueError) -> int:
    print(error, file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, sys.argv's unless given, and return its exit status."""
    options = parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # somebody has read enough: `… | head`. What Python still holds for the pipe must not raise once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"{error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
