"""What one step of a model keeps alive, computes and moves, found without computing it: on fake tensors.

Fake tensors have a shape and a type and no memory (torch.FakeTensorMode). The step is the trainer's: forward, backward,
gradients beside weights and momentum. In place of the loss stands the sum of the outputs; what the loss adds is in the
planner's constants.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

BLOCK_BYTES = 512
"""torch's allocator on CUDA rounds every request up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""
_CHANNELS = 3
BATCH = 1009
"""That is stepped with. A prime so large that nothing else of a model is a multiple of it: what is, grows with the
batch, and so one step tells the peak of any batch."""


@dataclass(frozen=True)
class Step:
    """One step, of whatever batch.

    Attributes:
        held_bytes: of the storages in the order in which they came and, below zero, went; of `BATCH` images.
        flops: floating point operations an image, a multiply-add counted as two.
        moved_bytes: an image; read and written by all operators that grow with the batch, as if none were fused.
        kernels: number of operators that are no views.
    """

    held_bytes: tuple[int, ...]
    flops: float
    moved_bytes: float
    kernels: int

    def peak_bytes(self, batch: int) -> int:
        """Alive at the same time, at most."""
        alive = peak = 0
        for size in self.held_bytes:
            held = _in_blocks(abs(size) // BATCH * batch if size % BATCH == 0 else abs(size))
            alive += held if size > 0 else -held
            peak = max(peak, alive)
        return peak


class _Ledger(TorchDispatchMode):
    """Adds up the storages that are alive, and what each operator reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = self.kernels = self.flops = 0
        self.held: list[int] = []
        self._seen: dict[int, int] = {}

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen[key] = storage.nbytes()
        self.held.append(storage.nbytes())
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.held.append(-self._seen.pop(key, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        written = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        for tensor in written:
            self.hold(tensor)
        if not func.is_view:
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            sizes = [tensor.numel() * tensor.element_size() for tensor in (*read, *written)]
            self.moved += sum(size for size in sizes if size % BATCH == 0)
            self.kernels += 1
            # FlopCounterMode adds up the same, but takes a third of the time to know which module it is in.
            if (count := flop_registry.get(func.overloadpacket)) is not None:
                self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out


def training_step(module: torch.nn.Module, *, imgsz: int, amp: bool) -> Step:
    """Forward and backward, with gradients, momentum and weights alive.

    Args:
        module: on any device; it is left as it is.
        imgsz: side of the square input, pixels.
        amp: 16-bit autocast, as Ultralytics trains on a GPU; else 32 bit throughout.
    """
    with _fake(module) as fake:
        fake.train()
        momentum = [torch.empty_like(p) for p in fake.parameters() if p.requires_grad]
        ledger = _Ledger()
        for tensor in (*fake.parameters(), *fake.buffers(), *momentum):
            ledger.hold(tensor)
        with ledger:
            images = torch.empty(BATCH, _CHANNELS, imgsz, imgsz)
            predicted = torch.zeros(())
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                outputs = _forward(fake, images)
            for out in outputs:
                if out.is_floating_point() and out.requires_grad:
                    predicted = predicted + out.float().sum()
            del outputs, out
            predicted.backward()
        del momentum
    return _step(ledger)


def validation_step(module: torch.nn.Module, *, imgsz: int) -> Step:
    """Forward in evaluation mode, 16 bit and without gradients, as Ultralytics validates on a GPU."""
    with _fake(module, torch.bfloat16) as fake, torch.no_grad():
        fake.eval()
        ledger = _Ledger()
        for tensor in (*fake.parameters(), *fake.buffers()):
            ledger.hold(tensor)
        with ledger:
            _forward(fake, torch.empty(BATCH, _CHANNELS, imgsz, imgsz, dtype=torch.bfloat16))
    return _step(ledger)


def _step(ledger: _Ledger) -> Step:
    return Step(tuple(ledger.held), ledger.flops / BATCH, ledger.moved / BATCH, ledger.kernels)


def _in_blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _forward(module: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    # RT-DETR's own forward wants targets; what it does with the images alone is its predict.
    predict: Any = module.predict
    return [leaf for leaf in tree_leaves(predict(images)) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _fake(module: torch.nn.Module, dtype: torch.dtype = torch.float32) -> Iterator[torch.nn.Module]:
    """The module with fake parameters and buffers of that type, in the mode in which these can be used."""
    # What the module has besides (strides, anchors) stays real, and may meet fake tensors.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        memo = {id(tensor): _empty(tensor, dtype) for tensor in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(module, memo)
    # A head reads its strides as numbers, which a fake tensor does not have.
    for layer in copied.modules():
        if isinstance(strides := getattr(layer, "stride", None), torch.Tensor):
            layer.stride = [float(stride) for stride in strides]  # type: ignore[assignment]
    with mode:
        yield copied


def _empty(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    made = torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made
