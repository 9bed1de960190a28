"""One page of all targets: what the tables of a folder, of this run and of earlier ones, say of theirs."""

import json
from pathlib import Path

__all__ = ["write_targets"]


def write_targets(folder: Path) -> None:
    """Write targets.md into ``folder``, from the JSON files there."""
    lines = ["| table | target | wanted | measured | |", "|---|---|---|---|---|"]
    for path in sorted(folder.glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        for target in table["targets"]:
            wanted = f"{target['kind']} {target['bound']:g}"
            reached = "reached" if target["reached"] else "**not reached**"
            text = target["text"].replace("_", r"\_").replace("|", r"\|")
            lines.append(
                f"| [{path.stem}]({path.stem}.md) | {text} | {wanted} | {target['measured']:.3g} | {reached} |"
            )
    (folder / "targets.md").write_text("# Targets\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
