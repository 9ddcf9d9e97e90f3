"""Triton's interpreter in a third of the time.

At every call of a @triton.jit function it looks through triton.language for the functions to replace by its own; at
every operation it makes the type of a block and the shape of a tensor anew, checks the one and wraps the other, number
by number; for every block it makes the table of NumPy's dtypes; and of every sum of integers it computes whether it
overflows, to tell nobody. `hasten` lets it replace once a launch, make a type, a shape or a table once, and leave the
overflow. Nothing else changes: the end of a launch is what takes the replacements back. All of them are private parts
of Triton's: where another version lacks one, all are left alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

PARTS = "_patch_lang", "_patch_builtin", "_get_np_dtype", "interpreter_builder", "interpreter_semantic"


def hasten() -> None:
    """Hasten every launch of a kernel in the interpreter from now on. A second call does nothing."""
    from triton.runtime import interpreter

    launch = interpreter.GridExecutor.__call__
    if launch.__module__ == __name__ or not all(hasattr(interpreter, name) for name in PARTS):
        return
    core, find_dtype, dtypes = interpreter.tl.core, interpreter._get_np_dtype, {}
    semantic = interpreter.interpreter_semantic

    def np_dtype(of: Any) -> Any:
        name = of.scalar.name
        if name not in dtypes:
            dtypes[name] = find_dtype(of)
        return dtypes[name]

    def replacement(member: Callable) -> Callable:
        call = getattr(member, "__wrapped__", member)  # without asking whether _semantic is given

        def replaced(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return call(*args, **kwargs)

        return replaced

    @cache
    def builtins_of(package: Any) -> list[tuple[str, Callable, Callable]]:
        members = inspect.getmembers(package, core.is_builtin)
        return [(name, member, replacement(member)) for name, member in members]

    def replace_builtins(package: Any, builder: Any, scope: Any) -> None:
        for name, member, replaced in builtins_of(package):
            if getattr(package, name) is member:
                scope.set_attr(package, name, replaced)

    def launch_with_one_replacement(executor: Any, *args: Any, **kwargs: Any) -> None:
        replace, seen = interpreter._patch_lang, set()

        def replace_once(function: Callable) -> Any:
            module = id(function.__globals__)
            if module in seen:
                return None
            seen.add(module)
            return replace(function)

        interpreter._patch_lang = replace_once
        try:
            launch(executor, *args, **kwargs)
        finally:
            interpreter._patch_lang = replace

    @cache
    def of_tensor(*sizes: int) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))

    make_block, blocks = core.block_type.__init__, {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [size.value if isinstance(size, core.constexpr) else size for size in shape]
        key = (getattr(element_ty, "name", None), *sizes) if all(type(size) is int for size in sizes) else None
        if key not in blocks:
            make_block(self, element_ty, shape)
            self.of_tensor = of_tensor(*self.shape)
            if key and key[0]:
                blocks[key] = dict(vars(self))
        else:
            self.__dict__.update(blocks[key], element_ty=element_ty)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensor if type.is_block() else of_tensor()

    broadcast = semantic.broadcast_impl_value

    def broadcast_others(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.block_type.to_ir = lambda self, builder: self
    semantic.broadcast_impl_value = broadcast_others
    interpreter._get_np_dtype, interpreter._patch_builtin = np_dtype, replace_builtins
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter.GridExecutor.__call__ = launch_with_one_replacement
