"""For every test and notebook: no progress of the reader's is read or written, and figures go to no window."""

import os
import tempfile

import matplotlib
import pytest
import torch

# A notebook's kernel inherits this folder, which stays empty: its progress cell shows nothing done, as it is stored.
_notebooks_state = tempfile.TemporaryDirectory(prefix="fa_tutorial_state_")
os.environ["FA_TUTORIAL_STATE"] = _notebooks_state.name
# Set here and not in MPLBACKEND, which a notebook's kernel would inherit, and then show no figures.
matplotlib.use("agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # several workers share the cores
    os.environ["OMP_NUM_THREADS"] = "1"  # so do the notebooks' kernels


@pytest.fixture(scope="session")
def tests_state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def keep_progress_of_tests_apart(tests_state, monkeypatch):
    """What tests check is kept elsewhere. Notebooks' cells are no test functions, so this does not reach them."""
    monkeypatch.setenv("FA_TUTORIAL_STATE", str(tests_state))


def pytest_collection_modifyitems(items):
    """Without a GPU what a cell prints of stored results does not vary, so nbval compares it, tagged or not."""
    for item in items if not torch.cuda.is_available() else ():
        texts = [output.get("text", "") for output in getattr(item, "cell", {}).get("outputs", ())]
        if any("stored" in text for text in texts):
            item.options["check"] = True
