"""PyTorch's answers for a case of the losses, by the writing that the benchmark times too."""

import numpy as np
import torch
import torch_reference
from loss_cases import EPS, HEAD_DIM, HEADS, KV_HEADS, THETA, state, text
from loss_parity import Case


def answers(case: Case) -> dict[str, np.ndarray]:
    """The loss, the agreement by draft step, and the gradient of every weight under `gradient/`, made in float64."""
    params = {name: torch.from_numpy(value).double().requires_grad_() for name, value in state(case).items()}
    given = {name: torch.from_numpy(value) for name, value in text(case).items()}
    given |= {name: value.double() for name, value in given.items() if value.is_floating_point()}
    taps, drafted = tuple(given.pop("taps")), given.pop("drafted")
    given["tokens"] = given["tokens"].long()
    read = torch_reference.Text(**given, taps=taps, drafted=drafted if case.entries["drafted"] else None)
    sizes = torch_reference.Sizes(HEADS, KV_HEADS, HEAD_DIM, EPS, THETA, norm_output=case.entries["norms"])
    value, agreement = torch_reference.loss(params, sizes, read, **case.objective)
    value.backward()
    gradients = {f"gradient/{name}": part.grad.float().numpy() for name, part in params.items()}
    return {"loss": value.detach().numpy(), "agreement": agreement.numpy(), **gradients}
