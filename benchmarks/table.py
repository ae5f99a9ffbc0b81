"""Renders the result of a bench as a Markdown table, one line per case over all its sizes.

kvpool job=bench json=bench.json
python benchmarks/table.py bench.json                             # print it
python benchmarks/table.py bench.json --into docs/performance.md  # between the marks there
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEAD = ("row", "what", "sizes", "figures", "speed relative to", "target", "met")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or replace the table; 2 where that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", type=Path, help="what json=FILE of kvpool job=bench has written")
    parser.add_argument(
        "--into", type=Path, help="file whose table is replaced; else it is printed"
    )
    options = parser.parse_args(arguments)
    try:
        text = render(json.loads(options.bench.read_text(encoding="utf-8")))
        if options.into is None:
            print(text)
        else:
            _replace(options.into, text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"table.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def render(data: dict[str, Any]) -> str:
    """The table, and a line on what was measured."""
    rows: list[dict[str, Any]] = data["rows"]
    judged = [row["met"] for row in rows if row["met"] is not None]
    return "\n".join(
        [
            f"{data['model']}, page {data['page_size']}, medians of {data['rounds']} rounds; "
            f"targets met: {sum(judged)} of {len(judged)}.",
            "",
            *markdown(HEAD, _lines(rows)),
        ]
    )


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for cells in lines:
        yield f"| {' | '.join(cells)} |"


def figure(number: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _lines(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in rows:
        groups.setdefault((one["row"], one["name"]), []).append(one)
    for (row, name), cases in groups.items():
        first = cases[0]
        judged = [case["met"] for case in cases if case["met"] is not None]
        yield (
            row,
            name,
            _sizes([case["size"] for case in cases]),
            f"{' / '.join(figure(case['ours']) for case in cases)} {first['unit']}",
            f"{first['reference_name']}: "
            f"{' / '.join(format(case['ratio'], '.2f') for case in cases)}",
            "; ".join(dict.fromkeys(case["target"] for case in cases if case["target"])) or "-",
            f"{sum(judged)} of {len(judged)}" if judged else "-",
        )


def _sizes(sizes: list[str]) -> str:
    """``256 / 1024 / 4096 pages``: what all of them end with is said once."""
    words = [size.split() for size in sizes]
    same = 0
    while all(len(one) > same + 1 and one[-1 - same] == words[0][-1 - same] for one in words):
        same += 1
    heads = [" ".join(one[: len(one) - same]) for one in words]
    return " ".join([" / ".join(dict.fromkeys(heads)), *words[0][len(words[0]) - same :]])


def _replace(path: Path, text: str) -> None:
    old = path.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{path} has no {BEGIN} and {END}")
    head, rest = old.split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
