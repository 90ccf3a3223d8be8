"""Settings a person can change, and the frozen options that one turn reads from them."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

import traitlets
from traitlets.config import Configurable

from kit_jupyter.errors import UsageError
from kit_jupyter.media import checked_text

__all__ = ["PromptOptions", "Settings", "TurnOptions", "refuse_arguments"]

Thinking = Literal["off", "low", "medium", "high"]
THINKING = ("off", "low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Options of one prompt; nothing of it outlives the call.

    Parameters
    ----------
    system_message : str
        Sent right before this prompt, this turn only; stored with `persist_system`.
    max_steps : int
        Model calls at most; 0 for the setting.
    model : str or None
        ``provider/model`` for this turn.
    thinking : {"off", "low", "medium", "high"} or None
    extra_tools : tuple of Tool or callable
        Offered in this turn, besides the Kit's.
    base_url, api_key : str or None
        For this turn's provider.
    schema : type, JSON schema dict or None
        What the answer must fit; `TurnResult.structured` holds the value.
    schema_retries : int
        How often a misfit is sent back to the model.
    tool_choice : {"auto", "none", "required"} or a tool's name
    tools : tuple of str or None
        Names of the Kit's tools to offer; None for all.
    temperature : float or None
    max_tokens : int or None
    extra : dict
        Fields of the wire's request body, as they are.
    timeout_seconds : float or None
        For the whole turn.

    Raises
    ------
    UsageError
        If a limit is negative or a value is not one of those allowed.
    TypeError
        If a name is unknown.
    """

    system_message: str = ""
    persist_system: bool = False
    max_steps: int = 0
    model: str | None = None
    thinking: Thinking | None = None
    extra_tools: tuple[Any, ...] = ()
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    schema: Any = None
    schema_retries: int = 2
    tool_choice: str = "auto"
    tools: tuple[str, ...] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("system_message", "tool_choice", "model", "base_url", "api_key"):
            if getattr(self, name) is not None:
                checked_text(getattr(self, name), name)
        self._check_limits()
        if self.thinking is not None and self.thinking not in THINKING:
            raise UsageError(f"thinking must be one of {', '.join(THINKING)}, got {self.thinking!r}")
        if isinstance(self.tools, str) or callable(self.tools):
            raise UsageError(f"tools is a tuple of names, got {self.tools!r}; other tools go into extra_tools")
        if callable(self.extra_tools) or hasattr(self.extra_tools, "spec"):
            object.__setattr__(self, "extra_tools", (self.extra_tools,))
        if not isinstance(self.extra, Mapping):
            raise UsageError(f"extra holds fields of the request's body, a dict, got {type(self.extra).__name__}")

    def _check_limits(self) -> None:
        if _whole("max_steps", self.max_steps) < 0:
            raise UsageError(f"max_steps must be 0 (the setting) or more, got {self.max_steps}")
        if _whole("schema_retries", self.schema_retries) < 0:
            raise UsageError(f"schema_retries must be 0 or more, got {self.schema_retries}")
        if self.max_tokens is not None and _whole("max_tokens", self.max_tokens) < 1:
            raise UsageError(f"max_tokens must be 1 or more, got {self.max_tokens}")
        if self.temperature is not None and not 0 <= _number("temperature", self.temperature) <= 2:
            raise UsageError(f"temperature must lie between 0 and 2, got {self.temperature}")
        if self.timeout_seconds is not None and _number("timeout_seconds", self.timeout_seconds) <= 0:
            raise UsageError(f"timeout_seconds must be above 0, got {self.timeout_seconds}")


class _NoArgument(UsageError, TypeError):
    """Both, as Python itself raises the latter for an argument that is none."""


def refuse_arguments(verb: str, given: Iterable[str], known: Iterable[str], *, first: str = "text") -> NoReturn:
    """Say where what was given to a verb belongs.

    Parameters
    ----------
    verb : str
        What the person called.
    given, known : iterables of str
        Names that the verb does not take, and those that it does.
    first : str
        The arguments that stand before the options.

    Raises
    ------
    UsageError
        Always, and a `TypeError`: it names the option of a prompt, or the nearest argument.
    """
    name, taken = next(iter(given)), tuple(known)
    if name in {f.name for f in fields(PromptOptions)}:
        how = f"write {verb}({first}, options=PromptOptions({name}=...))"
        if name in Settings.class_trait_names(config=True):
            how += f", or Kit({name}=...) for every turn"
        raise _NoArgument(f"{name!r} is no argument of {verb}, but an option: {how}")
    near = difflib.get_close_matches(name, taken, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(taken)}"
    raise _NoArgument(f"{name!r} is no argument of {verb}; {hint}")


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, got {value!r}") from None


def _number(name: str, value: Any) -> float:
    try:
        number = operator.add(0.0, value)  # what counts as a number, and no text that looks like one
    except TypeError:
        raise UsageError(f"{name} must be a number, got {value!r}") from None
    if math.isnan(number):
        raise UsageError(f"{name} must be a number, got {value!r}")
    return float(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What one turn goes by, read once at its start."""

    prompt: PromptOptions = PromptOptions()
    model: str = ""
    max_steps: int = 50
    thinking: Thinking | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    steering_mode: Literal["one", "all"] = "all"
    follow_up_mode: Literal["one", "all"] = "one"
    auto_compact: bool = True
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    rerun: Literal["replace", "append"] = "replace"
    agent: str = "kit"


class Settings(Configurable):
    """Settings of a Kit, each with its help; ``c.Kit...`` in IPython's configuration sets them."""

    model = traitlets.Unicode(
        "", help="Model as provider/id; empty: chosen by keys in the environment, else local."
    ).tag(config=True)
    system = traitlets.Unicode("", help="System prompt of every turn; empty: a short default.").tag(config=True)
    agent = traitlets.Unicode("kit", help="Name under which turns are stored.").tag(config=True)
    max_steps = traitlets.Int(50, min=1, help="Model calls in one turn at most.").tag(config=True)
    thinking = traitlets.Enum((None, *THINKING), default_value=None, allow_none=True, help="Thinking level.").tag(
        config=True
    )
    temperature = traitlets.Float(None, allow_none=True, min=0.0, max=2.0, help="None: the service's own.").tag(
        config=True
    )
    max_tokens = traitlets.Int(None, allow_none=True, min=1, help="Limit of one answer; None: the service's own.").tag(
        config=True
    )
    when_busy = traitlets.Enum(
        ("refuse", "queue", "steer"), default_value="refuse", help="A prompt while a turn runs: refuse, queue or steer."
    ).tag(config=True)
    rerun = traitlets.Enum(
        ("replace", "append"), default_value="replace", help="Running a cell again replaces its turn, or appends one."
    ).tag(config=True)
    steering_mode = traitlets.Enum(("one", "all"), default_value="all", help="Steers taken at one boundary.").tag(
        config=True
    )
    follow_up_mode = traitlets.Enum(("one", "all"), default_value="one", help="Follow-ups taken at one stop.").tag(
        config=True
    )
    auto_compact = traitlets.Bool(True, help="Summarise old history near the end of the context window.").tag(
        config=True
    )
    reserve_tokens = traitlets.Int(16_384, min=256, help="Tokens of the window kept free for the answer.").tag(
        config=True
    )
    keep_recent_tokens = traitlets.Int(20_000, min=0, help="Recent tokens that a summary leaves as they are.").tag(
        config=True
    )
    permissions = traitlets.Any("ask", help="read-only, ask, auto, or a list of rules.").tag(config=True)

    @traitlets.validate("model", "system", "agent")
    def _can_be_stored(self, proposal: Any) -> str:
        try:
            return checked_text(proposal["value"], f"the setting {proposal['trait'].name}")
        except UsageError as exc:
            raise traitlets.TraitError(exc.message) from None

    def update(self, values: Mapping[str, Any], *, besides: Iterable[str] = ()) -> None:
        """Set several settings; all or none.

        Parameters
        ----------
        besides : iterable of str
            What else the caller takes by name, for the words about an unknown one.

        Raises
        ------
        UsageError
            Names the unknown setting and the nearest known one, or the value that does not fit.
        """
        known = self.trait_names(config=True)
        for name in values:
            if name not in known:
                if name in {f.name for f in fields(PromptOptions)}:
                    how = f"kit.prompt(text, options=PromptOptions({name}=...))"
                    raise UsageError(f"{name!r} is no setting of a Kit, but an option of a prompt: {how}")
                near = difflib.get_close_matches(name, (*besides, *known), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join((*besides, *sorted(known)))}"
                raise UsageError(f"unknown setting {name!r}{hint}")
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
        except traitlets.TraitError as exc:
            for name, value in before.items():
                setattr(self, name, value)
            raise UsageError(str(exc)) from exc

    def __repr__(self) -> str:
        set_here = {
            name: value
            for name, trait in sorted(self.traits(config=True).items())
            if (value := getattr(self, name)) != trait.default()
        }
        return f"<Settings {', '.join(f'{k}={v!r}' for k, v in set_here.items()) or 'all by default'}>"

    def options(self, prompt: PromptOptions | None = None) -> TurnOptions:
        """Freeze what one turn goes by."""
        prompt = prompt or PromptOptions()
        taken = {f.name: getattr(self, f.name) for f in fields(TurnOptions) if f.name not in ("prompt",)}
        options = TurnOptions(prompt=prompt, **taken)
        return replace(
            options,
            model=prompt.model or options.model,
            max_steps=prompt.max_steps or options.max_steps,
            thinking=prompt.thinking or options.thinking,
            temperature=options.temperature if prompt.temperature is None else prompt.temperature,
            max_tokens=prompt.max_tokens or options.max_tokens,
        )
