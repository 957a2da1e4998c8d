"""DistributedOptimizer: gradients are averaged over the ranks while backward still runs.

The life of a gradient. Parameters are divided into static buckets (`bridge.gradients.plan_buckets`), vectors
in registered memory with one *slot* per parameter. When autograd has written `p.grad`, our hook copies it
into its slot while it is hot in the cache and makes `p.grad` a view of the slot. With the last gradient of a
bucket the bucket is handed to the engine, which reduces it in place, and `step()` waits: no copy in, no copy
out.

Behind the slots each bucket carries two flags per member, reduced with it: whether any rank had a dense, and
whether any had a sparse gradient. So a parameter that no rank used keeps `grad=None`, and sparse gradients
are exchanged only when there are some, without a message of their own.

Where `p.grad` cannot be a view of the slot (parameters on a device, compression), the reduced values are
copied back.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from farandole.bridge.gradients import Bucket, Item, Readiness, plan_buckets
from farandole.bridge.ops import Average, Handle, Members, number, op_name
from farandole.torch.autograd import TorchOps
from farandole.torch.compression import CastCompressor, Compressor, NoneCompressor
from farandole.torch.tensors import ADAPTER, registered

if TYPE_CHECKING:
    from farandole.world import Handle as Pending

O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741 - an optimizer

_FLAGS: Final = 2  # per member of a bucket: dense, sparse
_ALIGNMENT: Final = 64  # bytes, of slots

# Which reducer serves a parameter: weak references. Not an attribute, which would be pickled with the model.
_owners: MutableMapping[torch.Tensor, Callable[[], _Reducer | None]] = WeakTensorKeyDictionary()
_owners_lock = threading.Lock()


@dataclass(slots=True)
class _Member:
    """One parameter in its bucket."""

    index: int
    parameter: torch.Tensor
    slot: torch.Tensor | None  # shape and strides of the parameter; None: travels as sparse only
    used: bool = False  # has a gradient in this step on this rank
    left: torch.Tensor | None = None  # what we left in p.grad when we took it
    version: int = 0  # of `left`, where that is not the slot

    def sparse(self) -> bool:
        """Whether this rank's gradient travels as indices and values."""
        return self.left is not None and (self.slot is None or self.left.is_sparse)


@dataclass(slots=True)
class _Wire:
    """One bucket's memory and its request in flight."""

    name: str
    memory: torch.Tensor  # slots, then flags
    flags: torch.Tensor  # (members, _FLAGS)
    all_dense: torch.Tensor  # what flags are when every member has a dense gradient
    members: list[_Member]
    shared: bool  # p.grad is the slot
    pending: list[Pending] = field(default_factory=list)
    version: int = 0  # of memory when it was sent
    cast: torch.Tensor | None = None  # registered memory in the dtype of the wire
    arrived: tuple[torch.Tensor, object] | None = None  # with compression: what comes back, and its context

    def payload(self) -> torch.Tensor:
        """The slots without the flags."""
        return self.memory[: self.memory.numel() - self.flags.numel()]


class _Reducer:
    """Buckets, hooks and requests of one DistributedOptimizer. Any thread may call it, as autograd does."""

    def __init__(
        self,
        ops: TorchOps,
        named: list[tuple[str, torch.Tensor]],
        *,
        compression: type[Compressor],
        passes: int,
        op: str,
        predivide: float,
        process_set: Members,
        bucket_bytes: int | None,
        sparse_as_dense: bool,
    ) -> None:
        self.ops = ops
        self.world = ops.world
        self.process_set = ops.members(process_set)
        self.compression = compression
        self.op = op
        self.prescale, self.postscale = 1.0 / predivide, predivide
        self.sparse_as_dense = sparse_as_dense
        self.wait_seconds = 0.0
        self.should_synchronize = True
        self._synchronized = False  # nothing has arrived since synchronize()
        self._closed = ""
        config = self.world.config
        self._bucket_bytes = config.bucket_bytes if bucket_bytes is None else bucket_bytes
        self._first_bytes = min(config.first_bucket_bytes, self._bucket_bytes)
        self._passes = passes
        self._id = number(self.world, self.process_set.id)
        self._plans = 0
        self._lock = threading.RLock()
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._hooks: list[Any] = []
        self.step_hooks: list[Any] = []
        self._sparse: set[int] = set()
        self._plan: tuple[Bucket, ...] = ()
        self._wires: list[_Wire] = []
        self._home: dict[int, tuple[_Member, _Wire]] = {}
        self._readiness = Readiness((), passes)
        self._layouts: Handle[torch.Tensor] | None = None
        self._order: Handle[torch.Tensor] | None = None
        self._ordered = True  # by rank 0's order of readiness
        weakref.finalize(self, _remove, self._hooks)
        self.adopt(named)

    # ---- the plan ------------------------------------------------------------------------------------------

    def adopt(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """Serve these parameters, too."""
        with self._lock:
            if not named:
                return
            if self._readiness.began:
                raise RuntimeError("parameters cannot be added between backward() and step()")
            reference = weakref.ref(self)
            for name, parameter in named:
                with _owners_lock:
                    former = _owners.get(parameter, _nobody)()
                    _owners[parameter] = reference
                if former is not None and former is not self:
                    former.close(f"parameter {name} was given to a newer DistributedOptimizer")
                index = len(self._parameters)
                register: Any = parameter.register_post_accumulate_grad_hook
                self._names.append(name)
                self._parameters.append(parameter)
                self._hooks.append(register(_hook(reference, index)))
            # Backward produces gradients in about the reverse order of registration.
            self._build(list(reversed(range(len(self._parameters)))))
            self._announce()

    def close(self, reason: str) -> None:
        """Serve nobody any more; `synchronize` raises with the reason."""
        with self._lock:
            _remove(self._hooks)
            self._closed = reason

    def _build(self, order: list[int]) -> None:
        """Build the buckets for this order; gradients that lie in old slots move to the new ones."""
        items = [
            Item(
                name,
                0 if i in self._sparse else p.numel() * p.dtype.itemsize,
                f"{ADAPTER.dtype(p)} on {p.device.type}",
            )
            for i, (name, p) in enumerate(zip(self._names, self._parameters, strict=True))
        ]
        plan = plan_buckets(items, order, first_bytes=self._first_bytes, bucket_bytes=self._bucket_bytes)
        if plan == self._plan:
            return
        former = self._home
        self._plan = plan
        self._plans += 1
        self._wires = [self._wire(position, bucket) for position, bucket in enumerate(plan)]
        self._home = {member.index: (member, wire) for wire in self._wires for member in wire.members}
        self._readiness = Readiness(plan, self._passes)
        for index, (old, _) in former.items():
            new = self._home[index][0]
            if old.slot is not None and old.parameter.grad is old.slot:
                old.parameter.grad = old.slot.clone() if new.slot is None else new.slot.copy_(old.slot)

    def _wire(self, position: int, bucket: Bucket) -> _Wire:
        parameters = [self._parameters[i] for i in bucket.members]
        dtype = parameters[0].dtype
        line = _ALIGNMENT // dtype.itemsize
        begins = [0]
        for i, p in zip(bucket.members, parameters, strict=True):
            size = 0 if i in self._sparse else p.numel()
            begins.append(begins[-1] + -(-size // line) * line)
        count = len(parameters)
        memory = registered(self.world, begins[-1] + _FLAGS * count, dtype)
        members = [
            _Member(i, p, None if i in self._sparse else _slot(memory[begin:], p))
            for i, p, begin in zip(bucket.members, parameters, begins[:-1], strict=True)
        ]
        more = f" and {count - 1} more" if count > 1 else ""
        return _Wire(
            name=f"gradients.{self._id}.{self._plans}.{position}: {self._names[bucket.members[0]]}{more}",
            memory=memory,
            flags=memory[begins[-1] :].view(count, _FLAGS),
            all_dense=torch.tensor([[1, 0]] * count, dtype=dtype),
            members=members,
            shared=issubclass(self.compression, NoneCompressor) and parameters[0].is_cpu,
        )

    def _announce(self) -> None:
        """Tell the ranks what these parameters look like; `_compare` waits for their answers."""
        mine = "".join(f"{p.dtype}{tuple(p.shape)}{_strides(p)}" for p in self._parameters)
        digest = torch.tensor([zlib.crc32(mine.encode())])
        name = f"gradients.{self._id}.{self._plans}.layout"
        self._layouts = self.ops.allgather_async(digest, name, self.process_set)
        self._order = None
        self._ordered = False

    def _compare(self) -> None:
        """Before the first step: are the parameters of all ranks alike, also in memory?"""
        if self._layouts is None:
            return
        handle, self._layouts = self._layouts, None
        digests = handle.wait().tolist()
        if len(set(digests)) > 1:
            odd = [r for r, d in zip(self.process_set.ranks, digests, strict=True) if d != digests[0]]
            raise ValueError(
                f"the parameters on rank(s) {odd} differ in dtype, shape or memory format from those on rank "
                f"{self.process_set.ranks[0]}: build the same model, in the same memory format, on all ranks"
            )

    def _reorder(self) -> None:
        """Ask for rank 0's order of readiness at the end of the first step, use it at the end of the second.

        Nobody waits for it in the first, so that ranks may step several optimizers in different orders.
        """
        if self._ordered:
            return
        if self._order is None:
            planned = [i for bucket in self._plan for i in bucket.members]
            mine = torch.tensor(list(dict.fromkeys([*self._readiness.order, *planned])))
            name = f"gradients.{self._id}.{self._plans}.order"
            root = self.process_set.ranks[0]
            self._order = self.ops.broadcast_async(mine, root, name, self.process_set)
            return
        order, self._order = self._order.wait().tolist(), None
        self._ordered = True
        self._build(order)

    # ---- during backward -----------------------------------------------------------------------------------

    def arrived(self, index: int) -> None:
        """Autograd has written the gradient of parameter `index`. Called without grad mode."""
        with self._lock:
            self._synchronized = False
            member, wire = self._home[index]
            if self._readiness.full(index) and member.parameter.grad is not member.left:
                # This step's gradients were thrown away behind our zero_grad(): a new step begins.
                self._drain()
            complete = self._readiness.arrive(index)
            if wire.shared or self._readiness.full(index):
                self._take(member, wire)
            if complete is not None:
                self._send(self._wires[complete])

    def _take(self, member: _Member, wire: _Wire) -> None:
        """Put the gradient of a parameter into its slot; zeros, where it has none."""
        parameter, slot = member.parameter, member.slot
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse and self.sparse_as_dense:
            gradient = parameter.grad = gradient.to_dense()
        member.used = gradient is not None
        if slot is not None and (gradient is None or gradient.is_sparse):
            slot.zero_()
        elif slot is not None and gradient is not None and gradient is not slot:
            slot.copy_(gradient)
            if wire.shared:
                gradient = parameter.grad = slot
        member.left = gradient
        if gradient is not None and gradient is not slot:
            member.version = gradient._version

    def _send(self, wire: _Wire) -> None:
        """Hand a bucket, whose gradients are in their slots, to the engine."""
        rows = [(m.used and not m.sparse(), m.sparse()) for m in wire.members]
        wire.flags.copy_(wire.all_dense if all(dense for dense, _ in rows) else torch.tensor(rows))
        wire.version = wire.memory._version
        source = wire.memory
        if issubclass(self.compression, CastCompressor):
            small, context = self.compression.compress(wire.memory)
            if small is not wire.memory:
                if wire.cast is None:
                    wire.cast = registered(self.world, small.numel(), small.dtype)
                source = wire.cast.copy_(small)
            wire.arrived = (source, context)
        elif not issubclass(self.compression, NoneCompressor):
            # Who knows what it does to values: flags travel apart.
            small, context = self.compression.compress(wire.payload())
            source = ADAPTER.host(small)
            wire.arrived = (source, context)
            wire.pending.append(self._submit(f"{wire.name} flags", wire.flags.view(-1)))
        wire.pending.append(self._submit(wire.name, source))

    def _submit(self, name: str, source: torch.Tensor) -> Pending:
        address = source.data_ptr()
        return self.world.submit(
            "allreduce",
            name=name,
            process_set=self.process_set,
            dtype=ADAPTER.dtype(source),
            op=self.op,
            shape=tuple(source.shape),
            prescale=self.prescale,
            postscale=self.postscale,
            input=address,
            output=address,
            keep=source,
        )

    # ---- the end of a step ---------------------------------------------------------------------------------

    def before_step(self) -> None:
        """What must have happened when the wrapped optimizer steps."""
        if self.should_synchronize:
            self.synchronize()
        elif self._readiness.final_pass_began:
            raise RuntimeError("step() inside skip_synchronize(): call synchronize() first")

    def after_step(self) -> None:
        """The next step reduces again, even when no gradient arrives before it."""
        self._synchronized = False

    @torch.no_grad()
    def synchronize(self) -> None:
        """Reduce what is not reduced yet and wait. Does nothing when no gradient came since the last time."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"this DistributedOptimizer was replaced: {self._closed}")
            if self._synchronized:
                return
            try:
                for position in self._readiness.send_rest():
                    wire = self._wires[position]
                    for member in wire.members:
                        self._take(member, wire)
                    self._send(wire)
                self._compare()
                sparse: list[tuple[_Member, _Wire, bool]] = []
                for wire in self._wait():
                    sparse.extend(self._give(wire))
                for member, wire, dense_too in sparse:
                    self._give_sparse(member, wire, dense_too)
                newly_sparse = {member.index for member, _, _ in sparse} - self._sparse
                self._sparse |= newly_sparse
                if newly_sparse:
                    self._build([i for bucket in self._plan for i in bucket.members])
                self._reorder()
            finally:
                self._begin()
            self._synchronized = True

    def discard(self) -> None:
        """Forget this step's gradients. Requests in flight are waited for, and their results not used."""
        with self._lock:
            self._synchronized = False
            if self._readiness.final_pass_began and not self._closed:
                self._drain()
            else:
                self._begin()

    def _begin(self) -> None:
        self._readiness.begin()
        for member, _ in self._home.values():
            member.left = None  # else it would keep a gradient's memory

    def _drain(self) -> None:
        # Other ranks may have sent buckets that this one has not: complete them all.
        try:
            for position in self._readiness.send_rest():
                self._send(self._wires[position])
            self._wait()
        finally:
            self._begin()

    def _wait(self) -> list[_Wire]:
        """Wait for all buckets in flight, and return them. Raises the first error after all have ended."""
        sent = [wire for wire in self._wires if wire.pending]
        first: Exception | None = None
        begin = time.perf_counter()
        for wire in sent:
            pendings, wire.pending = wire.pending, []
            for pending in pendings:
                try:
                    pending.wait()
                except Exception as error:
                    first = first or error
        self.wait_seconds += time.perf_counter() - begin
        if first is not None:
            raise first
        return sent

    def _give(self, wire: _Wire) -> list[tuple[_Member, _Wire, bool]]:
        """Make the reduced values the gradients. Returns members with sparse parts, and whether dense too."""
        if wire.memory._version != wire.version:
            raise RuntimeError(_MODIFIED)
        if wire.arrived is not None:
            (small, context), wire.arrived = wire.arrived, None
            if small is not wire.memory:
                large = self.compression.decompress(small, context)
                wire.memory[: large.numel()].copy_(large.view(-1))
        sparse: list[tuple[_Member, _Wire, bool]] = []
        for member, (dense_flag, sparse_flag) in zip(wire.members, wire.flags.tolist(), strict=True):
            parameter, slot, left = member.parameter, member.slot, member.left
            gradient = parameter.grad
            if gradient is None and member.used:
                continue  # thrown away since backward
            own = gradient is not None and gradient is not slot
            if gradient is not left or (own and left is not None and left._version != member.version):
                raise RuntimeError(_MODIFIED)
            if sparse_flag != 0:
                sparse.append((member, wire, dense_flag != 0))
            elif dense_flag == 0 or slot is None:
                continue  # no rank has one
            elif wire.shared:
                parameter.grad = slot
            elif gradient is None:
                parameter.grad = torch.empty_like(parameter).copy_(slot)
            else:
                gradient.copy_(slot)
        return sparse

    def _give_sparse(self, member: _Member, wire: _Wire, dense_too: bool) -> None:
        """Exchange indices and values of a gradient that is sparse on some rank."""
        parameter = member.parameter
        mine = member.left if member.sparse() else None
        if mine is None:
            mine = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64),
                torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype),
                parameter.shape,
                check_invariants=False,
            )
        elif not mine.is_sparse or mine.sparse_dim() != 1:
            mine = mine.to_dense().to_sparse(1)
        name = f"{wire.name}.{member.index}"
        indices = self.ops.allgather(mine._indices()[0].cpu(), f"{name}.indices", self.process_set)
        values = self.ops.allgather(mine._values().cpu(), f"{name}.values", self.process_set)
        if self.op == "average":
            values /= self.process_set.size()
        total = torch.sparse_coo_tensor(indices[None], values, parameter.shape, check_invariants=False)
        if dense_too and member.slot is not None:
            total = total.to_dense() + member.slot
        parameter.grad = total.to(parameter.device)


_MODIFIED: Final = (
    "a gradient was changed while its reduction was running: call optimizer.synchronize() after backward() "
    "and before clipping, unscaling or replacing gradients"
)


def _plain(wrapped: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    return wrapped.__new__(wrapped)


def _nobody() -> None:
    return None


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


def _hook(reference: weakref.ref[_Reducer], index: int) -> Callable[[torch.Tensor], None]:
    def arrived(parameter: torch.Tensor) -> None:
        reducer = reference()
        if reducer is None:
            return
        if torch.is_grad_enabled():  # backward with create_graph
            with torch.no_grad():
                reducer.arrived(index)
        else:
            reducer.arrived(index)

    return arrived


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides of a dense tensor of the same shape and memory format."""
    return torch.empty_like(parameter, device="meta").stride()


def _slot(memory: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    return memory.as_strided(parameter.shape, _strides(parameter))


# ---- the face ------------------------------------------------------------------------------------


class _Methods(torch.optim.Optimizer):
    """What a distributed optimizer adds to, or changes in, the class of the optimizer it wraps."""

    _farandole: _Reducer | None

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; then they may be clipped or unscaled before `step()`.

        All ranks call it equally often. `step()` calls it, unless nothing has arrived since the last time.
        """
        if self._farandole is not None:
            self._farandole.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step()` does not synchronize; for scripts that have called `synchronize()` themselves."""
        reducer = self._farandole
        if reducer is None:
            yield
            return
        reducer.should_synchronize = False
        try:
            yield
        finally:
            reducer.should_synchronize = True

    @property
    def communication_wait_seconds(self) -> float:
        """Seconds this process has been blocked in `synchronize()` and `step()`, waiting for the ranks, in
        all.
        """
        return 0.0 if self._farandole is None else self._farandole.wait_seconds

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in the wrapped class. Gradients not yet used by `step()` are forgotten on all ranks."""
        if self._farandole is not None:
            self._farandole.discard()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in the wrapped class; on all ranks, and not between backward and step."""
        super().add_param_group(param_group)
        if self._farandole is not None:
            group = len(self.param_groups) - 1
            self._farandole.adopt(
                [(f"group.{group}.{i}", p) for i, p in enumerate(self.param_groups[group]["params"]) if p.requires_grad]
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies and pickles are plain optimizers of the wrapped class: hooks and worlds do not travel.
        return _plain, (type(self).__mro__[2],), self.__getstate__()


def distributed_optimizer(
    ops: TorchOps,
    optimizer: O,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int | str = Average,
    gradient_predivide_factor: float = 1.0,
    process_set: Members = None,
    bucket_bytes: int | None = None,
    sparse_as_dense: bool = False,
) -> O:
    """See `farandole.torch.DistributedOptimizer`."""
    op_text = op_name(op)
    if op_text not in ("average", "sum"):
        raise ValueError(f"DistributedOptimizer: op is {op_text}, expected Average or Sum")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step must be positive, not {backward_passes_per_step}")
    if gradient_predivide_factor <= 0:
        raise ValueError(f"gradient_predivide_factor must be positive, not {gradient_predivide_factor}")
    if gradient_predivide_factor != 1.0 and op_text != "average":
        raise ValueError("gradient_predivide_factor needs op=Average")
    if isinstance(optimizer, _Methods):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    named = _named(optimizer, named_parameters)
    members = ops.members(process_set)
    wrapped = type(optimizer)
    kind = type(wrapped.__name__, (_Methods, wrapped), {"__module__": wrapped.__module__, "__doc__": wrapped.__doc__})
    kind.__qualname__ = wrapped.__qualname__
    result: O = object.__new__(kind)
    # One set of attributes: what is done to one (options, state, hooks, a scheduler) is done to both.
    result.__dict__ = optimizer.__dict__
    former = optimizer.__dict__.get("_farandole")
    if former is not None:
        former.close("its optimizer was wrapped again")
        _remove(former.step_hooks)
    reducer = None
    if members.included() and members.size() > 1:
        reducer = _Reducer(
            ops,
            named,
            compression=compression,
            passes=backward_passes_per_step,
            op=op_text,
            predivide=gradient_predivide_factor,
            process_set=process_set,
            bucket_bytes=bucket_bytes,
            sparse_as_dense=sparse_as_dense,
        )
        reducer.step_hooks = [
            optimizer.register_step_pre_hook(_before_step(reducer)),
            optimizer.register_step_post_hook(lambda *_: reducer.after_step()),
        ]
    result.__dict__["_farandole"] = reducer
    # A scheduler made before holds the wrapped optimizer weakly.
    result.__dict__["_farandole_wrapped"] = optimizer
    return result


def _before_step(reducer: _Reducer) -> Callable[..., Any]:
    """A step hook, not an override: it also runs when a scheduler has replaced `step` on the instance."""

    def hook(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            reducer.before_step()
            return None

        def closure_and_synchronize() -> Any:
            loss = closure()
            reducer.before_step()
            return loss

        if len(args) > 1:
            return (args[0], closure_and_synchronize, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_and_synchronize}

    return hook


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """The optimizer's parameters that need gradients, named, in its order. ValueError for unfit names."""
    parameters = {
        id(p): (f"group.{g}.{i}", p)
        for g, group in enumerate(optimizer.param_groups)
        for i, p in enumerate(group["params"])
    }
    if named_parameters is not None:
        given = list(named_parameters)
        if any(not isinstance(item, tuple) or len(item) != 2 for item in given):
            raise ValueError("named_parameters must be pairs (name, parameter), like model.named_parameters()")
        names = [name for name, _ in given]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"named_parameters has names more than once: {', '.join(twice)}")
        by_id = {id(p): name for name, p in given}
        missing = [name for key, (name, _) in parameters.items() if key not in by_id]
        if missing:
            examples = ", ".join(missing[:5])
            raise ValueError(f"named_parameters lacks {len(missing)} of the optimizer's parameters: {examples}")
        parameters = {key: (by_id[key], p) for key, (_, p) in parameters.items()}
    return [(name, p) for name, p in parameters.values() if p.requires_grad]
