"""Oddities of a file that do not keep it from being served: a bounded list of sentences."""

from typing import Final

__all__ = ["Warnings"]

# A file can have 131,072 odd tensors; a person reads a few and wants to know how many more there are.
_SHOWN: Final = 5


class Warnings:
    """Collects sentences by kind: the first five of a kind are kept, the others counted."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[str]] = {}
        self._more: dict[str, int] = {}

    def wants(self, kind: str) -> bool:
        """Tell whether a sentence of this kind would be kept; if not, it is counted, and need not be written."""
        if len(self._kinds.get(kind, ())) < _SHOWN:
            return True
        self._more[kind] = self._more.get(kind, 0) + 1
        return False

    def add(self, kind: str, sentence: str) -> None:
        """Keep `sentence`. Ask `wants` first where there can be many of a kind."""
        self._kinds.setdefault(kind, []).append(sentence)

    def sentences(self) -> tuple[str, ...]:
        """Everything kept, kinds in order of their first sentence, each ending with how many more there are."""
        lines: list[str] = []
        for kind, kept in self._kinds.items():
            lines += kept
            if more := self._more.get(kind, 0):
                lines.append(f"And {more} more: {kind}.")
        return tuple(lines)
