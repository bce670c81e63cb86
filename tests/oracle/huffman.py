"""zstd's Huffman code (RFC 8878, section 4.2), decoded bit by bit."""

from __future__ import annotations

FOUR_STREAMS = 1024
"""Streams of fewer bytes are one; others are four."""


class _Backward:
    """Bits from the last one on, below the highest bit that is set; past the first there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._bits = int.from_bytes(data, "little")
        self.at = 8 * (len(data) - 1) + data[-1].bit_length() - 1

    def read(self, n: int) -> int:
        self.at -= n
        bits = self._bits >> self.at if self.at >= 0 else self._bits << -self.at
        return bits & ((1 << n) - 1)


def decode(weights: bytes, data: bytes, n: int) -> bytes:
    """The n bytes of a stream, by the code that `weights` says."""
    lengths = _lengths(weights)
    max_bits = max(lengths)
    table: list[tuple[int, int]] = []
    for length in range(max_bits, 0, -1):
        for symbol, n_bits in enumerate(lengths):
            if n_bits == length:
                table += [(symbol, length)] * (1 << (max_bits - length))
    assert len(table) == 1 << max_bits
    if n < FOUR_STREAMS:
        return _stream(table, max_bits, data, n)
    sizes = [int.from_bytes(data[i : i + 2], "little") for i in (0, 2, 4)]
    ends = [6 + sum(sizes[:i]) for i in range(4)] + [len(data)]
    part = (n + 3) // 4
    counts = [part, part, part, n - 3 * part]
    return b"".join(_stream(table, max_bits, data[ends[i] : ends[i + 1]], counts[i]) for i in range(4))


def _stream(table: list[tuple[int, int]], max_bits: int, data: bytes, n: int) -> bytes:
    bits = _Backward(data)
    out = bytearray()
    state = bits.read(max_bits)
    while bits.at > -max_bits:
        symbol, length = table[state]
        out.append(symbol)
        state = (state << length) & (len(table) - 1) | bits.read(length)
    assert bits.at == -max_bits
    assert len(out) == n
    return bytes(out)


def _lengths(data: bytes) -> list[int]:
    """Bits of each symbol's word; 0 of one that never comes."""
    if data[0] >= 128:
        weights = [data[1 + i // 2] >> (4 if i % 2 == 0 else 0) & 15 for i in range(data[0] - 127)]
    else:
        assert len(data) == 1 + data[0]
        weights = _fse(data[1:])
    total = sum(1 << (w - 1) for w in weights if w > 0)
    max_bits = total.bit_length()
    weights.append(((1 << max_bits) - total).bit_length())
    return [max_bits + 1 - w if w > 0 else 0 for w in weights]


def _fse(data: bytes) -> list[int]:
    """Two states in turn, over the table that comes first."""
    counts, log, n_bytes = _fse_counts(data)
    size = 1 << log
    symbols = [-1] * size
    high = size
    for symbol, count in enumerate(counts):
        if count == -1:
            high -= 1
            symbols[high] = symbol
    at = 0
    for symbol, count in enumerate(counts):
        for _ in range(count):
            symbols[at] = symbol
            at = (at + (size >> 1) + (size >> 3) + 3) % size
            while at >= high:
                at = (at + (size >> 1) + (size >> 3) + 3) % size
    following = [abs(count) for count in counts]
    states = []
    for symbol in symbols:
        n_bits = log + 1 - following[symbol].bit_length()
        states.append((symbol, n_bits, (following[symbol] << n_bits) - size))
        following[symbol] += 1

    bits = _Backward(data[n_bytes:])
    now, other = bits.read(log), bits.read(log)
    out = []
    while bits.at >= 0:
        symbol, n_bits, base = states[now]
        out.append(symbol)
        now, other = other, base + bits.read(n_bits)
    return [*out, states[now][0]]


def _fse_counts(data: bytes) -> tuple[list[int], int, int]:
    """How often each symbol comes in the table, -1 for less than once; the table's bits; bytes of all that."""
    number = int.from_bytes(data, "little")
    log = (number & 15) + 5
    at = 4
    left = 1 << log
    counts: list[int] = []
    while left > 0:
        n_bits = (left + 1).bit_length()
        value = number >> at & ((1 << n_bits) - 1)
        low = value & ((1 << (n_bits - 1)) - 1)
        threshold = (1 << n_bits) - 1 - (left + 1)
        if low < threshold:
            value, n_bits = low, n_bits - 1
        elif value != low:
            value -= threshold
        at += n_bits
        counts.append(value - 1)
        left -= abs(value - 1)
        while value == 1:
            repeat = number >> at & 3
            at += 2
            counts += [0] * repeat
            if repeat < 3:
                break
    return counts, log, (at + 7) // 8
