"""Chapter 9: the finished forward without a part of its softmax, and with some exponentials by a polynomial, D = 128.

Without a part the result is wrong; the cycles say what the part costs.
"""

import functools
from collections.abc import Callable

from fa_tutorial import hopper, sass
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tuned import launching

STEP = """    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK)
    l = alpha * l + gl.sum(p, axis=1)
"""
# softmax_step without a mask
BY_PARTS = """    m_new = gl.maximum(m, gl.max(s, axis=1))
    shift = mul_up(m_new, scale_log2)
    p = gl.exp2(s * scale_log2 - shift[:, None])
    alpha = gl.exp2(mul_up(m, scale_log2) - shift)
    m = m_new
    l = alpha * l + gl.sum(p, axis=1)
"""
MAXIMUM = "gl.maximum(m, gl.max(s, axis=1))", "m", 1
BELOW = "s * scale_log2 - shift[:, None]"  # what is exponentiated: at most 0
EXPONENTIALS = f"gl.exp2({BELOW})", BELOW, 1
SUM = " + gl.sum(p, axis=1)", "", 1
RESCALING = "new * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]\n", "new\n", 1
POLYNOMIAL = f"gl.exp2({BELOW})", f"exp2_by_both({BELOW})", 1
# Of `each` numbers x <= 0 all but one by the exponentials' unit, one as 2**floor(x) * 2**(x - floor(x)), the latter
# by a polynomial of degree 3 whose relative error is at most 9e-5.
BY_BOTH = '''
@gluon.jit
def exp2_by_both(x):
    return gl.inline_asm_elementwise(
        """{{ .reg .f32 whole, part, y; .reg .b32 exponent, bits;
        {by_unit}
        max.f32 y, ${last}, -127.0;
        add.rm.f32 whole, y, 12582912.0;
        mov.b32 exponent, whole;
        sub.f32 whole, whole, 12582912.0;
        sub.f32 part, y, whole;
        fma.rn.f32 y, part, 0.077119089663028717, 0.227564394474029541;
        fma.rn.f32 y, y, part, 0.695146143436431885;
        fma.rn.f32 y, y, part, 1.0;
        shl.b32 exponent, exponent, 23;
        mov.b32 bits, y;
        add.s32 exponent, exponent, bits;
        mov.b32 ${to}, exponent; }}""",
        "{places}", [x], dtype=gl.float32, is_pure=True, pack={each})


@gluon.jit
def next_block('''


def by_both(each: int) -> list[tuple[str, str, int]]:
    """Edits: one of `each` exponentials by the polynomial."""
    by_unit = "\n        ".join(f"ex2.approx.ftz.f32 ${n}, ${n + each};" for n in range(each - 1))
    places = ",".join(["=&f"] * each + ["f"] * each)
    text = BY_BOTH.format(by_unit=by_unit, last=2 * each - 1, to=each - 1, places=places, each=each)
    return [POLYNOMIAL, ("\n@gluon.jit\ndef next_block(", text, 1)]


PARTS: dict[str, list[tuple[str, str, int]]] = {
    "without exponentials": [EXPONENTIALS],
    "without the sum of p": [SUM],
    "without rescaling acc": [RESCALING],
    "without maximum and rescaling": [MAXIMUM, RESCALING],
    "without all of these": [MAXIMUM, EXPONENTIALS, SUM, RESCALING],
    "with every 4th exponential by a polynomial": by_both(4),
    "with every 16th exponential by a polynomial": by_both(16),
}


@functools.cache
def forward(part: str) -> Callable:
    """hopper.flash_forward with one of PARTS, where there is no mask."""
    module = hopper.forward
    edits = (STEP, BY_PARTS, 1), *PARTS[part], ('key = ("hopper", ', f'key = ("{part}", ', 1)
    names = {"__name__": module.__name__, "mul_up": hopper.softmax.mul_up}
    return defined(edited(source_of(module), *edits), names)["flash_forward"]


def instructions(kernel: str) -> int:
    """Of a block without a mask, the shortest loop with two matmuls' 16 HGMMA, of a kernel that has run: "hopper", or
    one of PARTS."""
    made = {key[0]: launch.compiled for (key, _), launch in launching._prepared.items()}
    loops = sass.loops(sass.sass_of(made[kernel]))
    return min(len(loop) for loop in loops if sum(name.startswith("HGMMA") for name in loop) == 16)
