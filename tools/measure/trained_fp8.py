"""What chapter 14 shows of trained models: each seed's wrong tokens in float32 and in FP8 with and without its
remedies.

Run it on a CPU, where it takes a minute or two a seed.
"""

import argparse
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from fa_tutorial import hardware
from fa_tutorial.bench import chapter_14, results, training
from fa_tutorial.bench.chapter_14 import COPIED, COPIER, REMEDIES, SEEDS


def measure(seed: int) -> dict:
    model, few = chapter_14.trained(seed), chapter_14.texts()[:COPIED]
    ways = {"float32": training.ATTENTIONS["sdpa_math"]}
    ways |= {name: chapter_14.in_fp8(*remedy) for name, remedy in REMEDIES.items()}
    row = {"seed": seed, "tokens": COPIED * COPIER.half}
    return row | {name: chapter_14.wrong_tokens(model, way, few) for name, way in ways.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tools python -m measure.trained_fp8", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    options = parser.parse_args()
    versions = {"torch": torch.__version__, "triton": metadata.version("triton")}
    provenance = {"device": hardware.device().type, "machine": platform.machine()} | versions
    rows = []
    for seed in SEEDS:
        rows.append(measure(seed))
        print(rows[-1], flush=True)
    results.save(options.file, {"provenance": provenance, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
