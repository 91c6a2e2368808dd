"""`perdure simulate`: what recovery policies would have cost on recorded spot markets. Needs no controller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.cli.output.progress import progress_bar

if TYPE_CHECKING:
    from perdure.recovery.simulate import Scenario, Simulation, ZoneTrace

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """`90s`, `12m`, `1.5h`, `2d` in whole seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a duration: write a number and a unit, such as 90s, 12m, 1.5h or 2d."
        )
    return round(float(match[1]) * _UNITS_S[match[2]])


PRICE = click.FloatRange(min=0, min_open=True)


@click.command(
    epilog="""\b
Examples:
  perdure simulate --trace traces/ --unavailable-is 1 --policy DEADLINE --work 48h --deadline 60h
  perdure simulate --trace traces/ --unavailable-is 1 --policy CHEAPEST,EAGER_NEXT_REGION --work 48h --spot-only
  perdure simulate --market synthetic:prices,zones=6,seed=1 --policy DEADLINE --work 48h --deadline 72h
  perdure simulate --trace us-west-2a.json --unavailable-is 0 --spot-price 0.92 --on-demand-price 3.06 \\
      --policy CHEAPEST --work 10h --deadline 15h --plot ten-hours.png
"""
)
@click.option("--trace", "traces", multiple=True, metavar="PATH", help="A trace, or a folder of traces; repeatable.")
@click.option("--market", metavar="synthetic:KIND[,zones=N][,days=N][,seed=N]", help="A random market, not a trace.")
@click.option("--unavailable-is", type=click.Choice(["0", "1"]), help="Value that means that no machine is available.")
@click.option("--policy", "policies", multiple=True, metavar="NAME[,NAME]", help="Policies to simulate; repeatable.")
@click.option("--ablate", "parts", multiple=True, metavar="PART", help="Also run each policy without PART; repeatable.")
@click.option("--work", callback=_seconds, required=True, metavar="TIME", help="Run time of the job if uninterrupted.")
@click.option(
    "--stated-work", callback=_seconds, metavar="TIME", help="What the task states as its `work`, if that is wrong."
)
@click.option(
    "--steps", type=click.IntRange(min=0), default=0, help="Training steps of the job; its saves report them."
)
@click.option("--deadline", callback=_seconds, metavar="TIME", help="Time from the start to the deadline.")
@click.option(
    "--on-time", type=click.FloatRange(0.5, 1), default=1.0, help="DEADLINE: share of runs that must be on time."
)
@click.option(
    "--cold-start",
    callback=_seconds,
    default="12m",
    show_default=True,
    metavar="TIME",
    help="Time from launch to work.",
)
@click.option(
    "--cold-start-sigma", type=click.FloatRange(0, 2), default=0.0, help="Sigma of the cold start (log-normal)."
)
@click.option(
    "--checkpoint-every", callback=_seconds, default="0s", metavar="TIME", help="The most that a sudden loss costs."
)
@click.option("--notice", callback=_seconds, default="0s", metavar="TIME", help="Time from a notice to the preemption.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Machines that must run together.")
@click.option("--quota", type=click.IntRange(min=1), metavar="N", help="Machines per region and market at a time.")
@click.option(
    "--egress-per-gb", type=click.FloatRange(min=0), default=0.0, metavar="USD", help="Transfer price between regions."
)
@click.option(
    "--checkpoint-gb", type=click.FloatRange(min=0), default=0.0, metavar="GB", help="Data transferred per move."
)
@click.option("--spot-price", type=PRICE, metavar="USD", help="Per hour, instead of the price in the traces.")
@click.option("--on-demand-price", type=PRICE, metavar="USD", help="Per hour, instead of the price in the traces.")
@click.option("--spot-only", is_flag=True, help="Do not use on-demand machines.")
@click.option(
    "--patience", type=click.FloatRange(min=0), default=0.05, help="VALUE: accepted delay, as a share of the run time."
)
@click.option(
    "--probe-every", callback=_seconds, default="0s", metavar="TIME", help="Interval at which offers are probed."
)
@click.option(
    "--warm-up",
    callback=_seconds,
    default="0s",
    metavar="TIME",
    help="How long before a window probes begin, so that policies know offers at its start.",
)
@click.option(
    "--prior-starts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Start-ups that policies have seen before a window, to estimate how long one takes.",
)
@click.option("--per-zone", is_flag=True, help="Simulate each zone separately, instead of all as one market.")
@click.option("--windows", type=click.IntRange(min=1), metavar="N", help="Windows, evenly spaced.  [default: 100]")
@click.option("--window-every", callback=_seconds, metavar="TIME", help="Instead of --windows: time between windows.")
@click.option("--slice", metavar="FROM:TO", help="Use only this part of each trace: 0:0.5 is the first half.")
@click.option("--seed", type=int, default=0, help="Seed of the random numbers.")
@click.option("--no-optimum", is_flag=True, help="Leave out the exact optimum, which takes most of the time.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Write a plot: .png, .svg, .pdf or .html."
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes.  [default: one per core]"
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
def simulate(**options: Any) -> None:
    """Replay recovery policies on recorded spot markets: cost, delay, missed deadlines.

    The policies and the decision function are the controller's own. For comparison, the same windows are run with
    on-demand alone, with published baselines, and with the exact optimum under perfect knowledge of the future.
    """
    from perdure.recovery.policies.registry import STRATEGIES, UnknownStrategy
    from perdure.recovery.simulate import BadTrace
    from perdure.recovery.simulate.optimum import GridTooFine

    names = [name.strip() for value in options["policies"] for name in value.split(",") if name.strip()]
    if not names:
        raise Failure(f"no policy to simulate\n  add --policy with one of {', '.join(STRATEGIES)}", EXIT_WRONG_INPUT)
    if options["deadline"] is None and "DEADLINE" in (name.upper() for name in names):
        raise Failure("the policy DEADLINE needs a deadline\n  add --deadline, such as 60h", EXIT_WRONG_INPUT)
    if options["on_time"] != 1 and "DEADLINE" not in (name.upper() for name in names):
        warn("--on-time has no effect: only the policy DEADLINE uses it")
    names += [f"{name} without {part}" for part in options["parts"] for name in names]
    try:
        _check_plot(options["plot"])
        scenarios = _scenarios(options, _zones(options))
        simulation = _simulation(options, scenarios, names)
        _show(options["output"], simulation)
        if options["plot"]:
            _plot(options, scenarios, names, simulation)
    except (BadTrace, UnknownStrategy, GridTooFine) as error:
        raise Failure(str(error), EXIT_WRONG_INPUT) from None
    except ModuleNotFoundError as error:
        from perdure.sdk.connection.installation import install_command

        raise Failure(f"the package {error.name} is not installed\n  run: {install_command('plot')}") from None


# --- options ----------------------------------------------------------------------------------------------------------


def _zones(options: dict[str, Any]) -> tuple[ZoneTrace, ...]:
    from perdure.recovery.simulate.files import load

    if options["market"] is not None:
        return _synthetic(options)
    if not options["traces"]:
        raise Failure("no trace to replay\n  add --trace with a file or a folder of recorded markets", EXIT_WRONG_INPUT)
    if missing := next((path for path in options["traces"] if not Path(path).exists()), None):
        raise Failure(
            f"{missing} cannot be read: it does not exist\n  give a file or a folder of recorded markets",
            EXIT_WRONG_INPUT,
        )
    if options["unavailable_is"] is None:
        raise Failure(
            "data sets differ in which value means that no machine is available, and traces do not say which\n"
            "  add --unavailable-is 1 if it is 1, or --unavailable-is 0 if values are numbers of machines",
            EXIT_WRONG_INPUT,
        )
    zones = load(
        options["traces"],
        unavailable_is=int(options["unavailable_is"]),
        spot_price=options["spot_price"],
        on_demand_price=options["on_demand_price"],
    )
    begin, end = _slice(options["slice"])
    return tuple(zone.slice(begin, end) for zone in zones)


def _synthetic(options: dict[str, Any]) -> tuple[ZoneTrace, ...]:
    from perdure.recovery.simulate.synthetic import generate

    if options["traces"]:
        raise Failure("--market and --trace exclude each other\n  remove one of them", EXIT_WRONG_INPUT)
    begin, end = _slice(options["slice"])
    return tuple(zone.slice(begin, end) for zone in generate(options["market"]))


def _slice(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, 1.0
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        begin, end = 0.0, 0.0
    if not 0 <= begin < end <= 1:
        raise Failure(
            f"--slice {text} is not a part of a trace\n  write two fractions, such as 0.5:1", EXIT_WRONG_INPUT
        )
    return begin, end


def _scenarios(options: dict[str, Any], zones: Sequence[ZoneTrace]) -> tuple[Scenario, ...]:
    from perdure.recovery.simulate import Scenario

    _check_durations(options)
    _check_machines(options, zones)
    markets = [(zone,) for zone in zones] if options["per_zone"] else [tuple(zones)]
    return tuple(
        Scenario(
            zones=market,
            work_s=options["work"],
            deadline_s=options["deadline"],
            cold_start_s=options["cold_start"],
            cold_start_sigma=options["cold_start_sigma"],
            checkpoint_every_s=options["checkpoint_every"],
            notice_s=options["notice"],
            num_nodes=options["nodes"],
            quota=options["quota"] or 0,
            egress_per_gb=options["egress_per_gb"],
            checkpoint_gb=options["checkpoint_gb"],
            probe_every_s=options["probe_every"],
            warm_up_s=options["warm_up"],
            prior_starts=options["prior_starts"],
            use_on_demand=not options["spot_only"],
            patience=options["patience"],
            stated_work_s=options["stated_work"],
            on_time=options["on_time"],
            steps=options["steps"],
            seed=options["seed"],
        )
        for market in markets
    )


def _check_durations(options: dict[str, Any]) -> None:
    deadline_s, fastest_s = options["deadline"], options["work"] + options["cold_start"]
    if options["work"] <= 0:
        raise Failure("--work is zero\n  specify how long the job runs, such as 48h", EXIT_WRONG_INPUT)
    if deadline_s is not None and deadline_s < fastest_s:
        raise Failure(
            f"--deadline is {deadline_s / 3600:g} h, but even without an interruption the job takes "
            f"{fastest_s / 3600:g} h, including its start\n  use a later deadline, or less work",
            EXIT_WRONG_INPUT,
        )
    if options["warm_up"] and not options["probe_every"]:
        raise Failure(
            "--warm-up has no effect without probes\n  add --probe-every, such as 10m, or remove --warm-up",
            EXIT_WRONG_INPUT,
        )


def _check_machines(options: dict[str, Any], zones: Sequence[ZoneTrace]) -> None:
    """Reject what could never be launched together, rather than simulate it."""
    nodes, quota = options["nodes"], options["quota"]
    if quota is not None and quota < nodes:
        raise Failure(
            f"--quota {quota} is less than --nodes {nodes}\n  use a quota of at least {nodes}", EXIT_WRONG_INPUT
        )
    largest = max(max(zone.counts, default=0) for zone in zones)
    if nodes > max(1, largest):
        hint = (
            "these traces only say whether a machine is available, so they support one node"
            if largest <= 1
            else "use fewer nodes"
        )
        raise Failure(
            f"--nodes {nodes}: no zone of the traces ever has capacity for more than {largest}\n  {hint}",
            EXIT_WRONG_INPUT,
        )


def _windows(options: dict[str, Any], scenario: Scenario) -> int:
    if options["window_every"] is None:
        return int(options["windows"] or 100)
    if options["windows"] is not None:
        raise Failure("--windows and --window-every exclude each other\n  remove one of them", EXIT_WRONG_INPUT)
    begin, end = scenario.span
    return max(1, int((end - begin - scenario.horizon_s) // max(1, options["window_every"])) + 1)


def _check_plot(path: str | None) -> None:
    """Reject a plot that cannot be written before the simulation, not after it."""
    if path is None:
        return
    import matplotlib  # noqa: F401 - checks that it is installed

    from perdure.recovery.simulate.results.plot import FILE_SUFFIXES

    if not path.endswith(FILE_SUFFIXES):
        raise Failure(f"--plot {path}: unknown file type\n  use one of {', '.join(FILE_SUFFIXES)}", EXIT_WRONG_INPUT)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Failure(
            f"--plot {path}: the folder {folder} does not exist\n  create it, or choose another one", EXIT_WRONG_INPUT
        )


# --- running ----------------------------------------------------------------------------------------------------------


def _simulation(options: dict[str, Any], scenarios: Sequence[Scenario], names: Sequence[str]) -> Simulation:
    import os

    from perdure.recovery.simulate import simulate as run

    windows = _windows(options, scenarios[0])
    with progress_bar("Simulating", windows * len(scenarios)) as count:
        return run(
            scenarios,
            names,
            windows=windows,
            processes=options["jobs"] or os.cpu_count() or 1,
            with_optimum=not options["no_optimum"],
            on_progress=count,
        )


def _show(output: str, simulation: Simulation) -> None:
    from perdure.cli.simulate import simulation_output
    from perdure.recovery.simulate.statistics import summarize

    summaries = summarize(simulation)
    match output:
        case "json":
            simulation_output.as_json(simulation, summaries)
        case "csv":
            simulation_output.as_csv(simulation)
        case _:
            simulation_output.as_table(simulation, summaries)


def _plot(options: dict[str, Any], scenarios: Sequence[Scenario], names: Sequence[str], simulation: Simulation) -> None:
    import os

    from perdure.recovery.simulate.results import plot

    with progress_bar("Plotting", plot.windows_needed(scenarios)) as count:
        path = plot.draw(
            simulation,
            names,
            path=options["plot"],
            processes=options["jobs"] or os.cpu_count() or 1,
            on_progress=count,
        )
    click.echo(f"Plot written to {path}", err=True)
