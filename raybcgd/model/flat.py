"""A module whose parameters, gradients and floating-point buffers are views of flat vectors."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from raybcgd.model.blocks import BlockLayout
from raybcgd.model.layers import Entry


def _view(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View a slice of a flat vector as a tensor; convolution weights in channels_last order, for fast kernels."""
    if len(shape) == 4:
        out, channels, height, width = shape
        return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(shape)


class FlatModel:
    """A module stored in one flat vector: writing to the vector changes the parameters, and vice versa.

    `vector` holds parameters and floating-point buffers, `gradient` their gradients (zero for buffers). Both have
    length d and are ordered by block, with the shared block last. Buffers are uploaded and averaged like parameters;
    only gradient steps skip them, using the mask `trained`.
    """

    def __init__(self, module: nn.Module, layout: BlockLayout, dtype: torch.dtype, device: torch.device) -> None:
        self.module = module.to(device=device, dtype=dtype)
        self.layout = layout
        self.vector = torch.empty(layout.size, dtype=dtype, device=device)
        self.gradient = torch.zeros(layout.size, dtype=dtype, device=device)
        parameters = dict(module.named_parameters())
        trained = torch.zeros(layout.size, dtype=dtype, device=device)
        for entry, span in self._spans():
            view = _view(self.vector[span], entry.shape)
            if entry.trained:
                parameter = parameters[entry.name]
                view.copy_(parameter.data)
                parameter.data = view
                parameter.grad = _view(self.gradient[span], entry.shape)
                trained[span] = 1
            else:
                path, _, name = entry.name.rpartition(".")
                owner = module.get_submodule(path)
                view.copy_(owner.get_buffer(name))
                owner._buffers[name] = view
        self.trained: Tensor | None = None if bool(trained.all()) else trained
        """1 for parameters, 0 for buffers. None: there are no buffers."""
        self._integer_buffers = {name: b.clone() for name, b in module.named_buffers() if not b.is_floating_point()}

    def reset_integer_buffers(self) -> None:
        """Reset integer buffers such as `num_batches_tracked`.

        They are not in the flat vector, and a client's result must not depend on the clients trained here before it.
        """
        for name, value in self._integer_buffers.items():
            self.module.get_buffer(name).copy_(value)

    def _spans(self) -> Iterator[tuple[Entry, slice]]:
        start = 0
        for layer in self.layout.order:
            for entry in layer.entries:
                yield entry, slice(start, start + entry.size)
                start += entry.size

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector under the names of the module's `state_dict`."""
        return {entry.name: _view(vector[span], entry.shape) for entry, span in self._spans()}

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the same as `named` by one differentiable split; its backward pass is one concatenation."""
        entries = [entry for entry, _ in self._spans()]
        pieces = torch.split(vector, [entry.size for entry in entries])
        return {entry.name: _view(piece, entry.shape) for entry, piece in zip(entries, pieces, strict=True)}
