"""`perdure check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli.completion import suggestions
from perdure.sdk.connection import api_types

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client

SEVERITY_LABELS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "error": ("error", "red"),
    "unknown": ("?", "yellow"),
}


@click.command(
    epilog="""\b
Examples:
  perdure check
  perdure check aws                      one cloud; exits with 1 if it is not usable
  perdure check aws gcp -v               every check, including those that passed
  perdure check aws --deep               rehearse a launch in each region; nothing is bought
  perdure check -o json | jq '.[] | select(.usable) | .name'
"""
)
@click.argument("clouds", nargs=-1, metavar="[CLOUDS]...", shell_complete=suggestions.clouds)
@click.option(
    "--deep", is_flag=True, help="Also rehearse launches with the configured network, image and role; buys nothing."
)
@click.option("-v", "--verbose", is_flag=True, help="Also show the checks that passed.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def check(clouds: tuple[str, ...], deep: bool, verbose: bool, output: str) -> None:
    """Check which clouds the controller can use, and how to fix the others.

    For AWS, GCP and Azure this checks the account: the caller's identity, missing permissions, enabled regions, and
    quotas that would block a launch; for Kubernetes each context. A cloud that does not answer is not usable now.
    --deep also asks EC2 whether it would launch machines, and Azure and Google for the images. Nothing is launched.
    Exits with 1 if no cloud is usable, or if one of CLOUDS is not.
    """
    from perdure.cli.client import connect, outdated_config
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
    from perdure.cli.output.progress import spinner
    from perdure.sdk.spec.infra import canonical_cloud

    client = connect()
    if note := outdated_config(client.controller()):
        warn(note)
    with spinner("Querying clouds"):
        known = {cloud["name"]: cloud for cloud in client.clouds()}
    for name in clouds:
        if canonical_cloud(name) not in known:
            raise Failure(f"unknown cloud {name!r}\n  choose from: {', '.join(known)}", EXIT_WRONG_INPUT)
    names = list(dict.fromkeys(map(canonical_cloud, clouds))) or list(known)
    with spinner("Checking accounts"):
        findings, refusal = _findings(client, names, deep=deep)
    if refusal:
        warn(f"accounts were not checked: {refusal}")
    usable = {name: known[name]["usable"] and not any(map(_is_blocking, findings[name])) for name in names}
    if output == "json":
        import json

        report = [{**known[name], "usable": usable[name], "findings": findings[name]} for name in names]
        click.echo(json.dumps(report, indent=1))
    else:
        for name in names:
            _print(known[name], findings[name], is_usable=usable[name], verbose=verbose)
    raise SystemExit(0 if (all(usable.values()) if clouds else any(usable.values())) else 1)


def _is_blocking(finding: api_types.Finding) -> bool:
    """Whether no launch can succeed. Credentials that could not be checked are enough: every launch uses them."""
    severity = finding["severity"]
    return severity == "error" or (severity == "unknown" and finding["subject"] == "credentials")


def _findings(client: Client, names: Sequence[str], *, deep: bool) -> tuple[dict[str, list[api_types.Finding]], str]:
    """The results by cloud; none, and why, for a user whose role does not allow the checks."""
    from perdure.sdk.connection.client import ApiError

    try:
        return {name: client.findings(name, deep=deep) for name in names}, ""
    except ApiError as error:
        if error.status != 403:
            raise
        return {name: [] for name in names}, error.message


def _print(cloud: api_types.Cloud, findings: Sequence[api_types.Finding], *, is_usable: bool, verbose: bool) -> None:
    mark = click.style("usable", fg="green") if is_usable else click.style("not usable", fg="red")
    click.echo(f"{click.style(cloud['name'], bold=True)}: {mark}")
    if cloud["why"]:
        click.echo(f"  {cloud['why']}")
    if cloud["usable"] and cloud["regions"]:
        shown, rest = cloud["regions"][:8], len(cloud["regions"]) - 8
        click.echo(f"  regions: {', '.join(shown)}" + (f" and {rest} more" if rest > 0 else ""))
    for note in cloud["notes"]:
        click.echo(f"  {note}")
    for finding in findings:
        if finding["severity"] == "ok" and not verbose:
            continue
        label, color = SEVERITY_LABELS[finding["severity"]]
        click.echo(f"  {click.style(label, fg=color)} {finding['subject']}: {finding['text']}")
    # Several findings may share a fix; print it once.
    for fix in dict.fromkeys(finding["fix"] for finding in findings if finding["fix"]):
        click.echo(f"  fix: {fix}")
