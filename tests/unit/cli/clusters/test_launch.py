"""What `perdure launch` tells other users about the command, and what it says at Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.cli.clusters import launch
from perdure.cli.clusters.launch import without_secrets
from perdure.cli.serve import up
from perdure.recovery.statuses import EXIT_NOT_FINISHED
from perdure.sdk import clusters


def test_shown_command__has_no_secrets() -> None:
    words = ["-c", "dev", "--secret", "A=sesame", "--secret=B=sesame", "--secret", "C", "--secret=D", "--env", "E=1",
             "--git-url", "https://u:sesame@h/x.git", "curl http://sesame@h/ && git@h:x"]  # fmt: skip
    assert without_secrets(words) == [
        "-c", "dev", "--secret", "A=***", "--secret=B=***", "--secret", "C", "--secret=D", "--env", "E=1",
        "--git-url", "https://***@h/x.git", "curl http://***@h/ && git@h:x",
    ]  # fmt: skip


def test_interrupt__says_that_the_cluster_is_still_being_launched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clusters, "wait_up", interrupted)
    launched: Any = SimpleNamespace(cluster_name="dev")
    with pytest.raises(SystemExit) as end:
        launch._wait_up(launched, client=None)  # type: ignore[arg-type]
    assert end.value.code == EXIT_NOT_FINISHED
    assert "perdure down dev" in capsys.readouterr().err


def test_ignore__drops_an_unsupported_field(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text("run: x\nservice: {readiness_probe: /}\nvolumes: {/data: v}\n")
    words, given = (str(tmp_path / "v.yaml"),), ((), (), (), ())
    assert "volumes" in {field.option for field in launch._load(words, None, given, {}, ()).tasks[0].unsupported}
    (task,) = launch._load(words, None, given, {}, ("volumes", "service")).tasks
    assert task.unsupported == ()
    (task,) = up._load(words, given, {}, ("volumes",)).tasks
    assert ("volumes" in task.to_yaml_config(), "service" in task.to_yaml_config()) == (False, True)
