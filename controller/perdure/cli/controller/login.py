"""`perdure login` and `perdure logout`: a browser that is signed in to a controller signs the command line in.

The browser gets a challenge, the SHA-256 of a secret that stays here, and sends a code back to a port of this computer.
The code can be used only with the secret. Where the browser runs elsewhere, the code is pasted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from perdure.sdk.connection.endpoint import Endpoint

_ENDPOINT = click.argument("endpoint", required=False)


@click.command(
    epilog="""\b
Examples:
  perdure login https://perdure.lan:8443       sign in with the browser, for 12 hours
  export PERDURE_ENDPOINT=https://perdure.lan:8443
  perdure jobs queue                           uses the sign-in
"""
)
@_ENDPOINT
@click.option("--no-browser", is_flag=True, help="Print the link and do not open a browser.")
def login(endpoint: str | None, no_browser: bool) -> None:
    """Sign in to the controller at ENDPOINT with a browser.

    The browser signs in as it does for the dashboard, for example with your company's account. Commands use the sign-in
    wherever PERDURE_ENDPOINT is that address and no PERDURE_TOKEN is set. ENDPOINT: by default, PERDURE_ENDPOINT.
    """
    from perdure.cli.client import client_of
    from perdure.cli.controller.browser_code import BrowserCode
    from perdure.sdk.connection.endpoint import home_dir
    from perdure.sdk.connection.users import redeem_command_line_code
    from perdure.sdk.files import logins

    target = _target(endpoint)
    with BrowserCode(target.url) as browser:
        if no_browser or not browser.open():
            click.echo("Open this link in a browser:", err=True)
            click.echo(browser.link)
        else:
            click.echo(f"Your browser opens {target.url}; allow the command line there.", err=True)
        code = browser.wait()
        signed_in = redeem_command_line_code(client_of(target), code, browser.secret)
        logins.store(home_dir(), target.url, signed_in)
        browser.confirm()
    until = f", until {signed_in['expires_at']}" if signed_in["expires_at"] else ""
    click.echo(f"Signed in to {target.url} as {signed_in['user']}{until}.")
    if os.environ.get("PERDURE_ENDPOINT", "").rstrip("/") != target.url:
        click.echo(f"To use it: export PERDURE_ENDPOINT={target.url}")


@click.command(
    epilog="""\b
Examples:
  perdure logout                               the controller that PERDURE_ENDPOINT names
  perdure logout https://perdure.lan:8443
"""
)
@_ENDPOINT
def logout(endpoint: str | None) -> None:
    """Forget the sign-in to the controller at ENDPOINT.

    ENDPOINT: by default, PERDURE_ENDPOINT. To end it for other computers, too, revoke the token `oidc` that `perdure
    tokens list` shows.
    """
    from perdure.cli.errors import Failure
    from perdure.sdk.connection.endpoint import home_dir
    from perdure.sdk.files import logins

    url = _target(endpoint).url
    if not logins.remove(home_dir(), url):
        raise Failure(f"you are not signed in to {url}")
    click.echo(f"Signed out of {url}.")


def _target(endpoint: str | None) -> Endpoint:
    """The controller to sign in to, without a token. Raises NoController."""
    from perdure.sdk.connection.discovery import unauthenticated

    return unauthenticated({**os.environ, **({"PERDURE_ENDPOINT": endpoint} if endpoint else {})})
