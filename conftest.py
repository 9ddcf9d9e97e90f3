"""For every test and notebook: progress goes to a folder of the test run, figures to no window."""

import os
import tempfile

os.environ["FA_TUTORIAL_STATE"] = tempfile.mkdtemp(prefix="fa_tutorial_state_")
os.environ.setdefault("MPLBACKEND", "agg")
