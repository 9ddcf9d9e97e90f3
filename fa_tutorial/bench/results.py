"""Results of one GPU: a JSON file with its provenance, attention's rows, and the rows of the chapters' own kernels.

{"provenance": {…}, "rows": […], "kernels": […]}. A row of "rows" is one attention case: provider, mode, dtype, B, H_q, H_k, S_q,
S_k, D, is_causal, ms, ms_20, ms_80, tflops, peak_bytes, first_call_s, or "ms": null with a "reason". A row of "kernels" is one call of
a chapter's kernel: chapter, kernel, provider, dtype, its sizes, ms, ms_20, ms_80, and gb_s or tflops.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import torch

FOLDER = resources.files("fa_tutorial.bench") / "results"


def load(gpu: str = "h200") -> dict[str, Any]:
    """The stored results of a GPU, by its file's name; ValueError that lists what is stored otherwise."""
    stored = {entry.name.removesuffix(".json"): entry for entry in FOLDER.iterdir() if entry.name.endswith(".json")}
    if gpu not in stored:
        raise ValueError(f"no stored results for {gpu!r}; stored: {', '.join(sorted(stored))}")
    return json.loads(stored[gpu].read_text())


def read(path: Path) -> dict[str, Any]:
    """The results in a file; ValueError where there is no such file, or it holds something else."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except ValueError as error:  # of JSON, or of UTF-8
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(stored, dict) or not {"provenance", "rows"} <= stored.keys():
        raise ValueError(f'{path} holds no results: "provenance" and "rows" are missing')
    if not isinstance(stored["provenance"], dict) or not all(_holds_rows(stored, key) for key in ("rows", "kernels")):
        raise ValueError(f'{path} holds no results: "provenance" must be an object, "rows" and "kernels" lists of objects')
    return stored


def _holds_rows(stored: dict[str, Any], key: str) -> bool:
    rows = stored.get(key, [])
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def path_here() -> Path:
    """Where the results of this machine's GPU are kept: FOLDER/h200.json for an NVIDIA H200."""
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    return Path(str(FOLDER)) / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.json"


def select(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The rows whose fields equal `wanted`; ValueError if there is none, so that a figure never shows nothing in silence."""
    found = [row for row in rows if all(row.get(field) == value for field, value in wanted.items())]
    if not found:
        raise ValueError(f"no stored row has {wanted}")
    return found


def save(path: Path, results: dict[str, Any]) -> None:
    """Write `results` whole, or leave what was there: an interruption loses no finished row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(dumps(results))
    os.replace(part, path)


def dumps(results: dict[str, Any]) -> str:
    """JSON with one row a line, so that a change of one row is one line of a diff."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(row) for row in value)
            parts.append(f'"{key}": [\n{lines}\n ]' if value else f'"{key}": []')
        else:
            parts.append(f'"{key}": {json.dumps(value, indent=2)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def provenance() -> dict[str, Any]:
    """What a number depends on: GPU, its clocks, driver, versions, date."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "multiprocessors": torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count,
        "memory_bytes": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory,
        "clocks": _nvidia_smi("clocks.max.sm,clocks.max.mem"),
        "driver": _nvidia_smi("driver_version"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _nvidia_smi(query: str) -> str | None:
    try:
        answer = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.splitlines()[0].strip()
