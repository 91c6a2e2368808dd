"""Every cloud that stores the console of its machines returns it as text."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.base.protocol import HasConsole, InstanceState
from perdure.controller.clouds.contract_suite import CloudBench


def test_console__of_a_running_machine_is_text(bench: CloudBench) -> None:
    if not isinstance(bench.cloud, HasConsole):
        pytest.skip("this cloud has no consoles")
    launched = bench.launch("t1")
    (machine,) = bench.wait_until(InstanceState.RUNNING, launched)
    assert isinstance(bench.cloud.console_output(machine.region, machine.id), str)


def test_consoles__are_those_of_the_clouds_that_are_billed(bench: CloudBench) -> None:
    assert isinstance(bench.cloud, HasConsole) == (bench.cloud.name in ("fake", "aws", "gcp", "azure"))
