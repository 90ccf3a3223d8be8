"""Secrets never reach the model, the notebook or the log from tool output (issue 6, item 7; U59)."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import pytest

from kit_jupyter.masking import Masker, clean_environment, is_secret_name, mask, mask_outcome, mask_parts
from kit_jupyter.messages import MediaPart, TextPart
from kit_jupyter.tool import ToolOutcome

SECRET = "pa$$w0rd/with+odd&chars"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        SECRET.encode().hex(),
        SECRET[::-1],
    ],
)
def test_values_of_secret_variables_in_every_usual_form(form):
    """Plain, URL-quoted, base64, hex, reversed."""
    masker = Masker({"MY_DB_PASSWORD": SECRET, "HOME": "/home/someone"})
    out = masker.mask(f"before {form} after /home/someone")

    assert form not in out
    assert "[masked MY_DB_PASSWORD]" in out
    assert out.startswith("before ")
    assert out.endswith(" after /home/someone")


@pytest.mark.parametrize(
    "key",
    [
        "sk-" + "a1B2" * 10,
        "sk-ant-api03-" + "a1B2" * 10,
        "sk-proj-" + "a1B2_" * 10,
        "AIza" + "a1B2C3d" * 5,
        "AKIA" + "ABCD1234" * 2,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 12,
        "xoxb-123456789012-abcdef",
        "hf_" + "aBcD" * 8,
        "gsk_" + "aBc1" * 8,
        "sk_live_" + "aBc1" * 6,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
        "glpat-" + "aBc1" * 5,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nMIIE cut off",
    ],
)
def test_known_key_shapes(key):
    """Keys of well-known services, wherever they stand."""
    out = mask(f"x = {key!r} y\n{key}")

    assert key not in out
    assert key[8:] not in out
    assert "masked" in out


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://bob:hunter22@db/x", "hunter22"),
        ("export AWS_SECRET_ACCESS_KEY=abcd/efgh1234", "abcd/efgh1234"),
        ('{"api_key": "0123456789abcdef"}', "0123456789abcdef"),
        ("Authorization: Bearer abc.def-ghi123", "abc.def-ghi123"),
        ("'x-api-key': 'abcdef123456'", "abcdef123456"),
        ("DB_PASSWORD='correct horse'".replace(" ", "-"), "correct-horse"),
    ],
)
def test_assignments_headers_and_addresses(text, secret):
    """Values beside a telling name."""
    out = mask(text)

    assert secret not in out
    assert "[masked" in out


@pytest.mark.parametrize(
    "text",
    [
        "def f(key=lambda x: x, token: str = 'a'): return sorted(d, key=operator.itemgetter(1))",
        'client = Client(api_key=os.environ["OPENAI_API_KEY"])',
        "password: str, api_key=settings.api_key, token=$TOKEN, secret=<your-secret>",
        "max_tokens=100000 tokenizer=cl100k_base n_keys=12345678 keyboard=qwertyuiop",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b in sk-learn; risk-adjusted task-oriented",
        "https://example.org/a:b@c http://localhost:8888/tree me@example.org",
        "primary_key: customer_id, foreign_key: order_number, cache_key=user:123:profile_page",
        "Author: someone <a@b.c>",
    ],
)
def test_ordinary_text_is_left_alone(text):
    """A net that catches everything would be useless."""
    assert Masker({}).mask(text) == text


def test_names():
    """Which variables count."""
    for name in (
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "PGPASSWORD",
        "GITHUB_PAT",
        "my_secret",
        "AWS_SECRET_ACCESS_KEY",
        "SENTRY_DSN",
    ):
        assert is_secret_name(name), name
    for name in (
        "PATH",
        "PWD",
        "SSH_AUTH_SOCK",
        "KEYBOARD",
        "TOKENIZERS_PARALLELISM",
        "LANG",
        "XDG_SESSION_ID",
        "PYTHONPATH",
    ):
        assert not is_secret_name(name), name


def test_short_and_boring_values_are_not_masked():
    """`DEBUG_KEY=true` must not turn every "true" into a mask."""
    assert (
        Masker({"A_KEY": "true", "B_TOKEN": "abc", "C_SECRET": "12345678"}).mask("true abc 12345678")
        == "true abc 12345678"
    )


def test_the_environment_is_followed(monkeypatch):
    """A key set after the start is masked too."""
    assert mask("value-of-late-key") == "value-of-late-key"
    monkeypatch.setenv("LATE_API_KEY", "value-of-late-key")
    assert mask("value-of-late-key") == "[masked LATE_API_KEY]"


def test_child_processes_get_no_secrets():
    """The shell tool's environment."""
    environment = {"PATH": "/bin", "X_TOKEN": "abcdefgh", "DATABASE_URL": "pg://u:pw123@h", "ODD": "ghp_" + "a1" * 18}

    assert clean_environment(environment) == {"PATH": "/bin"}
    assert clean_environment(environment, keep=["X_TOKEN"]) == {"PATH": "/bin", "X_TOKEN": "abcdefgh"}


def test_outcomes_are_masked_everywhere(monkeypatch):
    """Parts, details (diffs, tables of variables) and the final value; untouched parts stay the same objects."""
    monkeypatch.setenv("DEMO_SECRET", "hush-hush-1")
    picture = MediaPart("image/png", "aGk=")
    outcome = ToolOutcome(
        parts=(TextPart("it is hush-hush-1"), picture),
        details={"diff": ["+hush-hush-1"], "variables": {"password": "letmein-now"}, "n": 3},
        value={"answer": "hush-hush-1"},
    )

    masked = mask_outcome(outcome)
    assert "hush" not in repr(masked)
    assert "letmein" not in repr(masked)
    assert masked.parts[1] is picture
    assert masked.details["n"] == 3
    clean = (TextPart("nothing"),)
    assert mask_parts(clean) is clean


def test_masking_a_megabyte_is_quick():
    """No pattern may explode on odd text; generous bound."""
    monstrous = [
        "a" * 1_000_000,
        "a=" * 500_000,
        "://" * 300_000 + "@",
        "key: " * 200_000,
        "eyJ" * 300_000,
        "sk-" * 300_000,
    ]
    for text in [*monstrous, "-----BEGIN PRIVATE KEY-----" * 30_000]:
        began = time.monotonic()
        mask(text)
        assert time.monotonic() - began < 5, text[:20]
