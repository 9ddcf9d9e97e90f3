"""The machine code of chapters 8 and 9: a reader's kernel is read, and what is stored is of the kernels as they are."""

import ast
import json

import pytest
from right_answers.chapter_9 import attend_one_behind, attend_that_looks_ahead, attend_with_names_of_their_own

import machine_code
from fa_tutorial import compiling, hopper, sass
from fa_tutorial.bench import chapter_9, results
from fa_tutorial.exercises import catalogue
from fa_tutorial.hardware import require_triton
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import dot, load_tile
from fa_tutorial.tuned import steps

triton = require_triton("These tests")
import triton.language as tl  # noqa: E402

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


PTX = """
$L__BB0_16:                             // =>This Inner Loop Header: Depth=1
        @%p26 bra       $L__BB0_18;
        wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%r1}, %r2, 1;
        wgmma.wait_group.sync.aligned 1;
        ex2.approx.ftz.f32      %r3, %r4;
        ex2.approx.ftz.f32      %r5, %r6;
        wgmma.wait_group.sync.aligned 0;
        bra.uni         $L__BB0_16;
$L__BB0_18:
        wgmma.wait_group.sync.aligned 0;
"""


def test_the_loop_of_ptx():
    assert sass.ptx_events(PTX) == [("mma_async", 1), ("wait_group 1", 1), ("ex2", 2), ("wait_group 0", 1)]
    assert sass.ptx_events("") == []


def order(loop: str, found: dict) -> tuple[int, int]:
    """Where the last wait for matmuls and the first exponential stand among a loop's events."""
    names = [name for name, _ in found[loop]["events"]]
    return len(names) - 1 - names[::-1].index("WARPGROUP.DEPBAR"), names.index("MUFU.EX2")


@pytest.mark.slow
def test_ptxas_moves_a_wait_up_unless_p_v_is_issued_after_the_scores_are_there():
    """Made anew: where both matmuls are issued at once, both waits come before the exponentials; else one comes after them."""
    found = machine_code.made_in_a_process("hopper_sass.json")
    for stored in (found, sass.stored()):
        for loop in ("half overlapped", "one stop", "finished"):
            wait, exponential = order(loop, stored)
            assert wait < exponential
        for loop in ("two stops", "overlapped"):
            wait, exponential = order(loop, stored)
            assert wait > exponential
        names = [name for name, _ in stored["backward"]["events"]]
        assert names[names.index("MUFU.EX2") :].count("WARPGROUP.DEPBAR") == 2, "the waits for dq and the next dv"


@pytest.mark.slow
@pytest.mark.parametrize(
    "attend",
    [
        catalogue.find("9.3").solution,
        catalogue.find("9.4").solution,
        catalogue.find("9.6").solution,
        defined(chapter_9.loop_of("half overlapped, by turns"), vars(hopper.ladder))["attend_overlapped"],
        attend_one_behind,
        attend_that_looks_ahead,
        attend_with_names_of_their_own,
    ],
    ids=lambda loop: loop.__name__,
)
def test_right_answers_of_the_gluon_exercises_compile(attend):
    """They are checked as plain Python: this shows that they are Gluon, too."""
    made = sass.compiled(attend)
    assert sum(n for name, n in made["events"] if name == "MUFU.EX2") == 66 and made["spills"] == 0


@triton.jit
def attend_without_sum(
    q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
    MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    s = dot(q_tile, tl.trans(load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)))
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    return m, l, dot(tl.exp2(s).to(v_tile.dtype), v_tile, acc)


@pytest.mark.slow
def test_a_readers_loop_of_chapter_8_is_counted():
    """For each D, with the step's other functions; what the compiler says is told."""
    mine, first = sass.counted("base 2", attend=attend_without_sum), sass.counted("base 2")
    assert [row["D"] for row in mine] == [row["D"] for row in first] == [64, 128]
    for row, whole in zip(mine, first, strict=True):
        assert row["FADD"] == 0 < whole["FADD"] and row["MUFU.EX2"] == 32 < whole["MUFU.EX2"] and row["loop"] < whole["loop"]
    misspelt = defined(edited(source_of(attend_without_sum), ("return m, l,", "return m, tl.summ(l),")), globals())["attend_without_sum"]
    with pytest.raises(ValueError, match=r"attend_without_sum does not compile: .*summ.*, in “return"):
        sass.counted("base 2", attend=misspelt)


@pytest.mark.slow
def test_chapter_8_begins_with_chapter_5s_kernel_and_ends_with_the_package():
    """The files of its first and its last step have the machine code of forward's and of tuned.forward's kernel."""
    code = """
import itertools, torch
from fa_tutorial import compiling, forward, hopper, sass, tuned
from fa_tutorial.tuned import steps

def instructions(launch, **options):
    with compiling.compiling_for(90) as launched:
        launch(*compiling.inputs(torch.float16, D)[:3], is_causal, 0.5, **options)
    return [name for name, _ in sass.INSTRUCTION.findall(sass.sass_of(launched[-1][1]))]

found = []
for D, is_causal in itertools.product((64, 128), (False, True)):
    first = instructions(forward.flash_forward, config=steps.TILE), instructions(steps.flash_forward, step="chapter 5", tile=steps.TILE)
    last = instructions(tuned.flash_forward, tile=steps.TILE), instructions(steps.flash_forward, step=steps.LAST, tile=steps.TILE)
    found.append([first[0] == first[1], last[0] == last[1]])
print(json.dumps(found))
"""
    assert compiling.in_a_process(code) == [[True, True]] * 4


@pytest.mark.parametrize("name", machine_code.STORED)
def test_what_is_stored_is_of_the_kernels_as_they_are(name):
    """Whichever Triton compiled it: that of the GPU's results is not that of the tests."""
    changed = machine_code.out_of_date(sass.STORED.parent / name, name)
    assert changed == [], "remake it: python tools/machine_code.py fa_tutorial"


def test_a_local_variable_a_comment_and_a_docstring_do_not_count():
    def code(*lines: str) -> str:
        text = "\n    ".join(("def f(x):", *lines))
        return ast.unparse(machine_code._without_names(ast.parse(text)))

    first = code("y, z = x, 2  # a remark", "return g(y + z)")
    assert first == code('"""Words."""', "a, b = (x,", "2)", "return g(a + b)")
    others = (("y, z = x, 2", "return g(z + y)"), ("y, z = x, 3", "return g(y + z)"), ("y, z = x, 2", "return h(y + z)"))
    assert first not in [code(*lines) for lines in others]


def test_the_counts_of_chapter_8s_steps_are_by_the_compiler_of_the_rates():
    stored = json.loads(steps.STORED.read_text())
    assert len(stored["rows"]) == 4 * (len(steps.WITH_TILE) + len(steps.STEPS))
    measured = {card["provenance"]["triton"] for card in results.cards()}
    assert measured == {stored["triton"]}, "the chapter shows counts beside rates: compile them with the Triton that was measured"


def test_a_loop_is_overlapped_where_exponentials_run_under_a_matmul():
    assert {name: sass.has_overlap(sass.stored()[name]) for name in ("two stops", "half overlapped", "overlapped")} == {
        "two stops": False, "half overlapped": False, "overlapped": True,
    }  # fmt: skip


def test_what_stands_before_between_and_after_the_exponentials():
    found = sass.around(["FMNMX", "MUFU.EX2", "FADD", "MUFU.EX2", "FMUL"])
    assert [found[name] for name in ("FMNMX", "MUFU.EX2", "FADD", "FMUL")] == [[1, 0, 0], [0, 2, 0], [0, 1, 0], [0, 0, 1]]


def test_the_order_of_9_9_compiles_to_the_finished_backwards_loop():
    found = sass.compiled_backward(chapter_9.backward_with(catalogue.find("9.9").solution()))
    assert {name: found[name] for name in ("instructions", "events")} == {
        name: sass.stored()["backward"][name] for name in ("instructions", "events")
    }
    assert found["spills"] == 0
