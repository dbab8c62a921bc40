"""A stand-in for the APIs of three providers of models, as far as agent CLIs use them. Starts as https_target.py does.

Each wants its key where the real one does, else 401, Gemini 400. The answer is ANSWER. Where a request holds ASK it is
a call of a tool at first: of one that runs shell commands, with COMMAND; then, where the MCP server of
notes_server.py is offered, of its `read` with each of PAGES. What is next is told by how many results of calls a
request holds.

POST /v1/messages               Anthropic Messages, stream or not; x-api-key
POST /v1/chat/completions       OpenAI Chat Completions, stream or not; Authorization: Bearer
POST /v1/responses              OpenAI Responses, stream or not; Authorization: Bearer
GET  /v1/responses              the same by WebSocket: each message asks, each event is a message
POST /v1beta/models/M:ACTION    Gemini generateContent, streamGenerateContent (SSE), countTokens; x-goog-api-key
GET  /v1/models                 an empty list
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # -I leaves it out

from https_target import BEHAVIOURS, Handler, main
from socket_side import serve, wants_socket

ANSWER = "the word is pomegranate"
ASK = "call the shell"
WHO = "-c user.name=T -c user.email=t@acme.example"
COMMAND = f"echo quince >> fruit.txt && git add fruit.txt && git {WHO} commit -qm fruit"
CALL = {"command": COMMAND, "description": "write and commit"}
PAGES = ("https://notes.acme.example/private/notes", "https://elsewhere.acme.example/")
SHELLS = ("Bash", "bash", "run_shell_command", "shell", "developer__shell")  # as the agents call theirs
DEFERRED = "mcp__notes__read"
# codex has its model write a program that calls its tools
PROGRAM = f"""await tools.exec_command({json.dumps({"cmd": COMMAND})});
for (const url of {json.dumps(PAGES)}) if (tools.mcp__notes__read) text(await tools.mcp__notes__read({{url}}))"""
WRONG_GEMINI = {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}
USED = {"input_tokens": 7, "output_tokens": 5}

type Json = dict[str, Any]


def _call(body: Json, names: list[str]) -> tuple[str, Json]:
    """The tool to be called, and with what; "" for none."""
    text = json.dumps(body)
    marks = ('"tool_result"', '"custom_tool_call_output"', '"functionResponse"', '"role": "tool"')
    shell = next((name for name in SHELLS if name in names), "")
    # named by the server, or by its program (goose)
    reader = next((name for name in names if name.endswith("read") and ("notes" in name or "__" in name)), "")
    steps = [(shell, CALL)]
    if "ToolSearch" in names and DEFERRED in text:  # Claude Code names such tools, and has their model ask for them
        reader = DEFERRED
        steps.append(("ToolSearch", {"query": f"select:{DEFERRED}", "max_results": 1}))
    steps += [(reader, {"url": page}) for page in PAGES if reader]
    done = sum(text.count(mark) for mark in marks)
    return steps[done] if ASK in text and done < len(steps) else ("", {})


def _send_json(handler: Handler, status: int, body: Json) -> None:
    handler._answer(status, json.dumps(body).encode(), Content_Type="application/json")


def _turn_away(handler: Handler) -> None:
    """A key that is not the right one, as the two providers say it; `x-should-retry` is what their SDKs go by."""
    if handler.path.startswith("/v1/messages"):
        body: Json = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
        handler._answer(401, json.dumps(body).encode(), Content_Type="application/json", X_Should_Retry="false")
    else:
        told = "Incorrect API key provided: sk-proj-****. You can find your API key at your account page."
        body = {"message": told, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        _send_json(handler, 401, {"error": body})


def _send_events(handler: Handler, events: Iterator[Json], *, named: bool) -> None:
    handler._record(200)
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        handler._chunk(f"{head}data: {json.dumps(event)}\n\n".encode())
    handler._chunk(b"")


def v1(handler: Handler, rest: str) -> None:
    """Everything below /v1/: messages, responses, models."""
    raw = handler._body()
    token = handler.server.token
    mine = handler.headers.get("x-api-key") == token or handler.headers.get("Authorization") == f"Bearer {token}"
    if not mine:
        _turn_away(handler)
    elif rest == "models":
        _send_json(handler, 200, {"object": "list", "data": []})
    elif rest == "messages/count_tokens":
        _send_json(handler, 200, {"input_tokens": 7})
    elif rest == "messages":
        _messages(handler, json.loads(raw))
    elif rest == "chat/completions":
        _chat(handler, json.loads(raw))
    elif rest == "responses" and wants_socket(handler):
        serve(handler, lambda body: _response_events(*_response(body)))
    elif rest == "responses":
        _responses(handler, json.loads(raw))
    else:
        handler._answer(404, b"no such path\n")


# --- Anthropic


def _messages(handler: Handler, body: Json) -> None:
    name, given = _call(body, [tool.get("name", "") for tool in body.get("tools", [])])
    block: Json = {"type": "text", "text": ANSWER}
    if name:
        block = {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": name, "input": given}
    stop = "tool_use" if name else "end_turn"
    message = {"id": "msg_01", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    if body.get("stream"):
        start = {**message, "content": [], "stop_reason": None, "usage": {**USED, "output_tokens": 1}}
        _send_events(handler, _message_events(start, block, stop), named=True)
    else:
        _send_json(handler, 200, {**message, "content": [block], "stop_reason": stop, "usage": USED})


def _message_events(start: Json, block: Json, stop: str) -> Iterator[Json]:
    tool = block["type"] == "tool_use"
    text = json.dumps(block["input"]) if tool else block["text"]
    kind, key = ("input_json_delta", "partial_json") if tool else ("text_delta", "text")
    yield {"type": "message_start", "message": start}
    empty = {**block, "input": {}} if tool else {**block, "text": ""}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    for part in (text[:9], text[9:]):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: part}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": USED}
    yield {"type": "message_stop"}


# --- OpenAI


def _responses(handler: Handler, body: Json) -> None:
    whole, item = _response(body)
    if body.get("stream"):
        _send_events(handler, _response_events(whole, item), named=True)
    else:
        _send_json(handler, 200, whole)


def _response(body: Json) -> tuple[Json, Json]:
    """The whole answer, and the one item in it."""
    part = {"type": "output_text", "text": ANSWER, "annotations": []}
    item: Json = {"id": "msg_01", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    if _call(body, ["Bash"])[0]:
        call = {"call_id": "call_01", "namespace": "functions", "name": "exec", "input": PROGRAM}
        item = {"id": "ctc_01", "type": "custom_tool_call", "status": "completed", **call}
    used = {**USED, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 0}}
    used["output_tokens_details"] = {"reasoning_tokens": 0}
    whole = {"id": "resp_01", "object": "response", "model": body["model"], "status": "completed", "output": [item]}
    return {**whole, "usage": used}, item


def _response_events(whole: Json, item: Json) -> Iterator[Json]:
    at = {"output_index": 0, "item_id": item["id"]}
    yield {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}}
    if item["type"] == "message":
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
        for text in (ANSWER[:9], ANSWER[9:]):
            yield {"type": "response.output_text.delta", "content_index": 0, "delta": text, **at}
        yield {"type": "response.output_text.done", "content_index": 0, "text": ANSWER, **at}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": whole}


def _chat(handler: Handler, body: Json) -> None:
    name, given = _call(body, [tool.get("function", {}).get("name", "") for tool in body.get("tools", [])])
    message: Json = {"role": "assistant", "content": ANSWER}
    if name:
        function = {"name": name, "arguments": json.dumps(given)}
        call = {"id": f"call_{time.time_ns()}", "index": 0, "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "tool_calls" if name else "stop"}
    used = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    whole = {"id": "chatcmpl-1", "created": 1, "model": body["model"], "usage": used}
    if body.get("stream"):
        part = {**whole, "object": "chat.completion.chunk"}
        events = ({**part, "choices": [{**choice, "delta": message}]}, {**part, "choices": []})
        _send_events(handler, iter(events), named=False)
    else:
        _send_json(handler, 200, {**whole, "object": "chat.completion", "choices": [{**choice, "message": message}]})


# --- Gemini


def v1beta(handler: Handler, rest: str) -> None:
    """models/M:ACTION."""
    body = json.loads(handler._body() or b"{}")
    action = rest.rpartition(":")[2]
    if handler.headers.get("x-goog-api-key") != handler.server.token:
        _send_json(handler, 400, {"error": WRONG_GEMINI})
    elif action == "countTokens":
        _send_json(handler, 200, {"totalTokens": 7})
    elif action == "streamGenerateContent":
        _send_events(handler, iter([_candidate(body)]), named=False)
    else:
        _send_json(handler, 200, _candidate(body))


def _candidate(body: Json) -> Json:
    declared = [d["name"] for tool in body.get("tools", []) for d in tool.get("functionDeclarations", [])]
    name, given = _call(body, declared)
    part: Json = {"functionCall": {"name": name, "args": given}} if name else {"text": ANSWER}
    if body.get("generationConfig", {}).get("responseMimeType") == "application/json":
        # which model is to be asked: what is not so is asked again for a minute and a half
        part = {"text": json.dumps({"complexity_reasoning": "easy", "complexity_score": 1})}
    content = {"role": "model", "parts": [part]}
    used = {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": used}


BEHAVIOURS |= {"v1": v1, "v1beta": v1beta}

if __name__ == "__main__":
    main()
