"""The magics that answer questions, show what there is, and set how a shell works."""

from __future__ import annotations

import json
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.jupyter import options as opt
from kit_jupyter.jupyter.approvals import find_question
from kit_jupyter.jupyter.magic_base import Family, argument, line_magic, magic_arguments, no_var_expand, plain_errors
from kit_jupyter.jupyter.shell import is_kernel
from kit_jupyter.settings import PromptOptions

__all__ = ["StateMagics"]


class StateMagics(Family):
    """Approvals, model, tools, usage, reports, panel and mode."""

    # ------------------------------------------------------------ approvals

    def _kits(self) -> list[Any]:
        mine = [self.nb.kit(), *self.nb.kits.values(), *(run.kit for run in self.nb.running())]
        return list(dict.fromkeys(mine))

    @no_var_expand
    @magic_arguments("[call or tool]")
    @argument("--always", action="store_true", default=False, help="do not ask again for this")
    @argument("--arguments", help="edited arguments, as JSON")
    @line_magic
    @plain_errors
    def kit_approve(self, line: str) -> None:
        """Say yes to the question that waits; name the call or its tool when several do."""
        asked, wanted = opt.read(StateMagics.kit_approve, line, text=True)
        kit, question = find_question(self._kits(), wanted.strip())
        arguments = None
        if asked.arguments:
            try:
                arguments = json.loads(asked.arguments)
            except ValueError as exc:
                raise UsageError(f"--arguments is not JSON: {exc}") from exc
        scope = "always" if asked.always else "once"
        self.nb.verbs.answer(kit, question.call_id, allow=True, arguments=arguments, scope=scope, by="magic")
        print(f"approved: {question.tool_name}")

    @no_var_expand
    @magic_arguments("[reason]")
    @argument("--call", default="", help="the call or its tool, when several questions wait")
    @line_magic
    @plain_errors
    def kit_deny(self, line: str) -> None:
        """Say no to the question that waits; text after it is the reason, which the model is told."""
        asked, reason = opt.read(StateMagics.kit_deny, line, text=True)
        kit, question = find_question(self._kits(), asked.call)
        self.nb.verbs.answer(kit, question.call_id, allow=False, reason=reason.strip(), by="magic")
        print(f"denied: {question.tool_name}")

    # ------------------------------------------------------------ what there is

    @no_var_expand
    @magic_arguments("[provider/model]")
    @argument("-l", "--list", dest="listed", action="store_true", default=False, help="name the providers there are")
    @line_magic
    @plain_errors
    def kit_model(self, line: str) -> None:
        """Show the model, or switch to another; the conversation goes on."""
        asked, name = opt.read(StateMagics.kit_model, line, text=True)
        if asked.listed:
            self._list_providers()
            return
        kit = self.nb.kit()
        if len(name.split()) > 1 and not name.startswith("local/"):  # a file's name may have spaces
            raise UsageError(f"a model's name is one word, provider/id; got {name.strip()!r}")
        if name.strip():
            self.nb.config.check_turn(kit, PromptOptions(model=name.strip()))
            kit.model = name.strip()
            self._warn_of_key(name.strip())
        why = f" ({kit.model_reason})" if getattr(kit, "model_reason", "") else ""
        print((kit.model or "chosen at the first prompt") + why)

    @staticmethod
    def _list_providers() -> None:
        """Every name that may stand before the slash, with the service behind it."""
        from kit_jupyter.shelf import registry

        titles = {"local": "the built-in local model", "replay": "a recording", "pydantic-ai": "a model of pydantic-ai"}
        titles |= {row.name: row.title for row in registry().ROWS}
        for name in registry().known_names():
            print(f"{name + '/':<20} {titles.get(name, '')}".rstrip())

    @staticmethod
    def _warn_of_key(name: str) -> None:
        """Say at once that a model's key is not set; the first prompt would fail for it."""
        from kit_jupyter.shelf import registry

        provider = name.partition("/")[0]
        row = next((one for one in registry().ROWS if one.name == provider and one.key_env), None)
        if row is not None and registry().key_source(provider) == "none":
            print(f"{provider} has no key here yet: set {row.key_env[0]}, or call kit.login({provider!r})")

    @magic_arguments()
    @line_magic
    @plain_errors
    def kit_tools(self, line: str) -> None:
        """List the tools the model may call."""
        opt.read(StateMagics.kit_tools, line, text=False)
        tools = self.nb.kit().tools
        for name, tool in tools.items():
            print(f"{name}: {(tool.spec.description.splitlines() or [''])[0]}")
        if not tools:
            print("no tools; Kit(tools=[...]) gives some")

    @magic_arguments()
    @line_magic
    @plain_errors
    def kit_usage(self, line: str) -> None:
        """Tokens and cost of this conversation."""
        opt.read(StateMagics.kit_usage, line, text=False)
        usage = self.nb.kit().usage
        tokens = usage.tokens
        print(f"{tokens.input or 0:,} tokens in, {tokens.output or 0:,} out, {tokens.cache_read or 0:,} from cache")
        print("cost unknown" if usage.cost is None else f"${usage.cost:.4f}")

    @magic_arguments()
    @line_magic
    @plain_errors
    def kit_trifecta(self, line: str) -> None:
        """What this session could leak: private data, untrusted text and a way out."""
        opt.read(StateMagics.kit_trifecta, line, text=False)
        from IPython.display import display

        display(self.nb.kit().trifecta)  # type: ignore[no-untyped-call]

    @magic_arguments()
    @line_magic
    @plain_errors
    def kit_doctor(self, line: str) -> None:
        """What works in this kernel and what does not."""
        opt.read(StateMagics.kit_doctor, line, text=False)
        from kit_jupyter.jupyter.doctor import report

        print(report(self.nb))

    @magic_arguments()
    @line_magic
    @plain_errors
    def kit_keys(self, line: str) -> None:
        """What keys are mapped, in Lab and here, and why."""
        opt.read(StateMagics.kit_keys, line, text=False)
        from kit_jupyter.jupyter.doctor import keys

        print(keys(self.nb))

    @magic_arguments()
    @argument("--side", action="store_true", default=False, help="at the side of Lab, by its extension")
    @line_magic
    @plain_errors
    def kit_panel(self, line: str) -> None:
        """Open the chat panel in this cell; Lab's "Create New View for Output" puts it beside the notebook."""
        asked, _ = opt.read(StateMagics.kit_panel, line, text=False)
        from kit_jupyter.jupyter.panel import open_panel

        if asked.side and self.nb.lab is not None and self.nb.lab.is_attached:
            self.nb.lab.command("kit:focus-panel")
            return
        if asked.side:
            print("no page of the Lab extension shows this notebook; the panel is here instead")
        if not is_kernel(self.shell):
            print("the panel needs a notebook; in a terminal, talk with %kit, and look with %kit_show")
            return
        panel, mine = open_panel(self.nb), self.nb.kit()
        if panel.kit is not mine:
            panel.follow(mine)

    @magic_arguments("on|off")
    @argument("--dot", action="store_true", default=False, help="only cells that begin with a dot are prompts")
    @line_magic
    @plain_errors
    def kit_mode(self, line: str) -> None:
        """``on``: cells are prompts (``%`` and ``!`` still work, ``;`` in front runs Python); ``off``: Python again."""
        asked, word = opt.read(StateMagics.kit_mode, line, text=False, words=True)
        if word not in ("on", "off"):
            raise UsageError(f"%kit_mode takes on or off, got {word!r}")
        self.nb.hooks.prompt_mode = (_dot_cells if asked.dot else _all_cells) if word == "on" else None
        on = "cells are prompts; begin with ; for Python, %kit_mode off to leave"
        print(on if word == "on" else "cells are Python")


def _all_cells(lines: list[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    if not first or first.lstrip().startswith(("%", "!", "?")):
        return lines
    if first.startswith(";"):
        at = lines.index(first)
        return [*lines[:at], first[1:].lstrip(" "), *lines[at + 1 :]]
    return ["%%kit\n", *lines]


def _dot_cells(lines: list[str]) -> list[str]:
    if not lines or not lines[0].startswith("."):
        return lines
    return ["%%kit\n", lines[0][1:].lstrip(" "), *lines[1:]]
