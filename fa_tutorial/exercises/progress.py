"""Which exercises the reader has solved: one small JSON file, outside the repository."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

STATE_VARIABLE = "FA_TUTORIAL_STATE"


def state_file() -> Path:
    """Where progress is kept: $FA_TUTORIAL_STATE, or the user's state folder, or where there is no home the folder for temporary files."""
    if folder := os.environ.get(STATE_VARIABLE):
        return Path(folder) / "progress.json"
    if state_home := os.environ.get("XDG_STATE_HOME"):
        return Path(state_home) / "fa_tutorial" / "progress.json"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a name and a home, as in some containers
        return Path(tempfile.gettempdir()) / f"fa_tutorial-{os.getuid()}" / "progress.json"
    return home / ".local" / "state" / "fa_tutorial" / "progress.json"


def load() -> dict[str, str]:
    """Status by exercise id, "correct" or "wrong"; empty where nothing was tried, or the file cannot be read. What else it holds is left
    out."""
    try:
        state = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return {}
    return {key: status for key, status in state.items() if status in ("correct", "wrong")} if isinstance(state, dict) else {}


def record(exercise_id: str, status: str) -> None:
    """Keep a verdict. What was once correct stays so; a folder that cannot be written loses progress, never an answer."""
    state = load()
    if status == "not attempted" or state.get(exercise_id) in ("correct", status):
        return
    state[exercise_id] = status
    target = state_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written whole beside the file, then moved: an interruption leaves the old file or the new one.
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".json", delete=False) as file:
            json.dump(state, file, indent=1, sort_keys=True)
        os.replace(file.name, target)
    except OSError as error:
        print(f"(progress could not be kept in {target}: {error.strerror})")
