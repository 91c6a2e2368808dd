"""Boot tokens: what a machine boots with is traded once, and a second trade replaces the machine."""

from __future__ import annotations

import pytest

from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.records.agent_connections import trade_boot_token
from unit.controller.world import World

KEYRING = Keyring(b"k" * 32, "user")
KEY = (7, 0, 2)


def test_boot_token__is_of_one_attempt_and_no_other_kind() -> None:
    boot, attempt = KEYRING.boot_token(KEY), KEYRING.attempt_token(KEY)
    assert KEYRING.verify_boot_token(boot) == KEY
    assert KEYRING.verify_attempt_token(boot) is None
    assert KEYRING.verify_boot_token(attempt) is None
    assert Keyring(b"?" * 32, "user").verify_boot_token(boot) is None
    signature = attempt.rpartition(".")[2]
    assert signature not in boot, "the attempt's token cannot be made of it"


@pytest.mark.parametrize("position", range(1, 7))
def test_boot_token__that_was_changed_is_invalid(position: int) -> None:
    parts = KEYRING.boot_token(KEY).split(".")
    parts[position] = "1" if parts[position] != "1" else "2"
    assert KEYRING.verify_boot_token(".".join(parts)) is None
    assert KEYRING.verify_boot_token("pdb1." + "." * 5) is None


def test_boot_token__outlives_the_rotation_of_its_key() -> None:
    boot = KEYRING.boot_token(KEY)
    assert Keyring(b"n" * 32, "user", others=(b"k" * 32,)).verify_boot_token(boot) == KEY


def test_trade__is_repeatable_by_the_same_agent_alone(world: World) -> None:
    job = world.submit(nodes=2)
    places = [((job, 0, 1), rank) for rank in (0, 1)]

    def trade(rank: int, nonce: str) -> bool:
        with world.database.begin() as conn:
            return trade_boot_token(conn, places[rank], nonce)

    assert trade(0, "a")
    assert trade(0, "a"), "its first answer was lost"
    assert not trade(0, "b")
    assert trade(1, "c"), "each machine of an attempt trades for itself"
    assert not trade(0, "c")
    world.pass_time(1)
    assert not trade(0, "b"), "the recorder keeps it"
    with world.database.begin() as conn:
        assert not trade_boot_token(conn, ((job, 0, 9), 0), "a")
