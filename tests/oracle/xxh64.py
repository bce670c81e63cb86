"""XXH64 (Collet 2012), as its specification describes it."""

from __future__ import annotations

import struct

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK = 2**64 - 1


def _rotate(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & _MASK


def _round(lane: int, value: int) -> int:
    return _rotate((lane + value * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    """The hash of the bytes, 64 bits."""
    at = 0
    if len(data) >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= len(data):
            lanes = [_round(lane, v) for lane, v in zip(lanes, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        h = sum(_rotate(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            h = ((h ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        h = (seed + _P5) & _MASK
    h = (h + len(data)) & _MASK
    while at + 8 <= len(data):
        h = (_rotate(h ^ _round(0, struct.unpack_from("<Q", data, at)[0]), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        h = (_rotate(h ^ struct.unpack_from("<I", data, at)[0] * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        h = _rotate(h ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    h = (h ^ h >> 33) * _P2 & _MASK
    h = (h ^ h >> 29) * _P3 & _MASK
    return h ^ h >> 32
