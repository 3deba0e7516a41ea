"""transformers itself is the oracle: over a grid of shapes the same weights give the same numbers there and
here, forward and backward, and come back the same.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from albert.checkpoints import load_model, save_model
from tests.albert.oracle import (
    GRID,
    HEADS,
    LENGTHS,
    SHORT,
    Case,
    batch_of,
    cases,
    differences,
    kind,
    our_numbers,
    ours,
    their_numbers,
    theirs,
)

SMALL_CASES = [Case("albert", *HEADS[0], "gelu_new", *groups) for groups in ((1, 1), (3, 1), (2, 2))]


@pytest.mark.parametrize("case", GRID, ids=str)
def test_states_logits_losses_and_all_gradients_agree(case):
    oracle = theirs(case)
    model = ours(oracle)
    for title, lengths in LENGTHS.items():
        batch = batch_of(lengths)
        for name, value in differences(our_numbers(model, batch), their_numbers(oracle, batch)).items():
            assert value < (1e-4 if name.startswith("gradient") else 1e-5), f"{title}: {name}"


@pytest.mark.parametrize("case", [*cases("albert"), *cases("bert")], ids=str)
def test_in_bf16_we_are_as_near_to_fp64_as_transformers_is(case):
    oracle = theirs(case).bfloat16()
    model = ours(oracle).bfloat16()
    batch = batch_of(SHORT)
    here, there = our_numbers(model, batch), their_numbers(oracle, batch)
    exact = their_numbers(oracle.double(), batch)  # of the weights as bf16 holds them
    kinds: dict[str, list[tuple[float, float]]] = {}
    for name, value in exact.items():
        size = value.norm()
        ours_off, theirs_off = ((got[name].double() - value).norm() / size for got in (here, there))
        kinds.setdefault(kind(name), []).append((ours_off, theirs_off))
        # both round at every step, but at other places: of a tensor of two numbers chance decides who is
        # nearer
        assert ours_off <= 4 * theirs_off + 2**-6, f"{name}: {ours_off:.4f} against {theirs_off:.4f}"
    for title, pairs in kinds.items():
        ours_off, theirs_off = torch.tensor(pairs).square().mean(0).sqrt()
        # 2**-8 is what one rounding of the result itself may cost
        assert ours_off <= 1.5 * theirs_off + 2**-8, f"{title}: {ours_off:.4f} against {theirs_off:.4f}"


@pytest.mark.parametrize("architecture, activation", [("albert", "gelu_new"), ("bert", "gelu")])
def test_under_autocast_we_are_as_near_to_fp64_as_transformers_is(architecture, activation):
    oracle = theirs(Case(architecture, *HEADS[0], activation))
    model, batch = ours(oracle), batch_of(SHORT)
    with torch.autocast("cpu", torch.bfloat16):
        here, there = our_numbers(model, batch), their_numbers(oracle, batch)
    exact = their_numbers(oracle.double(), batch)
    gradients = [name for name in exact if name.startswith("gradient")]
    assert all(here[name].dtype == torch.float32 for name in gradients)
    for names in (gradients, ["loss"], ["mlm loss"], ["pooled"]):
        off = [
            sum((got[n].double() - exact[n]).square().sum() / exact[n].square().sum() for n in names) ** 0.5
            for got in (here, there)
        ]
        # 2**-9 is half of what one rounding of the result may cost
        assert off[0] <= 1.5 * off[1] + 2**-9, f"{names[0]}: {off[0]:.4f} against {off[1]:.4f}"


def config_of(folder: Path) -> dict[str, object]:
    return transformers.AutoConfig.from_pretrained(folder).to_dict()


@pytest.mark.parametrize("case", [*SMALL_CASES, Case("bert", *HEADS[0], "gelu")], ids=str)
def test_there_here_and_back_is_byte_identical_with_the_same_config(case, tmp_path):
    theirs(case).save_pretrained(tmp_path / "a")
    model, _ = load_model(tmp_path / "a")
    save_model(model, tmp_path / "b")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert set(a) <= set(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype and value.numpy().tobytes() == b[name].numpy().tobytes(), name
    before, after = config_of(tmp_path / "a"), config_of(tmp_path / "b")
    unimportant = {"transformers_version", "_name_or_path", "dtype", "torch_dtype"}
    changed = {k: (v, after.get(k)) for k, v in before.items() if k not in unimportant and after.get(k) != v}
    # a preset of transformers that is none of ours, and that an encoder makes no use of
    assert set(changed) <= {"classifier_dropout"}, changed
    oracle = type(theirs(case))
    again, info = oracle.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    batch = batch_of(LENGTHS["padded"])
    first = their_numbers(theirs(case).eval(), batch)
    for name, value in their_numbers(again.eval(), batch).items():
        assert torch.equal(value, first[name]), name


def test_an_unshared_model_of_ours_opens_there_as_many_groups(tmp_path):
    from albert.model import grow

    model = grow(ours(theirs(SMALL_CASES[0])), share="none")
    save_model(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_groups"] == 3
    oracle, info = transformers.AlbertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = batch_of(LENGTHS["padded"])
    for name, value in differences(our_numbers(model, batch), their_numbers(oracle, batch)).items():
        assert value < (1e-4 if name.startswith("gradient") else 1e-5), name
    assert load_model(tmp_path)[0].config == model.config
