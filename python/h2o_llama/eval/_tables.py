"""Rows as tables for the terminal, dense attention in the first line of each."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from h2o_llama._internal.terminal import plain
from h2o_llama.eval._evaluate import Row

_SETTING_WIDTH = len("single_pass")
_NARROW = ("perplexity", "same top", "tokens/s")

_NOTE = """The second half of every window is scored. Loss is the mean negative log-probability of a token in nats, so \
+0.01 is 1 % of perplexity. KL is the divergence from dense attention's distribution in nats, same top the share of \
tokens for which both find the same one most probable; ± is the standard error between windows. Tokens/s are for \
reading, all logits computed.
"""


def tables(rows: Sequence[Row]) -> Iterator[Table | str]:
    """For each length its tables with titles, and what explains them."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["n_tokens"], []).append(row)
    for group in groups.values():
        yield from _perplexity(group)
    yield _NOTE


def _table(*columns: str) -> Table:
    """Of 80 columns, with nothing cut off."""
    table = Table()
    table.add_column("", min_width=_SETTING_WIDTH, overflow="fold")
    for column in columns:
        table.add_column(plain(column), justify="right", overflow="fold", no_wrap=column in _NARROW)
    return table


def _perplexity(rows: list[Row]) -> Iterator[Table | str]:
    first = rows[0]
    yield (
        f"Perplexity of {first['windows']} × {first['n_tokens']:,} tokens of {first['text']}, S "
        f"{first['chunk_size']:,}, {first['model']} ({first['file']})"
    )
    table = _table(*_LOSS_COLUMNS, "tokens/s")
    table.add_row("dense", f"{first['ppl_dense']:.3f}", *[""] * 3, f"{first['tokens_per_s_dense']:,.0f}")
    for row in rows:
        table.add_row(plain(row["setting"]), *_losses(row), f"{row['tokens_per_s']:,.0f}")
    yield table
    chunk = first["first_chunk"]
    yield (
        f"{_verdict(first)} In the first chunk, where H2O is dense attention, rounding makes up a loss of "
        f"{_nats(chunk['nats_added'])} and a KL of {chunk['kld']:.4f}.\n"
    )


_LITTLE, _MUCH = 0.01, 0.02
"""Losses, in nats per token, up to which a setting is good enough, and from which it is not."""


def _verdict(row: Row) -> str:
    """What the loss of the first setting means, and what to change."""
    loss, error = row["over_windows"]["nats_added"], row["over_windows"]["nats_added_se"]
    name = row["setting"]
    if loss < _LITTLE:
        size = "no perplexity that can be seen" if loss <= (error or 0.001) else f"{100 * loss:.1f} % of perplexity"
        return f"On this text {name!r} loses {size}: keep it."
    advice = "use --h2o off" if "faithful" in name else "try --h2o faithful, which reads more"
    if loss < _MUCH:
        advice = f"good enough for most uses; if not, {advice}"
    return f"On this text {name!r} loses {100 * loss:.1f} % of perplexity: {advice}."


_LOSS_COLUMNS = ("perplexity", "loss over dense", "KL", "same top")


def _losses(row: Row) -> list[str]:
    """The cells of `_LOSS_COLUMNS`."""
    means = row["over_windows"]
    loss = _nats(means["nats_added"]) + _error(means["nats_added_se"])
    kl = f"{means['kld']:.4f}" + _error(means["kld_se"])
    return [f"{row['ppl']:.3f}", loss, kl, f"{row['same_top']:.1%}"]


def _error(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def _nats(value: float) -> str:
    """With a sign, but no negative zero."""
    return f"{round(value, 4) + 0.0:+.4f}"
