"""docs/tools.md says for each tool what the code says: legs, default permission, bounds (issue 6, "Done when")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit_jupyter.builtin import NAMES, builtin_tools
from kit_jupyter.permissions import PRESETS
from kit_jupyter.tools.python import NamespaceRunner
from kit_jupyter.trifecta import Legs

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def legs_text(legs: Legs) -> str:
    """Legs as the table writes them."""
    words = []
    if legs.private:
        words.append("private data")
    if legs.untrusted != "none":
        words.append(f"untrusted text ({legs.untrusted})")
    if legs.egress != "none":
        words.append(f"way out ({legs.egress}, to {legs.destination})")
    return ", ".join(words) or "none"


def table(heading: str) -> dict[str, list[str]]:
    """Rows of the first table under a heading, by their first cell."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}", 1)[1]
    block = re.search(r"(?:^\|.*\n)+", section.split("\n## ", 1)[0], re.MULTILINE)
    assert block is not None, heading
    rows = re.findall(r"^\| (.+?) \|$", block[0], re.MULTILINE)
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    return {row[0].strip("`"): row[1:] for row in cells[1:] if not set("".join(row)) <= set("-| ")}


def test_the_table_of_tools_is_the_code():
    """Each built-in tool with its legs, default and bounds, and no other."""
    tools = {tool.name: tool for tool in builtin_tools(runner=NamespaceRunner({}))}
    rows = table("The built-in tools")

    assert tuple(rows) == NAMES
    for name, (legs, default, bounds) in rows.items():
        assert legs == legs_text(tools[name].legs), name
        assert default == tools[name].default, name
        assert bounds == tools[name].bounds, name


SAMPLES = {
    "inspect": {"names": ["x"]},
    "python": {"code": "x = 1"},
    "read": {"path": "a"},
    "write": {"path": "a", "content": "x"},
    "edit": {"path": "a", "old": "a", "new": "b"},
    "grep": {"pattern": "a"},
    "glob": {"pattern": "a"},
    "ls": {},
    "shell": {"command": "ls"},
    "web_fetch": {"url": "https://example.org"},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_what_the_policy_says(bench, tmp_path, name):
    """An ordinary call of each tool gets its default under the "ask" preset; U59: code, shell, writes and web ask."""
    tool = builtin_tools(name, runner=NamespaceRunner({}), workspace=tmp_path)[0]

    assert bench.decide(tool, **SAMPLES[name]).effect == tool.default.split(";")[0]


def test_the_table_of_presets_is_the_code():
    """Preset by kind of need."""
    rows = table("Permissions")
    kinds = ["look", "act", "function", "outside", "sensitive", "unsure", "loop"]

    assert {name: dict(zip(kinds, cells, strict=True)) for name, cells in rows.items()} == PRESETS


#: Each row of "When things go wrong", and the tests that hold it; files are relative to this folder.
OUTCOMES = {
    "arguments that are no JSON": "../core/test_turn.py::test_each_kind_of_failure_takes_the_same_road "
    "../test_tool.py::test_one_line_per_fault test_in_kit.py::test_wrong_arguments_are_told_and_can_be_mended",
    "`SystemExit`": "../test_tool.py::test_errors_become_results "
    "../jupyter/test_tools_in_kernel.py::test_odd_code_is_a_result_and_the_kernel_lives",
    "`KeyboardInterrupt` raised by the code itself": "test_python.py::test_errors_come_back_plain "
    "../test_tool.py::test_an_interrupt_by_a_person_is_told_from_a_stop",
    "Ctrl-C": "../jupyter/test_tools_in_kernel.py::test_stop_ends_running_code "
    "../test_tool.py::test_ctrl_c_in_a_tool_ends_the_wait_and_the_next_call_works",
    "endless recursion": "../test_tool.py::test_endless_recursion_has_a_short_traceback "
    "test_python.py::test_errors_come_back_plain",
    "printing a gigabyte": "../test_tool.py::test_a_flood_of_prints_is_bounded "
    "test_python.py::test_a_flood_is_bounded test_shell.py::test_much_output_is_no_catastrophe",
    "closing stdout": "../test_tool.py::test_closing_stdout_harms_nobody test_python.py::test_errors_come_back_plain",
    "starting threads": "test_python.py::test_threads_left_running_are_reported",
    "`kit.prompt` of the same Kit inside a tool": "test_in_kit.py::test_a_kit_inside_a_tool_is_told_and_does_not_hang "
    "../jupyter/test_tools_in_kernel.py::test_a_kit_inside_a_tool_is_told",
    "paths with `..`": "test_files.py::test_paths_are_judged_where_they_lead test_files.py::test_permissions",
    "paths with NUL": "test_files.py::test_no_paths test_files.py::test_long_paths_are_told_in_a_line "
    "test_files.py::test_a_nul_in_a_path_is_told_before_anybody_is_asked",
    "a link swapped in between the question and the opening": "test_files.py::"
    "test_a_link_put_in_after_the_question_is_refused "
    "test_files.py::test_a_link_swapped_in_after_the_judging_is_refused",
    "a second name (hard link) of a file": "test_files.py::test_a_hard_link_to_a_file_for_secrets_asks",
    "pipes and devices as files": "test_files.py::test_pipes_and_devices_do_not_hang",
    "here-documents": "test_shell.py::test_here_documents_hide_nothing test_shell.py::test_what_cannot_be_read_asks",
    "`$(…)`": "test_shell.py::test_every_program_is_seen",
    "aliases": "test_shell.py::test_what_cannot_be_read_asks test_shell.py::test_nasty_lines_ask",
    "huge code": "test_pysurvey.py::test_long_code_is_not_read test_shell.py::test_huge_lines_are_not_parsed",
    "background jobs": "test_shell.py::test_a_background_job_ends_with_the_call "
    "test_shell.py::test_a_stop_leaves_nothing_running test_shell.py::test_a_time_out_leaves_nothing_running",
}


def test_every_outcome_has_its_test():
    """Each row of the table of bad input names what holds it, and those tests are there (issue 6, "Bad input")."""
    rows = table("When things go wrong")

    assert [row.split(",")[0].strip("`") for row in rows] == [row.strip("`") for row in OUTCOMES]
    for row, tests in OUTCOMES.items():
        for test in tests.split():
            file, name = test.split("::")
            source = (Path(__file__).parent / file).read_text(encoding="utf-8")
            assert f"def {name}(" in source, (row, test)


def test_the_approve_rule_of_the_page_stands_a_call_without_the_argument() -> None:
    """A model leaves out what has a default; the rule must not fail then, which would ask."""
    (written,) = re.findall(r"`approve=(lambda arguments, context: [^`]+)`", PAGE.read_text(encoding="utf-8"))
    rule = eval(written)

    assert [rule(arguments, None) for arguments in ({}, {"last": 5}, {"last": 500})] == ["allow", "allow", "ask"]
