"""What the rooms of magics share: IPython's decorators with types, help that reads, errors in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from IPython.core import magic as _magic
from IPython.core import magic_arguments as _arguments
from IPython.core.magic import Magics

from kit_jupyter.errors import KitError
from kit_jupyter.jupyter import options as opt
from kit_jupyter.jupyter.failures import shortened

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Notebook

__all__ = ["Family", "argument", "line_cell_magic", "line_magic", "magic_arguments", "no_var_expand", "plain_errors"]

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

# IPython's decorators have no types.
argument: Callable[..., Decorator[Any]] = _arguments.argument
line_magic: Decorator[Any] = _magic.line_magic
line_cell_magic: Decorator[Any] = _magic.line_cell_magic
no_var_expand: Decorator[Any] = _magic.no_var_expand


def magic_arguments(rest: str = "") -> Decorator[Any]:
    """IPython's, with help that reads; `rest` is what may follow the options."""
    made: Callable[..., Decorator[Any]] = _arguments.magic_arguments
    mark = made()

    def marked(fn: Any) -> Any:
        fn = mark(fn)
        fn.__doc__ = opt.help_text(fn, rest)
        return fn

    return marked


def plain_errors(fn: F) -> F:
    """Help is printed; our errors fail the cell with one line."""

    @wraps(fn)
    def magic(self: Family, *args: Any) -> Any:
        try:
            return fn(self, *args)
        except opt.HelpAsked as help_asked:
            print(help_asked)
            return None
        except KitError as exc:
            raise shortened(exc) from exc.__cause__

    return cast(F, magic)


class Family(Magics):
    """A part of the magics of one shell; `magics.KitMagics` puts the parts together, and IPython knows only that."""

    shell: Any

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        super().__init__(shell)
        self.nb = notebook
