"""Losses of PyTorch's tensors: the same values and gradients as those of arrays."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from posbias.errors import PosbiasError
from posbias.learning import objectives
from posbias.objectives import tensors

GROUPS = [3, 1, 5, 0, 2]
RNG = np.random.default_rng(11)
SCORES = RNG.normal(size=11) * 3
WEIGHTS = np.array([0, 2.5, 1, 3, 0, 4, 0.5, 0, 0, 0, 0])
CLICKS = np.array([0, 2, 1, 3, 0, 4, 1, 0, 0, 0, 7.0])
EXPOSURE = RNG.random(11) * 3 + 0.05
CASES = {
    "softmax": (objectives.softmax_loss, objectives.softmax_ips, (WEIGHTS, GROUPS)),
    "pairwise": (objectives.pairwise_loss, objectives.pairwise_ips, (WEIGHTS, GROUPS)),
    "poisson": (objectives.poisson_loss, objectives.poisson_exposure, (CLICKS, EXPOSURE)),
}


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


@pytest.mark.server
@pytest.mark.parametrize("far", [1.0, 1000.0])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_those_of_arrays(name: str, far: float, torch: Any) -> None:
    loss, objective, rest = CASES[name]
    at = SCORES if name == "poisson" else SCORES * far
    scores = torch.tensor(at, requires_grad=True)
    found = getattr(tensors, f"{name}_loss")(scores, *(torch.as_tensor(values) for values in rest))
    found.backward()
    assert found.item() == pytest.approx(loss(at, *rest), rel=1e-9)
    assert scores.grad.numpy() == pytest.approx(objective(at, *rest)[0], abs=1e-9)


@pytest.mark.server
def test_a_step_down_the_gradient_lowers_the_loss_in_single_precision(torch: Any) -> None:
    scores = torch.zeros(11, dtype=torch.float32, requires_grad=True)
    weights, groups = torch.tensor(WEIGHTS, dtype=torch.float32), torch.tensor(GROUPS)
    before = tensors.softmax_loss(scores, weights, groups)
    before.backward()
    assert tensors.softmax_loss(scores - 0.1 * scores.grad, weights, groups) < before


@pytest.mark.server
def test_shapes_that_would_be_broadcast_raise(torch: Any) -> None:
    scores, weights = torch.zeros(11, 1), torch.tensor(WEIGHTS)
    for loss, rest in (
        (tensors.softmax_loss, GROUPS),
        (tensors.pairwise_loss, GROUPS),
        (tensors.poisson_loss, weights),
    ):
        with pytest.raises(PosbiasError, match="squeeze"):
            loss(scores, weights, rest)
    with pytest.raises(PosbiasError, match="add up to 6"):
        tensors.softmax_loss(torch.zeros(11), weights, [3, 3])


@pytest.mark.server
@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_invalid_weights_and_counts_raise(bad: float, torch: Any) -> None:
    scores, wrong = torch.zeros(11), torch.tensor([bad, *WEIGHTS[1:]])
    for loss in (tensors.softmax_loss, tensors.pairwise_loss):
        with pytest.raises(PosbiasError, match="Some weights are negative or NaN"):
            loss(scores, wrong, GROUPS)
    with pytest.raises(PosbiasError, match="Some exposure are negative"):
        tensors.poisson_loss(scores, torch.tensor(CLICKS), wrong)


def test_clicks_without_exposure_raise_as_for_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is used of PyTorch in this loss NumPy has by the same names.
    monkeypatch.setattr(tensors, "_torch", lambda: np)
    scores, clicks, exposure = np.zeros(3), np.array([0, 1, 2]), np.array([0.0, 0.0, 1.0])
    with pytest.raises(PosbiasError, match="1 of 3 rows have clicks but no exposure"):
        tensors.poisson_loss(scores, clicks, exposure)
    assert tensors.poisson_loss(scores, clicks * (exposure > 0), exposure) == 1
    with pytest.raises(PosbiasError, match="clicks must be a tensor, not a list"):
        tensors.poisson_loss(scores, [0, 1, 2], exposure)


@pytest.mark.server
@pytest.mark.parametrize("groups", [[[1], [1, 2]], [5.0, 6.0], "ab", None, [2**63 - 1, 2**63 - 1, 13]])
def test_invalid_groups_raise(groups: Any, torch: Any) -> None:
    with pytest.raises(PosbiasError, match="groups must be the number of rows"):
        tensors.softmax_loss(torch.zeros(11), torch.tensor(WEIGHTS), groups)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_the_error_says_how_to_install_it() -> None:
    with pytest.raises(PosbiasError, match=r"need PyTorch, which is not installed.*pip install torch"):
        tensors.softmax_loss(SCORES, WEIGHTS, GROUPS)
