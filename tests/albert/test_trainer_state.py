"""What a checkpoint keeps beside the model: the state that training draws from and steps with."""

from dataclasses import dataclass

import pytest
import torch

from albert.batching import Cursor
from albert.optim import adamw
from albert.trainer_state import (
    TrainerState,
    generator_states,
    load_trainer_state,
    restore_generators,
    save_checkpoint,
)
from tests.conftest import small_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def model(tokenizer):
    return small_model(tokenizer).to(DEVICE)


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def test_optimiser_random_numbers_and_place_come_back_as_they_were(tmp_path, model, tokenizer):
    optimizer = adamw(model, 1e-3)
    step(model, optimizer)
    state = TrainerState(step=7, tokens=90, cursor=Cursor(1, 2, 3), seconds=0.5, history=[{"step": 0.0}])
    folder = save_checkpoint(tmp_path, model, optimizer, state, None)
    expected = torch.rand(5, device=DEVICE), torch.rand(5)
    same = small_model(tokenizer).to(DEVICE)
    restored = adamw(same, 1e-3)
    assert load_trainer_state(folder, restored) == state
    assert torch.equal(torch.rand(5, device=DEVICE), expected[0]) and torch.equal(torch.rand(5), expected[1])
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            again = restored.state_dict()["state"][number][name]
            # a fused step takes parameters and moments on one device
            assert torch.equal(again, value) and again.device == value.device, name
    step(same, restored)


@dataclass
class Generator:
    """A GPU's generator, where there is none: its state is a count of what was drawn."""

    state: torch.Tensor

    def get(self, device):
        return self.state.clone()

    def set(self, state, device):
        self.state = state


def test_on_a_gpu_its_own_generator_is_kept_too(monkeypatch):
    generator = Generator(torch.tensor([3], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "get_rng_state", generator.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", generator.set)
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    states = generator_states(gpu)
    assert generator_states(cpu).keys() < states.keys()
    generator.state += 5
    restore_generators(states, cpu)
    assert generator.state == 8
    restore_generators(states, gpu)
    assert generator.state == 3
    # begun on a CPU: there is no state to go on from
    restore_generators(generator_states(cpu), gpu)
    assert generator.state == 3


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the GPU's own generator")
def test_dropout_on_a_gpu_goes_on_where_it_stopped():
    x = torch.ones(1000, device=DEVICE)
    states = generator_states(DEVICE)
    first = torch.nn.functional.dropout(x, 0.5)
    assert not torch.equal(torch.nn.functional.dropout(x, 0.5), first)
    restore_generators(states, DEVICE)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5), first)
