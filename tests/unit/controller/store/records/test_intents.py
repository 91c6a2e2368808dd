"""Recording intents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from perdure.controller.store.records import intents
from perdure.controller.store.records.intents import UNSAVED, Intent, IntentKind
from unit.controller.world import World


@pytest.mark.parametrize("count", [1, 70])
def test_add_all__returns_what_was_not_recorded_before(world: World, count: int) -> None:
    job = world.submit()
    wanted = [
        Intent(UNSAVED, job, 0, generation, kind, f"token-{generation}-{kind}", {"n": generation}, 5.0)
        for generation in range(100, 100 + count)
        for kind in (IntentKind.LAUNCH, IntentKind.TERMINATE)
    ]
    with world.database.begin() as conn:
        first = intents.add_all(conn, wanted[:count])
        second = intents.add_all(conn, wanted)
        recorded = {intent.id: intent for intent in intents.open_intents(conn, [job])}
        rows = conn.execute(select(func.count()).where(intents.Intents.c.generation >= 100)).scalar_one()
    assert [replace(intent, id=UNSAVED) for intent in [*first, *second]] == wanted
    assert rows == len({intent.id for intent in [*first, *second]}) == len(wanted)
    assert all(recorded[i.id] == replace(i, try_count=1) for i in [*first, *second])  # its own id and no other's


def test_add_all__none_is_allowed(world: World) -> None:
    with world.database.begin() as conn:
        assert intents.add_all(conn, []) == []
