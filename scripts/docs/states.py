"""The page of states, with a diagram for each kind, from the enums and the declared transitions of `perdure.recovery`.

The diagrams are SVG files under `docs/figures`, so that the site needs no program to draw them. Each holds the graph
that it was drawn from; a test compares it with the code.
`python -m scripts.docs.states` draws them again: it needs npm.
"""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from scripts.docs.site import ROOT

from perdure.recovery.rules.transitions import (
    ATTEMPT_TRANSITIONS,
    NODE_PHASES,
    STATUS_TRANSITIONS,
    TASK_TRANSITIONS,
    Transitions,
)
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState

FIGURES = ROOT / "docs" / "figures"
MAX_LABELS = 16
_TOOLS = ROOT / "build" / "viz"
_NODE_TRANSITIONS: Transitions = {
    pair: cause
    for pair, cause in zip(
        pairwise(NODE_PHASES),
        (
            "the agent has connected",
            "the directive is set up",
            "mounts are ready",
            "setup has ended",
            "the directive is run",
            "run has ended",
            "uploads are complete",
        ),
        strict=True,
    )
}

# Name of the figure → heading, introduction, states in order, transitions.
DIAGRAMS: dict[str, tuple[str, str, type[StrEnum], Transitions]] = {
    "job": (
        "Job and task statuses",
        "What `perdure jobs queue` shows, with SkyPilot's names. A job has the status of its first task that has not "
        "succeeded.",
        Status,
        STATUS_TRANSITIONS,
    ),
    "task": (
        "Task states",
        "What the controller stores of a task. Statuses are derived from it.",
        TaskState,
        TASK_TRANSITIONS,
    ),
    "attempt": ("Attempt states", "One try at a task on one placement.", AttemptState, ATTEMPT_TRANSITIONS),
    "node": (
        "Node phases",
        "What an agent reports, in this order. A report may skip phases that passed while the connection was down, and "
        "every phase may end in `ended`.",
        NodePhase,
        _NODE_TRANSITIONS,
    ),
}


def graph(name: str) -> str:
    """The diagram as a graph in the DOT language."""
    _, _, states, transitions = DIAGRAMS[name]
    used = [state for state in states if any(state in pair for pair in transitions)]
    lines = [
        f'digraph "{name}" {{',
        '  rankdir=TB; bgcolor="transparent"; nodesep=0.5; ranksep=0.55;',
        '  node [shape=box, style="rounded,filled", fillcolor="#e8f1fd", color="#2f7de1", fontname="sans-serif"];',
        '  edge [color="#616e7c", fontcolor="#616e7c", fontname="sans-serif", fontsize=10];',
    ]
    for state in used:
        is_last = not any(before is state for before, _ in transitions)
        lines.append(f'  "{state}"' + (' [fillcolor="#e6f4ea", color="#2f9e44"];' if is_last else ";"))
    for (before, after), cause in transitions.items():
        # Many causes would hide the states: the page has them in a table.
        label = f' [label=" {cause} "]' if len(transitions) <= MAX_LABELS else ""
        lines.append(f'  "{before}" -> "{after}"{label};')
    return "\n".join([*lines, "}", ""])


def path_of(name: str) -> Path:
    return FIGURES / f"states-{name}.svg"


def page() -> str:
    lines = ["# States", "", "The diagrams are drawn from the code, and tests compare them with what it does.", ""]
    for name, (heading, introduction, states, transitions) in DIAGRAMS.items():
        lines += [f"## {heading}", "", introduction, "", f"![{heading}](../figures/{path_of(name).name})", ""]
        lines += ["| from | to | when |", "|---|---|---|"]
        lines += [f"| `{before}` | `{after}` | {cause} |" for (before, after), cause in transitions.items()]
        unused = [state for state in states if not any(state in pair for pair in transitions)]
        if unused:
            lines += ["", f"Not part of the usual course: {', '.join(f'`{state}`' for state in unused)}."]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Draws every diagram with Graphviz, as the npm package @viz-js/viz brings it."""
    _TOOLS.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(_TOOLS), "@viz-js/viz@3"], check=True
    )
    program = (
        'import { instance } from "@viz-js/viz"; import { readFileSync } from "node:fs";'
        ' process.stdout.write((await instance()).renderString(readFileSync(0, "utf8"), { format: "svg" }));'
    )
    script = _TOOLS / "draw.mjs"
    script.write_text(program)
    for name in DIAGRAMS:
        dot = graph(name)
        drawn = subprocess.run(["node", str(script)], input=dot, capture_output=True, text=True, check=True).stdout
        svg = drawn[drawn.index("<svg") :]
        path_of(name).write_text(f"<!--\n{dot}-->\n{svg}")
        print(path_of(name).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
