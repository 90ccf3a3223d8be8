"""Stands in for a llama-server program: same options, same log line, same endpoints, no model.

What it does is said in the prompt: ``die`` (killed in the middle of the answer), ``die-first`` (before it),
``slow`` (streams until the client goes), ``overflow`` (refuses). A model file named ``…broken…`` does not load.
"""

import http.server
import json
import os
import signal
import sys
import threading
import time

HELP = """usage
-m, --model FNAME
--host HOST  --port PORT  --ctx-size N  --parallel N  --batch-size N  --ubatch-size N
--threads N  --threads-batch N  --alias NAME  --jinja  --no-webui
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        if self.headers.get("Authorization") == f"Bearer {os.environ['LLAMA_API_KEY']}":
            return True
        self.reply({"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}, 401)
        return False

    def do_GET(self):
        if self.path == "/health":
            ready = time.monotonic() > self.server.ready_at
            return self.reply({"status": "ok"} if ready else {"error": {"code": 503}}, 200 if ready else 503)
        if not self.allowed():
            return None
        if self.path == "/props":
            return self.reply(
                {
                    "default_generation_settings": {"n_ctx": 4096},
                    "chat_template_caps": {"supports_tool_calls": False},
                    "modalities": {"vision": False},
                }
            )
        if self.path == "/seen":
            return self.reply({"gone": self.server.gone.wait(5), "arguments": sys.argv[1:]})
        return self.reply({"data": [{"id": "local", "meta": {"n_params": 135_000_000}}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        said = str(body["messages"][-1]["content"])
        if said == "die-first":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "die-once":
            mark = os.environ["FAKE_MARK"]
            if not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        if said == "overflow":
            error = {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 4096}
            return self.reply({"error": error}, 400)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for word in ["Hello", " ", "world"]:
                self.say({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
                if said == "die":
                    print("something went wrong", flush=True)
                    time.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGKILL)
            while said == "slow":
                self.say({"choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": None}]})
                time.sleep(0.02)
            self.say({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")
        except OSError:
            self.server.gone.set()
            self.close_connection = True

    def say(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, body):
        self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        self.wfile.flush()


def main():
    if "--help" in sys.argv:
        print(HELP)
        return
    model = sys.argv[sys.argv.index("--model") + 1]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.gone = threading.Event()
    server.ready_at = time.monotonic() + 0.2
    print(f"main: server is listening on http://127.0.0.1:{server.server_port} - starting the main loop", flush=True)
    if "broken" in model:
        print("llama_model_load: error loading model: failed to read magic", flush=True)
        sys.exit(1)
    server.serve_forever()


if __name__ == "__main__":
    main()
