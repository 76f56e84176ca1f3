"""The recipes' optimiser: Adam for embeddings and norms, orthogonalised momentum for matrices.

A matrix's update is its momentum with all singular values brought near one (Muon, Jordan et al. 2024:
five Newton-Schulz steps of a quintic); a three-dimensional tensor is a batch of matrices. The whole state
is a dictionary of tensors, so a checkpoint is a safetensors file.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETAS = (0.9, 0.98)
MOMENTUM = 0.95
DECAY = 0.02
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's coefficients: steepest at zero, stays within about [0.7, 1.2]


def orthogonal(update: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bring the singular values of a matrix (or a batch, [..., m, n]) near one, computing in `dtype`."""
    wide = update.shape[-2] <= update.shape[-1]
    x = update if wide else update.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    a, b, c = QUINTIC
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(update.dtype)


def tables(model: torch.nn.Module) -> set[str]:
    """Names of the weights that are looked up by row: embeddings, T5's position bias, the head, offsets."""
    names = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, torch.nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    names |= {n for n, p in model.named_parameters() if head is not None and p is head.weight}
    return names | {n for n, _ in model.named_parameters() if n.rpartition(".")[2] == "offset"}


class Optimizer:
    """Updates the parameters of `model` in place.

    Parameters
    ----------
    model : torch.nn.Module
    matrix_rate, rate : float
        Peak learning rates of the matrices (in units of an orthogonal update's root mean square) and
        of everything else (Adam).
    """

    def __init__(
        self, model: torch.nn.Module, matrix_rate: float, rate: float, dtype: torch.dtype = torch.float32
    ) -> None:
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.matrix_rate, self.rate, self.dtype = matrix_rate, rate, dtype
        looked_up = tables(model)
        self.matrices = [n for n, p in self.parameters.items() if p.ndim > 1 and n not in looked_up]
        self.others = [n for n in self.parameters if n not in self.matrices]
        shapes = {self.parameters[n].shape for n in self.matrices}
        self.groups = [[n for n in self.matrices if self.parameters[n].shape == s] for s in shapes]
        self.steps = 0
        self.state = {f"m.{n}": torch.zeros_like(p) for n, p in self.parameters.items()}
        self.state |= {f"v.{n}": torch.zeros_like(self.parameters[n]) for n in self.others}

    def _gradient(self, name: str) -> Tensor:
        grad = self.parameters[name].grad
        assert grad is not None, f"{name} has no gradient"
        return grad

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Make one update at `scale` times the peak rates, and clear the gradients."""
        self.steps += 1
        for names in self.groups:  # stack matrices of one shape: few large products instead of many small
            updates = []
            for n in names:
                grad, m = self._gradient(n), self.state[f"m.{n}"]
                m.mul_(MOMENTUM).add_(grad, alpha=1 - MOMENTUM)
                updates.append(grad.lerp(m, MOMENTUM))
            rows, columns = updates[0].shape[-2:]
            size = self.matrix_rate * scale * 0.2 * max(rows, columns) ** 0.5
            for n, u in zip(names, orthogonal(torch.stack(updates), dtype=self.dtype).unbind()):
                self.parameters[n].mul_(1 - DECAY * self.matrix_rate * scale).add_(u, alpha=-size)
        for n in self.others:
            p, m, v, grad = self.parameters[n], self.state[f"m.{n}"], self.state[f"v.{n}"], self._gradient(n)
            m.lerp_(grad, 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            size = self.rate * scale / (1 - BETAS[0] ** self.steps)
            p.addcdiv_(m, (v / (1 - BETAS[1] ** self.steps)).sqrt_().add_(1e-8), value=-size)
        for p in self.parameters.values():
            p.grad = None
