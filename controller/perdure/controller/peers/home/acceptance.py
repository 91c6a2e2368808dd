"""`perdure controller accept-database`: makes a database that lacks something of the home's past the home's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perdure.controller.peers.home import database_check
from perdure.controller.runtime.config.settings import read_settings
from perdure.controller.runtime.process import single_instance_lock
from perdure.controller.store.engine.database import open_database


def accept_database(home: Path, report: Callable[[str], None], *, show_only: bool) -> bool:
    """Accept the database of `home`, and report what is lost. False if it lacks nothing. `show_only`: change nothing.

    Raises CannotStart and SettingsError.
    """
    settings = read_settings(home)
    with single_instance_lock(home):
        engine = open_database(settings.database_address)
        try:
            with engine.connect() as conn:
                loss = database_check.find_loss(settings, conn)
            if loss is None:
                report("the database lacks nothing that this home knows of: there is nothing to accept")
                return False
            report(f"the database {loss.what}")
            for sentence in loss.lost:
                report(f"lost: {sentence}")
            if show_only:
                return True
            with engine.begin() as conn:
                record = database_check.accept(settings, conn, report)
            replace(record, at=record.at or time.time()).save(home)  # noqa: TID251 - no daemon, so no clock
        finally:
            engine.dispose()
    return True
