"""What a machine has written to its console.

docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html: the last 64 KB. Only machines of the Nitro
system return the latest output at any time; others return what was posted soon after they have booted.
"""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.aws import faults


def fetch_output(ec2: Any, instance: str) -> str:
    """The end of the console of a machine; empty if EC2 has nothing yet. botocore decodes it."""
    try:
        output = ec2.get_console_output(InstanceId=instance, Latest=True)
    except Exception as error:
        if faults.code_of(error) != "UnsupportedOperation":
            raise
        output = ec2.get_console_output(InstanceId=instance)
    return str(output.get("Output", ""))
