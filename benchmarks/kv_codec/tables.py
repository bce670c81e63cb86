"""What the codec made of K and V as tables, for a terminal or in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kv_codec.measure import PREDICTORS, VIEWS, CodecReport, Row
from tables import MB, Table

_FRONT = 2  # layers that the seeds' target is about


def facts(report: CodecReport) -> str:
    """On what, of what and how it was measured."""
    machine, model, plan = report.machine, report.model, report.plan
    return (
        f"{machine['cpu']}, one core, {machine['date'][:10]}. {model['desc']} ({model['file']}), K and V in "
        f"{plan['type'].upper()} after {plan['n_tokens']:,} tokens of {model['text']}. A frame is of a layer's K or V: "
        f'"aggregate" all tokens, an upper bound; "chunks" {plan["chunk"]:,} tokens; "groups" {plan["group"]} chunks; '
        '"rows" the same, and each row can be decoded alone, as in a cold store. '
        f"Ratios are bytes of K and V over those of frames, with all headers. Speeds are of K and V, the fastest of "
        f"{plan['repetitions']} for each frame, called from Python."
    )


def tables(report: CodecReport) -> Iterator[Table]:
    """Ratios and speeds, by layer, by plane, by predictor."""
    auto = [row for row in report.rows if row["predictor"] == "auto"]
    yield _totals(auto)
    yield _layers(auto)
    yield _planes(auto)
    yield _choices(report.rows)


def total(rows: Sequence[Row]) -> float:
    """The ratio of all of them together."""
    return float(sum(row["raw_bytes"] for row in rows) / sum(row["stored_bytes"] for row in rows))


def front(rows: Sequence[Row]) -> list[Row]:
    """Those of the first two layers."""
    layers = sorted({row["layer"] for row in rows})[:_FRONT]
    return [row for row in rows if row["layer"] in layers]


def _per_s(rows: Sequence[Row], name: str) -> str:
    seconds = sum(row["raw_bytes"] / row[name] for row in rows)
    return f"{sum(row['raw_bytes'] for row in rows) / seconds / MB:,.0f}"


def _totals(rows: Sequence[Row]) -> Table:
    lines = []
    for view in VIEWS:
        found = [row for row in rows if row["view"] == view]
        cells = []
        for some in (front(found), found):
            cells += [f"{total([r for r in some if r['part'] == part]):.3f}" for part in "KV"] + [f"{total(some):.3f}"]
        lines.append([view, *cells, _per_s(found, "encode_per_s"), _per_s(found, "decode_per_s")])
    columns = [f"{layers}, {part}" for layers in ("first two layers", "all layers") for part in ("K", "V", "both")]
    return Table("Ratio", [*columns, "encode, MB/s", "decode, MB/s"], lines, "")


def _layers(rows: Sequence[Row]) -> Table:
    cells = {(row["layer"], row["part"], row["view"]): f"{row['ratio']:.3f}" for row in rows}
    columns = [(part, view) for part in "KV" for view in VIEWS]
    lines = [
        [str(layer), *(cells[layer, part, view] for part, view in columns)]
        for layer in sorted({row["layer"] for row in rows})
    ]
    return Table("Ratio of layer", [f"{part}, {view}" for part, view in columns], lines, "")


def _planes(rows: Sequence[Row]) -> Table:
    lines = []
    for view in VIEWS:
        for part in "KV":
            found = [row for row in rows if (row["view"], row["part"]) == (view, part)]
            for i, plane in enumerate(found[0]["planes"]):
                chosen: Counter[str] = Counter()
                for row in found:
                    chosen.update(row["planes"][i]["predictors"])
                text = ", ".join(f"{name} {n}" for name, n in chosen.most_common())
                lines.append([f"{part}, {view}, {plane['name']}", text])
            n_rows, n_stored = (sum(row[name] for row in found) for name in ("rows", "stored_rows"))
            lines.append([f"{part}, {view}, rows", f"{n_stored:,} of {n_rows:,} are stored"])
    return Table("Plane", ["predictors of its frames"], lines, "")


def _choices(rows: Sequence[Row]) -> Table:
    lines = []
    for name in ("auto", *PREDICTORS):
        found = [row for row in rows if (row["view"], row["predictor"]) == ("groups", name)]
        ratios = [total([r for r in found if r["part"] == part]) for part in "KV"]
        cells = [f"{ratio:.3f}" for ratio in (*ratios, total(found), total(front(found)))]
        lines.append([name, *cells, _per_s(found, "encode_per_s"), _per_s(found, "decode_per_s")])
    columns = ["K", "V", "both", "first two layers", "encode, MB/s", "decode, MB/s"]
    return Table("Predictor", columns, lines, "In groups. The one given is that of all planes.")
