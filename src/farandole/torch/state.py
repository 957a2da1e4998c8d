"""The same start on all ranks: parameters and optimizer state of one rank to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from farandole.bridge.objects import allgather_object, broadcast_object
from farandole.bridge.ops import Handle, Members
from farandole.torch.autograd import TorchOps


def broadcast_parameters(
    ops: TorchOps,
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor | tuple[str, torch.Tensor]],
    root_rank: int = 0,
    process_set: Members = None,
) -> None:
    """Overwrite tensors in place with those of rank `root_rank`.

    params: `model.state_dict()`, `model.named_parameters()` or a list of tensors; the same names, shapes and
    dtypes
        on all ranks. ValueError for anything that is not a tensor.
    """
    if isinstance(params, Mapping):
        named: list[tuple[str, Any]] = sorted(params.items())
    else:
        named = [item if isinstance(item, tuple) else (f"parameter.{i}", item) for i, item in enumerate(params)]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"broadcast_parameters: {name} is a {type(tensor).__name__}, expected a tensor")
    handles = [ops.broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in named]
    for handle in handles:
        handle.wait()


@dataclass(frozen=True, slots=True)
class _TensorAt:
    """In a message: here is tensor number `index`, which follows separately."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


def broadcast_optimizer_state(
    ops: TorchOps, optimizer: torch.optim.Optimizer, root_rank: int = 0, process_set: Members = None
) -> None:
    """Make the state and the options (learning rate ...) of an optimizer those of rank `root_rank`.

    Works for every optimizer whose state is made of tensors and picklable values, also where some ranks have
    no state yet; nothing is stepped and nothing changes on the root. The optimizers must hold the same
    parameters in the same groups; else ValueError on all ranks.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    layout = [len(group["params"]) for group in optimizer.param_groups]
    tensors: list[torch.Tensor] = []
    message = None
    am_root = ops.world.rank == root_rank
    if am_root:
        index = {id(p): i for i, p in enumerate(parameters)}
        state = {
            index[id(key)] if isinstance(key, torch.Tensor) else key: _pack(value, tensors)
            for key, value in optimizer.state.items()
        }
        options = [
            {key: _pack(value, tensors) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        message = (layout, state, options)
    root_layout, state, options = broadcast_object(ops, message, root_rank, "optimizer_state", process_set)
    layouts = allgather_object(ops, layout, "optimizer_state.layout", process_set)
    if any(other != root_layout for other in layouts):
        raise ValueError(
            "broadcast_optimizer_state: the optimizers hold different parameters; numbers of parameters "
            f"in each group, by rank: {layouts}"
        )
    if not am_root:
        places: dict[int, _TensorAt] = {}
        _collect(state, places)
        _collect(options, places)
        tensors = [torch.empty(places[i].shape, dtype=places[i].dtype) for i in range(len(places))]
    handles: list[Handle[torch.Tensor]] = [
        # The root's own tensors are only read.
        (ops.broadcast_async if am_root else ops.broadcast_async_)(
            tensor.detach(), root_rank, f"optimizer_state.{i}", process_set
        )
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if am_root:
        return
    optimizer.state.clear()
    for key, value in state.items():
        parameter = parameters[key] if isinstance(key, int) else None
        device = parameter.device if parameter is not None else torch.device("cpu")
        optimizer.state[parameter if parameter is not None else key] = _unpack(value, tensors, device)
    for group, values in zip(optimizer.param_groups, options, strict=True):
        for key in group.keys() - values.keys() - {"params"}:
            del group[key]
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        group.update({key: _unpack(value, tensors, device) for key, value in values.items()})


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with its tensors moved to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorAt(len(tensors) - 1, tuple(value.shape), value.dtype, value.is_cpu)
    if isinstance(value, Mapping):
        return {key: _pack(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_pack(item, tensors) for item in value)
    return value


def _collect(value: Any, places: dict[int, _TensorAt]) -> None:
    if isinstance(value, _TensorAt):
        places[value.index] = value
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, places)
    elif type(value) in (list, tuple):
        for item in value:
            _collect(item, places)


def _unpack(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Undo `_pack`: tensors that were on the root's host stay on the host, others go to `device`."""
    if isinstance(value, _TensorAt):
        tensor = tensors[value.index]
        return tensor if value.on_host else tensor.to(device)
    if isinstance(value, dict):
        return {key: _unpack(item, tensors, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_unpack(item, tensors, device) for item in value)
    return value
