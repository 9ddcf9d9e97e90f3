"""What chapter 14 shows of trained models, fully and half trained: each seed's wrong tokens in float32 and in FP8 with
and without its remedies.

Run it on a CPU, where it takes a minute or two a seed.
"""

import argparse
import itertools
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from fa_tutorial import hardware
from fa_tutorial.bench import chapter_14, training
from fa_tutorial.bench.chapter_14 import COPIED, COPIER, FULLY, HALF, REMEDIES, SEEDS


def measure(steps: int, seed: int) -> dict:
    model, few = chapter_14.trained(seed, steps), chapter_14.texts()[:COPIED]
    ways = {"float32": training.ATTENTIONS["sdpa_math"]}
    ways |= {name: chapter_14.in_fp8(*remedy) for name, remedy in REMEDIES.items()}
    row = {"steps": steps, "seed": seed, "tokens": COPIED * COPIER.half}
    return row | {name: chapter_14.wrong_tokens(model, way, few) for name, way in ways.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tools python -m measure.trained_fp8", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    options = parser.parse_args()
    versions = {"torch": torch.__version__, "triton": metadata.version("triton")}
    provenance = {"device": hardware.device().type, "machine": platform.machine()} | versions
    rows = []
    for steps, seed in itertools.product((FULLY, HALF), SEEDS):
        rows.append(measure(steps, seed))
        print(rows[-1], flush=True)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{{"provenance": {json.dumps(provenance)},\n "rows": [\n{lines}\n ]}}\n'
    options.file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
