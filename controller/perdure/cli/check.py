"""`perdure check`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.sdk import records

MARKS = {"ok": ("ok", "green"), "limits": ("limits", "yellow"), "fails": ("fails", "red"), "unknown": ("?", "yellow")}


@click.command(
    epilog="""\b
Examples:
  perdure check
  perdure check aws                      one cloud; exits with 1 if it can not be used
  perdure check aws gcp -v               all that was looked at, what is well too
  perdure check -o json | jq '.[] | select(.usable) | .name'
"""
)
@click.argument("clouds", nargs=-1, metavar="[CLOUDS]...")
@click.option("-v", "--verbose", is_flag=True, help="What is well too, not only what is not.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def check(clouds: tuple[str, ...], verbose: bool, output: str) -> None:
    """Which clouds the controller can use, and what to do about the others.

    Of AWS, GCP and Azure it looks through the account: who calls, which permissions are missing, which regions are
    enabled, and which quotas would stop a launch. Nothing is bought. Exits with 1 if none can be used (or one of those
    that you name can not).
    """
    from perdure.cli.connect import to_controller
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
    from perdure.cli.progress import working

    client = to_controller()
    with working("Asking the clouds"):
        known = {cloud["name"]: cloud for cloud in client.clouds()}
    for name in clouds:
        if name.lower() not in known:
            raise Failure(f"there is no cloud {name!r}\n  there are: {', '.join(known)}", EXIT_WRONG_INPUT)
    names = list(dict.fromkeys(name.lower() for name in clouds)) or list(known)
    with working("Looking through the accounts"):
        findings = {name: client.findings(name) for name in names}
    usable = {
        name: known[name]["usable"] and all(one["outcome"] != "fails" for one in findings[name]) for name in names
    }
    if output == "json":
        import json

        told = [{**known[name], "usable": usable[name], "findings": findings[name]} for name in names]
        click.echo(json.dumps(told, indent=1))
    else:
        for name in names:
            _print(known[name], findings[name], is_usable=usable[name], verbose=verbose)
    raise SystemExit(0 if (all(usable.values()) if clouds else any(usable.values())) else 1)


def _print(cloud: records.Cloud, findings: Sequence[records.Finding], *, is_usable: bool, verbose: bool) -> None:
    mark = click.style("usable", fg="green") if is_usable else click.style("not usable", fg="red")
    click.echo(f"{click.style(cloud['name'], bold=True)}: {mark}")
    if cloud["why"]:
        click.echo(f"  {cloud['why']}")
    if cloud["usable"] and cloud["regions"]:
        shown, rest = cloud["regions"][:8], len(cloud["regions"]) - 8
        click.echo(f"  regions: {', '.join(shown)}" + (f" and {rest} more" if rest > 0 else ""))
    for note in cloud["notes"]:
        click.echo(f"  {note}")
    for one in findings:
        if one["outcome"] == "ok" and not verbose:
            continue
        told, colour = MARKS[one["outcome"]]
        click.echo(f"  {click.style(told, fg=colour)} {one['about']}: {one['text']}")
    # What to do is said once, however many findings it is about.
    for fix in dict.fromkeys(one["fix"] for one in findings if one["fix"]):
        click.echo(f"  to do: {fix}")
