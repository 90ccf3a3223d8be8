"""Tab completion in ``%kit`` lines and ``%%kit`` cells: options, their values, and marks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kit_jupyter.jupyter import options as opt

if TYPE_CHECKING:
    from kit_jupyter.jupyter.magics import KitMagics

__all__ = ["complete", "install", "remove"]

_ATTRIBUTE = "_kit_matcher"
_LINE = re.compile(r"^%{1,2}(kit\w*)(?:\s|$)")
_MARK = re.compile(r"(?:^|[\s(\[,;])@((?:cell:|file:)?[\w.\[\]#-]*)$")


def complete(magics: KitMagics, text: str) -> tuple[str, list[str]] | None:
    """What may follow `text`, which ends at the cursor: the word begun, and words to put in its place.

    Returns
    -------
    tuple or None
        None where this is none of our cells.
    """
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    line = lines[-1]
    own = _LINE.match(line.lstrip())
    if own is None and not first.lstrip().startswith("%%kit"):
        return None
    mark = _MARK.search(line)
    if mark:
        return mark[1], magics.marks(magics.nb.kit()).names(mark[1])
    if own is None:
        return None
    fn = getattr(type(magics), own[1], None)
    word = re.split(r"[\s=]", line)[-1]
    if fn is None or not hasattr(fn, "parser"):
        return None
    names = opt.names_of(fn)
    before = line[: len(line) - len(word)].rstrip().rstrip("=").split()
    action = names.get(before[-1]) if before else None
    if action is not None and action.nargs != 0:
        return word, [value for value in _values(magics, action) if value.startswith(word)]
    if word.startswith("-"):
        return word, sorted(name for name in [*names, "--help"] if name.startswith(word) and name.startswith("--"))
    return None


def _values(magics: KitMagics, action: Any) -> list[str]:
    if action.choices:
        return list(action.choices)
    match action.dest:
        case "session":
            return list(magics.nb.kits)
        case "context":
            return ["none", "above", "all"]
        case "tools":
            return list(magics.nb.kit().tools)
        case "schema" | "out":
            return magics.marks(magics.nb.kit()).names("")
    return []


def install(ip: Any, magics: KitMagics) -> None:
    """Add our matcher to IPython's completer (Lab's completion asks it, too)."""
    completer = getattr(ip, "Completer", None)
    if completer is None or not hasattr(completer, "custom_matchers"):
        return
    from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

    @context_matcher(identifier="kit", priority=1000)  # type: ignore[untyped-decorator]
    def kit_matcher(context: CompletionContext) -> dict[str, Any]:
        upto = context.full_text.split("\n")
        lines = [*upto[: context.cursor_line], upto[context.cursor_line][: context.cursor_position]]
        found = complete(magics, "\n".join(lines))
        if found is None:
            return {"completions": []}
        word, names = found
        return {
            "completions": [SimpleCompletion(text=name, type="kit") for name in names],
            "matched_fragment": word,
            "suppress": bool(names),
        }

    completer.custom_matchers.append(kit_matcher)
    setattr(ip, _ATTRIBUTE, kit_matcher)


def remove(ip: Any) -> None:
    """Take it out again."""
    matcher = getattr(ip, _ATTRIBUTE, None)
    if matcher is not None and matcher in ip.Completer.custom_matchers:
        ip.Completer.custom_matchers.remove(matcher)
        delattr(ip, _ATTRIBUTE)
