"""How benches show what they measured: markdown tables on the standard output, to be pasted into a results file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A markdown table whose columns are the first row's keys. Numbers stand to the right."""
    columns = list(rows[0])
    is_number = {column: not isinstance(rows[0][column], str) for column in columns}
    lines = [columns, ["---:" if is_number[column] else "---" for column in columns]]
    lines += [[_cell(row[column]) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
