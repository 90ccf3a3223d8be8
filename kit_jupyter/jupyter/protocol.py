"""What kernel and browser say to each other, and the shape of what is saved.

Theory of operation
-------------------
A view (the output of a cell, or the panel) shows *turns*; a turn holds *items* in order. Both
sides keep the same tree. One comm message carries one *frame*: ``{"n": 7, "m": [message, ...]}``
where ``n`` counts up by one per view, so that a lost frame shows itself. Streamed fields (see
`STREAMED`) only ever grow: they travel as ``delta`` with the offset at which the text goes, in
UTF-16 units, because that is how a browser counts. A side that finds a gap says ``sync`` and gets
a ``state`` with the whole tree. A page of JupyterLab or Notebook says so at its first ``sync`` (``page``):
its frames come without the header of the message that started the cell, which is a third of a small one
and which those two need for outputs only; with it again once another page says that it is of neither.

Kernel to browser (`TO_BROWSER`)
    ``start``     ``{kind, turn: Turn}``: a turn begins; its items follow.
    ``delta``     ``{kind, d: [[item id, field, at, text], ...]}``
    ``commit``    ``{kind, turn: key, item: Item, sizes: {field: units}}``: an item came to be or
    changed; streamed fields are left out of it, `sizes` says how long they are by now.
    ``approval``  ``{kind, turn: key, call: item id, question: Question | null}``; null: answered.
    ``state``     ``{kind, view?: View, bar?: Bar, module?: {name, code}, completions?: …, chip?: …}``
    ``end``       ``{kind, turn: key, status, error, facts, sizes: {item id: {field: units}}}``

Browser to kernel (`TO_KERNEL`)
    ``submit``    ``{kind, text, when_busy}``: the composer.  ``steer`` ``{kind, turn?, text, now}``
    ``follow_up`` ``{kind, turn?, text}``; empty text continues.  ``abort`` ``{kind, turn?, clear}``
    ``approve``   ``{kind, call, allow, reason, scope, arguments}``
    ``fork``      ``{kind, turn, do}`` with do: ``retry``, ``branch`` (leaf moves to `entry`), ``fork``.
    ``ask``       ``{kind, what, …}``: questions that change nothing: ``sync``, ``module``,
    ``complete``, ``chip``; the pickers' choice ``model``, ``session``; ``insert``: ``text`` becomes a cell below.

View: ``{turns: [Turn], bar: Bar, panel: bool}``

Bar (all fields optional): ``{model, models, session, sessions, usage, gauge: {tokens, window}, queue:
{steering, follow_up, returned}, tasks, running, note, attached, retry}``; `attached`: a cell waits for the turn;
`retry`: the turn that runs can be begun again.

Turn: ``{key, prompt, mode, status, items, chips, note, waiting, error, facts}``
    `status`: running, done, stopped, error. `chips`: ``[{mark, kind, size, preview}]``.
    `error`: ``{code, message, raised?}``; `raised`: the cell's own error says the message, below what is drawn.
    `facts`: model, tokens, cost, seconds, entry; live only, absent from the saved bundle.

Item: ``{id, kind, …}`` where kind is one of `ITEM_KINDS`
    ``text``      text (Markdown from the model), citations
    ``thinking``  text
    ``tool``      name, arguments (JSON text), output, result, status, is_error, media, diff, question, seconds,
    progress: ``[done, total or null]``
    ``said``      text, mode: something the person said while the turn ran (a steer, a follow-up)
    ``notice``    text, level (info, warning, error)
    ``source``    name, text, url: what the service's own tools used

Saved bundle (`TURN_MIME`): ``{"version": 1, "turn": Turn}`` with no ids, times, costs: the same
turn gives the same bytes. Whoever draws it needs `static/chat.js` only: ``mount({model, el})``.

Any thread.
"""

from __future__ import annotations

__all__ = [
    "BUNDLE_VERSION",
    "ITEM_KINDS",
    "MODULES",
    "STREAMED",
    "TO_BROWSER",
    "TO_KERNEL",
    "TURN_MIME",
    "WIDGET_MIME",
    "clean",
    "utf16_units",
]

TURN_MIME = "application/vnd.kit.turn+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
BUNDLE_VERSION = 1

TO_BROWSER = ("start", "delta", "commit", "approval", "state", "end")
TO_KERNEL = ("submit", "steer", "follow_up", "abort", "approve", "fork", "ask")
ITEM_KINDS = ("text", "thinking", "tool", "said", "notice", "source")

#: Fields that only grow, and so travel as deltas.
STREAMED = ("text", "arguments", "output")

#: Modules that a page may ask for, by file name in ``static/``.
MODULES = {"chat": "chat.js", "render": "render.js"}


def utf16_units(text: str) -> int:
    """Length of `text` as a browser counts it.

    Examples
    --------
    >>> utf16_units("aé"), utf16_units("😀")
    (2, 2)
    """
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def clean(text: str) -> str:
    """`text` with lone surrogates replaced, which no message can carry.

    Examples
    --------
    >>> clean("a\\ud800b")
    'a\ufffdb'
    """
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
