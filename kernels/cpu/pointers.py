"""Addresses of arrays and of numbers, for compiled loops: a layer's record has them in place of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def pointer_to(kind: Any) -> Callable[[Any], Any]:
    """Return a function for compiled loops that makes a pointer to numbers of the numba type `kind` from an address."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def address_of(_: Any, array: Any) -> Any:
    """Return the address of an array's first number. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def put(_: Any, address: Any, value: Any) -> Any:
    """Write an integer or float of any type at an address, which need not be aligned.

    Buffers of bytes hold several types, and numba's views of another type compile slowly.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        place, number = arguments
        builder.store(number, builder.inttoptr(place, number.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def get(_: Any, address: Any) -> Any:
    """Read an int64 at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.load(builder.inttoptr(arguments[0], arguments[0].type.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stack_memory(_: Any, num_bytes: Any) -> Any:
    """Reserve memory on the stack, a constant number of bytes; return its address."""
    if not isinstance(num_bytes, types.IntegerLiteral):
        return None

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(ir.IntType(8), num_bytes.literal_value))
        memory.align = 64
        return builder.ptrtoint(memory, ir.IntType(64))

    return types.int64(num_bytes), generate
