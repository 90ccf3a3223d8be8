"""What a function returns, as parts a model can read: text, tables, pictures, bounded.

Libraries are never imported here: a value of pandas means that pandas is loaded already.
"""

from __future__ import annotations

import dataclasses
import io
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.printed import clip

__all__ = ["MAX_PIXELS", "MAX_TEXT", "describe_error", "media_of", "parts_of"]

MAX_TEXT = 40_000
MAX_PIXELS = 1568
MAX_MEDIA_BYTES = 5_000_000
MAX_PARTS = 40
_PARTS = get_args(Part)
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def parts_of(value: Any, *, limit: int = MAX_TEXT) -> tuple[Part, ...]:
    """Parts that show `value`.

    Text stays text; parts stay parts; a list of parts, pictures and text becomes several; pictures
    (matplotlib, PIL, anything with ``_repr_png_``) become PNG of at most 1568 pixels; tables become
    compact text; models, dataclasses and plain data become JSON; other objects speak by
    ``_repr_llm_()`` or ``repr``.

    Parameters
    ----------
    limit : int, characters
        Longer text loses its middle, and says so.

    Examples
    --------
    >>> parts_of({"a": 1})[0].text
    '{"a":1}'
    """
    if isinstance(value, list | tuple) and any(isinstance(v, _PARTS) or _is_picture(v) for v in value[:MAX_PARTS]):
        return tuple(part for item in value[:MAX_PARTS] for part in parts_of(item, limit=limit))
    if isinstance(value, TextPart):
        return (dataclasses.replace(value, text=clip(value.text, limit)),) if len(value.text) > limit else (value,)
    if isinstance(value, _PARTS):
        return (value,)
    if isinstance(value, str):
        return (TextPart(clip(value, limit)),)
    if type(value) in _PLAIN:  # what most functions give, seen at once to be neither a picture nor a table
        return (TextPart(clip(_text(value, limit), limit)),)
    own = _own_words(value)
    if own is not None:
        return parts_of(own, limit=limit)
    picture = media_of(value)
    if picture is not None:
        return (picture,)
    return (TextPart(clip(_text(value, limit), limit)),)


def _own_words(value: Any) -> Any:
    """What the object itself wants a model to read (`_repr_llm_`), None when it says nothing."""
    speak = getattr(type(value), "_repr_llm_", None)
    if speak is None or isinstance(value, type):
        return None
    try:
        said = speak(value)
    except Exception as exc:
        return f"{type(value).__name__} (its _repr_llm_ failed: {type(exc).__name__}: {exc})"
    return None if said is value else said


def _text(value: Any, limit: int) -> str:
    if value is None:
        return "(no result)"
    if isinstance(value, bytes | bytearray):
        return f"{len(value):,} bytes, not shown: {bytes(value[:40])!r}"
    table = _table(value) if type(value) not in _PLAIN else None
    if table is not None:
        return table
    if dataclasses.is_dataclass(value) or hasattr(type(value), "model_dump") or _is_plain(value):
        try:
            from pydantic_core import to_json

            # catch-all: one odd value inside must not lose the rest; its repr stands for it
            return to_json(value, fallback=lambda odd: clip(safe_repr(odd), 400), inf_nan_mode="constants").decode()
        except Exception:
            pass
    return safe_repr(value)


_PLAIN = frozenset((type(None), bool, int, float, dict, list, tuple, set, frozenset))


def _is_plain(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | set | frozenset | int | float | bool)


def safe_repr(value: Any) -> str:
    """``repr`` that never raises."""
    try:
        return repr(value)
    except Exception as exc:
        return f"<{type(value).__name__}; its repr failed: {type(exc).__name__}>"


def _loaded(value: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and any(
        isinstance(value, cls) for cls in (getattr(loaded, name, None) for name in names) if isinstance(cls, type)
    )


def _table(value: Any) -> str | None:
    """Compact text of a table: shape first, then at most 60 rows and 30 columns."""
    if _loaded(value, "pandas", "DataFrame"):
        rows, columns = value.shape
        text = value.iloc[:60, :30].to_csv(index=not _is_plain_index(value), float_format="%.6g")
        cut = " (first 60 rows)" if rows > 60 else ""
        wide = " (first 30 columns)" if columns > 30 else ""
        return f"table, {rows:,} rows x {columns:,} columns{cut}{wide}\n{text}"
    if _loaded(value, "pandas", "Series"):
        cut = " (first 60)" if len(value) > 60 else ""
        return f"series {value.name!r}, {len(value):,} values{cut}\n{value.iloc[:60].to_csv(header=False)}"
    if _loaded(value, "polars", "DataFrame"):
        rows, columns = value.shape
        cut = " (first 60 rows)" if rows > 60 else ""
        head = value[:60, :30]
        try:
            text = head.write_csv()
        except Exception:  # nested columns have no CSV
            text = str(head)
        return f"table, {rows:,} rows x {columns:,} columns{cut}\n{text}"
    if _loaded(value, "numpy", "ndarray"):
        numpy = sys.modules["numpy"]
        text = numpy.array2string(value, threshold=200, edgeitems=5)
        return f"array, shape {value.shape}, {value.dtype}\n{text}"
    return None


def _is_plain_index(frame: Any) -> bool:
    return type(frame.index).__name__ == "RangeIndex"


# ---------------------------------------------------------------- pictures


def _is_picture(value: Any) -> bool:
    if isinstance(value, bytes | bytearray):
        return any(bytes(value[:8]).startswith(magic) for magic, _ in _MAGIC)
    return (
        _loaded(value, "matplotlib.figure", "FigureBase")
        or _loaded(value, "matplotlib.axes", "Axes")
        or _loaded(value, "PIL.Image", "Image")
        or (not isinstance(value, type) and callable(getattr(type(value), "_repr_png_", None)))
    )


def media_of(value: Any, name: str = "") -> MediaPart | None:
    """`value` as a picture or document, None when it is not one."""
    if isinstance(value, bytes | bytearray):
        for magic, media_type in _MAGIC:
            if bytes(value[:8]).startswith(magic):
                return MediaPart.of_bytes(_small(bytes(value), media_type), media_type, name)
        return None
    if not _is_picture(value):
        return None
    try:
        raw = _png(value)
    except Exception:  # a figure that cannot be drawn is shown by its repr
        return None
    return None if raw is None else MediaPart.of_bytes(raw, "image/png", name)


def _png(value: Any) -> bytes | None:
    buffer = io.BytesIO()
    if _loaded(value, "matplotlib.axes", "Axes"):
        value = value.get_figure()
    if _loaded(value, "matplotlib.figure", "FigureBase"):
        width, height = value.get_size_inches() if hasattr(value, "get_size_inches") else (8, 6)
        dpi = min(float(getattr(value, "dpi", 100) or 100), MAX_PIXELS / max(width, height, 0.1))
        value.savefig(buffer, format="png", dpi=dpi)
        return buffer.getvalue()
    if _loaded(value, "PIL.Image", "Image"):
        picture = value.copy()
        picture.thumbnail((MAX_PIXELS, MAX_PIXELS))
        if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"):
            picture = picture.convert("RGB")
        picture.save(buffer, format="PNG")
        return buffer.getvalue()
    raw = value._repr_png_()
    raw = raw[0] if isinstance(raw, tuple) else raw
    if isinstance(raw, str):
        import base64

        raw = base64.b64decode(raw)
    return _small(raw, "image/png") if isinstance(raw, bytes) else None


def _small(raw: bytes, media_type: str) -> bytes:
    """At most 1568 pixels a side, when PIL is there to shrink it; else unchanged."""
    if not media_type.startswith("image/"):
        return raw
    try:
        from PIL import Image
    except ImportError:
        return raw
    try:
        picture = Image.open(io.BytesIO(raw))
        if max(picture.size) <= MAX_PIXELS and len(raw) <= MAX_MEDIA_BYTES:
            return raw
        form = picture.format or "PNG"
        picture.thumbnail((MAX_PIXELS, MAX_PIXELS))
        buffer = io.BytesIO()
        picture.save(buffer, format=form)
        return buffer.getvalue()
    except Exception:  # not a picture PIL can read; the service will say so
        return raw


# ---------------------------------------------------------------- errors

_HERE = str(Path(__file__).parent)
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|^<ipython-input-")


def _theirs(shown: traceback.TracebackException | None) -> None:
    """Drop our own frames: they say nothing about the code that failed."""
    while shown is not None:
        kept = [_unnumbered(frame) for frame in shown.stack if not frame.filename.startswith(_HERE)]
        shown.stack = traceback.StackSummary.from_list(kept[-12:])
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def _unnumbered(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """A cell's frame without the numbers in its file's name: they differ from run to run, and what is sent must not."""
    if not _CELL.search(frame.filename):
        return frame
    return traceback.FrameSummary("<cell>", frame.lineno, frame.name, lookup_line=False, line=frame.line)


def describe_error(error: BaseException, *, limit: int = 4_000) -> str:
    """A short plain traceback: the user's frames only, no colours.

    Examples
    --------
    >>> try:
    ...     int("x")
    ... except ValueError as exc:
    ...     print(describe_error(exc).splitlines()[-1])
    ValueError: invalid literal for int() with base 10: 'x'
    """
    try:
        shown = traceback.TracebackException(type(error), error, error.__traceback__, limit=-200, compact=True)
        _theirs(shown)
        lines = "".join(shown.format(chain=True))
    except Exception:  # an exception whose str or repr raises
        lines = f"{type(error).__name__}: (its message cannot be shown)"
    match error:
        case SystemExit():
            lines += f"(the code called exit with {error.code!r}; nothing was shut down)"
        case RecursionError():
            lines += "(endless recursion)"
    return clip(lines.strip(), limit)
