import pytest
import torch

from albert.optim import adamw, lamb


def by_hand(parameter, gradients, rate, decay, beta=0.999, adapt=False):
    """Algorithm 2 of Loshchilov & Hutter 2019 or, with the trust ratio, of You et al. 2020; in fp64."""
    x, m, v = parameter.double(), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        g = gradient.double()
        m, v = 0.9 * m + 0.1 * g, beta * v + (1 - beta) * g * g
        r = m / (1 - 0.9**step) / ((v / (1 - beta**step)).sqrt() + 1e-6) + decay * x
        x = x - rate * (x.norm() / r.norm() if adapt else 1.0) * r
    return x


@pytest.mark.parametrize("make, beta, adapt", [(adamw, 0.98, False), (lamb, 0.999, True)])
def test_an_optimiser_follows_its_paper_and_decays_and_adapts_neither_bias_nor_layer_norm(make, beta, adapt):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: [torch.randn_like(p) for _ in range(5)] for name, p in model.named_parameters()}
    optimizer = make(model, 0.02, weight_decay=0.1)
    for step in range(5):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][step]
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay, adapts = (0.1, adapt) if name == "0.weight" else (0.0, False)
        expected = by_hand(start[name], gradients[name], 0.02, decay, beta, adapts)
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=1e-7)


def test_query_key_and_value_have_a_trust_ratio_each():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"query_key_value": torch.nn.Linear(4, 12, bias=False)})
    weight = model["query_key_value"].weight
    weight.data[:4] *= 10
    start, gradient = weight.detach().clone(), torch.randn_like(weight)
    weight.grad = gradient.clone()
    lamb(model, 0.02, weight_decay=0.1).step()
    parts = zip(start.chunk(3), gradient.chunk(3), strict=True)
    apart = torch.cat([by_hand(part, [g], 0.02, 0.1, adapt=True) for part, g in parts])
    torch.testing.assert_close(weight.double(), apart, rtol=1e-5, atol=1e-7)


def test_a_tensor_without_a_gradient_at_first_is_corrected_by_its_own_steps():
    torch.manual_seed(0)
    layer = torch.nn.Linear(7, 5)
    start, gradient = layer.bias.detach().clone(), torch.randn(5)
    optimizer = lamb(torch.nn.Sequential(torch.nn.LayerNorm(7), layer), 0.02)
    for step in range(6):
        for parameter in optimizer.param_groups[1]["params"]:
            is_late = parameter is layer.bias and step < 4
            parameter.grad = None if is_late else torch.ones_like(parameter)
        if layer.bias.grad is not None:
            layer.bias.grad = gradient
        optimizer.step()
    bias = by_hand(start, [gradient] * 2, 0.02, 0.0)
    torch.testing.assert_close(layer.bias.double(), bias, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weight, gradient", [(0.0, 1.0), (1.0, 0.0)], ids=["zeros", "no gradient"])
def test_where_a_norm_is_zero_the_trust_ratio_is_one(weight, gradient):
    layer = torch.nn.Linear(4, 3, bias=False)
    torch.nn.init.constant_(layer.weight, weight)
    layer.weight.grad = torch.full((3, 4), gradient)
    lamb(layer, 0.01, weight_decay=0.0).step()
    torch.testing.assert_close(layer.weight.detach(), torch.full((3, 4), weight - 0.01 * gradient))
