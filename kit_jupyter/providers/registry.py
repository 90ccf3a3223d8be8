"""Which providers there are, how each is reached, and which is taken when none is named.

Theory of operation
-------------------
A provider is a row: its wire, its base URL, the environment variables that its own SDK reads, and the
quirks of its dialect. `open_provider` makes a `Provider` of a row, key and network settings included;
any model id passes through, as services name new models every week. Rows of other packages come
through the entry-point group ``kit_jupyter.providers``, or by `register`.

`choose` takes a model when nobody named one: the setting, ``KIT_MODEL``, what a notebook's recording was
made with, a key, a server on this machine that answers, and last the built-in local model. It says why.

Settings of a provider, first that is set: argument, ``KIT_<NAME>_BASE_URL`` and the like, the SDK's own
variable, the user's ``providers.json``, the row.
"""

from __future__ import annotations

import concurrent.futures
import difflib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import ModelInfo, Provider
from kit_jupyter.providers import keys
from kit_jupyter.providers._models import info_of

__all__ = [
    "Choice",
    "Row",
    "check_name",
    "choose",
    "known_names",
    "login",
    "offered",
    "open_provider",
    "provider_table",
    "register",
    "rows",
]

GROUP = "kit_jupyter.providers"
PROBE_SECONDS = 0.2

Factory = Callable[..., Provider]

# Where the codec of each wire lives; imported on use.
_WIRES = {
    "openai-chat": "kit_jupyter.providers.openai_chat:OpenAIChatCodec",
    "openai-responses": "kit_jupyter.providers.openai_responses:OpenAIResponsesCodec",
    "anthropic-messages": "kit_jupyter.providers.anthropic:AnthropicCodec",
    "gemini": "kit_jupyter.providers.gemini:GeminiCodec",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One provider.

    Parameters
    ----------
    name : str
        Before the slash in ``provider/model``.
    title : str
        For people.
    wire : str
        Name of its codec.
    base_url : str
        ``{NAME}`` stands for an environment variable that must be set.
    key_env, url_env : tuple of str
        Variables of the vendor's own SDK, best first.
    quirks : frozenset of str
        See the codec's module.
    model : str
        Taken by `choose` when only a key was found; empty for providers that are never chosen by themselves.
    needs_key : bool
    headers_env : dict
        Header to environment variable, sent when that is set.
    probe : str
        Path under the server's root that lists models, for servers on this machine.
    """

    name: str
    title: str
    wire: str
    base_url: str
    key_env: tuple[str, ...] = ()
    url_env: tuple[str, ...] = ()
    quirks: frozenset[str] = frozenset()
    model: str = ""
    needs_key: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_env: Mapping[str, str] = field(default_factory=dict)
    probe: str = ""

    @property
    def is_local(self) -> bool:
        """A server on this machine."""
        return bool(self.probe)


def _chat(name: str, title: str, base_url: str, key: str | tuple[str, ...], *quirks: str, **more: Any) -> Row:
    names = (key,) if isinstance(key, str) else key
    return Row(
        name=name, title=title, wire="openai-chat", base_url=base_url, key_env=names, quirks=frozenset(quirks), **more
    )


def _server(name: str, title: str, base_url: str, url_env: tuple[str, ...], key: str, *quirks: str, **more: Any) -> Row:
    return Row(
        name=name,
        title=title,
        wire="openai-chat",
        base_url=base_url,
        url_env=url_env,
        key_env=(key,),
        quirks=frozenset(quirks),
        needs_key=False,
        **more,
    )


_OPENAI = ("max_completion_tokens", "prompt_cache_key", "strict", "refusal")
_ORG = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}

# The order is the order in which keys are looked for.
ROWS: tuple[Row, ...] = (
    Row(
        name="anthropic",
        title="Anthropic",
        wire="anthropic-messages",
        base_url="https://api.anthropic.com",
        key_env=("ANTHROPIC_API_KEY",),
        url_env=("ANTHROPIC_BASE_URL",),
        model="claude-sonnet-5-5",
    ),
    Row(
        name="openai",
        title="OpenAI (Responses)",
        wire="openai-responses",
        base_url="https://api.openai.com/v1",
        key_env=("OPENAI_API_KEY",),
        url_env=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        headers_env=_ORG,
        model="gpt-5.6-luna",
    ),
    Row(
        name="gemini",
        title="Google Gemini",
        wire="gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        key_env=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_env=("GOOGLE_GEMINI_BASE_URL",),
        model="gemini-3.8-flash",
    ),
    Row(
        name="vertex",
        title="Google Vertex AI (access token)",
        wire="gemini",
        base_url=(
            "https://{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com/v1"
            "/projects/{GOOGLE_CLOUD_PROJECT}/locations/{GOOGLE_CLOUD_LOCATION}/publishers/google"
        ),
        key_env=("VERTEX_ACCESS_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN"),
        url_env=("VERTEX_BASE_URL",),
        quirks=frozenset({"bearer"}),
    ),
    _chat(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "thinking:openrouter",
        "strict",
        url_env=("OPENROUTER_BASE_URL",),
        model="~anthropic/claude-sonnet-latest",
    ),
    _chat(
        "groq",
        "Groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "max_completion_tokens",
        url_env=("GROQ_BASE_URL",),
        model="openai/gpt-oss-120b",
    ),
    _chat(
        "mistral",
        "Mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        "no_stream_options",
        "tool_choice_any",
        "short_ids",
        "ok_after_tool",
        "tool_media",
        "document_url",
        "strict",
        "thinking:none",
        url_env=("MISTRAL_BASE_URL", "MISTRAL_API_BASE"),
        model="mistral-medium-latest",
    ),
    _chat(
        "deepseek",
        "DeepSeek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        "json_object",
        "thinking:type",
        "give_back:reasoning_content",
        url_env=("DEEPSEEK_BASE_URL",),
        model="deepseek-v4-flash",
    ),
    _chat("xai", "xAI", "https://api.x.ai/v1", "XAI_API_KEY", "strict", url_env=("XAI_BASE_URL",), model="grok-4.7"),
    _chat(
        "azure",
        "Azure OpenAI",
        "{AZURE_OPENAI_ENDPOINT}/openai/v1",
        "AZURE_OPENAI_API_KEY",
        "api_key_header",
        "max_completion_tokens",
        "strict",
        "refusal",
        url_env=("AZURE_OPENAI_BASE_URL",),
    ),
    _chat(
        "together",
        "Together",
        "https://api.together.xyz/v1",
        "TOGETHER_API_KEY",
        url_env=("TOGETHER_BASE_URL",),
        model="openai/gpt-oss-120b",
    ),
    _chat(
        "fireworks",
        "Fireworks",
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        url_env=("FIREWORKS_BASE_URL",),
        model="accounts/fireworks/models/gpt-oss-120b",
    ),
    _chat("cerebras", "Cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", model="gpt-oss-120b"),
    _chat(
        "moonshot",
        "Moonshot (Kimi)",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        "give_back:reasoning_content",
        "thinking:type",
        url_env=("MOONSHOT_BASE_URL",),
        model="kimi-k3",
    ),
    _chat(
        "dashscope",
        "Alibaba DashScope (Qwen)",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        "thinking:enable",
        "json_object",
        url_env=("DASHSCOPE_BASE_URL",),
        model="qwen-plus",
    ),
    _chat(
        "zai",
        "Z.ai (GLM)",
        "https://api.z.ai/api/paas/v4",
        ("ZAI_API_KEY", "ZHIPUAI_API_KEY"),
        "thinking:type",
        "json_object",
        "give_back:reasoning_content",
        model="glm-5",
    ),
    _chat(
        "perplexity",
        "Perplexity",
        "https://api.perplexity.ai",
        ("PERPLEXITY_API_KEY", "PPLX_API_KEY"),
        "think_tags",
        "thinking:none",
        "no_stream_options",
        model="sonar",
    ),
    _chat("sambanova", "SambaNova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY", "think_tags"),
    _chat("baseten", "Baseten", "https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    _chat("nvidia", "NVIDIA NIM", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY", "think_tags"),
    _chat("deepinfra", "DeepInfra", "https://api.deepinfra.com/v1/openai", ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN")),
    _chat("nebius", "Nebius", "https://api.studio.nebius.com/v1", "NEBIUS_API_KEY"),
    _chat(
        "cohere",
        "Cohere",
        "https://api.cohere.ai/compatibility/v1",
        ("CO_API_KEY", "COHERE_API_KEY"),
        "no_stream_options",
    ),
    _chat("vercel", "Vercel AI Gateway", "https://ai-gateway.vercel.sh/v1", "AI_GATEWAY_API_KEY"),
    _chat(
        "databricks",
        "Databricks",
        "{DATABRICKS_HOST}/serving-endpoints",
        "DATABRICKS_TOKEN",
        "no_stream_options",
        url_env=("DATABRICKS_BASE_URL",),
    ),
    _chat(
        "cloudflare",
        "Cloudflare Workers AI",
        "https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        ("CLOUDFLARE_API_TOKEN", "CLOUDFLARE_API_KEY"),
    ),
    _chat(
        "bedrock",
        "Amazon Bedrock (OpenAI wire, bearer key)",
        "https://bedrock-runtime.{AWS_REGION}.amazonaws.com/openai/v1",
        "AWS_BEARER_TOKEN_BEDROCK",
        url_env=("BEDROCK_BASE_URL",),
    ),
    _chat(
        "copilot",
        "GitHub Copilot",
        "https://api.githubcopilot.com",
        ("GITHUB_COPILOT_API_KEY", "COPILOT_API_KEY"),
        headers={"copilot-integration-id": "vscode-chat", "editor-version": "kit-jupyter/0.1"},
    ),
    _chat("github", "GitHub Models", "https://models.github.ai/inference", ("GITHUB_MODELS_TOKEN", "GITHUB_TOKEN")),
    _chat(
        "openai-chat",
        "OpenAI (chat completions)",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        *_OPENAI,
        url_env=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        headers_env=_ORG,
    ),
    _chat(
        "gemini-chat",
        "Gemini (OpenAI wire)",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    _chat(
        "anthropic-chat",
        "Anthropic (OpenAI wire)",
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
    ),
    # Tokens that are often set for other things are looked at last.
    _chat(
        "huggingface",
        "Hugging Face",
        "https://router.huggingface.co/v1",
        ("HF_TOKEN", "HUGGINGFACE_API_KEY", "HUGGING_FACE_HUB_TOKEN"),
        url_env=("HF_INFERENCE_ENDPOINT",),
        model="openai/gpt-oss-120b",
    ),
    _server(
        "ollama",
        "Ollama",
        "http://127.0.0.1:11434/v1",
        ("OLLAMA_BASE_URL", "OLLAMA_HOST"),
        "OLLAMA_API_KEY",
        "give_back:reasoning",
        probe="/v1/models",
    ),
    _server(
        "lmstudio",
        "LM Studio",
        "http://127.0.0.1:1234/v1",
        ("LMSTUDIO_BASE_URL", "LM_STUDIO_BASE_URL"),
        "LM_API_KEY",
        "think_tags",
        probe="/v1/models",
    ),
    _server(
        "llamacpp",
        "llama.cpp server",
        "http://127.0.0.1:8080/v1",
        ("LLAMACPP_BASE_URL",),
        "LLAMA_API_KEY",
        "thinking:template",
        "reminders",
        "give_back:reasoning_content",
        probe="/v1/models",
    ),
    _server(
        "vllm",
        "vLLM",
        "http://127.0.0.1:8000/v1",
        ("VLLM_BASE_URL",),
        "VLLM_API_KEY",
        "thinking:template",
        "think_tags",
    ),
    _server(
        "litellm",
        "LiteLLM proxy",
        "http://127.0.0.1:4000",
        ("LITELLM_PROXY_API_BASE", "LITELLM_BASE_URL"),
        "LITELLM_PROXY_API_KEY",
    ),
    _server(
        "openai-compatible",
        "Any server with the OpenAI wire",
        "{KIT_OPENAI_COMPATIBLE_BASE_URL}",
        (),
        "KIT_OPENAI_COMPATIBLE_API_KEY",
        "think_tags",
    ),
)
_ROWS: dict[str, Row] = {row.name: row for row in ROWS}
_registered: dict[str, Row | Factory] = {}

# Providers that are no row: made by a room of their own, imported on use.
_SPECIAL: dict[str, str] = {
    "local": "kit_jupyter.providers.llama_server:LocalProvider",
    "pydantic-ai": "kit_jupyter.providers.pydantic_ai:open_model",
    "replay": "kit_jupyter.providers.replay:ReplayProvider",
}


def rows() -> tuple[Row, ...]:
    """All built-in rows."""
    return ROWS


def register(name: str, provider: Row | Factory) -> None:
    """Add a provider for this process; the same as an entry point of the group ``kit_jupyter.providers``.

    Parameters
    ----------
    name : str
        Before the slash in ``provider/model``; goes before a built-in one of the same name.
    provider : Row or callable
        Called as ``provider(ref, base_url=…, api_key=…)``; returns a `Provider`.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise UsageError(f"a provider's name is lower-case letters, digits, dot, dash and underscore; got {name!r}")
    _registered[name] = provider


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def known_names() -> list[str]:
    """Names of all providers, those of other packages included."""
    return sorted({*_ROWS, *_SPECIAL, *_registered, *_entry_points()})


def check_name(ref: ModelRef) -> None:
    """Raise `UsageError` if nobody is called so, with the nearest name; model ids are not checked."""
    name = ref.provider
    if name in _ROWS or name in _SPECIAL or name in _registered or name in _entry_points():
        return
    near = difflib.get_close_matches(name, known_names(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}/{ref.id}?" if near else ""
    raise UsageError(f"unknown provider {name!r} in {str(ref)!r}{hint} (known: {', '.join(known_names())})")


# ---------------------------------------------------------------- opening


def open_provider(
    ref: ModelRef,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
    ca_bundle: str | None = None,
    transport: Any = None,
    limits: Any = None,
    environ: Mapping[str, str] | None = None,
) -> Provider:
    """A provider for this model, with key, address and network settings found.

    Parameters
    ----------
    base_url, api_key, headers, proxy, ca_bundle
        Go before environment and config file.
    transport : httpx transport or None
        Instead of the network; None takes `replay`'s where that is on.
    limits : _watch.Limits or None

    Raises
    ------
    UsageError
        For an unknown provider (with the nearest name), or a base URL that needs a variable which is not set.

    Notes
    -----
    Nothing is sent. A missing key is an error of the first call, not of this one.
    """
    check_name(ref)
    made = _registered.get(ref.provider)
    if made is None and ref.provider not in _ROWS and ref.provider not in _SPECIAL:
        made = _loaded(ref.provider)
    if made is None and ref.provider in _SPECIAL:
        return _open_special(ref, base_url=base_url, api_key=api_key, transport=transport)
    row = _ROWS.get(ref.provider) if made is None else made
    if not isinstance(row, Row):
        return cast(Factory, row)(ref, base_url=base_url, api_key=api_key)
    return _open_row(
        row,
        base_url=base_url,
        api_key=api_key,
        headers=headers,
        proxy=proxy,
        ca_bundle=ca_bundle,
        transport=transport,
        limits=limits,
        environ=os.environ if environ is None else environ,
    )


def _loaded(name: str) -> Row | Factory:
    point = _entry_points()[name]
    try:
        made: Row | Factory = point.load()
    except Exception as exc:
        raise UsageError(f"provider {name!r} of {point.value} cannot be loaded ({type(exc).__name__}: {exc})") from exc
    return made


def _open_special(ref: ModelRef, *, base_url: str | None, api_key: str | None, transport: Any) -> Provider:
    if ref.provider == "replay":
        from kit_jupyter.providers.replay import ReplayProvider

        return ReplayProvider(ref.id, lambda inner, transport: open_provider(inner, transport=transport))
    if ref.provider == "pydantic-ai":
        from kit_jupyter.providers import replay

        if replay.is_strict():
            raise UsageError(f"{ref} cannot be replayed: pydantic-ai asks by clients of its own; use KIT_REPLAY=off")
    module, _, attribute = _SPECIAL[ref.provider].partition(":")
    make = getattr(importlib.import_module(module), attribute)
    if ref.provider == "local":
        model_id = None if ref.id in ("default", "auto") else ref.id
        return cast(Provider, make(model_id, base_url=base_url, api_key=api_key, transport=transport))
    return cast(Provider, make(ref.id))


def _open_row(
    row: Row,
    *,
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    proxy: str | None,
    ca_bundle: str | None,
    transport: Any,
    limits: Any,
    environ: Mapping[str, str],
) -> Provider:
    from kit_jupyter.providers._client import Network
    from kit_jupyter.providers._wire import WireProvider
    from kit_jupyter.providers.codec import Endpoint

    config = keys.provider_config(row.name)
    prefix = f"KIT_{keys._env_name(row.name)}"
    address = _address(row, base_url, environ, config)
    parts = urlsplit(address)
    key = keys.find_key(row.name, row.key_env, given=api_key, environ=environ)
    endpoint = Endpoint(
        name=row.name,
        base_url=address.split("?", 1)[0].rstrip("/"),
        api_key=key.value,
        headers={
            **row.headers,
            **{name: environ[env] for name, env in row.headers_env.items() if environ.get(env)},
            **_headers_of(config.get("headers"), f"headers of {row.name} in {keys.config_file()}"),
            **_headers_of(environ.get(f"{prefix}_HEADERS"), f"{prefix}_HEADERS"),
            **(headers or {}),
        },
        query=dict(parse_qsl(parts.query)),
        quirks=row.quirks,
    )
    network = Network(
        proxy=proxy or environ.get(f"{prefix}_PROXY") or environ.get("KIT_PROXY") or config.get("proxy"),
        ca_bundle=ca_bundle or environ.get(f"{prefix}_CA_BUNDLE") or config.get("ca_bundle"),
    )
    if transport is None and os.environ.get("KIT_REPLAY"):
        from kit_jupyter.providers import replay

        transport = replay.transport_for(network)
    return WireProvider(
        codec_for(row.wire),
        endpoint,
        transport=transport,
        limits=limits,
        network=network,
        infos=_infos(row),
        key_hint=_key_hint(row),
        needs_key=row.needs_key,
    )


def codec_for(wire: str) -> Any:
    """The process's codec of this wire; one for all, so that kept pieces are shared."""
    codec = _codecs.get(wire)
    if codec is None:
        module, _, attribute = _WIRES[wire].partition(":")
        codec = _codecs[wire] = getattr(importlib.import_module(module), attribute)()
    return codec


_codecs: dict[str, Any] = {}


def _infos(row: Row) -> Callable[[str], ModelInfo]:
    # A server of one's own loads a model with the window it was told to.
    return info_of if row.needs_key else (lambda _: ModelInfo())


def _key_hint(row: Row) -> str:
    names = " or ".join(row.key_env[:1])
    return f"set {names}, or call kit.login({row.name!r})" if names else f"call kit.login({row.name!r})"


def _address(row: Row, given: str | None, environ: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """The base URL, from the first place that names one."""
    for name in (f"KIT_{keys._env_name(row.name)}_BASE_URL", *row.url_env):
        given = given or environ.get(name, "").strip() or None
    found = given or config.get("base_url") or row.base_url
    missing = [name for name in re.findall(r"\{(\w+)\}", found) if not environ.get(name)]
    if missing:
        raise UsageError(f"{row.name} needs its address: set {missing[0]}, or give base_url")
    found = re.sub(r"\{(\w+)\}", lambda m: environ[m[1]].strip().rstrip("/"), found)
    if "://" not in found:
        # OLLAMA_HOST and the like hold host:port, often the one to listen at.
        host = found.replace("0.0.0.0", "127.0.0.1")
        found = f"https://{host}" if row.needs_key else f"http://{host}"
        if row.is_local and not urlsplit(found).port:
            found += f":{urlsplit(row.base_url).port}"
    if row.is_local and urlsplit(found).path in ("", "/"):
        found = found.rstrip("/") + urlsplit(row.base_url).path
    return found.rstrip("/")


def _headers_of(value: Any, where: str) -> dict[str, str]:
    """Extra headers, from a dict, a JSON object, or lines of ``Name: value``."""
    if not value:
        return {}
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            try:
                value = json.loads(value)
            except ValueError:
                raise UsageError(f"{where} is not a JSON object") from None
        else:
            pairs = [line.partition(":") for line in re.split(r"[\n;]", value) if line.strip()]
            if any(not colon for _, colon, _ in pairs):
                raise UsageError(f"{where} must hold 'Name: value' lines or a JSON object")
            value = {name.strip(): text.strip() for name, _, text in pairs}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must hold names and values")
    return {str(name).lower(): str(text) for name, text in value.items()}


# ---------------------------------------------------------------- choosing


@dataclass(frozen=True, slots=True)
class Choice:
    """A model and why it was taken, in words for a person."""

    ref: ModelRef
    why: str


def choose(environ: Mapping[str, str] | None = None, explicit: str | None = None, probe: bool = True) -> Choice:
    """The model to use when none is named by the call.

    Parameters
    ----------
    environ : mapping or None
        None is the process's environment.
    explicit : str or None
        A setting; goes before all else.
    probe : bool
        Look for servers on this machine: three ports of the loopback address, in parallel, 0.2 s each.

    Raises
    ------
    UsageError
        If the setting or ``KIT_MODEL`` names no model.
    """
    from kit_jupyter.providers import replay

    environ = os.environ if environ is None else environ
    for name, why in ((explicit, "the setting"), (environ.get("KIT_MODEL", "").strip(), "KIT_MODEL")):
        if name:
            ref = ModelRef.parse(name)
            check_name(ref)
            return Choice(ref, why)
    recorded = replay.recorded_model(environ)
    if recorded:
        return Choice(ModelRef.parse(recorded), "the recording was made with it (KIT_REPLAY)")
    for row in ROWS:
        if row.model and row.needs_key:
            key = next((name for name in row.key_env if environ.get(name, "").strip()), None)
            if key:
                return Choice(ModelRef(row.name, row.model), f"{key} is set")
    for row in ROWS:
        if row.model and row.needs_key and keys.provider_config(row.name).get("api_key"):
            return Choice(ModelRef(row.name, row.model), f"a key for {row.name} is in {keys.config_file()}")
    if probe and not replay.is_strict(environ):
        found = _probe_servers(environ)
        if found is not None:
            return found
    return Choice(
        ModelRef("local", "default"), "no key and no local server were found, so the built-in local model answers"
    )


def _probe_servers(environ: Mapping[str, str]) -> Choice | None:
    """The first local server that lists a model; all are asked at the same time."""
    servers = [row for row in ROWS if row.is_local]
    addresses = [_address(row, None, environ, keys.provider_config(row.name)) for row in servers]
    for row, address, models in _probed(servers, addresses):
        if models:
            return Choice(ModelRef(row.name, models[0]), f"{row.title} answers at {address}")
    return None


def _probed(servers: list[Row], addresses: list[str]) -> list[tuple[Row, str, list[str]]]:
    """What each of these servers lists, all asked at the same time."""
    pool = concurrent.futures.ThreadPoolExecutor(len(servers), thread_name_prefix="kit-probe")
    try:
        jobs = [pool.submit(_models_at, address) for address in addresses]
        concurrent.futures.wait(jobs, timeout=2 * PROBE_SECONDS + 0.1)
        answers = [job.result() if job.done() else [] for job in jobs]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return list(zip(servers, addresses, answers, strict=True))


def _models_at(address: str) -> list[str]:
    """Ids of the chat models that a server on this machine lists; none for any other thing there."""
    import http.client

    from kit_jupyter.providers._client import is_loopback

    parts = urlsplit(address)
    if parts.scheme != "http" or not is_loopback(address):
        return []  # asking around is for this machine only
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{parts.path}/models", headers={"accept": "application/json"})
        answer = connection.getresponse()
        listed = json.loads(answer.read(1_000_000)) if answer.status == 200 else None
        found = [str(model["id"]) for model in listed["data"]] if listed else []
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []  # a port that is closed, slow, or another program's
    finally:
        connection.close()
    return [name for name in found if not _NO_CHAT.search(name.lower())]


_NO_CHAT = re.compile(r"embed|rerank|whisper|tts")


def offered(environ: Mapping[str, str] | None = None, *, probe: bool = True) -> list[str]:
    """Models a person may pick: of services with a key, of servers on this machine, and the built-in ones.

    A service comes with the model that `choose` would take. Price tables know more names, but not all of
    them are names a service answers to; whoever wants another types it.

    Notes
    -----
    Reads keyring and files, and asks three loopback ports with `probe`: call it on a thread of its own.

    Examples
    --------
    >>> "openai/gpt-5.6-luna" in offered({"OPENAI_API_KEY": "k"}, probe=False)
    True
    """
    from kit_jupyter.providers import local_models, replay

    environ = os.environ if environ is None else environ
    keyed = [row for row in ROWS if row.model and row.needs_key]
    found = [f"{row.name}/{row.model}" for row in keyed if _has_key(row, environ)]
    if probe and not replay.is_strict(environ):
        servers = [row for row in ROWS if row.is_local]
        addresses = [_address(row, None, environ, keys.provider_config(row.name)) for row in servers]
        found += [f"{row.name}/{name}" for row, _, models in _probed(servers, addresses) for name in models]
    return [*found, *(f"local/{name}" for name in local_models.names())]


def _has_key(row: Row, environ: Mapping[str, str]) -> bool:
    try:
        return bool(keys.find_key(row.name, row.key_env, environ=environ).value)
    except UsageError:
        return False  # a key that cannot be one


# ---------------------------------------------------------------- people


def login(provider: str | None = None, *, where: str | None = None) -> str:
    """Ask for a provider's key without showing it, and keep it; see `keys.login`.

    Parameters
    ----------
    provider : str or None
        None asks for the name first.
    """
    if not provider:
        provider = input(f"provider ({', '.join(row.name for row in ROWS[:8])} …): ").strip()
    check_name(ModelRef(provider, "model"))
    return keys.login(provider, where=where)


def key_source(provider: str, environ: Mapping[str, str] | None = None) -> str:
    """Where a provider's key comes from, for status pages; never the key."""
    row = _ROWS.get(provider)
    found = keys.find_key(provider, row.key_env if row else (), environ=environ)
    return found.source or ("not needed" if row is None or not row.needs_key else "none")


def _address_shown(row: Row) -> str:
    """Where the service's address comes from: its variable where people must or mostly do set it."""
    if row.url_env:
        return f"`{row.url_env[0]}`"
    return "`KIT_OPENAI_COMPATIBLE_BASE_URL`" if row.name == "openai-compatible" else "fixed"


def provider_table() -> str:
    """The providers as a Markdown table, for the README."""
    lines = ["| Name | Service | Wire | Key | Address |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}/` | {row.title} | {row.wire} | {', '.join(f'`{n}`' for n in row.key_env[:2])}"
        f"{'' if row.needs_key else ' (optional)'} | {_address_shown(row)} |"
        for row in ROWS
    ]
    lines.append("| `local/` | Built-in local model | openai-chat | none | none |")
    lines.append("| `pydantic-ai/` | Any model of pydantic-ai (extra `pydantic-ai`) | its own | its own | its own |")
    return "\n".join(lines)


def _main(arguments: Iterable[str] = ()) -> None:
    print(provider_table())


if __name__ == "__main__":
    _main()
