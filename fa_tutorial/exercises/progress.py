"""Which exercises the reader has solved: one small JSON file, outside the repository."""

import json
import os
import sys
import tempfile
from pathlib import Path

import platformdirs

STATE_VARIABLE = "FA_TUTORIAL_STATE"


def state_file() -> Path:
    """Where progress is kept: in $FA_TUTORIAL_STATE, or in the user's state folder."""
    return Path(os.environ.get(STATE_VARIABLE) or platformdirs.user_state_dir("fa_tutorial")) / "progress.json"


def load() -> dict[str, str]:
    """Status by exercise id, "correct" or "wrong", and nothing else; empty where nothing was tried, or the file cannot be read."""
    try:
        state = json.loads(state_file().read_text())
    except OSError:
        return {}
    except ValueError:
        print(f"({state_file()} is damaged, so progress starts anew: the next check writes the file again)")
        return {}
    return {key: status for key, status in state.items() if status in ("correct", "wrong")} if isinstance(state, dict) else {}


def record(exercise_id: str, status: str) -> None:
    """Keep a verdict that a notebook asked for. What was once correct stays so; a folder that cannot be written loses progress, never an
    answer."""
    state = load()
    if "ipykernel" not in sys.modules or status == "not attempted" or state.get(exercise_id) in ("correct", status):
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
