"""`perdure simulate`: which recovery policy would have cost what, on recorded spot markets. Needs no controller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.progress import counting

if TYPE_CHECKING:
    from perdure.recovery.simulate import Scenario, Simulation, ZoneTrace

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """`90s`, `12m`, `1.5h`, `2d` in whole seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write a number and a unit, such as 90s, 12m, 1.5h or 2d.")
    return round(float(found[1]) * _UNITS_S[found[2]])


PRICE = click.FloatRange(min=0, min_open=True)


@click.command(
    epilog="""\b
Examples:
  perdure simulate --trace traces/ --unavailable-is 1 --policy DEADLINE --work 48h --deadline 60h
  perdure simulate --trace traces/ --unavailable-is 1 --policy CHEAPEST,EAGER_NEXT_REGION --work 48h --spot-only
  perdure simulate --trace us-west-2a.json --unavailable-is 0 --spot-price 0.92 --on-demand-price 3.06 \\
      --policy CHEAPEST --work 10h --deadline 15h --plot ten-hours.png
"""
)
@click.option("--trace", "traces", multiple=True, metavar="PATH", help="A trace, or a folder of them; may be repeated.")
@click.option("--unavailable-is", type=click.Choice(["0", "1"]), help="Which value of the traces means: no machine.")
@click.option("--policy", "policies", multiple=True, metavar="NAME[,NAME]", help="What to simulate; may be repeated.")
@click.option("--without", "parts", multiple=True, metavar="PART", help="Also each policy without this part of it.")
@click.option("--work", callback=_seconds, required=True, metavar="TIME", help="How long the job runs, uninterrupted.")
@click.option("--deadline", callback=_seconds, metavar="TIME", help="By when it shall be done, after its start.")
@click.option(
    "--cold-start", callback=_seconds, default="12m", show_default=True, metavar="TIME", help="Launch to work."
)
@click.option("--cold-start-sigma", type=click.FloatRange(0, 2), default=0.0, help="Spread of it (log-normal).")
@click.option(
    "--checkpoint-every", callback=_seconds, default="0s", metavar="TIME", help="What a sudden loss costs at most."
)
@click.option(
    "--notice", callback=_seconds, default="0s", metavar="TIME", help="How long before a loss its notice comes."
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Machines that must run together.")
@click.option("--quota", type=click.IntRange(min=1), metavar="N", help="Machines of a market at a time in a region.")
@click.option("--egress-per-gb", type=click.FloatRange(min=0), default=0.0, metavar="USD", help="Between regions.")
@click.option("--checkpoint-gb", type=click.FloatRange(min=0), default=0.0, metavar="GB", help="What a move carries.")
@click.option("--spot-price", type=PRICE, metavar="USD", help="Per hour, instead of what the traces say.")
@click.option("--on-demand-price", type=PRICE, metavar="USD", help="Per hour, instead of what the traces say.")
@click.option("--spot-only", is_flag=True, help="The task does not accept on-demand machines.")
@click.option("--patience", type=click.FloatRange(min=0), default=0.05, help="VALUE: delay against the fastest choice.")
@click.option("--probe-every", callback=_seconds, default="0s", metavar="TIME", help="Learn what has room this often.")
@click.option("--warm-up", callback=_seconds, default="0s", metavar="TIME", help="With probes: from how long before.")
@click.option(
    "--seen-starts", type=click.IntRange(min=0), default=10, show_default=True, help="Machines started before."
)
@click.option("--each-zone", is_flag=True, help="Each zone by itself, instead of all as one market.")
@click.option("--starts", type=click.IntRange(min=1), metavar="N", help="Windows, evenly spread.  [default: 100]")
@click.option("--window", callback=_seconds, metavar="TIME", help="Instead of --starts: one window begins this often.")
@click.option("--part", metavar="FROM:TO", help="Use this part of each trace only: 0:0.5 is the first half.")
@click.option("--seed", type=int, default=0, help="Of what is left to chance.")
@click.option("--no-optimum", is_flag=True, help="Leave out the exact optimum, which takes most of the time.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it: .png, .svg or .html.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes.  [default: one per core]")
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table")
def simulate(**given: Any) -> None:
    """Replay recovery policies against recorded spot markets: cost, delay, missed deadlines.

    The policies are the controller's own, called by the controller's own decision function. Beside them, from the same
    windows: on-demand alone, two published baselines, and the exact optimum of somebody who knew the future.
    """
    from perdure.recovery.policies.registry import STRATEGIES, UnknownStrategy
    from perdure.recovery.simulate import BadTrace
    from perdure.recovery.simulate.optimum import TooFine

    names = [name.strip() for several in given["policies"] for name in several.split(",") if name.strip()]
    if not names:
        raise Failure(f"no policy was named\n  give --policy one of {', '.join(STRATEGIES)}", EXIT_WRONG_INPUT)
    if given["deadline"] is None and "DEADLINE" in (name.upper() for name in names):
        raise Failure("DEADLINE was asked for, but no deadline\n  give --deadline, such as 60h", EXIT_WRONG_INPUT)
    names += [f"{name} without {part}" for part in given["parts"] for name in names]
    try:
        _check_plot(given["plot"])
        scenarios = _scenarios(given, _zones(given))
        simulation = _simulation(given, scenarios, names)
        _show(given["output"], simulation)
        if given["plot"]:
            _plot(given, scenarios, names, simulation)
    except (BadTrace, UnknownStrategy, TooFine) as error:
        raise Failure(str(error), EXIT_WRONG_INPUT) from None
    except ModuleNotFoundError as error:
        raise Failure(
            f"{error.name} is needed for this and is not installed\n  install perdure with its extra: perdure[plot]"
        ) from None


# --- what was asked for -----------------------------------------------------------------------------------------------


def _zones(given: dict[str, Any]) -> tuple[ZoneTrace, ...]:
    from perdure.recovery.simulate.files import load

    if not given["traces"]:
        raise Failure("no trace was named\n  give --trace a file or a folder of recorded markets", EXIT_WRONG_INPUT)
    if given["unavailable_is"] is None:
        raise Failure(
            "traces do not tell which value means that no machine can be had, and data sets differ\n"
            "  give --unavailable-is 1 if a 1 says so, or --unavailable-is 0 if values are numbers of machines",
            EXIT_WRONG_INPUT,
        )
    zones = load(
        given["traces"],
        unavailable_is=int(given["unavailable_is"]),
        spot_price=given["spot_price"],
        on_demand_price=given["on_demand_price"],
    )
    begin, end = _part(given["part"])
    return tuple(zone.part(begin, end) for zone in zones)


def _part(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, 1.0
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        begin, end = 0.0, 0.0
    if not 0 <= begin < end <= 1:
        raise Failure(f"--part {text} is no part of a whole\n  write two shares, such as 0.5:1", EXIT_WRONG_INPUT)
    return begin, end


def _scenarios(given: dict[str, Any], zones: Sequence[ZoneTrace]) -> tuple[Scenario, ...]:
    from perdure.recovery.simulate import Scenario

    _check_durations(given)
    _check_machines(given, zones)
    together = [(zone,) for zone in zones] if given["each_zone"] else [tuple(zones)]
    return tuple(
        Scenario(
            zones=members,
            work_s=given["work"],
            deadline_s=given["deadline"],
            cold_start_s=given["cold_start"],
            cold_start_sigma=given["cold_start_sigma"],
            checkpoint_every_s=given["checkpoint_every"],
            notice_s=given["notice"],
            num_nodes=given["nodes"],
            quota=given["quota"] or 0,
            egress_per_gb=given["egress_per_gb"],
            checkpoint_gb=given["checkpoint_gb"],
            probe_every_s=given["probe_every"],
            warm_up_s=given["warm_up"],
            seen_starts=given["seen_starts"],
            use_on_demand=not given["spot_only"],
            patience=given["patience"],
            seed=given["seed"],
        )
        for members in together
    )


def _check_durations(given: dict[str, Any]) -> None:
    deadline_s, least_s = given["deadline"], given["work"] + given["cold_start"]
    if given["work"] <= 0:
        raise Failure("--work is nothing\n  say how long the job runs, such as 48h", EXIT_WRONG_INPUT)
    if deadline_s is not None and deadline_s < least_s:
        raise Failure(
            f"--deadline is {deadline_s / 3600:g} h, but even without an interruption the job takes "
            f"{least_s / 3600:g} h with its start\n  give it more time, or less work",
            EXIT_WRONG_INPUT,
        )
    if given["warm_up"] and not given["probe_every"]:
        raise Failure(
            "--warm-up is for how long probes had looked at the market before, and none do\n"
            "  add --probe-every, such as 10m, or leave --warm-up out",
            EXIT_WRONG_INPUT,
        )


def _check_machines(given: dict[str, Any], zones: Sequence[ZoneTrace]) -> None:
    """What could never be bought together is better said than simulated."""
    nodes, quota = given["nodes"], given["quota"]
    if quota is not None and quota < nodes:
        raise Failure(
            f"--quota {quota} lets no region have {nodes} nodes\n  give it at least as many", EXIT_WRONG_INPUT
        )
    most = max(max(zone.counts, default=0) for zone in zones)
    if nodes > max(1, most):
        hint = (
            "these traces only say whether there is room, so they can tell of one node"
            if most <= 1
            else "ask for fewer"
        )
        raise Failure(
            f"--nodes {nodes}: no zone of the traces ever has room for more than {most}\n  {hint}", EXIT_WRONG_INPUT
        )


def _windows(given: dict[str, Any], scenario: Scenario) -> int:
    if given["window"] is None:
        return int(given["starts"] or 100)
    if given["starts"] is not None:
        raise Failure("--starts and --window were both given\n  give one of them", EXIT_WRONG_INPUT)
    begin, end = scenario.span
    return max(1, int((end - begin - scenario.horizon_s) // max(1, given["window"])) + 1)


def _check_plot(path: str | None) -> None:
    """What can not be drawn is better said before the work than after it."""
    if path is None:
        return
    import matplotlib  # noqa: F401 - only whether it is there

    from perdure.recovery.simulate.plot import ENDINGS

    if not path.endswith(ENDINGS):
        raise Failure(f"--plot {path}: unknown kind of picture\n  end it in {', '.join(ENDINGS)}", EXIT_WRONG_INPUT)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Failure(
            f"--plot {path}: there is no folder {folder}\n  make it first, or draw elsewhere", EXIT_WRONG_INPUT
        )


# --- doing it ---------------------------------------------------------------------------------------------------------


def _simulation(given: dict[str, Any], scenarios: Sequence[Scenario], names: Sequence[str]) -> Simulation:
    import os

    from perdure.recovery.simulate import simulate as run

    windows = _windows(given, scenarios[0])
    with counting("Simulating", windows * len(scenarios)) as count:
        return run(
            scenarios,
            names,
            windows=windows,
            processes=given["jobs"] or os.cpu_count() or 1,
            with_optimum=not given["no_optimum"],
            on_progress=count,
        )


def _show(output: str, simulation: Simulation) -> None:
    from perdure.cli import simulated
    from perdure.recovery.simulate.statistics import summaries

    found = summaries(simulation)
    match output:
        case "json":
            simulated.as_json(simulation, found)
        case "csv":
            simulated.as_csv(simulation)
        case _:
            simulated.as_table(simulation, found)


def _plot(given: dict[str, Any], scenarios: Sequence[Scenario], names: Sequence[str], simulation: Simulation) -> None:
    import os

    from perdure.recovery.simulate import plot

    with counting("Drawing", plot.windows_needed(scenarios)) as count:
        drawn = plot.draw(
            simulation,
            names,
            path=given["plot"],
            processes=given["jobs"] or os.cpu_count() or 1,
            on_progress=count,
        )
    click.echo(f"Drawn: {drawn}", err=True)
