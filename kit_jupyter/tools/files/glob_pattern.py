"""File patterns with ``**`` and ``{a,b}``, matched in bounded time."""

from __future__ import annotations

import fnmatch
import re

from kit_jupyter.errors import BadArguments

__all__ = ["glob_pattern"]

_PIECES = r"\*\*/|\*\*|\*|\?|\{[^{}]*\}|\[[^\]]*\]|."


def glob_pattern(pattern: str) -> re.Pattern[str] | _Steps:
    """``**`` any folders, ``*`` and ``?`` within one, ``{a,b}`` choices.

    A pattern with many wildcards would make a regular expression try for ever, and nothing could stop
    it; such a one is followed step by step.

    Examples
    --------
    >>> bool(glob_pattern("src/**/*.{py,pyi}").fullmatch("src/a/b/c.pyi"))
    True
    """
    text = pattern.removeprefix("./")
    if "/" not in text:
        text = f"**/{text}"
    if len(text) > 1000:
        raise BadArguments(f"- pattern: {len(text):,} characters, at most 1,000")
    if len(re.findall(r"\*\*|\*|\{", text)) > 3:
        return _Steps(text)
    out = ""
    for piece in re.findall(_PIECES, text):
        if piece == "**/":
            out += "(?:.*/)?"
        elif piece == "**":
            out += ".*"
        elif piece == "*":
            out += "[^/]*"
        elif piece == "?":
            out += "[^/]"
        elif piece.startswith("{") and piece.endswith("}"):
            out += f"(?:{'|'.join(fnmatch.translate(p)[4:-3] for p in piece[1:-1].split(','))})"
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            out += (
                "[" + ("^" if piece[1] in "!^" else "") + re.sub(r"([\\\[])", r"\\\1", piece[1:-1].lstrip("!^")) + "]"
            )
        else:
            out += re.escape(piece)
    try:
        return re.compile(out)
    except re.error as exc:
        raise BadArguments(f"- pattern: not a file pattern ({exc})") from None


class _Steps:
    """A file pattern, matched in time that grows with its length times the path's.

    Examples
    --------
    >>> steps = _Steps("a/**/b*/**/{c,d}*.[ch]")
    >>> [steps.fullmatch(path) for path in ("a/b/c.h", "a/x/bb/y/dd.c", "a/b/e.h", "b/b/c.h")]
    [True, True, False, False]
    """

    def __init__(self, text: str) -> None:
        self._choices = [re.findall(_PIECES, choice) for choice in _unbraced(text)]

    def fullmatch(self, path: str) -> bool:
        return any(self._fits(pieces, path) for pieces in self._choices)

    @staticmethod
    def _fits(pieces: list[str], path: str) -> bool:
        # A state is a piece that comes next, or one of ``**/`` that is amid a folder's name.
        def with_skipped(states: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
            for number, amid in list(states):
                at = number
                while not amid and at < len(pieces) and pieces[at] in ("*", "**", "**/"):
                    at += 1
                    states.add((at, False))
            return states

        states = with_skipped({(0, False)})
        for letter in path:
            following: set[tuple[int, bool]] = set()
            for number, amid in states:
                piece = pieces[number] if number < len(pieces) else ""
                if piece == "**/":
                    following.add((number, True))
                    if letter == "/":
                        following.add((number + 1, False))
                elif piece == "**" or (piece == "*" and letter != "/"):
                    following.add((number, amid))
                elif piece and piece != "*" and _is_letter(piece, letter):
                    following.add((number + 1, False))
            states = with_skipped(following)
            if not states:
                return False
        return (len(pieces), False) in states


def _is_letter(piece: str, letter: str) -> bool:
    if piece == "?":
        return letter != "/"
    return fnmatch.fnmatchcase(letter, piece) if len(piece) > 2 else piece == letter


def _unbraced(text: str) -> list[str]:
    """Each choice of ``{a,b}`` written out."""
    done, todo = [], [text]
    while todo:
        head, found, rest = (one := todo.pop()).partition("{")
        inner, closed, tail = rest.partition("}")
        if not found or not closed:
            done.append(one)
        else:
            todo.extend(f"{head}{choice}{tail}" for choice in reversed(inner.split(",")))
        if len(done) + len(todo) > 100:
            raise BadArguments("- pattern: more than 100 choices in braces")
    return done
