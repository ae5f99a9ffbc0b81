"""What the times to a first token amount to: tables, a plot, and where a cache begins to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from composer.jobs.tables import make_console, make_table
from composer.jobs.ttft_measure import COLD, ELSEWHERE, UNCACHED, WARM, Plan, Timed

KINDS = (UNCACHED, COLD, *WARM, ELSEWHERE)
_COLORS = dict(
    zip(KINDS, ("#8b867c", "#c9bfae", "#2f6f5e", "#7aa874", "#d3b45f", "#b9703f"), strict=True)
)


def result_data(about: Mapping[str, Any], plan: Plan, timed: Sequence[Timed]) -> dict[str, Any]:
    """The result for machines.

    ``break_even_tokens`` is the prefix from which on each kind is faster than no cache: the
    shortest that was measured where that one is, None where even the longest is not. ``speedup``:
    of storage over no cache at the longest prefix. ``wrong``: answers that differ from those of the
    empty cache.
    """
    first = {(one.number, one.length): one.token for one in timed if one.kind == COLD}
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in timed)]
    rows = [_row(kind, length, timed) for kind in kinds for length in plan.prefix_tokens]
    times = {(row["kind"], row["prefix_tokens"]): row["ttft_s"] for row in rows}
    saved = {
        kind: [times[UNCACHED, length] - times[kind, length] for length in plan.prefix_tokens]
        for kind in kinds[1:]
    }
    longest = max(plan.prefix_tokens)
    compared = [one for one in timed if one.kind not in (UNCACHED, COLD)]
    return {
        **about,
        "question_tokens": plan.question_tokens,
        "rounds": plan.rounds,
        "rows": rows,
        "break_even_tokens": {
            kind: break_even(plan.prefix_tokens, seconds) for kind, seconds in saved.items()
        },
        "speedup": times[UNCACHED, longest] / times["storage", longest],
        "wrong": sum(one.token != first[one.number, one.length] for one in compared),
    }


def _row(kind: str, length: int, timed: Sequence[Timed]) -> dict[str, Any]:
    chosen = [one for one in timed if (one.kind, one.length) == (kind, length)]
    seconds = [one.seconds for one in chosen]
    return {
        "kind": kind,
        "prefix_tokens": length,
        "ttft_s": median(seconds),
        "rounds_s": seconds,
        "restored_tokens": min(one.restored for one in chosen),
    }


def break_even(lengths: Sequence[int], saved_s: Sequence[float]) -> float | None:
    """The length from which on there is something to save, on straight lines between lengths.

    Args:
        lengths: Ascending.
        saved_s: Seconds saved at each; negative where they are lost.

    Returns:
        None where nothing is saved at the longest.
    """
    if saved_s[-1] <= 0:
        return None
    lost = [at for at, seconds in enumerate(saved_s) if seconds <= 0]
    if not lost:
        return float(lengths[0])
    at = lost[-1]
    part = -saved_s[at] / (saved_s[at + 1] - saved_s[at])
    return lengths[at] + part * (lengths[at + 1] - lengths[at])


def print_report(data: Mapping[str, Any]) -> None:
    """Print the result for people."""
    console = make_console()
    console.print(
        f"{data['model']}, {data['parameters'] / 1e6:,.1f} M parameters, {data['dtype']} on "
        f"{data['device']}, {data['threads']} threads; pages of {data['page_size']} tokens, a "
        f"checkpoint every {data['checkpoint_tokens']}; {data['backend']}; medians of "
        f"{data['rounds']} prompts, with {data['question_tokens']} tokens behind the prefix",
        soft_wrap=True,
    )
    kinds = list(dict.fromkeys(row["kind"] for row in data["rows"]))
    lengths = list(dict.fromkeys(row["prefix_tokens"] for row in data["rows"]))
    cells = {(row["prefix_tokens"], row["kind"]): row for row in data["rows"]}
    columns = (">prefix", *(f">{kind}" for kind in kinds))
    rows = [[length, *(_time(cells[length, kind]) for kind in kinds)] for length in lengths]
    console.print(make_table("milliseconds to the first token", columns, rows))
    rows = [
        [length, *(_speed(cells[length, kind], cells[length, UNCACHED]) for kind in kinds)]
        for length in lengths
    ]
    points = data["break_even_tokens"]
    rows.append(["faster from", "", *(_point(points[kind], lengths) for kind in kinds[1:])])
    console.print(make_table("speed relative to no cache", columns, rows))
    if any(row["restored_tokens"] < row["prefix_tokens"] for row in data["rows"] if _is_warm(row)):
        console.print("*: not all of the prefix was restored: a tier is too small", soft_wrap=True)
    console.print(f"wrong answers  {data['wrong']}")


def _is_warm(row: Mapping[str, Any]) -> bool:
    return row["kind"] not in (UNCACHED, COLD)


def _time(row: Mapping[str, Any]) -> str:
    short = _is_warm(row) and row["restored_tokens"] < row["prefix_tokens"]
    return f"{'*' if short else ''}{1000 * row['ttft_s']:,.1f}"


def _speed(row: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    return f"{reference['ttft_s'] / row['ttft_s']:,.2f}"


def _point(tokens: float | None, lengths: Sequence[int]) -> str:
    if tokens is None:
        return f"> {lengths[-1]:,}"
    return f"<= {lengths[0]:,}" if tokens <= lengths[0] else f"{tokens:,.0f}"


def write_plot(path: Path, data: Mapping[str, Any]) -> None:
    """Write a page with the times over the prefix's length, which needs no network."""
    from plotly import graph_objects as go

    figure = go.Figure()
    for kind in dict.fromkeys(row["kind"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["kind"] == kind]
        figure.add_scatter(
            x=[row["prefix_tokens"] for row in rows],
            y=[1000 * row["ttft_s"] for row in rows],
            name=kind,
            mode="lines+markers",
            line={"color": _COLORS[kind], "dash": "solid" if _is_warm(rows[0]) else "dot"},
            hovertemplate="%{x:,} tokens: %{y:,.1f} ms",
        )
    lengths = sorted({row["prefix_tokens"] for row in data["rows"]})
    figure.update_layout(
        template="plotly_white",
        title=f"Time to the first token, {data['model']}",
        xaxis={"title": "tokens of the prefix", "type": "log", "tickvals": lengths},
        yaxis={"title": "milliseconds", "type": "log", "dtick": 1, "tickformat": ","},
        legend={"title": "prefix from"},
        font={"family": "Georgia, serif", "size": 15, "color": "#2b2a27"},
        margin={"t": 90},
    )
    figure.update_xaxes(ticktext=[f"{length:,}" for length in lengths])
    figure.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})
