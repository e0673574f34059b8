"""The inner loops of the kernels, on vectors of one cache line, held in registers.

Numba's own loops keep a row's running sums in memory, and a loop over a field's few columns falls
back to one number at a time. These do neither, and are twice as fast out of cache. They are written
in LLVM's intermediate language, which is compiled for the processor at hand. No flag lets the
compiler reorder or fuse operations, so a sum has the same bits in every kernel.

Numba's cache only watches the files of kernels: after a change here, touch those that import it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 16  # floats in a cache line

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
BYTES = ir.IntType(8).as_pointer()
VECTOR = ir.VectorType(FLOAT, LINE)
MASK = ir.VectorType(ir.IntType(1), LINE)
LANES = ir.Constant(ir.VectorType(INT64, LINE), list(range(LINE)))
ZEROS = ir.Constant(VECTOR, [0.0] * LINE)
WHOLES = ir.VectorType(INT32, LINE)


def _wholes(number: int) -> Any:
    return ir.Constant(WHOLES, [number] * LINE)


class _Writer:
    """Emits the instructions of one function."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context = context
        self.builder = builder

    def array(self, kind: Any, value: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, value)

    def line(self, array: Any, row: Any, column: Any, vector: Any = VECTOR) -> Any:
        """A pointer to [row, column] of a 2-d array (row None: to [column] of a 1-d array)."""
        b = self.builder
        at = b.gep(array.data, [column])
        if row is not None:
            stride = b.extract_value(array.strides, 0)
            at = b.gep(b.bitcast(at, BYTES), [b.mul(row, stride)])
        return b.bitcast(at, vector.as_pointer())

    def whole(self, array: Any, index: Any) -> Any:
        """An element of an integer array, as 64 bits."""
        found = self.builder.load(self.builder.gep(array.data, [index]))
        return found if found.type == INT64 else self.builder.sext(found, INT64)

    def spread(self, number: Any) -> Any:
        """A vector with one number in all lanes."""
        b = self.builder
        first = b.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INT32(0))
        return b.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, LINE), [0] * LINE))

    def lanes_below(self, count: Any) -> Any:
        """The mask of the first `count` lanes."""
        b = self.builder
        wide = ir.VectorType(INT64, LINE)
        first = b.insert_element(ir.Constant(wide, ir.Undefined), count, INT32(0))
        every = ir.Constant(ir.VectorType(INT32, LINE), [0] * LINE)
        return b.icmp_signed("<", LANES, b.shuffle_vector(first, first, every))

    def load(self, pointer: Any, mask: Any = None) -> Any:
        if mask is None:
            return self.builder.load(pointer, align=4)
        return self._masked(pointer, mask, VECTOR, "v16f32", 4)

    def _masked(self, pointer: Any, mask: Any, vector: Any, name: str, align: int) -> Any:
        kind = ir.FunctionType(vector, [vector.as_pointer(), INT32, MASK, vector])
        name = f"llvm.masked.load.{name}.p0{name}"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        zeros = ir.Constant(vector, [0] * LINE)
        return self.builder.call(function, [pointer, INT32(align), mask, zeros])

    def entries(self, kind: Any, array: Any, row: Any, column: Any, mask: Any = None) -> Any:
        """A line of a table's row as floats, whether the table has float32, int8, or uint16 that
        hold the bits of float16."""
        bits = kind.dtype.bitwidth
        if bits == 32:
            return self.load(self.line(array, row, column), mask)
        small = ir.VectorType(ir.IntType(bits), LINE)
        at = self.line(array, row, column, small)
        if mask is None:
            found = self.builder.load(at, align=bits // 8)
        else:
            found = self._masked(at, mask, small, f"v{LINE}i{bits}", bits // 8)
        if bits == 8:
            return self.builder.sitofp(self.builder.sext(found, WHOLES), VECTOR)
        return self._of_halves(self.builder.zext(found, WHOLES))

    def _of_halves(self, bits: Any) -> Any:
        """float16 to float32: exponent and fraction are shifted into place, and 2^112 makes up for
        the different exponent offsets. Needs no instruction that a processor might lack."""
        b = self.builder
        size = b.shl(b.and_(bits, _wholes(0x7FFF)), _wholes(13))
        scaled = b.fmul(b.bitcast(size, VECTOR), ir.Constant(VECTOR, [2.0**112] * LINE))
        sign = b.shl(b.and_(bits, _wholes(0x8000)), _wholes(16))
        return b.bitcast(b.or_(b.bitcast(scaled, WHOLES), sign), VECTOR)

    def store(self, vector: Any, pointer: Any, mask: Any = None) -> None:
        if mask is None:
            self.builder.store(vector, pointer, align=4)
            return
        kind = ir.FunctionType(ir.VoidType(), [VECTOR, VECTOR.as_pointer(), INT32, MASK])
        name = "llvm.masked.store.v16f32.p0v16f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        self.builder.call(function, [vector, pointer, INT32(4), mask])

    def variable(self) -> Any:
        """A vector variable, initially zeros; the compiler keeps it in a register."""
        place = cgutils.alloca_once(self.builder, VECTOR)
        self.builder.store(ZEROS, place)
        return place

    def add(self, place: Any, vector: Any) -> None:
        b = self.builder
        b.store(b.fadd(b.load(place), vector), place)

    def total(self, place: Any) -> Any:
        """The sum over the lanes, by halves: in the same order in every kernel."""
        b, left, half = self.builder, self.builder.load(place), LINE // 2
        while half:
            lanes = [k + half if k < half else k for k in range(LINE)]
            other = b.shuffle_vector(left, left, ir.Constant(ir.VectorType(INT32, LINE), lanes))
            left, half = b.fadd(left, other), half // 2
        return b.extract_element(left, INT32(0))


@intrinsic
def prefetch(typingctx, array, row, column):
    """Prefetch the cache line of array[row, column]."""

    def generate(context, builder, signature, arguments):
        write = _Writer(context, builder)
        array = write.array(signature.args[0], arguments[0])
        pointer = builder.bitcast(write.line(array, *arguments[1:]), BYTES)
        kind = ir.FunctionType(ir.VoidType(), [BYTES, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def _sum_of_lines(n_lines: int, *, partly: bool = False) -> Any:
    """out[first:] = sum over k of x[k] table[rows[k], first:], for n_lines lines.

    `partly`: only up to column `end`, which is within the line.
    """

    @intrinsic
    def sum_of_lines(typingctx, table, rows, x, out, first, end, has_values):
        def generate(context, builder, signature, arguments):
            write = _Writer(context, builder)
            table, rows, x, out = map(write.array, signature.args[:4], arguments[:4])
            first, end, has_values = arguments[4:]
            mask = write.lanes_below(builder.sub(end, first)) if partly else None
            sums = [write.variable() for _ in range(n_lines)]
            columns = [builder.add(first, INT64(k * LINE)) for k in range(n_lines)]

            def add_rows(valued: bool) -> None:
                with cgutils.for_range(builder, builder.extract_value(rows.shape, 0)) as loop:
                    row = write.whole(rows, loop.index)
                    if valued:
                        number = builder.load(builder.gep(x.data, [loop.index]))
                        factor = write.spread(number)
                    for place, column in zip(sums, columns, strict=True):
                        found = write.entries(signature.args[0], table, row, column, mask)
                        if valued:
                            found = builder.fmul(found, factor)
                        write.add(place, found)

            with builder.if_else(has_values) as (then, otherwise):
                with then:
                    add_rows(True)
                with otherwise:
                    add_rows(False)
            for place, column in zip(sums, columns, strict=True):
                write.store(builder.load(place), write.line(out, None, column), mask)
            return context.get_dummy_value()

        columns = (types.intp, types.intp)
        return types.void(table, rows, x, out, *columns, types.boolean), generate

    return sum_of_lines


sum_8_lines, sum_4_lines, sum_2_lines, sum_1_line = map(_sum_of_lines, (8, 4, 2, 1))
sum_part_line = _sum_of_lines(1, partly=True)


def _own_entries(*, keep: bool) -> Any:
    """sum over t of p_t q_t, where q_t = x_i table[rows[i], t] of the field i that owns column t
    and p = sums - q. `keep`: store q in `sums` and p in `others`.
    """

    @intrinsic
    def own_entries(typingctx, table, rows, x, starts, sums, others, has_values):
        def generate(context, builder, signature, arguments):
            write = _Writer(context, builder)
            arrays = map(write.array, signature.args[:6], arguments[:6])
            table, rows, x, starts, sums, others = arrays
            products = write.variable()
            with cgutils.for_range(builder, builder.extract_value(rows.shape, 0)) as loop:
                row = write.whole(rows, loop.index)
                number = builder.load(
                    builder.gep(x.data, [builder.select(arguments[6], loop.index, INT64(0))])
                )
                factor = write.spread(number)
                low = write.whole(starts, loop.index)
                high = write.whole(starts, builder.add(loop.index, INT64(1)))
                step = INT64(LINE)
                with cgutils.for_range_slice(builder, low, high, step, INT64) as (column, _):
                    mask = write.lanes_below(builder.sub(high, column))
                    q = write.entries(signature.args[0], table, row, column, mask)
                    q = builder.fmul(q, factor)
                    at = write.line(sums, None, column)
                    p = builder.fsub(write.load(at, mask), q)
                    write.add(products, builder.fmul(p, q))
                    if keep:
                        write.store(q, at, mask)
                        write.store(p, write.line(others, None, column), mask)
            return write.total(products)

        arrays = (table, rows, x, starts, sums, others)
        return types.float32(*arrays, types.boolean), generate

    return own_entries


own_products = _own_entries(keep=False)
split_own = _own_entries(keep=True)


@intrinsic
def row_product(typingctx, table, row, weights, first, end):
    """sum over t of table[row, t] weights[t], columns first to end; equal rows, equal bits"""

    def generate(context, builder, signature, arguments):
        write = _Writer(context, builder)
        table, weights = (write.array(signature.args[k], arguments[k]) for k in (0, 2))
        row, (first, end) = arguments[1], arguments[3:]
        products = write.variable()

        def add(column: Any, mask: Any = None) -> None:
            found = write.entries(signature.args[0], table, row, column, mask)
            weight = write.load(write.line(weights, None, column), mask)
            write.add(products, builder.fmul(found, weight))

        step = INT64(LINE)
        rest = builder.srem(builder.sub(end, first), step)
        whole = builder.sub(end, rest)
        with cgutils.for_range_slice(builder, first, whole, step, INT64) as (column, _):
            add(column)
        add(whole, write.lanes_below(rest))
        return write.total(products)

    arguments = (table, types.intp, weights, types.intp, types.intp)
    return types.float32(*arguments), generate
