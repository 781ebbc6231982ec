"""A module whose parameters, gradients and floating-point buffers are views of flat vectors."""

from itertools import accumulate

import torch
from torch import Tensor, nn

from raybcgd.model.blocks import BlockLayout


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
        self.gradient, trained = torch.zeros_like(self.vector), torch.zeros_like(self.vector)
        self._entries = [entry for layer in layout.order for entry in layer.entries]
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        values, gradients, mask = self.named(self.vector), self.named(self.gradient), self.named(trained)
        for entry in self._entries:
            tensor = tensors[entry.name]
            tensor.data = values[entry.name].copy_(tensor.data)
            if entry.trained:
                tensor.grad = gradients[entry.name]
                mask[entry.name].fill_(1)
        self.trained: Tensor | None = None if bool(trained.all()) else trained
        """1 for parameters, 0 for buffers. None: there are no buffers."""
        ends = list(accumulate((entry.size for entry in self._entries), initial=0))
        self.places = {entry.name: slice(*ends[k : k + 2]) for k, entry in enumerate(self._entries)}
        """Where each parameter and buffer is in the vector."""
        self._integer_buffers = {name: b.clone() for name, b in module.named_buffers() if not b.is_floating_point()}

    def reset_integer_buffers(self) -> None:
        """Reset integer buffers such as `num_batches_tracked`.

        They are not in the flat vector, and a client's result must not depend on previously trained clients.
        """
        for name, value in self._integer_buffers.items():
            self.module.get_buffer(name).copy_(value)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector under the names of the module's `state_dict`.

        The views come from one split, so the backward pass is one concatenation. Convolution weights are in
        channels_last order, for fast kernels.
        """
        views = {}
        pieces = torch.split(vector, [entry.size for entry in self._entries])
        for entry, piece in zip(self._entries, pieces, strict=True):
            if len(entry.shape) == 4:
                out, channels, height, width = entry.shape
                views[entry.name] = piece.view(out, height, width, channels).permute(0, 3, 1, 2)
            else:
                views[entry.name] = piece.view(entry.shape)
        return views
