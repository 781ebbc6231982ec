"""A module whose parameters, gradients and floating buffers are views of flat vectors, in the order of a layout."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from raybcgd.model.blocks import BlockLayout, Entry


def _view(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of `shape` on a run of a flat vector.

    Convolution weights lie in channels_last order, which is what the fast kernels want to read.
    """
    if len(shape) == 4:
        out, channels, height, width = shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(shape)


class FlatModel:
    """A module on one flat vector: writing the vector writes the parameters, and the other way round.

    `vector` holds parameters and floating buffers, `gradient` their gradients (zero on buffers), both of length d
    and ordered block after block with the shared block last. Buffers take part like parameters do: they are uploaded
    and averaged; only a gradient step leaves them alone, for which there is `trained`.
    """

    def __init__(self, module: nn.Module, layout: BlockLayout, dtype: torch.dtype, device: torch.device) -> None:
        self.module = module.to(device=device, dtype=dtype)
        self.layout = layout
        self.vector = torch.empty(layout.size, dtype=dtype, device=device)
        self.gradient = torch.zeros(layout.size, dtype=dtype, device=device)
        self.has_convolutions = any(
            isinstance(child, nn.modules.conv._ConvNd) and child.weight.dim() == 4 for child in module.modules()
        )
        parameters = dict(module.named_parameters())
        trained = torch.zeros(layout.size, dtype=dtype, device=device)
        for entry, run in self._runs():
            view = _view(self.vector[run], entry.shape)
            if entry.trained:
                parameter = parameters[entry.name]
                view.copy_(parameter.data)
                parameter.data = view
                parameter.grad = _view(self.gradient[run], entry.shape)
                trained[run] = 1
            else:
                path, _, name = entry.name.rpartition(".")
                owner = module.get_submodule(path)
                view.copy_(owner.get_buffer(name))
                owner._buffers[name] = view
        self.trained: Tensor | None = None if bool(trained.all()) else trained
        """1 on parameters and 0 on buffers; None when there are no buffers."""
        self._counts = {name: b.clone() for name, b in module.named_buffers() if not b.is_floating_point()}

    def forget_counts(self) -> None:
        """Put buffers that are not floating back, such as the batches that a batch norm has seen.

        They do not travel, and what a client computes must not depend on who was trained here before it.
        """
        for name, value in self._counts.items():
            self.module.get_buffer(name).copy_(value)

    def _runs(self) -> Iterator[tuple[Entry, slice]]:
        start = 0
        for layer in self.layout.order:
            for entry in layer.entries:
                yield entry, slice(start, start + entry.size)
                start += entry.size

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector as named tensors, the names being those of the module's `state_dict`."""
        return {entry.name: _view(vector[run], entry.shape) for entry, run in self._runs()}

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Like `named`, by one differentiable split, whose backward pass is one concatenation."""
        entries = [entry for entry, _ in self._runs()]
        pieces = torch.split(vector, [entry.size for entry in entries])
        return {entry.name: _view(piece, entry.shape) for entry, piece in zip(entries, pieces, strict=True)}

    def flatten(self, state: dict[str, Tensor]) -> Tensor:
        """The flat vector of a `state_dict` of this module."""
        vector = torch.empty_like(self.vector)
        for entry, run in self._runs():
            _view(vector[run], entry.shape).copy_(state[entry.name])
        return vector
