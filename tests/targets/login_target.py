"""A stand-in for the hosts that agent CLIs use when they are signed in by subscription. Starts as https_target.py does.

The token endpoints take each refresh token once ("real-refresh-0-...", then the one that they gave) and answer with the
target's token, which alone the APIs take; a token that comes a second time ends the chain (RFC 9700 2.2.2).

POST /v1/oauth/token, /oauth/token, /token    OAuth of Anthropic, OpenAI and Google
POST /v1/messages                             Anthropic, by Authorization
POST /backend-api/codex/responses             ChatGPT, with ACCOUNT in chatgpt-account-id
POST /tokeninfo, /v1internal:ACTION           Google, Code Assist
GET  /copilot_internal/user                   GitHub: names the API host of an individual's plan
GET  /models, POST /chat/completions          Copilot
"""

import json
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs

sys.path.insert(0, str(Path(__file__).parent))  # -I leaves it out

import llm_target
from https_target import BEHAVIOURS, Handler, main
from llm_target import Json, _candidate, _send_events, _send_json

if sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

ACCOUNT = "5f0e7c1a-92d4-4b6e-8a3f-1c2d3e4f5a6b"
FIRST = "real-refresh-0-0123456789abcdef"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOCK = threading.Lock()
_CHAIN = {"next": FIRST, "count": 0, "over": False}


def _token(handler: Handler) -> None:
    raw = handler._body().decode()
    body = json.loads(raw) if raw.startswith("{") else {k: v[0] for k, v in parse_qs(raw).items()}
    with _LOCK:
        good = not _CHAIN["over"] and body.get("refresh_token") == _CHAIN["next"]
        if good:
            _CHAIN["count"] = int(_CHAIN["count"]) + 1
            _CHAIN["next"] = f"real-refresh-{_CHAIN['count']}-0123456789abcdef"
        _CHAIN["over"] = not good
    if not good:
        _send_json(handler, 400, {"error": "invalid_grant"})
        return
    document = {"access_token": handler.server.token, "token_type": "Bearer", "expires_in": 3600, "scope": SCOPE}
    _send_json(handler, 200, document | {"refresh_token": _CHAIN["next"]})


def _mine(handler: Handler) -> bool:
    if handler.headers.get_all("Authorization") == [f"Bearer {handler.server.token}"]:
        return True
    handler._body()
    _send_json(handler, 401, {"error": {"code": 401, "message": "invalid token", "status": "UNAUTHENTICATED"}})
    return False


def v1(handler: Handler, rest: str) -> None:
    """Anthropic's API, and its token endpoint."""
    if rest == "oauth/token":
        _token(handler)
    elif _mine(handler):
        llm_target.v1(handler, rest)


def oauth(handler: Handler, rest: str) -> None:
    """OpenAI's token endpoint."""
    if rest == "token":
        _token(handler)
    else:
        handler._answer(404, b"no such path\n")


def backend_api(handler: Handler, rest: str) -> None:
    """ChatGPT: what codex asks for."""
    if not _mine(handler):
        return
    raw = handler._body()
    if handler.headers.get("content-encoding") == "zstd":
        raw = zstd.decompress(raw)
    if handler.headers.get_all("chatgpt-account-id") != [ACCOUNT]:
        _send_json(handler, 403, {"detail": "another account"})
    elif rest == "codex/responses" and handler.command == "POST":
        llm_target._responses(handler, json.loads(raw))
    elif rest == "wham/accounts/check":
        routed = {"workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "NO_CONSTRAINT"}
        entry = {"id": ACCOUNT, "name": "acme", "structure": "workspace", "is_deactivated": False, **routed}
        _send_json(handler, 200, {"accounts": [entry], "account_ordering": [ACCOUNT], "default_account_id": ACCOUNT})
    elif rest == "codex/models":
        _send_json(handler, 200, {"models": []})
    else:
        handler._answer(404, b"no such path\n")


def tokeninfo(handler: Handler, rest: str) -> None:
    """What a token is for."""
    if _mine(handler):
        handler._body()
        _send_json(handler, 200, {"scope": SCOPE, "expires_in": "3599", "access_type": "offline"})


def code_assist(handler: Handler, rest: str) -> None:
    """Google's Code Assist: the last part of the path is the action."""
    if not _mine(handler):
        return
    body: Json = json.loads(handler._body() or b"{}")
    match handler.path.partition("?")[0].rpartition(":")[2]:
        case "loadCodeAssist":
            tier = {"id": "standard-tier", "name": "Standard"}
            _send_json(handler, 200, {"currentTier": tier, "cloudaicompanionProject": "acme", "allowedTiers": [tier]})
        case "streamGenerateContent":
            _send_events(handler, iter([{"response": _candidate(body["request"])}]), named=False)
        case "generateContent":
            _send_json(handler, 200, {"response": _candidate(body["request"])})
        case "countTokens":
            _send_json(handler, 200, {"totalTokens": 7})
        case _:
            _send_json(handler, 200, {})


def copilot_internal(handler: Handler, rest: str) -> None:
    """GitHub: what an account may use."""
    if not _mine(handler):
        return
    handler._body()
    if rest != "user":
        handler._answer(404, b"{}")
        return
    account = {"login": "agent", "copilot_plan": "individual", "chat_enabled": True, "organization_list": []}
    _send_json(handler, 200, account | {"endpoints": {"api": "https://api.individual.githubcopilot.com"}})


def models(handler: Handler, rest: str) -> None:
    """Copilot: one model, whose name it has to know."""
    if not _mine(handler):
        return
    handler._body()
    name = "gpt-5-mini"
    if rest == "session":
        session = {
            "selected_model": name,
            "available_models": [name],
            "session_token": "s",
            "expires_at": 4_102_444_800,
        }
        _send_json(handler, 200, session)
        return
    limits = {"max_context_window_tokens": 128_000, "max_output_tokens": 16_384, "max_prompt_tokens": 128_000}
    able = {"family": name, "type": "chat", "tokenizer": "o200k_base", "limits": limits}
    able["supports"] = {"streaming": True, "tool_calls": True}
    one: Json = {"id": name, "name": name, "object": "model", "vendor": "OpenAI", "version": name, "capabilities": able}
    one |= {"model_picker_enabled": True, "is_chat_default": True, "supported_endpoints": ["/chat/completions"]}
    one |= {"preview": False, "is_chat_fallback": True, "policy": {"state": "enabled", "terms": ""}}
    one["billing"] = {"is_premium": False, "multiplier": 0}
    _send_json(handler, 200, {"object": "list", "data": [one]})


def chat(handler: Handler, rest: str) -> None:
    """Copilot: chat completions."""
    if _mine(handler):
        llm_target._chat(handler, json.loads(handler._body()))


BEHAVIOURS |= {"copilot_internal": copilot_internal, "models": models, "chat": chat}
BEHAVIOURS |= {"v1": v1, "oauth": oauth, "token": lambda handler, _: _token(handler), "tokeninfo": tokeninfo}
BEHAVIOURS |= {"backend-api": backend_api}
BEHAVIOURS |= {
    f"v1internal:{action}": code_assist
    for action in ("loadCodeAssist", "streamGenerateContent", "generateContent", "countTokens", "retrieveUserQuota")
}

if __name__ == "__main__":
    main()
