"""The command line: `python -m fa_tutorial doctor` and `python -m fa_tutorial progress`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn


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
    return top


def _doctor(options: argparse.Namespace) -> int:
    from fa_tutorial import doctor

    return doctor.main()


def _progress(options: argparse.Namespace) -> int:
    from fa_tutorial.exercises import progress

    progress()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, sys.argv's unless given, and return its exit status."""
    options = parser().parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
