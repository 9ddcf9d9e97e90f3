"""Runs a reader's Triton kernel for the harness: twice, on buffers inside guards, and in the interpreter with every access looked at.

An output's memory is poisoned before each run, so an element that the kernel leaves alone shows; what surrounds an input is NaN. In the
interpreter a load or store outside the tensors is stopped before it happens, a lane that a load's mask leaves out becomes NaN, or what the
launch says, where other= is not given (the interpreter would put 0 there, a GPU anything), and two programs that write the same element are noticed, as is an element
that is read or written more than once, and a product that takes float32 tiles though every input has 16 bits.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import functools
import inspect
import itertools
import math
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from fa_tutorial import hardware
from fa_tutorial.exercises import carried
from fa_tutorial.exercises.running import UNWRITTEN, NotAttempted, Wrong, chain, same, show, time_limit, where_in, written_once
from fa_tutorial.source import globals_of, source_of
from fa_tutorial.tiles import heads

GUARD = 8192  # elements before and after a buffer: more than the largest tile of an exercise runs over; small enough for one thread
SENTINEL = 12_288.0  # exact in fp16, bf16 and fp32, and no exercise's result


class In(NamedTuple):
    """A kernel's input: its data, and its element strides (contiguous unless given). as_heads: the kernel takes it as Heads."""

    data: torch.Tensor
    strides: Sequence[int] | None = None
    as_heads: bool = False


class Out(NamedTuple):
    """A kernel's output. as_heads: the kernel takes it as Heads."""

    shape: Sequence[int]
    dtype: torch.dtype
    strides: Sequence[int] | None = None
    as_heads: bool = False


@dataclass(frozen=True)
class Launch:
    """How an exercise's kernel is launched: the grid, the positional arguments (In, Out and numbers), the tl.constexpr arguments.

    shapes: what to tell a reader whose blocks don't broadcast. left_out: what a load puts in the lanes that its mask leaves out, where other=
    is not given.
    """

    grid: tuple[int, ...]
    args: Sequence[Any]
    meta: Mapping[str, int]
    shapes: str = ""
    left_out: float = math.nan

    def names(self, kernel: Any) -> list[str]:
        """The arguments' names: the parameters of `kernel`, without _ptr or _desc."""
        return [name.removesuffix("_ptr").removesuffix("_desc") for name in kernel.fn.__code__.co_varnames[: len(self.args)]]

    def outputs(self, kernel: Any) -> dict[str, Out]:
        return {name: arg for name, arg in zip(self.names(kernel), self.args, strict=True) if isinstance(arg, Out)}


def results(kernel: Any, launch: Launch, solution: Any, on: str, stray: str, once: bool = False) -> tuple[dict[str, torch.Tensor], Trace]:
    """The kernel's outputs in float64, by name, UNWRITTEN where it writes nothing; and what was seen of its accesses.

    on: the input, in words. stray: the diagnosis where the kernel leaves its tensors. once: run it once, not twice.
    """
    check_kernel(kernel, len(launch.args), launch.meta)
    args = [buffer_of(name, arg) for name, arg in zip(launch.names(solution), launch.args, strict=True)]
    trace = Trace([arg for arg in args if isinstance(arg, Buffer)], launch.left_out)
    try:
        poisons = (SENTINEL,) if once else (math.nan, SENTINEL)
        with ones_as_constants():
            runs = run_poisoned(kernel, launch.grid, args, launch.meta, trace, poisons)
    except Stray as error:
        raise Wrong(f"{stray}: with {on} it {error.access}") from None
    except Wrong as error:
        advice = f"{launch.shapes}: " if isinstance(error, Mismatch) and launch.shapes else ""
        raise Wrong(f"{advice}{on}: {error}") from error.__cause__
    found, outs = {}, launch.outputs(solution)
    for name in runs[0]:
        every = [made[name] for made in runs]
        poisoned = [in_dtype(poison, outs[name].dtype) for poison in poisons]
        still = [torch.isnan(made) if math.isnan(poison) else made == poison for made, poison in zip(every, poisoned, strict=True)]
        written = ~torch.stack(still).all(0)
        if not all(same(every[0][written], made[written]) for made in every):
            raise Wrong(
                f"{on}: two runs with the same input give a different {name}: it reads what it should write, or programs overwrite each "
                "other"
            )
        found[name] = every[0].masked_fill(~written, UNWRITTEN)
    return found, trace


@dataclass(frozen=True)
class Launched:
    """A kernel that is launched by launch(kernel, grid, *args, **meta)."""

    launch: Callable
    kernel: Any

    @property
    def fn(self) -> Callable:
        return self.kernel.fn

    def __getitem__(self, grid: Any) -> Callable:
        return functools.partial(self.launch, self.kernel, grid)


def launched_by(launch: Callable) -> Callable:
    """Decorates a launch, of (kernel, grid, *args, **meta), for an exercise's `adapt`: it takes a kernel, and gives one that is launched so."""
    return functools.partial(Launched, launch)


# ---------------------------------------------------------------- buffers


@dataclass(frozen=True)
class Buffer:
    """A tensor for a kernel, inside memory whose every other element is a guard.

    name: the kernel's parameter. data: what an input holds; None for an output, which is poisoned before each run.
    own: bool, of memory's shape, on the CPU: True at the tensor's own elements. as_heads: the kernel takes it as Heads.
    """

    name: str
    memory: torch.Tensor
    tensor: torch.Tensor
    data: torch.Tensor | None
    own: torch.Tensor
    as_heads: bool = False

    @property
    def argument(self) -> Any:
        """What the kernel gets."""
        return heads(self.tensor) if self.as_heads else self.tensor

    def on_cpu(self) -> Buffer:
        """The same buffer in the CPU's memory."""
        memory = self.memory.cpu()
        return replace(self, memory=memory, tensor=memory.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()))

    def reset(self, poison: float) -> None:
        """Guards of inputs are NaN, of integers −1, so that a stray read shows; guards of outputs SENTINEL, so that a stray write does.

        poison: NaN or SENTINEL, what an output begins with.
        """
        if self.data is None:
            self.memory.fill_(in_dtype(SENTINEL, self.memory.dtype))
            self.tensor.fill_(in_dtype(poison, self.memory.dtype))
        else:
            self.memory.fill_(float("nan") if self.memory.is_floating_point() else -1)
            once = written_once(self.tensor.stride())
            self.tensor[once].copy_(self.data[once])


def in_dtype(poison: float, dtype: torch.dtype) -> float:
    """The poison as dtype has it: 8-bit numbers have no SENTINEL, so NaN stands for it, and 96 for NaN."""
    return poison if dtype.itemsize > 1 else 96.0 if math.isnan(poison) else math.nan


def buffer_of(name: str, arg: Any) -> Any:
    """The Buffer of an In or Out; other arguments as they are."""
    if not isinstance(arg, In | Out):
        return arg
    data = arg.data if isinstance(arg, In) else None
    plain = torch.empty(tuple(arg.shape), dtype=arg.dtype, device="meta") if data is None else data
    strides = torch.empty(plain.shape, device="meta").stride() if arg.strides is None else tuple(arg.strides)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, strides, strict=True))
    memory = torch.empty(GUARD + extent + GUARD, dtype=plain.dtype, device=hardware.device())
    own = torch.zeros(memory.shape, dtype=torch.bool)
    own.as_strided(plain.shape, strides, GUARD).fill_(True)
    return Buffer(name, memory, memory.as_strided(plain.shape, strides, GUARD), data, own, arg.as_heads)


class Stray(Wrong):
    """A kernel reads or writes an element that belongs to none of its tensors.

    access: which, and where in the source if that is known.
    """

    def __init__(self, access: str, remedy: str, line: str = "") -> None:
        super().__init__(f"{access}: {remedy}{line}")
        self.access = f"{access}{line}"
        self.remedy = remedy


class Mismatch(Wrong):
    """Two blocks of a kernel don't broadcast to one shape."""


# ---------------------------------------------------------------- running


def run_poisoned(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, int], trace: Trace, poisons: Sequence[float]
) -> list[dict[str, torch.Tensor]]:
    """Launch the kernel with its outputs filled with each poison; what they hold after each run, in float64 on the CPU.

    args: Buffers and numbers. Wrong if it raises, or writes to an input; Stray if it leaves its tensors.
    """
    _rehearse(kernel, grid, args, meta, trace)
    buffers = [arg for arg in args if isinstance(arg, Buffer)]
    runs = []
    for poison in poisons:
        for buffer in buffers:
            buffer.reset(poison)
        before = {buffer.name: buffer.memory.clone() for buffer in buffers}
        types = carried.watched(kernel) if hardware.interpreter_on() and not runs else contextlib.nullcontext()
        with trace.on(), types:
            _launch(kernel, grid, [arg.argument if isinstance(arg, Buffer) else arg for arg in args], meta)
        for buffer in buffers:
            _check_guards(buffer, before[buffer.name])
        runs.append({buffer.name: buffer.tensor.double().cpu() for buffer in buffers if buffer.data is None})
    return runs


def _rehearse(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, int], real: Trace) -> None:
    """On a GPU, run the kernel's function in the interpreter first, on copies, to see the reads outside its tensors that a GPU hides.

    What the interpreter cannot run in this process (tl.max and its kin are compiled already) is left to the GPU.
    """
    if hardware.interpreter_on():
        return
    from triton.runtime.interpreter import InterpretedFunction

    copies = [arg.on_cpu() if isinstance(arg, Buffer) else arg for arg in args]
    trace = Trace([copy for copy in copies if isinstance(copy, Buffer)])
    for buffer in trace.buffers:
        buffer.reset(SENTINEL)
    try:
        with trace.on(), np.errstate(all="ignore"), time_limit():
            InterpretedFunction(kernel.fn)[grid](*(copy.argument if isinstance(copy, Buffer) else copy for copy in copies), **meta)
    except Exception as error:
        root = chain(error)[-1]
        if isinstance(root, Stray):
            raise Stray(root.access, root.remedy, where_in(error, kernel)) from None
    for seen in ("overlap", "again", "stored_again", "pieces", "widened"):
        setattr(real, seen, getattr(trace, seen))


def check_begun(function: Any) -> None:
    """Wrong for a function that isn't jitted, NotAttempted for a starter. It is run, not read: a real body stops at its first tl call."""
    if not hasattr(function, "fn"):
        raise Wrong("is a plain function: put @triton.jit above it")
    try:
        function.fn(*[None] * len(inspect.signature(function.fn).parameters))
    except NotImplementedError:
        raise NotAttempted from None
    except Exception:
        pass


def check_kernel(kernel: Any, positional: int, meta: Mapping[str, int]) -> None:
    """Wrong unless this is a kernel with `positional` parameters and the tl.constexpr ones of `meta`; NotAttempted if it is the starter."""
    if not (hasattr(kernel, "fn") and hasattr(kernel, "__getitem__")):
        raise Wrong(f"pass the kernel itself, not {show(kernel)}" if not callable(kernel)
                    else "is a plain function, not a kernel: put @triton.jit above it")  # fmt: skip
    parameters = inspect.signature(kernel.fn).parameters
    names = list(parameters)
    extra = [name for name in names[positional:] if name not in meta and parameters[name].default is inspect.Parameter.empty]
    if len(names) < positional + len(meta) or extra or not set(meta) <= set(names):
        raise Wrong(f"takes ({', '.join(names)}): keep the parameters of the starter, {positional} and then {', '.join(meta)}")
    for name in meta:
        if "constexpr" not in str(parameters[name].annotation):
            raise Wrong(f"{name} must be annotated tl.constexpr: shapes of blocks are fixed when the kernel is compiled")
    check_begun(kernel)
    pairs = itertools.pairwise((one.opname, str(one.argval)) for one in dis.get_instructions(kernel.fn))
    if any(module == ("LOAD_GLOBAL", "triton") and name == "cdiv" for module, (_, name) in pairs):
        raise Wrong("triton.cdiv is a Python function, which only the interpreter runs inside a kernel: use tl.cdiv there")
    numbers = (name for name in names[:positional] if "constexpr" not in str(parameters[name].annotation))
    _refuse_python(kernel.fn, frozenset(numbers))
    _refuse_globals(kernel)


@functools.cache
def _refuse_python(function: Callable, run_time: frozenset[str]) -> None:
    """Wrong for what the interpreter runs as Python and Triton's compiler refuses: break, continue, and numbers that are known only at
    run time where it wants constants. run_time: the parameters that are such numbers."""
    try:
        body = ast.parse(source_of(function))
    except (OSError, TypeError, SyntaxError):
        return
    nodes, known = list(ast.walk(body)), set(run_time)

    def varies(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return False  # a tuple's member may be a constant
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            method = isinstance(node.func, ast.Attribute) and varies(node.func.value)
            return method or called in ("program_id", "num_programs", "load") or any(map(varies, node.args))
        return node.id in known if isinstance(node, ast.Name) else any(map(varies, ast.iter_child_nodes(node)))

    stored = [(node.targets if isinstance(node, ast.Assign) else [node.target], node.value)
              for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]  # fmt: skip
    before = None
    while before != len(known):
        before = len(known)
        for targets, value in stored:
            if varies(value):
                known |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    for node in nodes:
        why = ""
        if isinstance(node, ast.Break | ast.Continue):
            why = f"a kernel has no {ast.unparse(node)}: let the loop's bounds, or a mask, decide"
        elif isinstance(node, ast.Call) and any(map(varies, node.args)):
            called = ast.unparse(node.func)
            if called.endswith("static_range"):
                why = "tl.static_range takes constants alone, and this bound is known only at run time: use range"
            elif called in ("int", "float", "round") or called.startswith("math."):
                why = f"{called} is Python's, and the number is known only at run time: use //, tl.cdiv, or .to(dtype)"
        if why:
            raise Wrong(f"Triton's compiler refuses `{ast.unparse(node)}`: {why}")
    for node in body.body:
        if isinstance(node, ast.FunctionDef):
            carried.refuse_unset(node)


def _refuse_globals(kernel: Any) -> None:
    """Wrong if the kernel, or one that it calls, names a global that Triton's compiler refuses and the interpreter takes."""
    for name, value in globals_of(kernel).items():
        is_own = not str(getattr(getattr(value, "fn", value), "__module__", "")).startswith(("fa_tutorial.", "triton."))
        if hasattr(value, "fn") and is_own:
            _refuse_globals(value)
        elif inspect.isfunction(value) and is_own:
            raise Wrong(f"Triton's compiler refuses {name}: a function that a kernel calls needs @triton.jit above it, too")
        elif isinstance(value, bool | int | float):
            raise Wrong(
                f"Triton's compiler refuses the global {name}: a number from outside the kernel must be a tl.constexpr, {name} = tl.constexpr(…)"
            )


def _launch(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, int]) -> None:
    on_gpu = hardware.device().type == "cuda"
    limit = contextlib.nullcontext() if on_gpu else time_limit()  # on a GPU the launch compiles, and doesn't wait for the kernel
    try:
        # The interpreter computes with NumPy, which would warn of every inf and NaN.
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=RuntimeWarning), blocks_without_truth(), limit:
            warnings.filterwarnings("ignore", ".*make_block_ptr is deprecated")  # once for each launch
            kernel[grid](*args, **meta)
        if on_gpu:
            _wait_for_gpu()
    except Exception as error:
        root = chain(error)[-1]
        line = where_in(error, kernel) or _compiled_line(error)
        if isinstance(root, Wrong):  # raised by a Trace, inside the interpreter
            raise (Stray(root.access, root.remedy, line) if isinstance(root, Stray) else Wrong(f"{root}{line}")) from None
        if any(_is_starter(cause, kernel) for cause in chain(error)):
            raise NotAttempted from None
        if "CUDA error" in str(error) or "illegal memory access" in str(error):
            stop = "the GPU stopped it with an illegal memory access: an offset runs out of the tensor. Restart the notebook's kernel"
            raise Wrong(stop) from error
        if "incompatible dimensions" in f"{error} {root}":
            raise Mismatch(f"does not run: the blocks don't broadcast to one shape{_shapes(error, kernel, line)}{line}") from error
        raise Wrong(f"does not run: {_reason(error, root, line)}{line}") from error


def _wait_for_gpu() -> None:
    """Wait until the GPU has done all that was launched. No time limit could interrupt torch.cuda.synchronize()."""
    done = torch.cuda.Event()
    done.record()
    with time_limit(" The GPU is still busy with it, so restart the notebook's kernel."):
        while not done.query():
            time.sleep(0.001)


@contextlib.contextmanager
def blocks_without_truth() -> Iterator[None]:
    """Refuse the truth value of a block, which the interpreter takes for True."""
    from triton.language import tensor

    def refuse() -> None:
        truth = tensor.__bool__
        tensor.__bool__ = lambda block: _truth_of(block, truth)

    with carried.entering_a_kernel(refuse):
        yield


@contextlib.contextmanager
def ones_as_constants() -> Iterator[None]:
    """Let the interpreter leave an argument of 1 a Python number, as a compiled launch does. Otherwise it makes a tensor of it."""
    from triton.runtime import interpreter

    convert = getattr(interpreter, "_implicit_cvt", None)  # a private function, which another Triton may not have, and then doesn't call
    with mock.patch.object(interpreter, "_implicit_cvt", lambda arg: arg if type(arg) is int and arg == 1 else convert(arg), create=True):
        yield


def _is_starter(error: BaseException, kernel: Any) -> bool:
    """True where the kernel's own `raise NotImplementedError` was reached, or the compiler stumbled over it."""
    if isinstance(error, NotImplementedError):  # Triton raises it too, for what the interpreter lacks
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and (frames[-1].filename, frames[-1].name) == (kernel.fn.__code__.co_filename, kernel.fn.__name__)
    node = getattr(error, "node", None)
    return isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node)


ONLY_TRITON = "is not part of Triton: inside a kernel only triton.language works, tl.arange, tl.exp, tl.sum and so on"


HEADS = "Heads is a pointer with four strides: write x.ptr for the pointer, and x.strides[0] to x.strides[3] for the strides"
OF_POINTERS = (  # what the line holds, what Triton says, and what to tell of it: {} is what the brackets hold
    ("", "outside of the scope of a kernel",
     "triton was imported before fa_tutorial, so there is no interpreter: restart, and import fa_tutorial first"),
    (r"_ptr\s*\[", "", "a pointer takes no index: use tl.load(pointer + offsets) and tl.store"),
    ("", "'tensor' object has no attribute '(?:ptr|strides)'",
     "a tile is not Heads: keep Heads and tiles apart, under names of their own, such as q and q_tile"),
    ("", "'tuple' object has no attribute 'type'|'Heads' object", HEADS),  # the former is Triton 3.6's
    (r"tl\.(?:load|store)\(", r"\A.*tuple", HEADS),
    (r"(?<![\w.])((?:torch|np|numpy)(?:\.\w+)+)\(", "", f"{{}} {ONLY_TRITON}"),
)  # fmt: skip
OF_BLOCKS = (
    ("", "'(?:int|constexpr)' object has no attribute 'to'",
     "Triton makes a constant of an argument that is 1, and a constant has no .to: cast what you multiply it by, which comes "
     "from tl.program_id or tl.arange"),
    ("arange", "constexpr",
     "tl.arange takes tl.constexpr arguments only: use the block's size here, tl.arange(0, BLOCK), and leave the length to the mask"),
    ("", r"Expected dtype \['fp32', 'fp64'\] but got (fp16|bf16)",
     "this function takes float32, not {}: convert with .to(tl.float32) right after the load"),
    ("", r"Both operands must be same dtype\. Got (\w+) and (\w+)",
     "both factors of a dot must have one dtype, and these are {} and {}: round one to the other's: x.to(y.dtype)"),
    ("", carried.SAID, carried.TOLD),
    ("", "Value argument cannot be block type",
     "a block is stored at one address: reduce it to one number, over all of its axes, or give an address for each of its numbers"),
    ("", "Mask argument cannot be block type", "a block's mask, but one address: add the offsets to the pointer, x_ptr + offs"),
    ("", r"axis (\d)(?: out of bounds|\. Expected)",
     "there is no axis {}: a block [BLOCK] has only axis 0, and a tile [M, N] the axes 0 and 1"),
    ("", "must have equal ranks", "both factors of a dot must be tiles of two axes"),
    (r"\.store\(\[", r"\A\n",
     "a descriptor's store takes a coordinate for each dimension, and a tile of the shape of its blocks: [1, 1, BLOCK_M, D] for (B, H, S, D)"),
    ("", "accumulator shape is incompatible",
     "the accumulator of a dot has the product's shape: [M, K] times [K, N] gives [M, N], and tl.zeros((M, N), dtype=tl.float32) makes one"),
    ("`assert ", "", "its assert does not hold"),
)  # fmt: skip


def _reason(error: BaseException, root: BaseException, line: str) -> str:
    """Why a kernel does not run: by the line that failed where Triton's own words lead nowhere, else by these."""

    def told(reasons: Sequence[tuple[str, str, str]]) -> str:
        found = ((re.search(words, line), re.search(says, f"{root}\n{error}"), told) for words, says, told in reasons)
        return next((told.format(*in_line.groups(), *said.groups()) for in_line, said, told in found if in_line and said), "")

    last = [*traceback.extract_tb(root.__traceback__)][-1:]
    if isinstance(root, NotImplementedError) and last and "raise NotImplementedError" in f"{last[0].line}":
        return f"{last[0].name}, which it calls, still raises NotImplementedError"
    if why := told(OF_POINTERS):
        return why
    if foreign := _foreign_local(root):
        return f"{foreign} comes from PyTorch or NumPy, which {ONLY_TRITON}"
    if why := told(OF_BLOCKS):
        return why
    if isinstance(root, AssertionError) and not str(root):
        return "Triton refuses the types of these operands; an accumulator, for one, must be float32"
    # The last line: compilers put the source excerpt first.
    lines = [line.strip() for line in str(root).splitlines() if line.strip() and set(line.strip()) != {"^"}]
    return f"{type(root).__name__}: {lines[-1] if lines else type(error).__name__}"


def _foreign_local(root: BaseException) -> str:
    """The name of a local of a kernel that holds a PyTorch tensor or a NumPy array, in the interpreter; "" for none."""
    for frame, _ in traceback.walk_tb(root.__traceback__):
        if "triton" not in frame.f_code.co_filename and frame.f_code.co_filename != __file__:
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor | np.ndarray):
                    return name
    return ""


def _shapes(error: BaseException, kernel: Any, line: str) -> str:
    """The shapes of the kernel's own blocks that the line names, as ", x [2, 8] and offs_c [8]"; "" where only the compiler saw them."""
    found: dict[str, str] = {}
    own = (kernel.fn.__code__.co_filename, kernel.fn.__name__)  # the interpreter runs a copy of the code
    for frame, _ in itertools.chain.from_iterable(traceback.walk_tb(cause.__traceback__) for cause in chain(error)):
        if (frame.f_code.co_filename, frame.f_code.co_name) == own:
            blocks = {name: value.shape for name, value in frame.f_locals.items() if getattr(value, "shape", ())}
            found |= {name: f"{name} [{', '.join(str(int(size)) for size in shape)}]" for name, shape in blocks.items()}
    named = [shape for name, shape in found.items() if re.search(rf"\b{name}\b", line)]
    return f": {', '.join(named)}" if named else ""


def _compiled_line(error: BaseException) -> str:
    for cause in chain(error):
        node, source = getattr(cause, "node", None), getattr(cause, "src", None)
        if source is not None and hasattr(node, "lineno") and (line := source.splitlines()[node.lineno - 1 : node.lineno]):
            return f" (`{line[0].strip()}`)"
    return ""


# ---------------------------------------------------------------- tracing

# The interpreter's ways to memory: at which positions their addresses and their mask come, and whether they write.
ACCESSES = {"create_masked_load": (0, 1, False), "create_masked_store": (0, 2, True), "create_atomic_rmw": (1, 3, True)}


class Trace:
    """Looks at every access that the interpreter makes, before it happens. On a GPU it sees nothing.

    It puts left_out in the lanes that a load leaves undefined, and keeps in `overlap` the name of an output whose elements two programs write,
    in `stored_again` that of one whose elements a program stores twice, in `pieces` that of one to which a program has more than one store,
    in `again`, in words, the first tensor whose elements make more than one trip for a program, in `dots` how many tl.dot ran, and in `widened` whether
    tiles of 16-bit inputs are multiplied as float32.
    """

    def __init__(self, buffers: Sequence[Buffer], left_out: float = math.nan) -> None:
        self.buffers = buffers
        self.left_out = left_out
        self.overlap = self.again = self.stored_again = self.pieces = ""
        self.widened, self.dots = False, 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        from triton.runtime.interpreter import interpreter_builder as builder

        self._builder = builder
        self._writers = {buffer.name: np.full(buffer.memory.numel(), -1) for buffer in self.buffers if buffer.data is None}
        self._seen = {buffer.name: np.full(buffer.memory.numel(), -1) for buffer in self.buffers}
        replaced = {name: self._watch(name, getattr(builder, name)) for name in ACCESSES} | {
            "create_dot": self._watch_product(_with_tf32(builder.create_dot)),
            "create_fmul": self._watch_product(builder.create_fmul, axes=3),
        }
        for name, method in replaced.items():
            setattr(builder, name, method)
        try:
            yield
        finally:
            for name in replaced:
                delattr(builder, name)  # the class's own methods show again

    def _watch(self, name: str, method: Callable) -> Callable:
        ptrs, mask, is_store = ACCESSES[name]

        def watched(*args: Any, **options: Any) -> Any:
            self._check(args[ptrs], args[mask], is_store, may_overlap="atomic" in name)
            result = method(*args, **options)
            is_undefined = name == "create_masked_load" and args[2] is None
            if is_undefined and (result.dtype.scalar.is_floating() or result.data.dtype.kind == "f"):
                keeps_bits = result.data.dtype.kind == "u"  # of bf16, the upper half of a float32
                fill = np.float32(self.left_out).view(np.uint32) >> 16 if keeps_bits else self.left_out
                result.data = np.where(np.broadcast_to(args[mask].data, result.data.shape), result.data, np.array(fill, result.data.dtype))
            return result

        return watched

    def _watch_product(self, multiply: Callable, axes: int = 2) -> Callable:
        """axes: how many a factor has; a product of blocks with three is a tl.dot by hand, before its sum."""
        are_half = all(buffer.memory.element_size() == 2 for buffer in self.buffers if buffer.data is not None)

        def watched(a: Any, b: Any, *rest: Any) -> Any:
            self.dots += axes == 2
            self.widened |= are_half and a.data.ndim == axes and max(a.data.dtype.itemsize, b.data.dtype.itemsize) > 2
            return multiply(a, b, *rest)

        return watched

    def _check(self, ptrs: Any, mask: Any, is_store: bool, may_overlap: bool) -> None:
        """Wrong unless every address that the mask lets through is an element of a buffer, and of an output where it is stored to."""
        addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)].astype(np.int64)
        if not addresses.size:
            return
        lowest, highest = addresses.min(), addresses.max()
        stray = np.ones(addresses.shape, dtype=bool)
        for buffer in self.buffers:
            start, itemsize, elements = buffer.memory.data_ptr(), buffer.memory.element_size(), buffer.memory.numel()
            if highest < start or lowest >= start + elements * itemsize:  # most accesses are to another buffer, and this runs at each one
                continue
            places = (addresses - start) // itemsize
            near = (places >= 0) & (places < elements)
            own = near.copy()
            own[near] = buffer.own.numpy()[places[near]]
            if is_store and buffer.data is not None and own.any():
                raise _written_input(buffer)
            if (near & ~own).any():
                raise _stray(buffer, int(places[near & ~own][0]) - GUARD, is_store)
            self._note_trips(buffer, places[own], is_store)
            if is_store and not may_overlap:
                self._note_writers(buffer, places[own])
            stray &= ~own
        if stray.any():
            raise Stray(f"{'writes' if is_store else 'reads'} far outside its tensors", "mend the offsets")

    def _note_trips(self, buffer: Buffer, places: np.ndarray, is_store: bool) -> None:
        seen, name, program = self._seen[buffer.name], buffer.name, self._program()
        if not self.again and not is_store and buffer.data is None and len(places):
            self.again = f"{name} is read back"
        elif not self.again and (seen[places] == program).any():
            self.again = f"{name} is {'written' if is_store else 'read'} more than once"
        seen[places] = program

    def _program(self) -> int:
        x, y, z = self._builder.grid_idx
        return x + 1_000_000 * (y + 1_000 * z)

    def _note_writers(self, buffer: Buffer, places: np.ndarray) -> None:
        program, writers = self._program(), self._writers[buffer.name]
        before = writers[places]
        shows = {
            "overlap": ((before >= 0) & (before != program)).any(),
            "pieces": (writers == program).any(),
            "stored_again": (before == program).any(),
        }
        for what in (what for what, is_so in shows.items() if is_so and not getattr(self, what)):
            setattr(self, what, buffer.name)
        writers[places] = program


def _with_tf32(create_dot: Callable) -> Callable:
    """tl.dot of float32 tiles as tensor cores compute it: rounded to TF32, as the interpreter does not, unless input_precision forbids."""

    def dot(a: Any, b: Any, acc: Any, input_precision: Any, *rest: Any) -> Any:
        name = getattr(input_precision, "name", "IEEE")
        if name not in ("IEEE", "TF32") and a.data.dtype == np.float32:
            raise Wrong(f'fp32 is multiplied in IEEE precision: {name} cuts float32 into parts, so pass input_precision="ieee"')
        if name != "IEEE":
            a, b = (rounded_to_tf32(tile) if tile.data.dtype == np.float32 else tile for tile in (a, b))
        return create_dot(a, b, acc, input_precision, *rest)

    return dot


def rounded_to_tf32(tile: Any) -> Any:
    """A copy of the interpreter's handle of a tile."""
    rounded, bits = copy.copy(tile), np.ascontiguousarray(tile.data).view(np.uint32)
    rounded.data = np.where(np.isfinite(tile.data), ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32), tile.data)
    return rounded


def _truth_of(block: Any, truth: Callable) -> bool:
    """The truth value of a block for Triton's own code, and of a number for any; Wrong for a reader's `and`, `or` or chained comparison."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if block.handle.data.size > 1 and not caller.startswith("triton."):
        raise Wrong(
            "put each comparison in brackets, and join masks by &, not by `and`: (a < M) & (b < N). A block has no single truth value, which "
            "`and` asks for, and so does a chain: a < b < c, or a < b & c < d without brackets, because & binds closer than <"
        )
    return truth(block)


def _stray(buffer: Buffer, offset: int, is_store: bool) -> Stray:
    name, shape, strides = buffer.name, tuple(buffer.tensor.shape), buffer.tensor.stride()
    verb, remedy = ("writes", "mask the store, or mend its offsets") if is_store else ("reads", "mask the load, or mend its offsets")
    return Stray(f"{verb} outside {name} (shape {shape}, strides {strides}), at element offset {offset}", remedy)


def _written_input(buffer: Buffer) -> Wrong:
    return Wrong(f"writes to {buffer.name}, which is an input")


def _check_guards(buffer: Buffer, before: torch.Tensor) -> None:
    """Wrong if memory changed that is not the output's own."""
    after = buffer.memory
    if after.element_size() == 1:
        after, before = after.view(torch.uint8), before.view(torch.uint8)
    changed = ~((after == before) | (torch.isnan(after) & torch.isnan(before)))
    if buffer.data is not None:
        if changed.any():
            raise _written_input(buffer)
        return
    stray = torch.nonzero(changed & ~buffer.own.to(changed.device)).flatten()
    if len(stray):
        raise _stray(buffer, int(stray[0]) - GUARD, is_store=True)
