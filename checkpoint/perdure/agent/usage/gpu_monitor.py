"""The use of NVIDIA's GPUs, from one `nvidia-smi` that runs as long as the agent.

Starting it costs far more than what it does every few seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any, Callable

INTERVAL_S = 15
_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
_MIB = 1024 * 1024
_MAX_GPUS = 64


class GpuMonitor:
    """Collects samples in a thread, until `nvidia-smi` ends. A machine without it has no GPUs to report."""

    def __init__(self, log: Callable[[str], None], program: str | None = None) -> None:
        self._log = log
        self._program = program or shutil.which("nvidia-smi")
        self._lock = threading.Lock()
        self._samples: dict[int, list[dict[str, float]]] = {}

    def start(self) -> None:
        if self._program is not None:
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def take_means(self) -> list[dict[str, float]]:
        """The means of each GPU since the last call, in the order of their indexes."""
        with self._lock:
            samples, self._samples = self._samples, {}
        return [_mean(samples[index]) for index in sorted(samples)]

    def _run(self) -> None:
        command = [str(self._program), f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits", "-l", str(INTERVAL_S)]
        try:
            # It ends with the agent: writing to a closed pipe ends it.
            process: Any = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            self._log(f"the use of GPUs is not reported: {error}")
            return
        for line in process.stdout:
            sample = parse_line(line)
            if sample is not None and sample["index"] < _MAX_GPUS:
                with self._lock:
                    self._samples.setdefault(int(sample.pop("index")), []).append(sample)
        self._log(f"nvidia-smi ended with code {process.wait()}: the use of GPUs is no longer reported")


def parse_line(line: str) -> dict[str, float] | None:
    """A GPU's sample from a line of `nvidia-smi`; None if it is none. A value that the GPU does not have is 0."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(_FIELDS.split(",")) or not words[0].isdigit():
        return None
    index, busy, used, total, power, temperature = (_number(word) for word in words)
    return {
        "index": index,
        "utilization": min(1.0, busy / 100),
        "memory_used": used * _MIB,
        "memory_total": total * _MIB,
        "power_w": power,
        "temperature_c": temperature,
    }


def _number(word: str) -> float:
    try:
        value = float(word)  # "[N/A]" where the GPU cannot tell
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0


def _mean(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(sample[name] for sample in samples) / len(samples) for name in samples[0]}
