"""Flash attention, forward and backward, as kernels for a GPU: written in Triton, to be read.

A GPU is quick at products and slow at fetching numbers. A textbook body writes all L · S scores to memory and reads
them back; these kernels keep a tile of them where the arithmetic happens, use it up, and never write it anywhere. A
*program* is what runs on one of the GPU's processors. Each takes some rows of one head and goes over all columns that
they need, tile by tile; programs know nothing of each other.

Notation: Qᵢ, Kⱼ, Vⱼ are blocks of rows, s = scale, ∘ multiplies entry by entry, rowmax and rowsum act on each row.
Visible is a key j to a query i where low ≤ j − i ≤ high. This band is all that causal, window and offset can say; from
the keys' side it reads −high ≤ i − j ≤ −low, so that one function serves both.

Forward, a program for each block Qᵢ of queries (:func:`forward`):

    F1  load Qᵢ
    F2  O ← 0,  l ← 0,  m ← −∞                                  output, total of exponentials, largest score so far
    F3  for each block Kⱼ, Vⱼ that the band touches:
    F4      S ← s Qᵢ Kⱼᵀ,  −∞ where hidden                      only at the band's edges is there anything to hide
    F5      m' ← max(m, rowmax S)
    F6      P ← exp(S − m')
    F7      α ← exp(m − m'),  l ← α l + rowsum P,  O ← α O + P Vⱼ,  m ← m'
    F8  O ← O / l,  lse ← m + log l;  for a query that sees nothing O = 0, lse = +∞

Backward, first a program for each block of queries (:func:`backward_query`):

    B1  D ← rowsum(dO ∘ O)
    B2  for each block Kⱼ, Vⱼ that the band touches:
    B3      P ← exp(S − lse), with S as in F4                    the weights, computed again and not stored
    B4      dS ← P ∘ (dO Vⱼᵀ − D)                                the gradient through the softmax
    B5      dQ ← dQ + dS Kⱼ
    B6  dQ ← s dQ

and then a program for each block Kⱼ, Vⱼ of keys (:func:`backward_key_value`):

    B7  for each query head that shares the keys, for each block Qᵢ that the band touches:
    B8      Pᵀ as in B3,  dV ← dV + Pᵀ dO
    B9      dSᵀ as in B4,  dK ← dK + dSᵀ Qᵢ
    B10 dK ← s dK

Why lse = +∞ in F8: B3 then gives P = exp(−∞) = 0, and such a query's gradients are 0 without a case of their own.
Scores, sums and outputs are float32; what enters a product has the inputs' dtype, since only then is the product quick.
Exponentials are powers of two, which the hardware has: exp(x) = 2^(x · log₂ e), with the factor put into the scale.

Sources: Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", for F5 to F7; Dao et al. (2022),
"FlashAttention", for the tiles and for computing P again in B3; Dao (2023), "FlashAttention-2", for the order of the
loops: a program for each block of queries in the forward pass, of keys in the backward pass. Unlike there, dQ has a
program of its own, which computes S twice but adds up in a fixed order: results are the same in every run.
"""

from __future__ import annotations  # tl.constexpr is not there where triton is not

try:
    import triton
    from triton import language as tl
except ImportError:  # on a Mac or on Windows: the kernels can be read, not run
    triton = tl = None


def _jit(kernel):
    """Hand a kernel to Triton, which compiles it at its first call; numbers that often change do not compile anew."""
    changing = [name for name in ("L", "S", "low", "high") if name in kernel.__annotations__]
    return triton.jit(kernel, do_not_specialize=changing) if triton else kernel


@_jit
def forward(
    query, key, value, output, lse,
    query_strides, key_strides, value_strides, output_strides,
    L, S, low, high, scale, heads, repeats,
    E: tl.constexpr, Ev: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
):  # fmt: skip
    """Compute output (B, H, L, Ev) and lse (B, H, L) from query (B, H, L, E), key (B, G, S, E), value (B, G, S, Ev).

    ROWS queries make a block and COLUMNS keys; WIDTH and WIDTH_V are E and Ev filled up to powers of two.
    """
    first, batch, head = _place(L, heads, ROWS)
    q = _load(query, query_strides, batch, head, first, L, False, ROWS, E, WIDTH)  # F1: (ROWS, WIDTH)
    o = tl.zeros((ROWS, WIDTH_V), tl.float32)  # F2
    total = tl.zeros((ROWS,), tl.float32)
    m = tl.full((ROWS,), -3.4e38, tl.float32)  # finite, since −∞ − (−∞) in F7 would be NaN
    start, whole_start, whole_stop, stop = _tiles(first, L, S, low, high, ROWS, COLUMNS)
    for part in tl.static_range(3):  # F3: the band's left edge, what is wholly visible, the right edge
        begin, end = _third(part, start, whole_start, whole_stop, stop)
        for column in range(begin, end, COLUMNS):
            k = _load(key, key_strides, batch, head // repeats, column, S, part == 1, COLUMNS, E, WIDTH)
            v = _load(value, value_strides, batch, head // repeats, column, S, part == 1, COLUMNS, Ev, WIDTH_V)
            scores = _scores(q, k, scale, first, column, S, low, high, part != 1, ROWS, COLUMNS)  # F4
            new_m = tl.maximum(m, tl.max(scores, 1))  # F5
            p = tl.exp2(scores - new_m[:, None])  # F6: (ROWS, COLUMNS)
            shrink = tl.exp2(m - new_m)  # F7
            total = shrink * total + tl.sum(p, 1)
            o = tl.dot(p.to(v.dtype), v, shrink[:, None] * o, input_precision="ieee")
            m = new_m
    empty = total == 0  # F8
    total = tl.where(empty, 1, total)
    _store(output, output_strides, batch, head, first, L, o / total[:, None], ROWS, Ev, WIDTH_V)
    rows = first + tl.arange(0, ROWS)
    tl.store(
        _row_of(lse, batch, head, heads, L) + rows, tl.where(empty, float("inf"), m + tl.log2(total)), mask=rows < L
    )


@_jit
def backward_query(
    query, key, value, output, output_grad, query_grad, lse, delta,
    query_strides, key_strides, value_strides, output_strides, output_grad_strides, query_grad_strides,
    L, S, low, high, scale, heads, repeats,
    E: tl.constexpr, Ev: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
):  # fmt: skip
    """Compute query's gradient, and delta (B, H, L), the D that :func:`backward_key_value` reads."""
    first, batch, head = _place(L, heads, ROWS)
    q = _load(query, query_strides, batch, head, first, L, False, ROWS, E, WIDTH)
    o = _load(output, output_strides, batch, head, first, L, False, ROWS, Ev, WIDTH_V)
    do = _load(output_grad, output_grad_strides, batch, head, first, L, False, ROWS, Ev, WIDTH_V)
    rows = first + tl.arange(0, ROWS)
    d = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)  # B1
    tl.store(_row_of(delta, batch, head, heads, L) + rows, d, mask=rows < L)
    sums = tl.load(_row_of(lse, batch, head, heads, L) + rows, mask=rows < L, other=float("inf"))
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    start, whole_start, whole_stop, stop = _tiles(first, L, S, low, high, ROWS, COLUMNS)
    for part in tl.static_range(3):  # B2
        begin, end = _third(part, start, whole_start, whole_stop, stop)
        for column in range(begin, end, COLUMNS):
            k = _load(key, key_strides, batch, head // repeats, column, S, part == 1, COLUMNS, E, WIDTH)
            v = _load(value, value_strides, batch, head // repeats, column, S, part == 1, COLUMNS, Ev, WIDTH_V)
            scores = _scores(q, k, scale, first, column, S, low, high, part != 1, ROWS, COLUMNS)
            p = tl.exp2(scores - sums[:, None])  # B3: (ROWS, COLUMNS)
            ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - d[:, None])  # B4
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")  # B5
    _store(query_grad, query_grad_strides, batch, head, first, L, scale * dq, ROWS, E, WIDTH)  # B6


@_jit
def backward_key_value(
    query, key, value, output_grad, key_grad, value_grad, lse, delta,
    query_strides, key_strides, value_strides, output_grad_strides, key_grad_strides, value_grad_strides,
    L, S, low, high, scale, heads, repeats,
    E: tl.constexpr, Ev: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of key and value. A tile's rows are keys here, and its columns queries."""
    first, batch, group = _place(S, heads // repeats, ROWS)
    k = _load(key, key_strides, batch, group, first, S, False, ROWS, E, WIDTH)
    v = _load(value, value_strides, batch, group, first, S, False, ROWS, Ev, WIDTH_V)
    dk = tl.zeros((ROWS, WIDTH), tl.float32)
    dv = tl.zeros((ROWS, WIDTH_V), tl.float32)
    start, whole_start, whole_stop, stop = _tiles(first, S, L, -high, -low, ROWS, COLUMNS)
    for head in range(group * repeats, (group + 1) * repeats):  # B7
        for part in tl.static_range(3):
            begin, end = _third(part, start, whole_start, whole_stop, stop)
            for column in range(begin, end, COLUMNS):
                q = _load(query, query_strides, batch, head, column, L, part == 1, COLUMNS, E, WIDTH)
                do = _load(output_grad, output_grad_strides, batch, head, column, L, part == 1, COLUMNS, Ev, WIDTH_V)
                columns = column + tl.arange(0, COLUMNS)
                sums = tl.load(_row_of(lse, batch, head, heads, L) + columns, mask=columns < L, other=float("inf"))
                d = tl.load(_row_of(delta, batch, head, heads, L) + columns, mask=columns < L, other=0)
                scores = _scores(k, q, scale, first, column, L, -high, -low, part != 1, ROWS, COLUMNS)
                p = tl.exp2(scores - sums[None, :])  # B8: (ROWS, COLUMNS), keys by queries
                dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
                ds = p * (tl.dot(v, tl.trans(do), input_precision="ieee") - d[None, :])  # B9
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    _store(key_grad, key_grad_strides, batch, group, first, S, scale * dk, ROWS, E, WIDTH)  # B10
    _store(value_grad, value_grad_strides, batch, group, first, S, dv, ROWS, Ev, WIDTH_V)


@_jit
def _place(length, heads, ROWS: tl.constexpr):
    """Tell a program which rows are its own: their first, and whose they are. The last block of a head goes first.

    Under a causal mask the last queries have the most keys; what is long should not begin when all else is done.
    """
    blocks = tl.cdiv(length, ROWS)
    program = tl.program_id(0)
    head = program // blocks
    return (blocks - 1 - program % blocks) * ROWS, head // heads, head % heads


@_jit
def _tiles(first, length, others, low, high, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Give the columns that rows first, first + 1, ... need, start to stop, and those that all of them see wholly."""
    last = tl.minimum(first + ROWS, length) - 1
    start = tl.maximum(first + low, 0) // COLUMNS * COLUMNS
    stop = tl.minimum(last + high + 1, others)
    whole_start = tl.cdiv(tl.maximum(last + low, 0), COLUMNS) * COLUMNS
    whole_stop = tl.minimum(first + high + 1, others) // COLUMNS * COLUMNS
    return start, whole_start, tl.maximum(whole_start, whole_stop), stop


@_jit
def _third(part: tl.constexpr, start, whole_start, whole_stop, stop):
    """Give one of three stretches of columns: with a left edge, wholly visible, with a right edge. Any can be empty."""
    if part == 0:
        return start, tl.minimum(whole_start, stop)
    elif part == 1:  # noqa: RET505 (a compiler's branch: the other ones are not there)
        return whole_start, whole_stop
    else:
        return whole_stop, stop


@_jit
def _scores(
    rows, columns, scale, first_row, first_column, others, low, high,
    EDGE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of scores times log₂ e, (ROWS, COLUMNS); at an edge, −∞ for what is hidden or does not exist."""
    scores = tl.dot(rows, tl.trans(columns), input_precision="ieee") * (scale * 1.4426950408889634)
    if EDGE:
        i = first_row + tl.arange(0, ROWS)[:, None]
        j = first_column + tl.arange(0, COLUMNS)[None, :]
        scores = tl.where((j - i >= low) & (j - i <= high) & (j < others), scores, float("-inf"))
    return scores


@_jit
def _pointers(array, strides, batch, head, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Point at the numbers of ROWS rows, (ROWS, WIDTH). What can be far away is counted in 64 bits."""
    far = tl.cast(batch, tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[1]
    far += tl.cast(first, tl.int64) * strides[2]
    return array + far + (tl.arange(0, ROWS)[:, None] * strides[2] + tl.arange(0, WIDTH)[None, :] * strides[3])


@_jit
def _load(
    array, strides, batch, head, first, stop,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load rows first, first + 1, ... of a head, (ROWS, WIDTH): 0 from row stop on (none if WHOLE), 0 from SIZE on."""
    pointers = _pointers(array, strides, batch, head, first, ROWS, WIDTH)
    rows = first + tl.arange(0, ROWS)[:, None] < stop
    columns = tl.arange(0, WIDTH)[None, :] < SIZE
    if WHOLE and SIZE == WIDTH:
        return tl.load(pointers)
    elif WHOLE:  # noqa: RET505
        return tl.load(pointers, mask=columns, other=0)
    else:
        return tl.load(pointers, mask=rows & columns, other=0)


@_jit
def _store(
    array, strides, batch, head, first, stop, numbers, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """Store numbers (ROWS, WIDTH) where :func:`_load` would find them, in the array's dtype."""
    pointers = _pointers(array, strides, batch, head, first, ROWS, WIDTH)
    exists = (first + tl.arange(0, ROWS)[:, None] < stop) & (tl.arange(0, WIDTH)[None, :] < SIZE)
    tl.store(pointers, numbers.to(array.dtype.element_ty), mask=exists)


@_jit
def _row_of(array, batch, head, heads, L):
    """Point at the L numbers that an array (B, H, L), contiguous, holds for a head."""
    return array + (tl.cast(batch, tl.int64) * heads + head) * L
