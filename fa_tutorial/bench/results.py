"""Results of one GPU: a JSON file with its provenance, attention's rows, and the rows of the chapters' own kernels.

{"provenance": {…}, "rows": […], "kernels": […]}. A row of "rows" is one attention case: provider, mode, dtype, B, H_q, H_k, S_q,
S_k, D, is_causal, ms, ms_20, ms_80, tflops, peak_bytes, or "ms": null with a "reason". A row of "kernels" is one call of a chapter's
kernel: chapter, kernel, provider, dtype, its sizes, ms, ms_20, ms_80, and gb_s or tflops.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import torch


def load(gpu: str = "h200") -> dict[str, Any]:
    """The stored results of a GPU, by its file's name; ValueError that lists what is stored otherwise."""
    folder = resources.files("fa_tutorial.bench") / "results"
    stored = {entry.name.removesuffix(".json"): entry for entry in folder.iterdir() if entry.name.endswith(".json")}
    if gpu not in stored:
        raise ValueError(f"no stored results for {gpu!r}; stored: {', '.join(sorted(stored))}")
    return json.loads(stored[gpu].read_text())


def select(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The rows whose fields equal `wanted`; ValueError if there is none, so that a figure never shows nothing in silence."""
    found = [row for row in rows if all(row.get(field) == value for field, value in wanted.items())]
    if not found:
        raise ValueError(f"no stored row has {wanted}")
    return found


def save(path: Path, results: dict[str, Any]) -> None:
    """Write `results` whole, or leave what was there: an interruption loses no finished row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False) as file:
        file.write(dumps(results))
    os.replace(file.name, path)


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
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
        "clocks": _nvidia_smi("clocks.max.sm,clocks.max.mem"),
        "driver": _nvidia_smi("driver_version"),
        "cuda": torch.version.cuda,
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
