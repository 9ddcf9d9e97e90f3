"""The calls that a notebook makes: check, hint, solution, progress. The exercises themselves: test_each_exercise.py."""

import sys

import pytest

from fa_tutorial import ledger
from fa_tutorial.exercises import calls, catalogue, check, harness
from fa_tutorial.source import WIDTH


def test_unknown_exercise():
    with pytest.raises(ValueError, match="chapters with exercises"):
        check("99.1", len)
    with pytest.raises(ValueError, match=r"chapter 0 has 0\.1"):
        check("0.99", len)


def test_a_function_for_a_class():
    pytest.importorskip("triton")
    assert check("7.8", lambda q: q).message.endswith("pass the class itself, not the function <lambda>")


@pytest.mark.parametrize(("answer", "helps"), [("starter", True), ("wrong", True), ("counted", False)])
def test_a_verdict_that_is_not_correct_ends_with_the_call_that_helps(answer, helps, capsys):
    answers = {"starter": starter, "wrong": lambda B, H, S, D, is_causal: S, "counted": counted}
    check("0.1", answers[answer])
    assert capsys.readouterr().out.endswith('→ hint("0.1")\n') is helps


def test_hints_come_one_after_another(capsys):
    calls._hints_given.clear()
    hints = catalogue.find("0.1").hints
    for given in (*hints, hints[-1]):
        calls.hint("0.1")
        assert given in " ".join(capsys.readouterr().out.split())


def test_solution_shows_source_and_reasoning(capsys):
    calls.solution("0.1")
    shown = capsys.readouterr().out
    assert "def attention_flops" in shown and catalogue.find("0.1").reasoning in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= WIDTH, "a page breaks a longer line inside a word"


def test_progress_of_no_chapter():
    with pytest.raises(ValueError, match="no exercises of chapter 42; chapters with exercises: 0, 1"):
        calls.progress(42)


def test_progress_of_a_notebook_is_kept_and_survives_a_broken_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FA_TUTORIAL_STATE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    check("0.1", counted)  # in a script, as the README's example is
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    check("0.1", lambda B, H, S, D, is_causal: S)
    check("0.1", counted)
    check("0.1", lambda B, H, S, D, is_causal: S)  # what was once correct stays so
    capsys.readouterr()
    calls.progress()
    assert "chapter 0: 1 of 5 done" in capsys.readouterr().out
    for other in ("{ broken", "[]", '{"0.1": "solved", "0.2": ["correct"]}'):
        (tmp_path / "progress.json").write_text(other)
        calls.progress(0)
        told, shown = capsys.readouterr().out.rsplit("chapter 0: ", 1)
        expected = "0 of 5 done   · 0.1  · 0.2  · 0.3  · 0.4  · 0.5\n"
        assert shown == expected and ("is damaged" in told) == (other == "{ broken")


def test_answer_goes_on_with_yours_if_it_is_right(capsys):
    assert calls.answer("0.1", counted) is counted
    assert capsys.readouterr().out == "0.1 attention_flops: this is yours\n"
    for yours, why in ((max, "yours is not right yet"), (starter, "not attempted"), (ledger.attention_flops, "not attempted")):
        assert calls.answer("0.1", yours) is catalogue.find("0.1").solution
        *told, last = capsys.readouterr().out.splitlines()
        assert last == f"0.1 attention_flops: this is the course's solution ({why})"
        assert ("\n".join(told)[:22] == "✗ 0.1 attention_flops:") if yours is max else not told  # max, which check hasn't seen
    check("0.1", max)
    capsys.readouterr()
    calls.answer("0.1", max)
    assert len(capsys.readouterr().out.splitlines()) == 1  # check has told it


def test_answer_remembers_what_check_found(monkeypatch):
    check("0.1", counted)
    monkeypatch.setattr(harness, "judge", lambda *_: pytest.fail("judged again"))
    assert calls.answer("0.1", counted) is counted


def test_where_triton_cannot_compile_results_alone_are_graded(monkeypatch):
    from fa_tutorial.exercises.chapter_8 import ex_5, loop_length

    def refuse(*args, **functions):
        raise RuntimeError("no ptxas")

    monkeypatch.setattr(loop_length.sass, "counted", refuse)
    monkeypatch.setattr(loop_length, "aim", loop_length.aim.__wrapped__)  # what was counted before isn't known
    assert check("8.5", ex_5.attend).message.endswith(
        "correct (Triton can't compile for a Hopper GPU here, so the instructions aren't counted)"
    )


def test_a_step_is_told_that_triton_was_imported_first(monkeypatch):
    from fa_tutorial.exercises.chapter_8 import ex_2

    def refuse(*args, **functions):
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")

    monkeypatch.setattr(ex_2, "run_step", {(1,): refuse})
    assert "import fa_tutorial first" in check("8.2", ex_2.softmax_step).message


def test_the_packages_own_function_is_no_answer():
    assert check("0.1", ledger.attention_flops).message.endswith("not attempted (this is the package's own; write yours)")


def starter(B, H, S, D, is_causal):
    raise NotImplementedError


def counted(B, H, S, D, is_causal):
    return 2 * B * H * D * (S * (S + 1) if is_causal else 2 * S * S)
