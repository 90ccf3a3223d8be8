"""`%%kit` and its family in a real kernel."""

from __future__ import annotations

import json
import re
from inspect import getmembers
from pathlib import Path

import pytest
from kernels import TURN_MIME, Kernel, kernel


def test_the_answer_is_left_as_a_static_bundle(nb: Kernel) -> None:
    """Point 7, U80: own type, Markdown and plain text stay in the cell; no widget."""
    nb.script('[text("Hello **world**", chunks=4)]')

    said = nb.ok("%%kit\nsay hello", cell_id="c1")

    assert len(said.shown) == 1
    data = said.shown[0]["data"]
    assert set(data) == {TURN_MIME, "text/markdown", "text/plain"}
    assert data["text/markdown"] == data["text/plain"] == "Hello **world**"
    assert data[TURN_MIME]["turn"]["items"] == [{"kind": "text", "text": "Hello **world**"}]
    assert any(m["msg_type"] == "comm_close" for m in said.messages)


def test_metadata_says_where_the_answer_comes_from(nb: Kernel) -> None:
    """U3: model, session, turn, tokens and a hash of the prompt; no key."""
    nb.script('[text("x")]')

    said = nb.ok("%%kit\nwho?", cell_id="c2")

    facts = said.shown[0]["metadata"]["kit"]
    assert set(facts) == {"model", "session", "turn", "tokens", "prompt_sha256"}
    assert facts["model"].startswith("scripted/")


@pytest.mark.parametrize(
    "prompt",
    [
        '{"a": 1, "b": {"c": "{x}"}}',
        r"$\frac{a}{b} \alpha$ and \n and \\",
        'f"{value!r:>{width}}" and {{ jinja }} {% if x %}',
        ">>> 1 + 1\nIn [3]: x\n...   y",
        "%%timeit not a magic\n!ls $HOME\n?x",
        "  leading and trailing  \n\n\ttab\t",
        "ünïcödé 😀 \u202eRTL\u202c e\u0301",
        "'''\"\"\" \\' \\\" end\\",
        "-- --model x -m",
    ],
)
def test_a_prompt_arrives_byte_for_byte(nb: Kernel, prompt: str) -> None:
    """U47, point 3: braces, LaTeX, prompts of IPython and back-slashes are not ours to touch."""
    nb.script('[text("ok")]')

    nb.ok("%%kit\n" + prompt, cell_id="bytes")

    assert nb.value("provider.requests[-1].messages[-1].parts[0].text") == prompt


def test_the_result_is_a_value(nb: Kernel) -> None:
    """U2: `--out` names it, `_` holds it, nothing is inserted below."""
    nb.script('[text("42")]')

    said = nb.ok("%%kit --out ans\nwhat?", cell_id="c3")

    assert nb.value("(ans.text, ans.stop_reason)") == ("42", "stop")
    assert not said.reply.get("payload")
    nb.script('[text("43")]')
    nb.ok("%%kit\nagain", cell_id="c4")
    assert nb.value("_.text") == "43"


def test_a_line_magic_can_be_assigned(nb: Kernel) -> None:
    """`x = %kit text` blocks, serves the same desk, and gives the result."""
    nb.script('[text("blocked")]')

    said = nb.ok("x = %kit say {x} $HOME 'it'")

    assert nb.value("x.text") == "blocked"
    assert nb.value("provider.requests[-1].messages[-1].parts[0].text") == "say {x} $HOME 'it'"
    assert TURN_MIME in said.shown[0]["data"]


def test_a_tool_is_called_and_shown_as_a_card(nb: Kernel) -> None:
    """Issue 2, point 4: a plain function is a tool, on the user's thread, in the cell's context."""
    nb.ok(
        "import threading\nwhere = []\ndef add(a: int, b: int) -> int:\n    'Sum.'\n"
        "    where.append(threading.current_thread() is threading.main_thread())\n    return a + b"
    )
    nb.script('[tool_call("add", a=2, b=3)]', '[text("It is 5.")]', more=", tools=[add], permissions='auto'")

    said = nb.ok("%%kit\n2 + 3?", cell_id="tool")

    items = said.kit()[TURN_MIME]["turn"]["items"]
    assert [item["kind"] for item in items] == ["tool", "text"]
    assert items[0]["name"] == "add"
    assert items[0]["result"] == "5"
    assert items[0]["status"] == "done"
    assert nb.value("where") == [True]
    assert "<summary><b>add</b>" in said.kit()["text/markdown"]


def test_running_a_cell_again_replaces_its_turn(nb: Kernel) -> None:
    """U38: the model sees each user turn once."""
    nb.script('[text("one")]', '[text("two")]', '[text("three")]')

    nb.ok("%%kit\nA", cell_id="A")
    nb.ok("%%kit\nB", cell_id="B")
    nb.ok("%%kit\nA again", cell_id="A")

    sent = nb.value("[m.parts[0].text for m in provider.requests[-1].messages]")
    assert sent == ["A again"]
    nb.script('[text("one")]', '[text("two")]')
    nb.ok("%%kit\nA", cell_id="A2")
    nb.ok("%%kit --append\nA", cell_id="A2")
    assert nb.value("[m.parts[0].text for m in provider.requests[-1].messages]") == ["A", "one", "A"]


def test_a_failed_turn_fails_its_cell_with_one_line(nb: Kernel) -> None:
    """Point 9, U113: Run All notices; the line says what happened, the cause is on demand."""
    nb.script('[provider_error("rejected", "no such model", status=404)]', '[text("fine")]')

    said = nb.run("%%kit\nhi", cell_id="bad")

    assert said.reply["status"] == "error"
    assert len(said.reply["traceback"]) == 1
    line = said.reply["traceback"][0]
    assert "generation failed" in line
    assert "no such model" in line
    assert "\n" not in line
    left = said.kit()
    assert "no such model" not in left["text/markdown"] + left["text/plain"], "the cell's error says it already"
    assert left["text/plain"] == "[failed]"
    assert "no such model" in left[TURN_MIME]["turn"]["error"]["message"], "for whoever reads the file as data"
    assert "no such model" in nb.ok("%kit_show --error").stream
    nb.ok("%%kit\nhi", cell_id="good")
    assert "no such model" in nb.ok("%kit_show --error").stream, "the last failure, also after a success"


def test_no_raise_shows_the_failure_once(nb: Kernel) -> None:
    """U113: `--no-raise` opts out: the reason stands in what the cell shows, and is not printed beside it."""
    nb.script('[provider_error("rejected", "it broke", status=400)]')

    said = nb.ok("%%kit --no-raise\nhi")

    assert "it broke" in said.kit()["text/markdown"]
    assert "it broke" in said.kit()["text/plain"]
    assert "it broke" not in said.stream


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%%kit --modle x\nhi", "did you mean --model?"),
        ("%%kit -x\nhi", "unknown option -x; options: --append, --as,"),
        ("%kit_sessions --nope", "unknown option --nope; options: --all, "),
        ("%%kit --max-steps many\nhi", "whole number"),
        ("%%kit --as xml\nhi", "one of code, json, text"),
        ("%%kit\n   \n", "the prompt is empty"),
        ("%kit", "the prompt is empty"),
        ("%%kit --schema NoSuchType\nhi", "NoSuchType"),
        ("%kit_stop now", "nothing may follow"),
        ("%kit_steer", "empty"),
        ("%kit_continue", "cannot follow up"),
        ("%kit_approve", "no question waits"),
        ("%kit_mode sideways", "on or off"),
        ("%%kit --context 9999\nhi", "no cell '9999'"),
        ("%kit look at @file:no/such/file", "no file"),
        ("%kit -o 2bad hi", "name of a variable, got '2bad'"),
        ("%kit -o class hi", "name of a variable, got 'class'"),
        ("%kit -o df.x hi", "name of a variable, got 'df.x'"),
        ("%kit -o kit hi", "in place of your session"),
        ("%kit -o Out hi", "in place of IPython's own Out"),
        ("%kit_model opnai/x", "did you mean openai/x? (%kit_model --list"),
        ("%kit_model nosuch/x", "'nosuch/x' (%kit_model --list"),
        ("%kit_fork nosuch", "there is no entry 'nosuch'; %kit_tree"),
        ("%kit_resume nosuch", "session 'nosuch' is not here; %kit_sessions lists them"),
        ("%kit_stop -s nosuch", "no session of this kernel is called 'nosuch'"),
        ("%kit_steer -s nosuch go", "no session of this kernel is called 'nosuch'"),
        ('%kit -s "" hi', "-s takes the name of a session"),
        ("%kit_model openai/gpt-4o extra", "one word, provider/id; got 'openai/gpt-4o extra'"),
        ("%kit_resume -s side", "-s goes with --from-notebook; for a session by its name: %kit_resume side"),
        ("%kit_resume --from-notebook nosuch.ipynb", "there is no notebook 'nosuch.ipynb' (from /"),
        ("%kit_resume --from-notebook ~nobody-here/x.ipynb", "there is no notebook '~nobody-here/x.ipynb' (from /"),
        ("%kit_fix --cell nosuch", "cell 'nosuch' has not failed in this kernel; those that have: "),
        ("%kit_undo -n 0", "-n counts turns from 1, got 0"),
        ("%kit_undo", "nothing to take back; %kit_tree shows what is here"),
        ("%%kit --schema 3\nhi", "no JSON schema can be made of 3"),
    ],
)
def test_a_mistake_gives_one_line(nb: Kernel, code: str, words: str) -> None:
    """Point 2: a mistyped option names the nearest one; nothing is sent."""
    nb.script('[text("never")]')

    said = nb.run(code)

    assert said.reply["status"] == "error"
    assert len(said.reply["traceback"]) == 1
    assert words in said.reply["traceback"][0]
    assert nb.value("len(provider.requests)") == 0


def test_every_magic_has_help(nb: Kernel) -> None:
    """Point 2: `--help` prints options and runs nothing."""
    known = nb.value("sorted(get_ipython().magics_manager.magics['line'])")
    names = [name for name in known if name.startswith("kit") and not name.endswith("_async")]
    wanted = (
        "kit kit_steer kit_continue kit_stop kit_approve kit_deny kit_new kit_sessions kit_resume kit_fork kit_tree "
        "kit_compact kit_model kit_tools kit_fix kit_context kit_show kit_panel kit_undo kit_usage kit_trifecta "
        "kit_doctor kit_keys kit_mode"
    )
    assert set(wanted.split()) <= set(names)
    nb.script('[text("never")]')
    for name in names:
        assert nb.ok(f"%{name} --help").stream.startswith(f"%{name}")
    assert "--max-steps" in nb.ok("%%kit --help\n").stream
    assert nb.value("len(provider.requests)") == 0


def test_help_reads_as_a_person_would_write_it() -> None:
    """`--help` and `%kit?` had shown double backticks, `::` and `<{off,low}>`; levels stand in the words."""
    from kit_jupyter.jupyter.magics import KitMagics
    from kit_jupyter.jupyter.options import names_of

    magics = [fn for name, fn in getmembers(KitMagics) if name.startswith("kit") and hasattr(fn, "parser")]
    assert len(magics) > 20
    for fn in magics:
        assert not set("`<>{}") & set(fn.__doc__), fn.__name__
        assert "::" not in fn.__doc__
        for action in names_of(fn).values():
            assert all(choice in action.help for choice in action.choices or ())
    words = " ".join(str(KitMagics.kit.__doc__).split())
    assert "--thinking LEVEL how much the model thinks: off, low, medium or high" in words
    assert "with the prompt below. The text is sent as it is. @name attaches" in words
    assert "';' in front runs Python" in str(KitMagics.kit_mode.__doc__)
    assert str(KitMagics.kit_resume.__doc__).startswith("%kit_resume [--from-notebook] [-s SESSION] [session or")


def test_a_prompt_on_the_first_line_only(nb: Kernel) -> None:
    """`%%kit what is this` with nothing below is a prompt, not an error of IPython."""
    nb.script('[text("ok")]')

    nb.ok("%%kit what is this?\n")

    assert nb.value("provider.requests[-1].messages[-1].parts[0].text") == "what is this?"


def test_nested_in_other_magics(nb: Kernel) -> None:
    """Design §4: `%%time` and `%%capture` around `%%kit` block, and work."""
    nb.script('[text("a")]', '[text("b")]', '[text("c")]')

    assert TURN_MIME in nb.ok("%%time\n%%kit\nhi").shown[0]["data"]
    nb.ok("%%capture got\n%%kit\nhi")
    nb.ok("%autoawait off")
    said = nb.ok("%%kit\nhi")
    nb.ok("%autoawait on")

    assert said.kit()["text/plain"] == "c"


def test_the_users_own_kit_stays(nb: Kernel) -> None:
    """Point 1: a variable `kit` that is no Kit is left alone, and `%%kit` still works."""
    nb.script('[text("named")]')
    nb.ok("keep = kit\nkit = 'my data'")
    nb.ok("notebook_of(get_ipython()).kits['mine'] = keep")

    said = nb.ok("%%kit -s mine\nhi")

    assert said.kit()["text/plain"] == "named"
    assert nb.value("kit") == "my data"
    nb.ok("kit = keep")


def test_new_undo_usage_tree(nb: Kernel) -> None:
    """U34, U35: `%kit_new` empties the memory; `%kit_undo` takes one turn back."""
    nb.script('[text("one")]', '[text("two")]', '[text("three")]')
    nb.ok("%%kit\nA", cell_id="n1")
    nb.ok("%%kit\nB", cell_id="n2")

    assert "2 messages remain" in nb.ok("%kit_undo").stream
    assert nb.ok("%kit_tree").stream.strip()
    assert "tokens in" in nb.ok("%kit_usage").stream
    nb.ok("%kit_new")
    nb.ok("%%kit\nC", cell_id="n3")

    assert nb.value("[m.parts[0].text for m in provider.requests[-1].messages]") == ["C"]


def test_values_of_a_conversation_read_in_a_cell(nb: Kernel) -> None:
    """`kit.messages`, a result and the tree are lines that a person can read, also where no words were said."""
    nb.ok("def look() -> str:\n    'L.'\n    return 'nothing'")
    nb.script("[tool_call('look')]", "[text('done')]", more=", tools=[look], permissions='auto'")
    nb.ok("%kit go on")

    assert nb.ok("kit.messages").shown[0]["data"]["text/plain"].splitlines() == [
        "4 messages",
        "  0  user: go on",
        "  1  assistant: calls look",
        "  2  tool: look: nothing",
        "  3  assistant: done",
    ]
    tree = [line.rpartition("  (")[0] for line in nb.ok("%kit_tree").stream.splitlines()]
    assert tree == ["| user: go on", "| assistant: calls look", "| tool: look: nothing", "* assistant: done"]
    nb.script("[text('yes')]")
    nb.ok("result = kit.prompt_sync('q')")
    assert nb.ok("[result]").shown[0]["data"]["text/plain"].startswith("[<TurnResult 'yes': stop, 1 step, 0 tool calls")
    assert nb.ok("result").shown[0]["data"]["text/plain"] == "yes"


def test_undo_of_several_turns_takes_all_or_none(nb: Kernel) -> None:
    """`-n` beyond what is there had taken back all and then failed; a summary at the end was a traceback."""
    nb.script("[text('a' * 4000)]", '[text("two")]', '[text("the summary")]')
    nb.ok("%kit A")
    nb.ok("%kit B")

    assert "cannot take back 3 turns: 2 here" in nb.run("%kit_undo -n 3").reply["evalue"]
    assert nb.value("len(kit.messages)") == 4
    nb.ok("%kit_compact")
    assert nb.value("[m.result.kind for m in kit.messages if m.role == 'assistant'][:1]") == ["summary"]
    assert "2 messages remain" in nb.ok("%kit_undo").stream
    assert nb.value("kit.messages[-1].parts[0].text[:3]") == "aaa"
    assert "0 messages remain" in nb.ok("%kit_undo").stream


def test_sessions_side_by_side(nb: Kernel) -> None:
    """Point 4: several sessions at once, each with its own history."""
    nb.script('[text("main")]')
    nb.ok("other = Kit(provider=ScriptedProvider([text('other')]), session='memory')")
    nb.ok("notebook_of(get_ipython()).kits['other'] = other")

    assert nb.ok("%kit -s other hello").kit()["text/plain"] == "other"
    assert nb.ok("%kit hello").kit()["text/plain"] == "main"


def test_a_new_session_at_the_side_is_answered_by_the_notebooks_model(nb: Kernel) -> None:
    """``%%kit -s side`` after ``%kit_model`` asked another service: words went where they were not meant to go."""
    nb.script('[text("one")]', '[text("two")]')
    nb.ok("ours = notebook_of(get_ipython()); before = ours._make_kit; ours._make_kit = None")
    try:
        assert nb.ok("%kit -s aside hello").kit()["text/plain"] == "one"
        assert nb.ok("%kit hello").kit()["text/plain"] == "two"
        nb.ok("kit.model = 'openai/some-model'")
        nb.ok("other = ours.kit('aside2')")
        assert nb.value("other.model") == "openai/some-model"
    finally:
        nb.ok("ours._make_kit = before; ours.kits.pop('aside', None); ours.kits.pop('aside2', None)")


def test_resume_goes_to_the_session_that_is_open_at_the_side(nb: Kernel) -> None:
    """``%kit_resume`` after ``%kit -s side`` left main on a file that side writes to, and every prompt failed."""
    nb.ok("ours = notebook_of(get_ipython())\nbefore = dict(ours.kits), ours.name, ours._make_kit, kit")
    nb.ok(
        "def scripted(**given):\n    return Kit(provider=ScriptedProvider(*[[text('yes')]] * 5), "
        "**{k: v for k, v in given.items() if k in ('session', 'config')})\n"
        "ours._make_kit = scripted\nours.kits.clear()\nours.name = 'main'\nkit = ours.kit('main')"
    )
    try:
        nb.ok("%kit Say hi in main")
        nb.ok("%kit -s side Say hi")

        said = nb.ok("%kit_resume").stream

        assert "(-s side): 2 messages" in said
        assert nb.ok("%kit go on").kit()["text/plain"] == "yes"
        assert nb.value("[len(ours.kits[name].messages) for name in ('main', 'side')]") == [2, 4]
        assert nb.ok("%kit -s main go on").kit()["text/plain"] == "yes"
        assert nb.value("len(ours.kits['main'].messages)") == 4
        assert "resumed" in nb.ok("%kit_resume main").stream
        assert nb.value("kit is ours.kits['main']") is True
    finally:
        nb.ok("ours.kits, ours.name, ours._make_kit, kit = before")


def test_a_slip_in_the_name_of_a_session_begins_none(nb: Kernel) -> None:
    """The nearest name is told; `%kit_stop -s` of a name that is not there had made an empty session of that name."""
    nb.ok("kit = Kit(provider=ScriptedProvider([text('x')]))\nkit.prompt_sync('q')\nkit.name = 'experiment'")
    nb.ok("kits = notebook_of(get_ipython()).kits\nkits['background'] = kit\nbefore = list(kits)")

    slips = {
        "%kit_resume experimnt": "did you mean experiment?",
        "%kit_resume backgrund": "did you mean background?",
        "%kit_stop -s backgrund": "did you mean background?",
        "%kit_continue -s backgrund": "did you mean background?",
    }
    for line, words in slips.items():
        assert words in nb.run(line).reply["evalue"]
    assert nb.value("list(kits) == before") is True
    assert "* background: ses_" in nb.ok("%kit_sessions").stream
    nb.ok("del kits['background']")


def test_sessions_of_all_folders_are_listed_and_resumed(nb: Kernel, tmp_path: Path) -> None:
    """`%kit_sessions --all` had listed those of this folder only; one of another folder is resumed by its id."""
    (tmp_path / "elsewhere").mkdir()
    nb.ok("here = os.getcwd()")
    nb.ok(f"os.chdir({str(tmp_path / 'elsewhere')!r})")
    nb.ok("far = Kit(provider=ScriptedProvider([text('x')]))\n_ = far.prompt_sync('far \x1b[2Kaway')\nfar.close()")
    nb.ok("far = far.session.id\nos.chdir(here)\nkit = Kit(provider=ScriptedProvider([text('x')]))")
    far = nb.value("far")

    assert far not in nb.ok("%kit_sessions").stream
    listed = nb.ok("%kit_sessions --all").stream
    assert far in listed
    assert "\x1b" not in listed
    assert f"resumed {far}" in nb.ok(f"%kit_resume {far}").stream


def test_resume_without_a_name_goes_on_with_this_notebooks_talk(nb: Kernel) -> None:
    """U39: two notebooks in one folder, and the other one spoke last; the list says whose each is."""
    nb.ok("at_first = os.environ.get('JPY_SESSION_NAME'), kit")
    try:
        of = {}
        for notebook in ("mine.ipynb", "other.ipynb", "new.ipynb"):
            nb.ok(f"os.environ['JPY_SESSION_NAME'] = {notebook!r}")
            nb.ok("kit = Kit(provider=ScriptedProvider([text('yes')]))")
            if notebook != "new.ipynb":
                nb.ok(f"%kit asked in {notebook}")
            of[notebook] = nb.value("kit.session.id")

        said_to_new = nb.ok("%kit_resume").stream
        nb.ok("os.environ['JPY_SESSION_NAME'] = 'mine.ipynb'")
        said_to_mine = nb.ok("%kit_resume").stream
        listed = nb.ok("%kit_sessions").stream

        assert f"resumed {of['other.ipynb']}" in said_to_new
        assert f"resumed {of['mine.ipynb']}" in said_to_mine
        assert re.search(rf"{of['other.ipynb']} .* asked in other.ipynb  \(other.ipynb\)", listed)
    finally:
        nb.ok("was, kit = at_first\nos.environ.pop('JPY_SESSION_NAME')\nif was: os.environ['JPY_SESSION_NAME'] = was")


def test_a_session_that_another_process_writes_is_refused_at_once(nb: Kernel) -> None:
    """Nothing is taken over that cannot be written to: the old session goes on, and the line says what to do."""
    nb.script("[text('one')]", "[text('two')]")
    nb.ok("elsewhere = Kit(provider=ScriptedProvider([text('x')]), session=None)\nelsewhere.prompt_sync('mine')")
    nb.ok("where, there = str(elsewhere.session.path), [elsewhere]\ndel elsewhere")

    said = nb.run("%kit_resume {}".format(nb.value("where")))

    assert "fork the session to go on here" in said.reply["evalue"]
    assert nb.ok("%kit still here").kit()["text/plain"] == "one"
    nb.ok("there.pop().close()")


def test_as_code_makes_a_cell_below(nb: Kernel) -> None:
    """`--as code` proposes the answer's code as the next cell."""
    nb.script('[text("Sure:\\n```python\\nx = 1\\n```\\nDone.")]')

    said = nb.ok("%%kit --as code --out code\nmake x")

    assert said.reply["payload"][0]["text"] == "x = 1"
    assert nb.value("code") == "x = 1"


def test_cells_are_prompts_in_kit_mode(nb: Kernel) -> None:
    """U37: `%kit_mode on` sends cells; `;` runs Python; `off` restores it."""
    nb.script('[text("hey")]', '[text("dot")]')
    nb.ok("%kit_mode on")
    assert nb.ok("what is {this}?").kit()["text/plain"] == "hey"
    nb.ok("; y = 5")
    nb.ok("%kit_mode off")
    nb.ok("%kit_mode on --dot")
    nb.ok("z = 6")
    assert nb.ok(".and this?").kit()["text/plain"] == "dot"
    nb.ok("%kit_mode off")

    assert nb.value("(y, z)") == (5, 6)
    assert nb.value("[r.messages[-1].parts[0].text for r in provider.requests]") == ["what is {this}?", "and this?"]


def test_context_shows_what_a_small_model_is_sent(nb: Kernel) -> None:
    """`%kit_context` listed the full prompt and tools where a lean model gets one line and none; it tells what goes."""
    nb.ok(
        "from kit_jupyter.provider import ModelInfo\nfrom kit_jupyter.jupyter.runner import notebook_tools\n"
        "provider = ScriptedProvider([text('yes')], info=ModelInfo(lean=True))\n"
        "kit = Kit(provider=provider, session='memory', tools=notebook_tools(get_ipython()))"
    )

    shown = nb.ok("%kit_context hello there").stream

    assert "tools: none" in shown
    assert "not offered to a model this small: " in shown
    nb.ok("%kit hello there")
    assert f"system prompt: {nb.value('len(provider.last_request.system)')} characters" in shown
    assert nb.value("provider.last_request.tools") == ()
    assert nb.value("kit.last_request.title") in shown


def test_the_note_of_a_demo_model_is_shown_once_under_its_own_answer(nb: Kernel) -> None:
    """It stood under every turn, and under failures of other models."""
    note = "A demo model, often wrong."
    nb.ok(
        "from kit_jupyter.provider import ModelInfo\n"
        "steps = [[provider_error('rejected', 'it broke', status=400)], [text('one')], [text('two')]]\n"
        f"kit = Kit(provider=ScriptedProvider(*steps, info=ModelInfo(note={note!r})), session='memory')"
    )

    said = [nb.run(f"%kit {word}") for word in ("fails", "first", "second")]

    assert [note in str(one.shown) for one in said] == [False, True, False]


def test_a_tool_that_is_not_there_is_only_an_error(nb: Kernel) -> None:
    """``--tools nosuch`` left an empty answer above its error."""
    nb.script('[text("never")]')

    said = nb.run("%kit --tools nosuch hi")

    assert "there is no tool 'nosuch'" in said.reply["evalue"]
    assert said.shown == []


def test_an_id_of_the_tree_is_taken_and_a_follow_up_has_its_header(nb: Kernel) -> None:
    """`%kit_tree`'s short ids work in `%kit_fork`, which says where one is now; `%kit_show` tells turns apart."""
    nb.script("[text('one')]", "[text('two')]")
    nb.ok("%kit first")
    nb.ok("%kit_continue")

    shown = [one["data"]["text/plain"] for one in nb.ok("%kit_show").shown]
    short = nb.ok("%kit_tree").stream.splitlines()[1].rpartition("(")[2].strip(")\n")
    before = nb.value("kit.session.id")
    said = nb.ok(f"%kit_fork {short}").stream

    assert shown == ["> first\n\none", "> [follow-up] Continue.\n\ntwo"]
    assert len(short) < 12
    assert nb.value("[m.role for m in kit.messages]") == ["user", "assistant"]
    assert "kit is the fork now" in said
    assert f"%kit_resume {before}" in said or "in memory" in said


def test_a_model_without_its_key_is_told_at_once(nb: Kernel) -> None:
    """`%kit_model` names the variable to set; before, the first prompt failed."""
    nb.ok("kit = Kit(session='memory')\nold = os.environ.pop('MISTRAL_API_KEY', None)")

    said = nb.ok("%kit_model mistral/mistral-large-latest").stream

    assert "mistral has no key here yet: set MISTRAL_API_KEY" in said
    listed = nb.ok("%kit_model --list").stream.splitlines()
    assert "mistral/             Mistral" in listed
    assert "local/               the built-in local model" in listed


def test_fix_takes_the_real_error(nb: Kernel) -> None:
    """Point 9: source and traceback of the failed cell go along."""
    nb.run("def half(n):\n    return n / 0\nhalf(3)", cell_id="boom")
    nb.script('[text("Divide by 2.")]')

    nb.ok("%kit_fix")

    sent = nb.value("'\\n'.join(p.text for m in provider.requests[-1].messages for p in m.parts)")
    assert "return n / 0" in sent
    assert "ZeroDivisionError: division by zero" in sent
    number = nb.run("1 + None", cell_id="boom2").reply["execution_count"]
    nb.script('[text("None is no number.")]')
    told = nb.run("%kit_fix --cell x").reply["evalue"]
    assert "(boom), " in told
    assert f", {number} (boom2)" in told
    nb.ok(f"%kit_fix --cell {number}")
    assert "1 + None" in nb.value("'\\n'.join(p.text for m in provider.requests[-1].messages for p in m.parts)")
    assert "ipykernel" not in sent


def test_doctor_says_which_model_would_answer_and_why(nb: Kernel) -> None:
    """Before the first prompt, too, as the README promises."""
    nb.ok("before, kit = kit, Kit(session='memory')")
    try:
        assert re.search(r"model: \S+/\S+ from the first prompt on, because \w+", nb.ok("%kit_doctor").stream)
    finally:
        nb.ok("kit = before")


def test_a_session_that_is_busy_says_what_to_do_in_words_of_cells(nb: Kernel) -> None:
    """A cell beside a turn in the background: magics are named, not arguments of Python."""
    nb.script("[delay(1.0), text('first')]")
    first = nb.send("%%kit -b\ngo", cell_id="busy")
    nb.pump(lambda: nb.is_idle(first))

    said = nb.run("%%kit\nand you?", cell_id="busy-2").reply

    assert said["ename"] == "UsageError"
    assert "%kit_steer" in said["evalue"]
    assert "-s NAME" in said["evalue"]
    nb.ok("%kit_stop")


def test_doctor_keys_tools_model(nb: Kernel) -> None:
    """Small magics print what there is."""
    nb.script('[text("x")]')
    report = nb.ok("%kit_doctor").stream
    assert "ipykernel" in report
    assert "model: scripted/default, as it was set" in report
    assert nb.ok("%kit_keys").stream.startswith("<leader> is Ctrl+; in Lab")
    assert "no tools" in nb.ok("%kit_tools").stream
    assert "scripted" in nb.ok("%kit_model").stream
    assert {"text/html", "text/plain"} <= set(nb.ok("%kit_trifecta").shown[0]["data"])
    assert "memory" in nb.ok("%kit_sessions").stream or "messages" in nb.ok("%kit_sessions").stream


def test_output_is_the_same_each_time(nb: Kernel) -> None:
    """Point 7, U106: same turn, same bytes; no ids, times or costs in the data."""
    shown = []
    for _ in range(2):
        nb.ok("def f() -> str:\n    'F.'\n    return 'r'")
        nb.script('[thinking("hm"), tool_call("f")]', '[text("done")]', more=", tools=[f], permissions='auto'")
        shown.append(json.dumps(nb.ok("%%kit\nsame", cell_id="same").kit(), sort_keys=True))

    assert shown[0] == shown[1]


def test_unload_and_load_again(nb: Kernel) -> None:
    """`%unload_ext` takes everything out; loading again works."""
    nb.ok("%unload_ext kit_jupyter")
    assert nb.run("%kit hi").reply["status"] == "error" or "not found" in nb.run("%kit hi").stream
    nb.ok("%load_ext kit_jupyter")
    nb.script('[text("back")]')

    assert nb.ok("%kit hi").kit()["text/plain"] == "back"


def test_loading_is_light_and_the_session_comes_when_used(tmp_path: Path) -> None:
    """Point 1, speed row 9: `%load_ext` loads no room of the session; `kit` is the session from its first use on."""
    home = {"XDG_DATA_HOME": str(tmp_path), "KIT_UI": ""}
    with kernel(home, setup="") as k:
        heavy = k.ok(
            "%load_ext kit_jupyter\nimport sys\nheavy = ('kit_jupyter.kit', 'httpx', 'pydantic', 'anywidget')\n"
            "print([m for m in heavy if m in sys.modules])"
        ).stream
        assert heavy.strip() == "[]"
        assert k.value("{'kit', 'kit_stop'} <= get_ipython().magics_manager.magics['line'].keys()") is True
        k.ok("mine = kit")
        assert k.value("isinstance(kit, __import__('kit_jupyter').Kit)") is True
        assert k.value("(mine.session is kit.session, type(mine).__name__)") == (True, "Kit")
        k.ok("%load_ext kit_jupyter")
        assert "no tools" not in k.ok("%kit_tools").stream


def test_the_stand_ins_are_the_magics(nb: Kernel) -> None:
    """What `%load_ext` announces is what there is."""
    nb.ok("from kit_jupyter.jupyter import early")
    known = nb.value("sorted(n for n in get_ipython().magics_manager.magics['line'] if n.startswith('kit'))")

    assert sorted(nb.value("[*early.MAGICS, *early.ASYNC]")) == known
