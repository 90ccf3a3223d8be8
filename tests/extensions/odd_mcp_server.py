"""A server in plain JSON-RPC, which starts at once: ``python odd_mcp_server.py WAY``.

Each way but ``plain`` breaks a rule on purpose.
"""

import json
import os
import sys
import time

way = sys.argv[1]
GOOD = {"name": "good", "description": "A good tool.", "inputSchema": {"type": "object", "properties": {}}}


def say(value):
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
    sys.stdout.flush()


def tools():
    if way == "duplicates":
        return [GOOD, {**GOOD, "description": "The second."}, {**GOOD, "name": "a.b"}, {**GOOD, "name": "a/b"}]
    if way == "schemas":
        return [
            GOOD,
            {"name": 3, "inputSchema": "what"},
            {"name": "no_schema"},
            "text",
            {**GOOD, "name": "wrong_type", "inputSchema": {"type": "array"}},
            {**GOOD, "name": "wrong_keyword", "inputSchema": {"type": "object", "properties": {"x": {"type": "text"}}}},
            {
                **GOOD,
                "name": "remote_ref",
                "inputSchema": {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}},
            },
        ]
    if way == "broken-list":
        return "none today"
    if way == "chatty":
        return [GOOD, {**GOOD, "name": "lists"}]
    if way == "plain":
        return [GOOD, {**GOOD, "name": "pid"}]
    return [GOOD]


def result_of(message):
    method = message["method"]
    if method == "initialize":
        return {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    if method == "tools/list":
        if way == "endless":
            at = int(message.get("params", {}).get("cursor") or 0)
            return {"tools": [{**GOOD, "name": f"t{at}"}], "nextCursor": str(at + 1)}
        return {"tools": tools()}
    if method == "tools/call":
        if way == "large":
            return {"content": [{"type": "text", "text": "y" * int(sys.argv[2] if len(sys.argv) > 2 else 50_000_000)}]}
        if way == "large-notice":
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "y" * 500_000}})
        if way == "wrong-result":
            return {"content": "not a list"}
        if way == "bad-image":
            return {"content": [{"type": "image", "data": "!!!", "mimeType": "image/png"}]}
        if way == "dies":
            print("out of paper", file=sys.stderr, flush=True)
            os._exit(9)
        if way == "chatty":
            if message["params"]["name"] == "lists":
                return {"content": [{"type": "text", "text": str(lists)}]}
            for _ in range(300):
                say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        text = str(os.getpid()) if message["params"]["name"] == "pid" else "fine"
        return {"content": [{"type": "text", "text": text}]}
    return None


if way == "exits":
    print("cannot open the database", file=sys.stderr)
    sys.exit(3)
if way == "silent":
    time.sleep(60)
if way == "rubbish-only":
    for _ in range(3):
        say("Welcome to my server!")

lists = 0
for line in sys.stdin:
    if way == "rubbish-only":
        say("<html>")
        continue
    message = json.loads(line)
    if way == "rubbish":
        say("debug: got a line")
        say('{"half": ')
        sys.stdout.buffer.write(b"\xff\xfe\x00\n")
        say({"jsonrpc": "2.0", "id": 999_999, "result": {}})
    if "id" not in message:
        continue
    lists += message["method"] == "tools/list"
    answer = result_of(message)
    if answer is None:
        say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}})
    else:
        say({"jsonrpc": "2.0", "id": message["id"], "result": answer})
