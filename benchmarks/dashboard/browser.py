"""A browser that is signed in to the controller in PERDURE_HOME, and what its pages cost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scale.queue import memory_mib
from playwright.sync_api import BrowserContext, Page, sync_playwright

from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client


@contextmanager
def signed_in_browser(**options: Any) -> Iterator[BrowserContext]:
    """Debian's Chromium, signed in to the controller, without a page."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed: run scripts/ensure-chromium.sh")
    client = Client(discovery.ensure())
    with sync_playwright() as tool, tempfile.TemporaryDirectory() as profile:
        context = tool.chromium.launch_persistent_context(
            profile, executable_path=program, args=["--no-sandbox"], timeout=120_000, **options
        )
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(f"{client.endpoint.url}/#login={client.create_sign_in_code()['code']}", wait_until="commit")
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        page.close()
        yield context
        context.close()


def renderer_memory_mib() -> float:
    """The resident memory of the largest page's process on this computer, also of what it shares with others."""
    sizes = [0.0]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"--type=renderer" in path.read_bytes():
                sizes.append(memory_mib(int(path.parent.name), "VmRSS"))
        except (OSError, AssertionError):
            continue  # it has ended meanwhile
    return max(sizes)


def frames_per_s(page: Page, selector: str, seconds: float) -> float:
    """How many frames a second the browser draws while the wheel turns over an element, as fast as frames come."""
    return float(
        page.evaluate(
            """([selector, seconds]) => new Promise((done) => {
              const element = document.querySelector(selector);
              let frames = 0;
              const began = performance.now();
              const frame = () => {
                frames += 1;
                const taken = performance.now() - began;
                if (taken > seconds * 1000) return done((frames / taken) * 1000);
                element.dispatchEvent(new WheelEvent("wheel", {deltaY: -120, bubbles: true, cancelable: true}));
                requestAnimationFrame(frame);
              };
              requestAnimationFrame(frame);
            })""",
            [selector, seconds],
        )
    )
