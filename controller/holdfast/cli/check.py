"""`holdfast check`."""

from __future__ import annotations

import click

from holdfast.sdk import records


@click.command(
    epilog="""\b
Examples:
  holdfast check
  holdfast check aws                      one cloud; exits with 1 if it can not be used
"""
)
@click.argument("clouds", nargs=-1, metavar="[CLOUDS]...")
def check(clouds: tuple[str, ...]) -> None:
    """Which clouds the controller can use, and what to do about the others.

    Exits with 1 if none can be used (or one of those that you name can not).
    """
    from holdfast.cli.connect import to_controller
    from holdfast.cli.errors import EXIT_WRONG_INPUT, Failure
    from holdfast.cli.progress import working

    client = to_controller()
    with working("Asking the clouds"):
        known = {cloud["name"]: cloud for cloud in client.clouds()}
    for name in clouds:
        if name.lower() not in known:
            raise Failure(f"there is no cloud {name!r}\n  there are: {', '.join(known)}", EXIT_WRONG_INPUT)
    chosen = [known[name.lower()] for name in clouds] or list(known.values())
    for cloud in chosen:
        _print(cloud)
    usable = [cloud["usable"] for cloud in chosen]
    raise SystemExit(0 if (all(usable) if clouds else any(usable)) else 1)


def _print(cloud: records.Cloud) -> None:
    mark = click.style("usable", fg="green") if cloud["usable"] else click.style("not usable", fg="red")
    click.echo(f"{click.style(cloud['name'], bold=True)}: {mark}")
    if cloud["why"]:
        click.echo(f"  {cloud['why']}")
    if cloud["usable"] and cloud["regions"]:
        shown, rest = cloud["regions"][:8], len(cloud["regions"]) - 8
        click.echo(f"  regions: {', '.join(shown)}" + (f" and {rest} more" if rest > 0 else ""))
    for note in cloud["notes"]:
        click.echo(f"  {note}")
