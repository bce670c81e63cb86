"""Names and words that a text does not hold by chance. No word is part of another."""

from __future__ import annotations

from random import Random

_ADJECTIVES = """
agile ample brave breezy brisk calm candid clever cozy crisp curly dapper daring eager earnest fancy fluffy frosty
gentle glossy humble hungry jolly keen lively loyal lucky mellow merry misty modest nimble noble patient polite proud
quaint quiet rapid rustic shiny silent sleepy sturdy sunny tender tidy witty
"""
_COLOURS = """
amber azure beige bronze coral crimson golden indigo ivory lilac maroon olive purple scarlet silver teal
"""
_NOUNS = """
acorn anchor badger bakery barrel basket beacon blanket bridge bucket button cactus candle castle cellar cherry compass
cottage dolphin engine falcon feather ferry fiddle garden glacier hammer harbor helmet island jacket kettle ladder
lantern lemon magnet meadow mirror mitten orchard otter oyster paddle parrot pebble pepper pillow planet pocket puzzle
rabbit ribbon saddle sparrow spoon squirrel statue temple thimble tunnel turtle valley walnut window
"""

ADJECTIVES, COLOURS, NOUNS = (tuple(words.split()) for words in (_ADJECTIVES, _COLOURS, _NOUNS))

N_NAMES = len(ADJECTIVES) * len(COLOURS) * len(NOUNS)


def name(i: int) -> bytes:
    """Name number i of N_NAMES, such as "brave-coral-otter"."""
    i, noun = divmod(i, len(NOUNS))
    adjective, colour = divmod(i, len(COLOURS))
    return f"{ADJECTIVES[adjective]}-{COLOURS[colour]}-{NOUNS[noun]}".encode()


def distinct_names(rng: Random, n: int) -> list[bytes]:
    """n names in a random order."""
    return [name(i) for i in rng.sample(range(N_NAMES), n)]


def number(rng: Random) -> bytes:
    """Seven digits."""
    return b"%d" % rng.randrange(1_000_000, 10_000_000)
