"""Results of one GPU: a JSON file with its provenance, attention's rows, and the rows of the chapters' own kernels.

{"provenance": {…}, "rows": […], "kernels": […]}. A row of "rows" is one attention case: provider, mode, dtype, B, H_q,
H_k, S_q, S_k, D, is_causal, ms, ms_20, ms_80, tflops, peak_bytes, first_call_s, or "ms": null with a "reason". A row of
"kernels" is one call of a chapter's kernel: chapter, kernel, provider, dtype, its sizes, ms, ms_20, ms_80, and gb_s or
tflops.
"""

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fa_tutorial import hardware

FOLDER = Path(__file__).with_name("results")


def load(gpu: str | Path = "h200") -> dict[str, Any]:
    """The stored results of a GPU, by its file's name, or those in a file: "rows" and "kernels" are DataFrames, where
    null is NaN."""
    path = gpu if isinstance(gpu, Path) else FOLDER / f"{gpu}.json"
    if not path.is_file():
        known = ", ".join(stored.stem for stored in sorted(FOLDER.glob("*.json")))
        raise FileNotFoundError(f"there are no results {gpu}: name a JSON file, or a stored card ({known})")
    stored = read(path)
    return stored | {key: pd.DataFrame(stored[key], dtype=object) for key in ("rows", "kernels")}


def cards() -> list[dict[str, Any]]:
    """The results of every GPU in FOLDER: the H200's first, then the others by their files' names."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"), key=lambda path: (path.stem != "h200", path))]


def read(path: Path) -> dict[str, Any]:
    """The results in a file as they stand there, rows as lists of dicts; ValueError where it holds something else."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {key: stored[key] for key in ("provenance", "rows", "kernels")}
    except (ValueError, TypeError, KeyError):
        wanted = "JSON with provenance, rows and kernels, as bench sweep writes it"
        raise ValueError(f"{path} holds no results: they are {wanted}") from None


def select(rows: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """The rows whose fields equal `wanted`; ValueError if there is none, so that a figure never shows nothing in
    silence."""
    found = rows[(rows.reindex(columns=list(wanted)) == pd.Series(wanted, dtype=object)).all(axis=1)]
    if found.empty:
        raise ValueError(f"no stored row has {wanted}")
    return found.infer_objects()


def path_here() -> Path:
    """Where a sweep of this machine's GPU writes, in the current folder: geforce_rtx_5060_ti.json, say."""
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    return Path(f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.json")


def save(path: Path, results: dict[str, Any]) -> None:
    """Write `results` whole, or leave what was there: an interruption loses no finished row. A row stands on one line,
    so that a change of one row is one line of a diff."""
    parts = []
    for key, value in results.items():
        lines = ",\n".join("  " + json.dumps(row) for row in value) if isinstance(value, list) else ""
        parts.append(f'"{key}": [\n{lines}\n ]' if lines else f'"{key}": {json.dumps(value, indent=2)}')
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("{\n " + ",\n ".join(parts) + "\n}\n")
    os.replace(part, path)


def provenance() -> dict[str, Any]:
    """What a number depends on: GPU, its clocks, driver, versions, date."""
    import triton

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "clocks": hardware.nvidia_smi("clocks.max.sm,clocks.max.mem"),
        "driver": hardware.nvidia_smi("driver_version"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
