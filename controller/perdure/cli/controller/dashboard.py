"""`perdure dashboard`."""

from __future__ import annotations

import click

FORBIDDEN = 403


@click.command(
    epilog="""\b
Examples:
  perdure dashboard                  open it in the browser
  perdure dashboard --no-browser     print the link, for example over SSH
"""
)
@click.option("--no-browser", is_flag=True, help="Print the link and do not open a browser.")
def dashboard(no_browser: bool) -> None:
    """Open the dashboard in a browser, signed in.

    The link signs one browser in, once, within a minute. It stays signed in for 12 hours after its last use, at most a
    week. If no browser can be opened here, the link is printed. After `perdure login`, the browser signs in by itself.
    """
    from perdure.cli.client import connect
    from perdure.cli.output.progress import spinner
    from perdure.sdk.connection.client import ApiError

    client = connect()
    try:
        with spinner("Creating a link"):
            code = client.create_sign_in_code()["code"]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return _open_without_code(client.endpoint.url, no_browser)
    link = f"{client.endpoint.url}/#login={code}"
    if not no_browser and open_link(link):
        return click.echo(f"The dashboard opens in your browser: {client.endpoint.url}")
    click.echo("Open this link within a minute. It works once:", err=True)
    click.echo(link)
    return None


def _open_without_code(url: str, no_browser: bool) -> None:
    """For a command line that was signed in by a browser, and may not sign others in."""
    if not no_browser and open_link(url):
        return click.echo(f"The dashboard opens in your browser, which signs in as for `perdure login`: {url}")
    click.echo("Open this address, and sign in as for `perdure login`:", err=True)
    return click.echo(url)


def open_link(link: str) -> bool:
    """Open the link, and return whether a graphical browser was started.

    The link is not passed on a command line, where other users of this computer could read it: a page that only its
    owner can read leads there.
    """
    import os
    import sys
    import webbrowser

    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(_redirect_page(link))
    except webbrowser.Error:
        return False


def _redirect_page(link: str) -> str:
    """The address of a local file that leads to `link`. The link expires within a minute, so the file may stay."""
    from html import escape
    from pathlib import Path
    from tempfile import mkstemp

    handle, name = mkstemp(prefix="perdure-dashboard-", suffix=".html")  # readable only by its owner
    with open(handle, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(link)}">')
    return Path(name).as_uri()
