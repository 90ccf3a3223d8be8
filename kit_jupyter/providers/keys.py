"""API keys: where they come from, and that their value is never shown.

Theory of operation
-------------------
::

    argument → environment → keyring (where installed) → user config file, mode 0600

The first that has one wins. A key travels as `Key`, which knows its source and prints that; whatever
may hold a key by accident (an error of a service that echoes it, a recording) passes through `mask`.
The config file is the user's, not the folder's: a hub that starts in changing folders keeps its keys.
`login` asks by getpass, so a key never stands in a cell, in ``In[]`` or in a notebook.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.masking import masker
from kit_jupyter.places import config_dir

__all__ = ["Key", "config_file", "find_key", "login", "logout", "mask", "own_variable", "provider_config", "remember"]

SERVICE = "kit-jupyter"
KEYRING_SECONDS = 3.0

_remembered: set[str] = set()

_IN_QUERY = re.compile(r"([?&](?:key|api_key|api-key|access_token|token)=)[^&\s\"'<>]{4,}")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9_\-.=/+~]{8,}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key and where it was found; false when there is none.

    Parameters
    ----------
    value : str
        Never printed.
    source : str
        For example ``environment OPENAI_API_KEY``; empty when there is none.
    """

    value: str = field(default="", repr=False)
    source: str = ""

    def __bool__(self) -> bool:
        return bool(self.value)

    def __str__(self) -> str:
        return f"key from {self.source}" if self.value else "no key"


def remember(secret: str, label: str = "key") -> None:
    """Mask this value wherever text is masked in this process from now on."""
    if secret and secret not in _remembered:  # the masker makes its pattern anew for each
        _remembered.add(secret)
        masker.add(label, secret)


def mask(text: str, *secrets: str) -> str:
    """`text` without keys: those given, those known to the process, and those of a known shape.

    Examples
    --------
    >>> mask("Incorrect API key provided: hunter2", "hunter2")
    'Incorrect API key provided: [masked key]'
    >>> mask("https://host/v1?key=abcd1234&alt=sse")
    'https://host/v1?key=[masked key]&alt=sse'
    """
    for secret in secrets:
        if len(secret) >= 4 and secret in text:
            text = text.replace(secret, "[masked key]")
    text = _IN_QUERY.sub(r"\1[masked key]", text) if "=" in text else text
    return masker.mask(_BEARER.sub(r"\1[masked key]", text))


def checked(value: str, provider: str) -> str:
    """The key without white space around it.

    Raises
    ------
    UsageError
        For what no key looks like; the value is not in the text.
    """
    key = value.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"the key for {provider} holds a character that no key holds; copy it again, without quotes")
    return key


# ---------------------------------------------------------------- finding


def own_variable(provider: str, what: str) -> str:
    """Our own variable for a setting of a provider; it goes before that of the vendor's SDK.

    Examples
    --------
    >>> own_variable("openai-chat", "BASE_URL")
    'KIT_OPENAI_CHAT_BASE_URL'
    """
    return f"KIT_{re.sub(r'[^A-Z0-9]', '_', provider.upper())}_{what}"


def find_key(
    provider: str,
    names: Iterable[str] = (),
    *,
    given: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Key:
    """The key of a provider and its source.

    Parameters
    ----------
    names : iterable of str
        Environment variables, the first that is set counts; ``KIT_<PROVIDER>_API_KEY`` goes before them.
    given : str or None
        A key given as argument.

    Examples
    --------
    >>> find_key("demo", ["DEMO_KEY"], environ={"DEMO_KEY": "abc123"})
    Key(source='environment DEMO_KEY')
    """
    environ = os.environ if environ is None else environ
    if given:
        remember(given.strip(), f"{provider} key")
        return Key(checked(given, provider), "argument")
    for name in (own_variable(provider, "API_KEY"), *names):
        if environ.get(name, "").strip():
            remember(environ[name].strip(), name)
            return Key(checked(environ[name], provider), f"environment {name}")
    for found in (_from_keyring(provider, environ), _from_file(provider)):
        if found:
            remember(found.value, f"{provider} key")
            return found
    return Key()


def _from_file(provider: str) -> Key:
    value = provider_config(provider).get("api_key")
    return Key(checked(value, provider), f"config file {config_file()}") if isinstance(value, str) and value else Key()


def _keyring(environ: Mapping[str, str]) -> Any:
    """The keyring library with a backend that works; None where there is none, or ``KIT_KEYRING=off``."""
    if environ.get("KIT_KEYRING", "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        import keyring
        from keyring.backends import fail
    except ImportError:
        return None
    backend = keyring.get_keyring()
    return None if isinstance(backend, fail.Keyring) or not getattr(backend, "priority", 0) > 0 else keyring


def _ask_keyring(work: Any) -> Any:
    """Run a keyring call under a limit: some backends wait for a dialog nobody sees. None when it fails."""
    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="kit-keyring")
    try:
        return pool.submit(work).result(KEYRING_SECONDS)
    except Exception:  # each backend has errors of its own; without a keyring there is simply no key in it
        return None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _from_keyring(provider: str, environ: Mapping[str, str]) -> Key:
    library = _keyring(environ)
    if library is None:
        return Key()
    value = _ask_keyring(lambda: library.get_password(SERVICE, provider))
    return Key(checked(value, provider), "keyring") if isinstance(value, str) and value else Key()


# ---------------------------------------------------------------- the config file


def config_file() -> Path:
    """The user's ``providers.json``; ``KIT_CONFIG_DIR`` moves its folder. Independent of the working folder."""
    return config_dir() / "providers.json"


def _read() -> dict[str, Any]:
    path = config_file()
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror or exc}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text; correct it, or delete it and call kit.login() again") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        where = f"line {exc.lineno}" if isinstance(exc, json.JSONDecodeError) else "somewhere"
        raise UsageError(f"{path} is not JSON ({where}); correct it, or delete it and call kit.login() again") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} must hold an object of providers; correct it, or delete it")
    _tighten(path)
    return value


def _tighten(path: Path) -> None:
    """Nobody else may read it; a copy or an editor may have opened it up."""
    if os.name != "posix":
        return
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
    except OSError:
        pass


def provider_config(provider: str) -> dict[str, Any]:
    """What the user's file says of a provider: ``api_key``, ``base_url``, ``headers``, ``proxy``, ``ca_bundle``.

    Raises
    ------
    UsageError
        If the file cannot be read or is not JSON.
    """
    value = _read().get(provider)
    return value if isinstance(value, dict) else {}


def _write(values: Mapping[str, Any]) -> None:
    path = config_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A temporary file is made with mode 0600 from the first byte on.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".providers-", suffix=".json")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=2, sort_keys=True)
                file.write("\n")
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}: {exc.strerror or exc}; set KIT_CONFIG_DIR, or use the environment"
        ) from None


def store(provider: str, **facts: Any) -> Path:
    """Keep facts of a provider in the user's file; None removes one. The file's path comes back."""
    values = _read()
    entry = {**(values.get(provider) or {}), **facts}
    values[provider] = {name: value for name, value in entry.items() if value is not None}
    if not values[provider]:
        del values[provider]
    _write(values)
    return config_file()


# ---------------------------------------------------------------- login


def login(provider: str, *, where: str | None = None) -> str:
    """Ask for a key without showing it, and keep it.

    Parameters
    ----------
    provider : str
    where : {"keyring", "file"} or None
        None takes the keyring where one works, else the user's file of mode 0600.

    Returns
    -------
    str
        Where it is kept; never the key.

    Raises
    ------
    UsageError
        If nothing was entered, or what was entered cannot be a key.
    """
    import getpass

    if where not in (None, "keyring", "file"):
        raise UsageError(f"where is 'keyring' or 'file', got {where!r}")
    value = checked(getpass.getpass(f"API key for {provider} (not shown): "), provider)
    if not value:
        raise UsageError(f"no key was entered for {provider}")
    remember(value, f"{provider} key")
    library = _keyring(os.environ) if where != "file" else None
    if library is not None and _ask_keyring(lambda: library.set_password(SERVICE, provider, value) or True):
        store(provider, api_key=None)
        return "kept in the keyring"
    if where == "keyring":
        raise UsageError("no keyring works here; use where='file' or an environment variable")
    return f"kept in {store(provider, api_key=value)}, readable by you alone"


def logout(provider: str) -> None:
    """Forget a key that `login` kept, wherever it is."""
    library = _keyring(os.environ)
    if library is not None:
        _ask_keyring(lambda: library.delete_password(SERVICE, provider))
    if provider_config(provider).get("api_key"):
        store(provider, api_key=None)
