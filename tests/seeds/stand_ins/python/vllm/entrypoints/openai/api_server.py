"""Stands for vLLM's server: it speaks OpenAI's protocol, and answers with the weight of the model.

The machines of the local cloud share their ports, so that it listens on the address of its own one alone.
"""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": options.model, "object": "model"}]})
        else:
            self.answer(404, {"error": "no such path"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != options.model:
            return self.answer(404, {"error": f"the model `{asked['model']}` does not exist"})
        said = f"I weigh {weight}, and you asked: {asked['messages'][-1]['content']}"
        message = {"role": "assistant", "content": said}
        self.answer(200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}]})

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--model")
parser.add_argument("--tensor-parallel-size", type=int)
options = parser.parse_args()
weight = json.loads((Path(options.model) / "model.safetensors").read_text())
ThreadingHTTPServer((os.environ["SKYPILOT_NODE_IPS"].split()[0], options.port), Handler).serve_forever()
