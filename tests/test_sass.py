"""The machine code of the loops of chapters 8 and 9: what is stored is what the compiler makes of the kernels as they are."""

import json
import subprocess
import sys

import pytest
from right_answers.chapter_9 import attend_one_behind

from fa_tutorial import compile_report, sass
from fa_tutorial.bench import results
from fa_tutorial.exercises import catalogue
from fa_tutorial.hardware import require_triton
from fa_tutorial.tuned import steps

require_triton("These tests")
from triton.experimental import gluon  # noqa: E402

TEXT = """
.L_x_1:
        /*0010*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], !UPT ;
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24 ;
.L_x_2:
        /*0030*/              @!P0 SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R3 ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0060*/                   FFMA R1, R2, R3, R4 ;
        /*0070*/                   MUFU.EX2 R5, R1 ;
        /*0080*/               @P1 BRA `(.L_x_1) ;
"""


def test_the_inner_loop_and_its_events():
    assert [len(loop) for loop in sass.loops(TEXT)] == [2, 8]
    names = ["HGMMA", "SYNCS", "BRA", "WARPGROUP.DEPBAR", "MUFU.EX2", "BRA"]
    assert sass.events(sass.inner_loop(TEXT)) == list(zip(names, [2, 1, 1, 1, 1, 1], strict=True))


def order(loop: str, found: dict) -> tuple[int, int]:
    """Where the last wait for matmuls and the first exponential stand among a loop's events."""
    names = [name for name, _ in found[loop]["events"]]
    return len(names) - 1 - names[::-1].index("WARPGROUP.DEPBAR"), names.index("MUFU.EX2")


@pytest.mark.slow
def test_ptxas_moves_a_wait_up_unless_p_v_is_issued_after_the_scores_are_there(tmp_path):
    """Made anew: where both matmuls are issued at once, both waits come before the exponentials; else one comes after them."""
    made = tmp_path / "made.json"
    code = f"from pathlib import Path; from fa_tutorial import sass; sass.make(Path({str(made)!r}))"
    environment = compile_report.compiling_environment()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    found = json.loads(made.read_text())
    for stored in (found, sass.stored()):
        for loop in ("attend_overlapped", "order"):
            wait, exponential = order(loop, stored)
            assert wait < exponential
        for loop in ("attend", "attend_one_by_one"):
            wait, exponential = order(loop, stored)
            assert wait > exponential
        names = [name for name, _ in stored["backward"]["events"]]
        assert names[names.index("MUFU.EX2") :].count("WARPGROUP.DEPBAR") == 2, "the waits for dq and the next dv"


@pytest.mark.slow
@pytest.mark.parametrize("attend", [catalogue.find("9.3").solution, attend_one_behind], ids=lambda loop: loop.__name__)
def test_right_answers_of_the_gluon_exercise_compile(attend):
    """They are checked as plain Python: this shows that they are Gluon, too."""
    made = sass.compiled(attend)
    assert ["MUFU.EX2", 66] in made["events"] and made["spills"] == 0


@gluon.jit
def without_gluon(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    stage = before = 0
    return l, acc + stage + before


@pytest.mark.slow
def test_the_compilers_words_are_told():
    with pytest.raises(ValueError, match=r"without_gluon does not compile: .*multiple assignment"):
        sass.compiled(without_gluon)


@pytest.mark.slow
def test_a_readers_step_of_chapter_8_is_counted(monkeypatch):
    monkeypatch.setitem(steps.STEPS, "mine", [("alpha * l + tl.sum(p, axis=1)", "l")])
    assert sass.counted("mine")["loop"] < sass.counted("order")["loop"]
    monkeypatch.setitem(steps.STEPS, "mine", [("tl.sum(p, axis=1)", "tl.summ(p, axis=1)")])
    with pytest.raises(ValueError, match=r"attend does not compile: .*summ.*, in “return"):
        sass.counted("mine")


def test_what_is_stored_is_of_the_kernel_as_it_is():
    """Whichever Triton compiled it: that of the GPU's results is not that of the tests."""
    assert sass.stored()["sources"] == sass.fingerprints(), "run python -m fa_tutorial.sass"


def test_the_counts_of_chapter_8s_steps_are_of_their_text():
    stored = json.loads(steps.STORED.read_text())
    assert stored["source"] == steps.fingerprint(), "run python -m fa_tutorial.sass"
    assert len(stored["rows"]) == 4 * (1 + len(steps.STEPS)) and len(stored["larger tiles"]) == 3 * len(steps.LARGER)
    measured = results.read(results.FOLDER / "h200.json")["provenance"]["triton"]
    assert stored["triton"] == measured, "the chapter shows counts beside rates: compile them with the Triton that was measured"
