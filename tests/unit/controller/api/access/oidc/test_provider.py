"""A provider that does not answer costs others little."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure.controller.api.access.oidc import provider as module
from perdure.controller.api.access.oidc.provider import OidcProvider, ProviderFailed
from perdure.controller.runtime.config.oidc_config import OidcConfig


def begin(provider: OidcProvider) -> str:
    with pytest.raises(ProviderFailed) as caught:
        provider.authorization_url("http://here", "state", "nonce", "verifier")
    return str(caught.value)


def test_silent_provider__holds_few_threads_and_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    released, waiting = threading.Event(), threading.Semaphore(0)
    calls: list[str] = []

    def never_answers(url: str, *_: object) -> None:
        calls.append(url)
        waiting.release()
        assert released.wait(60)
        raise ProviderFailed("no answer")

    monkeypatch.setattr(module, "_call", never_answers)
    now = [0.0]
    provider = OidcProvider(OidcConfig("http://127.0.0.1:1", "perdure"), lambda: 0.0, lambda: now[0])
    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(begin, provider) for _ in range(4)]
        for _ in held:
            assert waiting.acquire(timeout=60)
        assert begin(provider) == "too many sign-ins wait for it"
        released.set()
        assert {one.result(60) for one in held} == {"no answer"}
    assert begin(provider) == "no answer", "remembered"
    assert len(calls) == 4
    now[0] += 60.0
    begin(provider)
    assert len(calls) == 5


def test_provider__that_refuses_connections_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert "openid-configuration cannot be read" in begin(OidcProvider(OidcConfig(url, "perdure"), lambda: 0.0))
