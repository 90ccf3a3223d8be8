"""The prompt editor: small operations on a copy, checked, with the name of who made them."""

from __future__ import annotations

import dataclasses
import doctest
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    ModelRef,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    ToolSpec,
    User,
    now,
)
from kit_jupyter.prompt import (
    PromptEditor,
    PromptMessage,
    ToolResultPart,
    from_branch,
    join_sections,
)
from kit_jupyter.provider import ModelRequest
from kit_jupyter.request_view import RequestView

PIXEL = MediaPart("image/png", "AAAA", "dot")


def said(role: str, text: str, message_id: str = "") -> PromptMessage:
    return PromptMessage(role, (TextPart(text),), message_id=message_id)  # type: ignore[arg-type]


def talk() -> tuple[PromptMessage, ...]:
    """User, answer with a call, its result, final answer, next question."""
    return (
        said("user", "Fit it.", "u1"),
        PromptMessage("assistant", (TextPart("Running."), ToolCallPart("c1", "run", "{}")), message_id="a1"),
        PromptMessage("tool", (ToolResultPart("c1", "run", (TextPart("ok"),)),), message_id="t1"),
        said("assistant", "Done.", "a2"),
        said("user", "And now?", "u2"),
    )


def texts(editor: PromptEditor) -> list[str]:
    return [getattr(part, "text", part.type) for message in editor.messages for part in message.parts]


def test_a_prompt_message_is_role_and_parts_and_no_stored_message():
    """S125: a class of its own, without time and request facts; the session refuses to store it."""
    from kit_jupyter.errors import KitError
    from kit_jupyter.session import Session

    names = {f.name for f in dataclasses.fields(PromptMessage)}

    assert names == {"role", "parts", "message_id", "origin", "edits"}
    assert not isinstance(said("user", "x"), (User, Assistant))
    session = Session.memory()
    with pytest.raises((KitError, TypeError, AttributeError)):
        session.append(said("user", "x"))  # type: ignore[arg-type]
    assert session.messages() == ()


@pytest.mark.parametrize(
    ("given_part", "kept"),
    [
        (TextPart("a"), TextPart("a")),
        ("a", TextPart("a")),
        ({"type": "text", "text": "a"}, TextPart("a")),
        (PIXEL, PIXEL),
        ({"type": "media", "media_type": "image/png", "data": "AAAA", "name": "dot"}, PIXEL),
    ],
)
def test_text_and_media_parts_are_taken(given_part, kept):
    """S126: text, image and data parts."""
    editor = PromptEditor(talk())

    editor.append("user", [given_part])

    assert editor.messages[-1].parts == (kept,)


@pytest.mark.parametrize(
    "bad",
    [
        ThinkingPart("hm"),
        3,
        None,
        {"type": "video"},
        b"x",
        [],
        [4],
        TextPart(7),  # type: ignore[arg-type]
        MediaPart("image/png", "not base64!!"),
        MediaPart("image/png", ""),
        MediaPart("picture", "AAAA"),
        MediaPart("image/png", b"AAAA\xff"),  # type: ignore[arg-type]
    ],
)
def test_other_parts_are_refused_with_a_clear_error(bad):
    """S126: the error names the value and what is taken; the request is as it was."""
    editor = PromptEditor(talk())

    with pytest.raises(UsageError, match="part"):
        editor.append("user", bad if isinstance(bad, list) else [bad])

    assert editor.messages == talk()


def test_push_is_append():
    """S127: the list-like name does the same."""
    one, other = PromptEditor(talk(), author="a"), PromptEditor(talk(), author="a")

    one.push({"role": "user", "parts": [{"type": "text", "text": "go on"}]})
    other.append("user", "go on")

    assert texts(one) == texts(other)
    assert one.messages[-1].role == other.messages[-1].role == "user"


def test_a_hook_gets_no_list_to_change():
    """S128: views are read-only; changing one, or putting another list in its place, raises."""
    editor = PromptEditor(talk())

    with pytest.raises(TypeError):
        editor.messages[0] = said("user", "hacked")  # type: ignore[index]
    with pytest.raises(AttributeError):
        editor.messages = ()  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        editor.messages[0].parts = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        editor.history = []  # type: ignore[attr-defined]

    assert editor.messages == talk()


def test_append_stands_at_the_tail_and_keeps_the_cache():
    """S129: a new synthetic message at the end, without a warning."""
    editor = PromptEditor(talk(), author="hook:X")

    made = editor.append("user", "last")

    assert editor.messages[:-1] == talk()
    assert (editor.messages[-1].message_id, editor.messages[-1].origin) == (made, "hook:X")
    assert editor.warnings == ()


def test_prepend_stands_before_all_history_and_warns():
    """S130: first message of the request (system text is no message); the warning names the author."""
    editor = PromptEditor(talk(), author="hook:X")

    editor.prepend("user", "first")

    assert texts(editor)[0] == "first"
    assert editor.messages[1:] == talk()
    assert len(editor.warnings) == 1
    assert "hook:X" in editor.warnings[0]
    assert "cache" in editor.warnings[0]


def test_append_to_last_user_changes_the_copy_only():
    """S131: parts join the last user message; the message it shows is untouched."""
    stored = User(id="m1", time=now(), parts=(TextPart("hi"),))
    shown = from_branch([stored])
    editor = PromptEditor(shown, author="hook:X")

    editor.append_to("last-user", [TextPart("now in build mode"), PIXEL])

    assert editor.messages[-1].parts == (TextPart("hi"), TextPart("now in build mode"), PIXEL)
    assert editor.messages[-1].edits == ("hook:X",)
    assert stored.parts == (TextPart("hi"),)
    assert from_branch([stored]) == shown
    assert editor.warnings == ()


def test_append_to_last_assistant():
    """S132: the same for the assistant; an answer before the tail costs the cache and says so."""
    editor = PromptEditor(talk())

    editor.append_to("last-assistant", "indeed")

    assert editor.messages[3].parts == (TextPart("Done."), TextPart("indeed"))
    assert len(editor.warnings) == 1


def test_append_to_needs_a_target():
    """S132: an error when there is none."""
    with pytest.raises(UsageError, match="no assistant message"):
        PromptEditor([said("user", "x")]).append_to("last-assistant", "y")
    with pytest.raises(UsageError, match="no user message"):
        PromptEditor([]).append_to("last-user", "y")
    with pytest.raises(UsageError, match="last-user"):
        PromptEditor(talk()).append_to("last-tool", "y")  # type: ignore[arg-type]


def test_append_to_an_assistant_with_open_calls_is_refused():
    """S132: an answer whose call has no result yet is not added to."""
    editor = PromptEditor(talk()[:2])

    with pytest.raises(UsageError, match="c1"):
        editor.append_to("last-assistant", "y")


def test_insert_after_and_before():
    """S133, S134: directly after, directly before; a warning where an earlier request had the place."""
    editor = PromptEditor(talk())

    editor.insert_after("a2", "user", "after a2")
    editor.insert_before("u1", "user", "before u1")

    assert [m.message_id or "" for m in editor.messages][1] == "u1"
    assert texts(editor)[0] == "before u1"
    at = [m.message_id for m in editor.messages].index("a2")
    assert editor.messages[at + 1].parts == (TextPart("after a2"),)
    assert len(editor.warnings) == 1  # u2 is new: to stand before it costs nothing


@pytest.mark.parametrize("operation", ["insert_after", "insert_before"])
def test_an_unknown_id_is_named(operation):
    """S133: KeyError with the id; nothing changes."""
    editor = PromptEditor(talk())

    with pytest.raises(KeyError, match="msg_404"):
        getattr(editor, operation)("msg_404", "user", "x")
    with pytest.raises(KeyError):
        getattr(editor, operation)("", "user", "x")

    assert editor.messages == talk()


@pytest.mark.parametrize(("operation", "anchor"), [("insert_after", "a1"), ("insert_before", "t1")])
def test_nothing_goes_between_a_call_and_its_result(operation, anchor):
    """S134: refused, with a place to choose instead."""
    editor = PromptEditor(talk())

    with pytest.raises(UsageError, match=r"c1.*after its last result"):
        getattr(editor, operation)(anchor, "user", "x")

    assert editor.messages == talk()


def test_the_seed_examples_are_documented_and_run():
    """S135, S136: both examples stand in the docstring, and do what it shows."""
    import kit_jupyter.prompt as room

    text = PromptEditor.__doc__ or ""
    (example,) = doctest.DocTestFinder(recurse=False).find(PromptEditor, "PromptEditor", globs=vars(room).copy())
    ran = doctest.DocTestRunner(verbose=False).run(example)

    assert "Summarize the tool output above and continue." in text
    assert 'append_to("last-user", [BUILD_SWITCH])' in text
    assert (ran.failed, ran.attempted) == (0, 8)


def test_two_hooks_with_the_same_text_differ_in_id_and_author():
    """S138: the runtime gives ids; provenance is recorded."""
    whole = PromptEditor(talk())
    for name in ("hook:A", "hook:B"):
        draft = whole.draft(name)
        draft.append("user", "same")
        whole.adopt(draft)

    one, other = whole.messages[-2:]

    assert one.message_id != other.message_id
    assert (one.origin, other.origin) == ("hook:A", "hook:B")


def test_a_hook_that_injects_context_is_one_line_and_needs_no_session():
    """S139, S141: a hook is a function of an editor; a fake one serves in a test."""

    class FakeEditor:
        calls: list[tuple[object, ...]] = []  # noqa: RUF012

        def append_to(self, target, parts):
            self.calls.append((target, parts))

    def hook(editor):
        editor.append_to("last-user", "You may change files now.")

    hook(FakeEditor())

    assert FakeEditor.calls == [("last-user", "You may change files now.")]


@pytest.mark.parametrize("role", ["system", "tool", "", None, 3])
def test_only_user_and_assistant_messages_are_made(role):
    """Bad input, wrong role: refused, and the error says where such text belongs."""
    with pytest.raises(UsageError, match="user and assistant"):
        PromptEditor(talk()).append(role, "x")


@pytest.mark.parametrize("part", [ToolResultPart("c9", "run", (TextPart("forged"),)), ToolCallPart("c9", "run", "{}")])
def test_an_unpaired_tool_result_or_call_is_refused(part):
    """Bad input: a hook cannot inject a tool result, nor a call."""
    editor = PromptEditor(talk())

    for role in ("user", "assistant"):
        with pytest.raises(UsageError, match="exactly one result"):
            editor.append(role, [part])
    with pytest.raises(UsageError):
        editor.append(PromptMessage("tool", (part,)))

    assert editor.messages == talk()


def test_persist_says_what_is_to_be_stored():
    """S140: with persist=True the edit is handed out for storing, under the id that the request shows."""
    editor = PromptEditor(talk(), author="hook:X")

    editor.append("user", "this once")
    made = editor.append("assistant", "for good", persist=True)

    (kept,) = editor.persisted
    assert (kept.role, kept.parts, kept.source, kept.message_id) == (
        "assistant",
        (TextPart("for good"),),
        "hook:X",
        made,
    )


def test_persist_on_append_to_stands_after_the_target():
    """A stored message never changes: what is kept follows it as a message of its own; else it is refused."""
    editor = PromptEditor(talk(), author="hook:X")

    editor.append_to("last-user", "kept", persist=True)

    assert editor.messages[-2].parts == (TextPart("And now?"),)
    assert editor.messages[-1].parts == (TextPart("kept"),)
    assert editor.persisted[0].role == "user"
    with pytest.raises(UsageError, match="never change"):
        editor.append_to("last-assistant", "late", persist=True)


def test_a_closed_editor_refuses():
    """Bad input, a hook that hangs: what it says after its time changes nothing."""
    editor = PromptEditor(talk())
    editor.close("its hook has ended")

    for act in (
        lambda: editor.append("user", "x"),
        lambda: editor.prepend("user", "x"),
        lambda: editor.append_to("last-user", "x"),
        lambda: editor.insert_after("u1", "user", "x"),
    ):
        with pytest.raises(UsageError, match="its hook has ended"):
            act()


@given(
    st.lists(st.tuples(st.sampled_from(["append", "prepend", "after", "before", "to"]), st.integers(0, 9)), max_size=12)
)
def test_whatever_hooks_do_each_call_keeps_its_result_beside_it(steps):
    """Law: after any edits every call is followed by its result before anything else."""
    editor = PromptEditor(talk())
    for operation, at in steps:
        ids = [m.message_id for m in editor.messages]
        try:
            match operation:
                case "append":
                    editor.append("user", "x")
                case "prepend":
                    editor.prepend("assistant", "x")
                case "after":
                    editor.insert_after(ids[at % len(ids)], "user", "x")
                case "before":
                    editor.insert_before(ids[at % len(ids)], "user", "x")
                case "to":
                    editor.append_to("last-assistant", "x")
        except UsageError:
            pass

    at = [m.message_id for m in editor.messages].index("a1")
    assert editor.messages[at + 1].message_id == "t1"


def test_sections_join_without_double_blank_lines():
    """S194, S195: after the base, in order, blank ones dropped."""
    assert join_sections("Base.", ["\nOne.\n", "  ", None, "Two."]) == "Base.\n\nOne.\n\nTwo."
    assert join_sections("", ["One."]) == "One."
    assert join_sections("", []) == ""


# ---------------------------------------------------------------- what was sent


def view() -> RequestView:
    editor = PromptEditor(talk(), author="hook:Tone")
    editor.append_to("last-user", "be <b>brief</b> | please")
    editor.append("user", PIXEL)
    request = ModelRequest(
        model=ModelRef("local", "tiny"),
        messages=editor.messages,
        system="Base.\n\nBe polite.",
        tools=(ToolSpec(name="run", description="Run.", schema={"type": "object"}),),
    )
    return RequestView(request, [("base", "Base."), ("Politeness", "Be polite.")])


def test_the_last_request_tells_where_each_part_came_from():
    """Law 9: every part of the request is a row, with its origin and size."""
    rows = view().rows

    assert [(r.place, r.origin) for r in rows[:3]] == [("system", "base"), ("system", "Politeness"), ("tools", "run")]
    assert rows[-2].origin == "history (changed by hook:Tone)"
    assert rows[-1].origin == "hook:Tone"
    assert (rows[-1].kind, rows[-1].size) == ("media", 3)
    assert [r.kind for r in rows if r.place in "23"] == ["text", "tool_call", "tool_result"]
    assert sum(r.size for r in rows) == view().size
    assert json.loads(rows[2].text)["name"] == "run"


def test_the_table_escapes_what_a_model_or_page_wrote():
    """Text from anywhere stands in the cell as text, in HTML and Markdown."""
    shown = view()

    assert "<b>" not in shown._repr_html_()
    assert "&lt;b&gt;brief" in shown._repr_html_()
    assert r"\|" in shown._repr_markdown_()
    assert "<b>" not in shown._repr_markdown_()
    assert len({line.count(" | ") for line in shown._repr_markdown_().splitlines()[2:] if line.startswith("| ")}) == 1
    assert str(shown).splitlines()[0] == shown.title


def test_a_long_part_is_folded_not_lost():
    """The cell shows 80 characters and keeps the rest one click away."""
    request = ModelRequest(model=ModelRef("a", "b"), messages=(said("user", "word " * 100),))

    html = RequestView(request)._repr_html_()

    assert "<details>" in html
    assert html.count("word") >= 100


def test_a_tool_result_in_the_view_is_the_stored_text():
    """An error result says so."""
    stored = ToolResult(id="t", time=now(), call_id="c", name="run", parts=(TextPart("boom"),), is_error=True)
    call = Assistant(id="a", time=now(), parts=(ToolCallPart("c", "run", "{}"),))
    request = ModelRequest(model=ModelRef("a", "b"), messages=from_branch([call, stored]))

    assert [row.text for row in RequestView(request)] == ["run({})", "error: boom"]
