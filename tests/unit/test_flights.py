"""Which pack the black box names when the device has a fault: on a device that the test moves by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfl_mp import blackbox
from dfl_mp.blackbox import BlackBox
from dfl_mp.roles.flights import Flights, OneByOne

WORKER = "drafter-0.1"


class Fault(Exception):
    pass


class Device:
    """Does one pack after the other, when somebody waits or `run` is called; after the poison pack every look at it
    raises."""

    def __init__(self, poison: int | None = None) -> None:
        self.given: list[int] = []
        self.poison, self.done = poison, 0

    def run(self, num: int) -> None:
        while self.done < num and not self.broken:
            self.done += 1

    @property
    def broken(self) -> bool:
        return self.given[self.done : self.done + 1] == [self.poison]

    def mark(self) -> Mark:
        return Mark(self, len(self.given))


class Mark:
    def __init__(self, device: Device, num: int) -> None:
        self.device, self.num = device, num

    def query(self) -> bool:
        if self.device.broken:
            raise Fault
        return self.device.done >= self.num

    def synchronize(self) -> None:
        self.device.run(self.num)
        if self.device.done < self.num:
            raise Fault


def give(flights: Flights, device: Device, *packs: int) -> None:
    for pack in packs:
        with flights.giving(pack):
            device.given.append(pack)


def named(folder: Path) -> int | None:
    return blackbox.read(folder, WORKER)[1]


def never(pack: int) -> bool:
    return False


def test_a_pack_stays_named_until_the_host_has_seen_it_end(tmp_path: Path) -> None:
    device = Device()
    flights = Flights(BlackBox(tmp_path, WORKER), device.mark, never)
    give(flights, device, 4, 5)
    assert named(tmp_path) == 4
    device.run(1)
    give(flights, device, 6)
    assert named(tmp_path) == 5
    flights.wait()
    assert named(tmp_path) is None


def test_a_fault_that_shows_at_the_wait_for_the_step_names_its_pack(tmp_path: Path) -> None:
    device = Device(poison=6)
    flights = Flights(BlackBox(tmp_path, WORKER), device.mark, never)
    give(flights, device, 4, 5, 6, 7)
    with pytest.raises(Fault):
        flights.wait()
    assert named(tmp_path) == 6


def test_packs_given_one_by_one_are_named_rightly_wherever_the_fault_shows(tmp_path: Path) -> None:
    """The host looks late: the device has gone on to the poison pack before anybody asked for the one before."""
    for one_by_one, says in ((never, 4), (lambda pack: True, 5)):
        device = Device(poison=5)
        flights = Flights(BlackBox(tmp_path, WORKER), device.mark, one_by_one)
        with pytest.raises(Fault):
            give(flights, device, 4, 5)
            device.run(2)
            give(flights, device, 6)
        assert named(tmp_path) == says


def test_where_the_call_does_the_work_nothing_is_in_flight(tmp_path: Path) -> None:
    flights = Flights(BlackBox(tmp_path, WORKER), None, never)
    with flights.giving(4):
        assert named(tmp_path) == 4
    assert named(tmp_path) is None
    with pytest.raises(Fault), flights.giving(5):
        raise Fault
    assert named(tmp_path) == 5


@pytest.mark.parametrize(
    ("worker", "left", "alone"),
    [
        ("drafter-0.1", None, []),
        ("drafter-0.2", None, [8, 11]),
        ("drafter-0.2", 17, [8, 11, 12, 19]),
        ("drafter-0.2", 3, [8, 11]),
    ],
)
def test_a_successor_waits_in_its_first_step_and_up_to_the_pack_that_was_named(
    tmp_path: Path, worker: str, left: int | None, alone: list[int]
) -> None:
    """Four packs a step. A drafter that was alone goes on from a checkpoint, steps before the pack that ended it."""
    BlackBox(tmp_path, "drafter-0.1").computing(left)
    one_by_one = OneByOne(tmp_path, worker, per_step=4)
    assert [pack for pack in (8, 11, 12, 19, 20) if one_by_one(pack)] == alone
