"""Options of magics: read from the front of a line, the rest is left byte for byte.

IPython's own `magic_arguments` describe them, so that ``%%kit?`` and ``--help`` show what there is;
but the text after the options belongs to the model, and no parser may touch its quotes.
"""

from __future__ import annotations

import difflib
import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from IPython.core.magic_arguments import MagicArgumentParser

from kit_jupyter.errors import UsageError

__all__ = ["HelpAsked", "help_text", "names_of", "read"]


class HelpAsked(Exception):
    """``--help`` was given; the text is the first argument."""


def _parser(fn: Callable[..., Any]) -> MagicArgumentParser:
    parser: MagicArgumentParser = fn.parser  # type: ignore[attr-defined]  # set by magic_arguments
    return parser


def names_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Option strings of a magic, to their argparse actions."""
    return {name: action for action in _parser(fn)._actions for name in action.option_strings}


_PREFIX = "::\n\n  %"  # IPython's usage is a block of reStructuredText, which a terminal shows as it is


def help_text(fn: Callable[..., Any], rest: str = "") -> str:
    """What ``--help`` and ``?`` show: usage, words and options, without the marks of a docstring.

    Parameters
    ----------
    fn : magic function made with ``@magic_arguments``
    rest : str
        What may follow the options, for the usage.
    """
    usage, _, body = _parser(fn).format_help().removeprefix(_PREFIX).partition("\n\n")
    shift = " " * (len(_PREFIX) - 1)
    lines = [line.removeprefix(shift) for line in usage.splitlines()]
    if rest:
        lines[-1:] = [f"{lines[-1]} {rest}"] if len(lines[-1]) + len(rest) < 79 else [lines[-1], f"     {rest}"]
    return "%" + "\n".join(lines) + "\n\n" + re.sub(r"``(.+?)``", _unmarked, body).rstrip()


def _unmarked(found: re.Match[str]) -> str:
    """Code in words of help: as it is; a lone sign in quotes, or nobody sees where it ends."""
    code = found[1]
    return code if any(map(str.isalnum, code)) else f"'{code}'"


def read(fn: Callable[..., Any], line: str, *, text: bool, words: bool = False) -> tuple[Namespace, str]:
    """Options at the front of `line`, and the rest of it.

    Parameters
    ----------
    fn : magic function made with ``@magic_arguments``
    text : bool
        Free text may follow; else anything left over is an error.
    words : bool
        Words may stand before and between the options; they are what is left.

    Raises
    ------
    UsageError
        Names an unknown option and the nearest one, a missing or a bad value.
    HelpAsked
        For ``--help`` and ``-h``.
    """
    options = names_of(fn)
    parser = _parser(fn)
    values = {action.dest: action.default for action in parser._actions if action.dest != "help"}
    rest = line
    plain: list[str] = []
    while True:
        word = re.match(r"\s*([^\s-]\S*)", rest) if words else None
        if word is not None:
            plain.append(word[1])
            rest = rest[word.end() :]
            continue
        found = re.match(r"\s*(-{1,2}[A-Za-z][\w-]*)(=|\s+|$)", rest)
        if re.match(r"\s*--(\s|$)", rest):
            rest = re.sub(r"^\s*--\s?", "", rest, count=1)
            break
        if found is None:
            break
        name, after = found[1], rest[found.end() :]
        if name in ("-h", "--help"):
            raise HelpAsked(fn.__doc__ or help_text(fn))
        action = options.get(name)
        if action is None:
            hint = " (text that begins with a dash goes after --)" if text else ""
            raise UsageError(f"unknown option {name}; {_nearest(name, options)}{hint}")
        if action.nargs == 0:
            values[action.dest] = action.const
            rest = after
            continue
        value, rest = _value(name, after)
        if action.choices is not None and value not in action.choices:
            near = difflib.get_close_matches(value, list(action.choices), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{name} must be one of {', '.join(action.choices)}, got {value!r}{hint}")
        try:
            values[action.dest] = action.type(value) if callable(action.type) else value
        except (TypeError, ValueError) as exc:
            kind = getattr(action.type, "__name__", "value")
            raise UsageError(f"{name} needs {'a whole number' if kind == 'int' else kind}, got {value!r}") from exc
    rest = " ".join([*plain, rest]).strip() if words else rest
    if not text and not words and rest.strip():
        raise UsageError(f"nothing may follow here, got {rest.strip()!r}; --help shows the options")
    return Namespace(**values), rest.lstrip(" \t")


def _nearest(name: str, options: dict[str, Any]) -> str:
    """The option that was meant, or all there are. Compared without dashes, in which all are alike."""
    known = {option.lstrip("-"): option for option in (*options, "--help")}
    near = difflib.get_close_matches(name.lstrip("-"), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {known[near[0]]}?"
    others = sorted(option for option in options if option.startswith("--") and option != "--help")
    return f"options: {', '.join([*others, '--help'])}"


def _value(name: str, after: str) -> tuple[str, str]:
    quoted = re.match(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')", after)
    if quoted:
        raw = quoted[1] if quoted[1] is not None else quoted[2]
        return re.sub(r"\\([\"'\\])", r"\1", raw), after[quoted.end() :]
    plain = re.match(r"\s*(\S+)", after)
    if plain is None:
        raise UsageError(f"{name} needs a value")
    return plain[1], after[plain.end() :]
