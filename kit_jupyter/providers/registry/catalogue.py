"""The providers that are known by name: each a row of facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ROWS", "Row", "row_of"]


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
    headers : dict
        Sent with every request.
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
    return _chat(name, title, base_url, key, *quirks, url_env=url_env, needs_key=False, **more)


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
        "max_completion_tokens",
        "prompt_cache_key",
        "strict",
        "refusal",
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
_BY_NAME = {row.name: row for row in ROWS}


def row_of(name: str) -> Row | None:
    """The built-in row of this name."""
    return _BY_NAME.get(name)
