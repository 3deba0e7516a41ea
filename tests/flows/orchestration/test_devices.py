"""Trainings on one device take turns; test_server.py has one that waits, and one whose process is killed."""

import threading

import pytest
from filelock import FileLock, Timeout

from data.workspace import Workspace
from flows.orchestration import device_slot
from flows.orchestration.slots import slot_file
from tests.flows.serving import wait_until


def test_a_gpu_is_one_device_for_every_workspace(tmp_path):
    one, other = Workspace(tmp_path / "a"), Workspace(tmp_path / "b")
    assert slot_file(one, "cuda-0") == slot_file(other, "cuda-0") != slot_file(one, "cuda-1")
    assert slot_file(one, "cpu") != slot_file(other, "cpu")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A workspace on a machine with two GPUs."""
    monkeypatch.setattr("flows.orchestration.slots.device_names", lambda n: ("cuda-1", "cuda-0")[:n])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Workspace(tmp_path / "w")


def test_a_training_on_several_gpus_holds_each_of_them_and_lets_all_go(place):
    names = ("cuda-0", "cuda-1")
    for count, held in ((1, ["cuda-1"]), (2, ["cuda-0", "cuda-1"])):
        with device_slot(place, count):
            assert [name for name in names if is_held(place, name)] == held
        assert not any(is_held(place, name) for name in names)


def test_devices_are_taken_in_one_order_so_that_no_two_trainings_wait_for_each_other(place):
    path = slot_file(place, "cuda-1")
    path.parent.mkdir()

    def train():
        with device_slot(place, 2):
            pass

    training = threading.Thread(target=train)
    with FileLock(path):
        training.start()
        wait_until(lambda: is_held(place, "cuda-0"))
    training.join()


def is_held(place, name):
    try:
        with FileLock(slot_file(place, name), timeout=0):
            return False
    except Timeout:
        return True
