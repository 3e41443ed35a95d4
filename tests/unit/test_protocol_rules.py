"""Each rule of the protocol is needed: with it off, some schedule violates a property."""

from __future__ import annotations

import pytest

from tests.protocol_harness import run
from tests.protocol_world import Settings

BOUND = 1500
SEARCH = 150
"""Seeds that are tried from the given one on; the given one is known to find it."""

FOUND_BY_SEED = [
    ("finish", 4, None),  # rule 2: a begun copy is finished, then released
    ("balance", 3, None),  # 3: a tail pack is revoked once, from a drafter with two
    ("credits", 1, None),  # 4: two untrained packs a drafter
    ("room", 7, None),  # 4: the lowest step takes buffers from later ones
    ("give_back", 18, None),  # 5: an uncopied pack of a dead drafter is ready
    ("suspect", 8, None),  # 5: Died names the pack that was being computed
    ("aside", 8, None),  # 6: a pack set aside is on disk first
    ("generation", 0, None),  # 7: so is a generation number
    ("discard", 33, None),  # 8: Form discards the reduced buffer
    ("recommit", 8, None),  # 10: Commit of an applied step is answered
    ("reform", 8, None),  # 11: a restarted coordinator always forms a generation
    ("oldlink", 26, None),  # 13: nothing of the old link is acted on
    ("stale", 1, None),  # 14: a Hello counts once its incarnation is listed
    ("wait", 0, None),  # 15: what follows a Hello is kept
    ("epochs", 6, None),  # 16: EpochClosed is sent again
    ("slots", 56, None),  # 17: a full slot is not free
    ("all_hold", 13, None),  # 18: all live drafters with state hold it
    ("rehello", 40, None),  # 19: a second Hello restarts the coordinator
    ("save", 0, Settings(save_every=1)),  # 20: Save follows the ledger line
    ("publish", 125, Settings(save_every=1)),  # 21: the coordinator publishes
    ("rewind", 10, None),  # 23: a rewind frees the slots
    ("commit_then_reduce", 10, None),  # a Reduce may arrive before the last Commit is applied
    ("late_save", 5, None),  # a Save that met a Commit is ordered again
    ("enter_once", 3, None),  # a generation that was given up is not entered again
    ("unreadable", 10, Settings(drafters=1, save_every=0, unreadable=True)),  # a new coordinator is told of it too
]


@pytest.mark.parametrize(("rule", "seed", "settings"), FOUND_BY_SEED, ids=[rule for rule, _, _ in FOUND_BY_SEED])
def test_rule_is_needed(rule: str, seed: int, settings: Settings | None) -> None:
    for tried in range(seed, seed + SEARCH):
        if run(tried, settings, (rule,), bound=BOUND).violation is not None:
            assert run(tried, settings).violation is None
            return
    pytest.fail(f"{SEARCH} schedules without the rule and nothing happened")
