"""Stands for OpenAI's client: one call of its protocol."""

import json
import urllib.request
from types import SimpleNamespace


class OpenAI:
    def __init__(self, base_url, api_key):
        self._url, self._key = base_url, api_key
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, model, messages):
        body = json.dumps({"model": model, "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response, object_hook=lambda fields: SimpleNamespace(**fields))
