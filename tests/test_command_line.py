"""`python -m fa_tutorial`, and what `import fa_tutorial` offers."""

import subprocess
import sys

import pytest

import fa_tutorial
from fa_tutorial.__main__ import main


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("doctor", "progress", "lab", "work", "bench", "make help", "flash_attention"))


@pytest.mark.parametrize("command", [[], ["lab"], ["work", "take"], ["bench", "table"]], ids=" ".join)
def test_help_is_all_that_help_prints(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    shown = capsys.readouterr()
    assert ended.value.code == 0 and shown.out.startswith("usage: python -m fa_tutorial") and shown.err == ""
    assert "default: None" not in shown.out


def test_as_a_module_its_version_and_no_other_word():
    run = subprocess.run([sys.executable, "-m", "fa_tutorial", "--version"], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (f"{fa_tutorial.__version__}\n", "")


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        (["nope"], "doctor"),
        (["progress", "one"], "int"),
        (["bench", "table", "--grid", "nope"], "points"),
    ],
)
def test_wrong_arguments_are_told_with_what_is_allowed(wrong, allowed, capsys):
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2 and allowed in capsys.readouterr().err


@pytest.mark.parametrize(("wrong", "allowed"), [(["progress", "42"], "0, 1, 2"), (["bench", "table", "nope"], "h100, h200")])
def test_a_chapter_or_a_card_that_is_not_there(wrong, allowed, capsys):
    assert main(wrong) == 1 and allowed in capsys.readouterr().err


def test_progress_of_all_chapters_and_of_one(capsys):
    assert main(["progress"]) == 0 and "all chapters:" in capsys.readouterr().out
    assert main(["progress", "1"]) == 0 and capsys.readouterr().out.startswith("chapter 1: ")


def test_every_public_name_is_listed_and_there():
    names = {"flash_attention", "flash_attention_varlen", "attention_with", "make_block_mask"}
    names |= {"flash_decode", "append_to_cache", "PagedCache", "quantise_fp8", "flash_attention_fp8"}
    assert set(fa_tutorial.__all__) == names and {*names, "ring", "hugging_face", "__version__"} == set(dir(fa_tutorial))
    assert all(callable(getattr(fa_tutorial, name)) for name in names)
    assert callable(fa_tutorial.ring.ring_attention) and callable(fa_tutorial.hugging_face.register)
