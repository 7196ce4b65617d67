"""What real ranks do in tests/runtime/test_ranks.py: each function runs on every rank, and returns what is to check."""

import os
import signal
import time
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import shardwise as sw
from shardwise.calls import flat_outputs
from shardwise.dtensor import arrived, begin_along, record_collectives
from shardwise.expansion import Choice
from shardwise.forms import Group, call_in_group, run_alone
from shardwise.graph import capture
from shardwise.mesh import Mesh
from shardwise.planning import random_plan
from shardwise.rules import rows_besides
from shardwise.running import transfer_parcels
from shardwise.verification import priced_collectives
from tests.forms.cases import CALLS, call_of


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(10, 18)
        self.down = nn.Linear(18, 6)
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)

    def forward(self, x, target):
        return ((self.down(self.up(x).relu()) * self.scale - target) ** 2).mean()


class Places(nn.Module):
    """A model with integers that nobody fills again: its modules fill their own weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 6)
        self.register_buffer("places", torch.arange(8))

    def forward(self, x):
        return (self.table(self.places) * x).sum()


def example():
    torch.manual_seed(0)
    return MLP(), (torch.randn(8, 10), torch.randn(8, 6))


def error(check):
    """The message of the mistake that `check` makes."""
    try:
        check()
    except sw.UsageError as mistake:
        return str(mistake)
    return ""


def run(folder, seed):
    """Everything that one start of the processes can show."""
    return {
        "training": training(folder, seed),
        "arguments": arguments(seed),
        "checkpoint": checkpoint(folder, seed),
        "deferred": deferred(seed),
        "loaded": loaded(folder, seed),
        "transfer": transfers(),
        "elsewhere": elsewhere(),
        "shard_map": mapped(),
        "overlap": overlap(),
        "homes": homes(folder),
        "rows": rows_that_communicate(),
        "faults": faults(seed),
    }


def rows_that_communicate():
    """What this rank has of the results of every call of the table, by each of its rows."""
    mesh = Mesh.parse("a=4")
    device_mesh, rank, found = init_device_mesh("cpu", mesh.shape), dist.get_rank(), {}
    for name in CALLS:
        call = call_of(name)
        made = call.outputs
        for row in rows_besides(call):
            choice = Choice(mesh, (row,))
            held = [choice.held(call, call.shapes, made, member) for member in range(mesh.ranks)]
            layouts = zip(call.tensors, choice.input_layouts, strict=True)
            local = call.with_tensors([layout.piece(tensor, rank) for tensor, layout in layouts])
            run = call_in_group(row.local, local, Group(rank, held, begin_along(device_mesh, (0,))))
            found[name, row.text] = flat_outputs(run_alone(run, arrived))
    return found


def planned(model, args, mesh, seed):
    return random_plan(capture(model, args), mesh=mesh, seed=seed)


def training(folder, seed):
    """Three steps of AdamW with clipping, beside the model itself."""
    model, args = example()
    if dist.get_rank():  # the first rank's weights count
        with torch.no_grad():
            model.up.weight.zero_()
    plan = planned(model, args, "dp=2,tp=2", seed)
    sharded = sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan)
    twin, _ = example()
    ours = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        with record_collectives() as seen:
            loss = sharded(*args)
            loss.backward()
        expected = twin(*args)
        expected.backward()
        norm = nn.utils.clip_grad_norm_(sharded.parameters(), 0.5).full_tensor()
        losses.append(
            (
                loss.full_tensor().item(),
                expected.item(),
                norm.item(),
                nn.utils.clip_grad_norm_(twin.parameters(), 0.5).item(),
            )
        )
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(sharded.named_parameters(), twin.named_parameters(), strict=True)
    apart = {name: (p.full_tensor() - q).abs().max().item() for (name, p), (_, q) in pairs}
    dcp.save({"model": sharded.state_dict()}, checkpoint_id=f"{folder}/step")
    return {
        "losses": losses,
        "names": [name for name, _ in sharded.named_parameters()],
        "state": sorted(sharded.state_dict()),
        "apart": apart,
        "types": {type(p.data).__name__ for p in sharded.parameters()}
        | {type(b).__name__ for b in sharded.buffers()},
        "sent": [(c.kind, c.ranks) for c in seen.collectives],
        "bytes": [c.size for c in seen.collectives],
        "priced": [(c.kind, c.ranks) for c in priced_collectives(plan)],
        "priced bytes": [c.size for c in priced_collectives(plan)],
        "program": str(sharded.program),
    }


def arguments(seed):
    """The same loss from whole arguments, from pieces of them and from DTensors."""
    model, args = example()
    plan = planned(model, args, "dp=2,tp=2", seed)
    sharded = sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan)
    layouts = [plan.inputs[entry.name] for entry in plan.graph.with_role("user_input")]
    pieces = [layout.split(arg)[dist.get_rank()].clone() for layout, arg in zip(layouts, args, strict=True)]
    mesh = sharded.device_mesh
    tensors = [DTensor.from_local(arg, mesh, [Replicate()] * 2) for arg in args]
    losses = [sharded(*given).full_tensor().item() for given in (args, pieces, tensors)]
    local = sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan, local_outputs=True)
    return [*losses, local(*args).item(), model(*args).item()]


def checkpoint(folder, seed):
    """What was saved on 2x2, loaded on 4."""
    model, args = example()
    sharded = sw.parallelize(model, args, mesh="d=4", plan=planned(model, args, "d=4", seed + 1))
    before = sharded.up.weight.full_tensor().clone()
    dcp.load({"model": sharded.state_dict()}, checkpoint_id=f"{folder}/step")
    after = {name: tensor.full_tensor() for name, tensor in sharded.state_dict().items()}
    loss = sharded(*args).full_tensor().item()
    return {"changed": bool((before != after["up.weight"]).any()), "state": after, "loss": loss}


def deferred(seed):
    """Weights drawn only now: the same on every mesh."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10, 18), nn.ReLU(), nn.Linear(18, 6))
        args = (torch.empty(8, 10),)
    drawn = []
    for mesh in ("dp=2,tp=2", "d=4"):
        sharded = sw.parallelize(model, args, mesh=mesh, plan=planned(model, args, mesh, seed), seed=3)
        drawn.append([parameter.full_tensor() for parameter in sharded.parameters()])
    same = all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
    bare = MLP().to("meta")
    bare_args = tuple(arg.to("meta") for arg in example()[1])
    plan = planned(bare, bare_args, "d=4", seed)
    places, x = Places().to("meta"), (torch.empty(8, 6, device="meta"),)
    theirs, _ = example()
    some = sw.parallelize(bare if dist.get_rank() else theirs, bare_args, mesh="d=4", plan=plan)
    return {
        "same": same,
        "spread": drawn[0][0].std().item(),
        "missing": error(lambda: sw.parallelize(bare, bare_args, mesh="d=4", plan=plan)),
        "missing integers": error(
            lambda: sw.parallelize(places, x, mesh="d=4", plan=planned(places, x, "d=4", seed))
        ),
        "empty": list(sw.parallelize(bare, bare_args, mesh="d=4", plan=plan, init="empty").scale.shape),
        "received": all(
            torch.equal(tensor.full_tensor(), dict(theirs.named_parameters())[name])
            for name, tensor in some.named_parameters()
        ),
    }


def loaded(folder, seed):
    """A model on the meta device whose weights are read from checkpoints, and written again."""
    theirs, args = example()
    sharded = sw.parallelize(theirs, args, mesh="dp=2,tp=2", plan=planned(theirs, args, "dp=2,tp=2", seed))
    sw.save_checkpoint(sharded, f"{folder}/saved", rename=lambda name: f"model.{name}", file_bytes=800)
    dcp.save(sharded.state_dict(), checkpoint_id=f"{folder}/by_torch")
    bare = MLP().to("meta")
    bare.scale = theirs.scale
    plan = planned(bare, args, "d=4", seed)

    def parallelized(name, **options):
        return sw.parallelize(bare, args, mesh="d=4", plan=plan, checkpoint=f"{folder}/{name}", **options)

    def same(model):
        state = theirs.state_dict()
        return all(torch.equal(t.full_tensor(), state[name]) for name, t in model.state_dict().items())

    return {
        "same": same(parallelized("saved", rename=lambda name: f"model.{name}")),
        "same by a table": same(
            parallelized("saved", rename={name: f"model.{name}" for name in theirs.state_dict()})
        ),
        "same by torch": same(parallelized("by_torch")),
        "missing": error(lambda: parallelized("saved")),
        "no checkpoint": error(lambda: parallelized("nowhere")),
    }


def transfers():
    """From mesh to mesh: other shapes, fewer ranks, other ranks, overlapping ones."""
    square, line = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), init_device_mesh("cpu", (4,))
    low, high = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    middle = DeviceMesh("cpu", [1, 2, 3])
    tensor = torch.arange(14.0 * 9).reshape(14, 9)
    cases = [
        (square, [Shard(0), Shard(1)], line, [Shard(0)]),
        (line, [Shard(1)], square, [Replicate(), Shard(0)]),
        (low, [Shard(0)], high, [Shard(1)]),
        (low, [Replicate()], high, [Replicate()]),
        (low, [Shard(1)], middle, [Shard(0)]),
        (line, [Replicate()], middle, [Shard(1)]),
        (square, [Shard(0), Shard(0)], DeviceMesh("cpu", [3]), [Replicate()]),
    ]
    right = []
    for source, placed, target, wanted in cases:
        before = sw.transfer(_placed(tensor, line, [Replicate()]), source, placed)
        after = sw.transfer(before, target, wanted)
        mine = after.device_mesh.get_coordinate() is None or torch.equal(
            after.to_local(), _piece(tensor, target, wanted)
        )
        right.append(bool(mine) and tuple(after.shape) == tuple(tensor.shape))
    big = _placed(torch.arange(64.0 * 64).reshape(64, 64), low, [Replicate()])
    senders = {p.sender for p in transfer_parcels(big, high, [Shard(0)])}
    summed = sw.transfer(DTensor.from_local(tensor, line, [Partial()]), line, "R").to_local()
    piece = _placed(torch.arange(64.0 * 64).reshape(64, 64), square, [Shard(0), Shard(1)])
    with Largest() as seen:
        sw.transfer(piece, line, [Shard(1)])
    state = sw.transfer({"w": _placed(tensor, line, [Shard(0)]), "step": 3}, square, {"w": "R, S(1)"})
    return {
        "right": right,
        "senders": sorted(senders),
        "summed": torch.equal(summed, 4 * tensor),
        "largest": seen.elements,
        "state": [state["step"], torch.equal(state["w"].full_tensor(), tensor)],
    }


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        sizes = (tensor.untyped_storage().nbytes() // tensor.itemsize for tensor in made)
        self.elements = max(self.elements, *sizes, 0)
        return result


def elsewhere():
    """A loader on two ranks, a model on four, results on the last one."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), torch.rand(8, 6)
    loader = DeviceMesh("cpu", [0, 1], mesh_dim_names=("loader",))
    places = {
        "input": sw.Elsewhere("loader=2", "S(0)", ranks=(0, 1)),
        "output:*": sw.Elsewhere("results=1", "R", ranks=(3,)),
    }
    plan = sw.plan(model, (x,), mesh="dp=2,tp=2", training=False, elsewhere=places, confirm=False)
    sharded = sw.parallelize(model, (x,), plan=plan)
    line = init_device_mesh("cpu", (4,))
    given = sw.transfer(_placed(x, line, [Replicate()]), loader, "S(0)")
    made = sharded(given)
    right = dist.get_rank() != 3 or torch.allclose(made.to_local(), model(x), atol=1e-6)
    return {
        "right": right,
        "ranks": made.device_mesh.mesh.tolist(),
        "transfer": plan.cost.communication["transfer"],
    }


def _piece(tensor, mesh, placements):
    layout = sw.layout.Layout(sw.Mesh.from_device_mesh(mesh), tuple(placements))
    ranks = mesh.mesh.flatten().tolist()
    return layout.piece(tensor, ranks.index(dist.get_rank()))


def _placed(tensor, mesh, placements):
    member = mesh.get_coordinate() is not None
    local = _piece(tensor, mesh, placements).contiguous() if member else tensor.new_empty(0)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def mapped():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(0)
    a, b = torch.randn(6, 8), torch.randn(8, 5, requires_grad=True)
    function = sw.shard_map(torch.matmul, mesh=mesh, in_specs=["S(0), S(1)", "R, S(0)"], out_specs="S(0), R")
    result = function(a, b)
    (result.to_local() ** 2).sum().backward()
    whole = result.full_tensor()
    b_whole = b.detach().clone().requires_grad_()
    ((a @ b_whole) ** 2).sum().backward()  # each rank differentiates its part of this sum
    return {
        "apart": (whole - a @ b).abs().max().item(),
        "layout": [str(p) for p in result.placements],
        "planned": len(function._plans),
        "gradient apart": ((b.grad - b_whole.grad).abs().max() / b_whole.grad.abs().max()).item(),
    }


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))

    def forward(self, x):
        return self.layers(x).sum()


class Events(TorchDispatchMode):
    """When matrix products begin and end, when gathers are begun and when what they bring can be used."""

    def __init__(self, hold) -> None:
        super().__init__()
        self.hold, self.seen = hold, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = next((n for n in ("all_gather_into_tensor", "wait_tensor", "mm") if n in str(function)), None)
        if name == "all_gather_into_tensor":
            self.hold(sum(event[0] == name for event in self.seen))
        begun = time.monotonic()
        result = function(*args, **(kwargs or {}))
        if name is not None:
            self.seen.append((name, begun, time.monotonic()))
        if name == "mm":
            self.store_end()
        return result

    def store_end(self):
        if sum(event[0] == "mm" for event in self.seen) == 1:
            dist.distributed_c10d._get_default_store().set(f"first product on {dist.get_rank()}", b"")


def overlap():
    """The first rank begins the second gather when the others have computed their first product, which they can only if
    they do not wait for the gather that they have begun before it."""
    torch.manual_seed(0)
    model, args = Stack(), (torch.randn(4, 8),)
    mesh = "d=4"
    pins = {"*.weight": "S(0)", "x": "S(0)"} | {f"mm{n}": "S(0)" for n in ("", "_1", "_2")}
    plan = sw.plan(model, args, mesh=mesh, pin=pins, compare=False, confirm=False)
    plain, sharded = (
        sw.parallelize(model, args, mesh=mesh, plan=replace(plan, ahead=ahead, bound=None))
        for ahead in (None, 10**6)
    )
    store = dist.distributed_c10d._get_default_store()

    def hold(gathers):
        if dist.get_rank() == 0 and gathers == 1:
            store.wait([f"first product on {rank}" for rank in range(1, 4)])

    expected = plain(*args)
    expected.backward()
    dist.barrier()
    with Events(hold) as events, torch.no_grad():
        sharded(*args)
    loss = sharded(*args)
    loss.backward()
    grads = [[p.grad.full_tensor() for p in each.parameters()] for each in (plain, sharded)]
    return {
        "events": events.seen,
        "losses": [loss.full_tensor().item(), expected.full_tensor().item()],
        "apart": max((a - b).abs().max().item() for a, b in zip(*grads, strict=True)),
    }


def homes(folder):
    """Steps of three passes with parameters held whole and states sharded, or on the host, beside the model itself:
    AdamW, one tensor at a time, by lists and fused; clipping; checkpoints of torch; a step of fewer passes; and
    mistakes."""
    model, args = example()
    given = [tuple(arg.roll(number, -1) for arg in args) for number in range(3)]
    plan = random_plan(capture(model, args), mesh="dp=2,tp=2", seed=5, micro_batches=3, offload=True)
    seen = {"moves": (len(plan.once.gathers), len(plan.once.reductions), len(plan.on_host))}
    seen["moves"] += (len(plan.homes) - len(plan.on_host),)
    for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        sharded, twin = sw.parallelize(model, args, plan=plan), example()[0]
        ours = torch.optim.AdamW(sharded.parameters(), lr=1e-2, **how)
        theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, **how)
        for passes in (3, 2, 3):
            for each in given[:passes]:
                sharded(*each).backward()
                twin(*each).backward()
            sharded.reduce_gradients()
            for trained, optimizer in ((sharded, ours), (twin, theirs)):
                nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        pairs = zip(sharded.parameters(), twin.parameters(), strict=True)
        seen[next(iter(how)), next(iter(how.values()))] = [
            (p.full_tensor() - q).abs().max().item() for p, q in pairs
        ]
    seen["states"] = {str(state["exp_avg"].placements) for state in ours.state.values()}
    seen["parameters"] = {str(parameter.placements) for parameter in sharded.parameters()}
    with torch.no_grad():
        before = sharded(*args).full_tensor().item()
        options = {"model": sharded.state_dict(), "optimizer": get_optimizer_state_dict(sharded, ours)}
        dcp.save(options, checkpoint_id=f"{folder}/homes")
        for parameter in sharded.parameters():
            parameter.zero_()
        seen["changed"] = sharded(*args).full_tensor().item() != before
        dcp.load(options, checkpoint_id=f"{folder}/homes")
        seen["loaded"] = sharded(*args).full_tensor().item() - before
    sharded(*args).backward()
    with torch.no_grad():
        next(p for name, p in sharded.named_parameters() if name in plan_targets(plan)).mul_(2)
    seen["too early"] = error(lambda: sharded(*args))
    sharded.zero_grad()
    sharded(*args)
    return seen


def plan_targets(plan):
    """The parameters of a plan that have homes, by their names in the model."""
    return {entry.target for entry in plan.graph.inputs if entry.name in plan.homes}


def faults(seed):
    """Mistakes that every rank must be told of."""
    import shardwise.running._parallelize as room

    model, args = example()
    plan = planned(model, args, "dp=2,tp=2", seed)
    other = nn.Sequential(nn.Linear(10, 18))
    sharded = sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan)
    found = {
        "mesh": error(lambda: sw.parallelize(model, args, mesh="dp=2,tp=4", plan=plan)),
        "plan": error(lambda: sw.parallelize(other, args[:1], mesh="dp=2,tp=2", plan=plan)),
        "plan mesh": error(lambda: sw.parallelize(model, args, mesh="d=4", plan=plan)),
        "shape": error(lambda: sharded(args[0][:4], args[1])),
        "dtype": error(lambda: sharded(args[0].double(), args[1])),
        "form": error(lambda: sharded(*args, 1)),
    }
    bare, bare_args = MLP().to("meta"), tuple(arg.to("meta") for arg in args)

    def fill(module):
        if dist.get_rank() == 1:
            raise ValueError("no weights today")
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.zero_()

    half = DeviceMesh("cpu", [0, 1])
    if dist.get_rank() < 2:
        found["half"] = error(lambda: sw.parallelize(model, args, mesh=half, plan=plan))
        found["half mapped"] = error(lambda: sw.shard_map(torch.sin, mesh=half, in_specs=["S(0)"])(args[0]))
    specs = ["S(0), R", "R, R"]
    found["mapped"] = error(lambda: sw.shard_map(torch.sin, mesh="dp=2,tp=2", in_specs=specs)(args[0]))
    found["later"] = later(sharded, args)
    found["drawing"] = error(lambda: sw.parallelize(bare, bare_args, mesh="dp=2,tp=2", plan=plan, init=fill))
    found["options"] = error(lambda: sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan, memory="1GB"))
    found["init"] = error(lambda: sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan, init="zeros"))
    lower = room.emit
    if dist.get_rank() == 2:

        def broken(*_, **__):
            raise MemoryError("no room")

        room.emit = broken
    found["lowering"] = error(lambda: sw.parallelize(model, args, mesh="dp=2,tp=2", plan=plan))
    room.emit = lower
    return found


def later(sharded, args):
    """What is said of an error in a step that follows a handled mistake."""

    def broken(*_):
        raise RuntimeError("out of memory")

    sharded._step._forward.forward = broken
    try:
        sharded(*args)
    except RuntimeError as problem:
        return f"{type(problem).__name__}: {problem}"
    except sw.UsageError as mistake:
        return f"UsageError: {mistake}"
    finally:
        del sharded._step._forward.forward


def one_rank_stops(seed):
    """One rank is given another shape; the others are already waiting for it."""
    model, args = example()
    sharded = sw.parallelize(model, args, mesh="dp=2,tp=2", plan=planned(model, args, "dp=2,tp=2", seed))
    sharded(*args)
    sharded(args[0][: 4 if dist.get_rank() == 1 else 8], args[1])


def one_rank_raises():
    """The last one waits for it, and sees no more than that it is gone."""
    if dist.get_rank() == 0:
        raise ArithmeticError("the first error")
    dist.recv(torch.empty(1), 0)


def one_rank_is_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def compiled(seed, backend):
    """What the program gives as it is, with collectives beside calls, and compiled, without these and with them, and
    with parameters that are held otherwise than at home through a step of two passes: again and again, in training and
    in evaluation."""
    model, args = example()
    plan = planned(model, args, "d=2", seed)
    overlapped = replace(plan, ahead=10**6)
    homed = random_plan(capture(model, args), mesh="d=2", seed=1, micro_batches=2, zero=True)
    assert homed.once.gathers and homed.once.reductions
    seen = []
    ways = ((plan, False), (overlapped, False), (plan, backend), (overlapped, backend), (homed, backend))
    for each, how in ways:
        sharded = sw.parallelize(model, args, mesh="d=2", plan=each, compile=how)
        for _ in range(2):
            loss = sharded(*args)
            loss.backward()
        with torch.no_grad():
            again = sharded(*args)
        grads = [parameter.grad.full_tensor().abs().sum().item() for parameter in sharded.parameters()]
        seen.append([loss.full_tensor().item(), again.full_tensor().item(), *grads])
    return seen
