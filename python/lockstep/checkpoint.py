"""Checkpoint: the training state after every step, in memory that outlives the process.

What forward and the script may write (buffers, RNG, cursors) is copied in step(). What only an optimizer writes (its parameters and
its state) is copied by a thread beside the next forward and backward pass; the optimizer's next step waits for the end of that copy.
Of a small state step() copies that, too: so the step is complete when it ends, and a crash a moment later costs none.
docs/formats/board.md says how the bytes lie.
"""
import atexit
import bisect
import collections.abc
import contextlib
import functools
import itertools
import operator
import os
import pickle
import struct
import types

from . import _client

__all__ = ["Checkpoint", "CheckpointError"]

# The first saves are copied inside step(): so a script that writes parameters behind its optimizer's back is found out before a
# copy of it can be torn.
_TRIAL_SAVES = 2
_SMALL = 8 << 20  # bytes that the optimizers of a rank write: a millisecond
_STEPS = 1 << 63  # where the numbers of the board end
_LONG = 64 << 20  # bytes of a pickle that is not read back for a trial, for want of memory
_RNG = "random number generators"  # the holder that every checkpoint has


def __getattr__(name):  # torch is imported by whoever takes a checkpoint, not by whoever imports this
    if name == "CheckpointError":
        from ._tensors import CheckpointError

        return CheckpointError
    raise AttributeError(f"module 'lockstep.checkpoint' has no attribute {name!r}")


class Checkpoint:
    """Saves `state` after each step() and brings it back with restore(). All calls do nothing when Lockstep did not launch the script.

    state: {name: module | optimizer | tensor | torch.Generator | object with state_dict() and load_state_dict() | dict | list}. Such objects that are in
    a dict or list come back in place too, each by its state_dict() alone, as they do outside of one, and so do parameters; its plain values are new ones.
    The generators of torch, random and numpy are always included. every: save after each `every`-th step. lazy=False copies all in
    step(), for a script that writes parameters through `.data`, or sharded ones by torch._foreach_*, while training: neither can be noticed.
    Memory that a call frees while it is copied spoils that checkpoint and no more, if faulthandler.enable() came before the first step().
    replicas=True says that any rank's state is right for any other, though their tensors differ (running statistics of BatchNorm): then a
    world of another size (--nnodes MIN:MAX) goes on from it. Ranks whose tensors are all alike need not say so; never say it of sharded state.
    Raises CheckpointError when `state` can't be saved, or when a checkpoint does not fit it.
    """

    def __init__(self, state, every=1, lazy=True, replicas=False):
        self._client = _client.join()
        if self._client is None:
            return
        from . import _state
        from ._tensors import CheckpointError

        if not isinstance(state, collections.abc.Mapping):
            raise CheckpointError(f"state is a {type(state).__name__}, expected names for what is to be saved: Checkpoint({{'model': model}})")
        if not hasattr(every, "__index__") or every < 1:
            raise CheckpointError(f"every is {every!r}, expected a whole number of steps, at least 1")
        if _RNG in state:
            raise CheckpointError(f"{_RNG!r} is the name under which every checkpoint has the generators: give yours another")
        self._replicas = replicas
        if replicas:
            self._client.say_other_worlds(_client.REPLICA)
        self._every, self._lazy = int(every), lazy
        self._owned = set()  # ids of the parameters that a given optimizer writes
        self._holders = _state.holders_of(state, self._owned)
        self._containers = [holder for holder in self._holders.values() if isinstance(holder, _state.PlainHolder)]
        self._ids = {name: id(value) for name, value in state.items()}  # of what each holder holds
        self._apart = self._holders.keys() - state.keys()  # names of those that are there for what a container has
        for name, item in (pair for container in self._containers for pair in container.apart.items() if pair[0] in self._apart):
            self._ids[name] = id(item)
        self._holders[_RNG] = _state.RngHolder(_RNG, None)
        self._plan = None
        self._fixed = {}  # holders of what has one form only, by name, until it has another than at restore()
        self._read_back = False  # whether a trial has
        self._simplified = set()  # names of what pickle could not take as it was
        self._saves, self._capacity = 0, 0
        self._token = None  # since it stepped
        self._newest, self._ahead = None, 0  # the script's number of the newest step, and what Lockstep's is larger by
        self._watched = None  # (tensors, versions, wholes) that must not change until the optimizer runs
        self._watch_optimizers()
        self._watch_modules()
        atexit.register(self._client.save_wait)  # the tensors die at exit, and the copy must not outlive them

    def restore(self, reshape=None):
        """Loads what the job resumes from, in place. Returns the last finished step, as step() got it, or -1 to begin at the beginning.

        reshape(written): called instead of loading where a world of another size wrote the checkpoint, which is then one on disk. It fills the
        script's state with its rank's part; `written` (lockstep._written.Written) has all tensors of all ranks, and what each rank gave. With it,
        sharded state goes on in a world of another size. The generators are seeded anew.
        """
        if self._client is None:
            return -1
        if reshape is not None and not self._replicas:
            self._client.say_other_worlds(_client.CUT)
        self._fixed = {name: holder for name, holder in self._holders.items() if hasattr(holder, "expect")}
        for holder in self._fixed.values():
            holder.expect()
        result, step, meta, tensors = self._client.restore_point()
        if self._client.stepped_by is not None and result != _client.FRESH:
            self._refuse_to_step_back()
            return -1
        self._newest = step
        if result == _client.OK:
            self._newest = self._load(step, bytes(meta), tensors)
        elif result == _client.ON_DISK:
            self._newest = self._cut_anew(step, reshape)
        elif result != _client.FRESH:
            from ._tensors import CheckpointError

            raise CheckpointError(self._client.error())
        self._ahead, self._client.counted = step - self._newest, max(step, self._client.counted)
        self._client.loop_begin(step)
        return self._newest

    def step(self, i, loss=None):
        """Step `i` has just finished: tells Lockstep, and saves. Call it after optimizer.step(), where gradients don't matter. Where `i` begins anew with
        each epoch of the data, Lockstep counts on."""
        if self._client is None:
            return
        i = operator.index(i)
        if self._every is not None and self._saves == 0 and self._capacity == 0:
            self._reserve(i)
        if self._token is None or self._client.stepped_by is not self._token:
            self._take_over()
        number = self._count(i)
        self._client.step(number, loss)
        if self._every is not None and (number + 1) % self._every == 0:
            self._end_copy()  # a loop without optimizer.step() comes here first
            self._save(number)
        self._client.mark(_client.DATA)

    def _take_over(self):
        """From another, whose steps are over."""
        if self._token is not None:
            from ._tensors import CheckpointError

            raise CheckpointError("two Checkpoints take turns, and each overwrites what the other has saved: give all of it to one, Checkpoint({...})")
        before = self._client.stepped_by
        self._client.stepped_by = self._token = _Token(0 if before is None else before.ordinal + 1)

    def _refuse_to_step_back(self):
        """What the job resumed from may be overwritten by now, and other ranks are where this process has gone on to."""
        if self._token is not None:
            from ._tensors import CheckpointError

            raise CheckpointError("restore() after step(): what the job resumed from is older than that; end the process, and Lockstep starts it again "
                                  "from the newest checkpoint")
        _client.warn("restore() of a Checkpoint that is made after another one has stepped gives nothing back, for what the job resumed from is older: "
                     "the script begins this one's steps at their beginning. To go on from the newest checkpoint, end the process: Lockstep starts it again")

    def _count(self, i):
        """Lockstep's number of the script's step `i`, larger than that of any step before."""
        newest = self._client.counted
        if not -_STEPS < i < _STEPS - max(self._ahead, 0):
            from ._tensors import CheckpointError

            raise CheckpointError(f"step({i}): expected a number of steps from 0 on, of at most 63 bits")
        if i + self._ahead <= newest:
            if self._ahead == 0:
                why = f"comes after step {newest}" if newest >= 0 else "is below 0, where steps begin"
                _client.warn_once(f"step {i} {why}: Lockstep counts on, and calls it step {newest + 1}")
            self._ahead = newest + 1 - i
        self._newest, self._client.counted = i, i + self._ahead
        return self._client.counted

    # ---- saving ----

    def _save(self, step):
        meta, tensors = self._capture()
        if not self._make_room(len(meta)):
            return
        result = self._client.save_begin(step, meta)
        if result == _client.OK:
            result = self._plan.add_all(self._client)
        beside = self._lazy and self._plan.lazy_size() > _SMALL
        if result == _client.OK:
            result = self._client.save_submit() if beside and self._saves >= _TRIAL_SAVES else self._client.save_here()
        if result == _client.REFUSED:
            self._stop_saving()
        if result != _client.OK:
            return
        self._saves += 1
        self._watched = self._versions(tensors) if beside else None

    def _reserve(self, i):
        """Before the first step is reported: where the buffers don't fit, the script ends now, when nothing is lost yet."""
        from . import _shared

        self._tell_unrestored(i)
        meta, tensors = self._capture()
        self._check_parameters(tensors)
        _shared.tell(self._living(), [(holder, name) for holder, _, name, _, _ in self._names()], tensors)
        if not self._make_room(len(meta)):
            from ._tensors import CheckpointError

            why = self._client.error()
            another = "ulimit" in why or "vm." in why  # limit than that of Lockstep's
            remedy = "" if another else "; give more with `lockstep run --checkpoint-memory`"
            raise CheckpointError(f"{why}{remedy}, or run without Checkpoint")

    def _tell_unrestored(self, i):
        """A script that has gone on by itself, from a file of its own, begins above what is there."""
        if self._newest is not None or self._client.stepped_by is not None or self._client.counted >= 0:
            return
        _, step, _, _ = self._client.restore_point()
        if step < 0 or i > step:
            return
        what = f"this script has not called restore() and begins at step {i}, though there is a checkpoint of step {step}"
        remedy = "Call restore() before the first step, and begin behind the step that it returns"
        if os.environ.get("LOCKSTEP_ON_TRIAL") == "1":
            from ._tensors import CheckpointError

            raise CheckpointError(f"{what}: a version on trial does not overwrite that. {remedy}")
        _client.warn_once(f"{what}: it overwrites that. {remedy}")

    def _check_parameters(self, tensors):
        """What an optimizer writes and nothing else has would begin anew under an optimizer that goes on."""
        from . import _tensors

        held = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()) for tensor in tensors)
        begins, ends = [begin for begin, _ in held], list(itertools.accumulate((end for _, end in held), max))

        def is_held(part):  # perhaps as a view into a larger one
            at = bisect.bisect_right(begins, part.data_ptr()) - 1
            return part.numel() == 0 or (at >= 0 and part.data_ptr() < ends[at])

        for holder in self._optimizer_holders():
            for number, parameter in enumerate(holder.parameters()):
                if not holder.writes(parameter) or all(is_held(part) for _, part in _tensors.parts(parameter)):
                    continue
                _client.warn(f"{holder.name!r} writes parameter {number}, {_tensors.Layout('', parameter, None)}, which nothing else in Checkpoint has: after a "
                             "restart it is as the script makes it, with the optimizer's state of later. Give Checkpoint the module, or the list, that it is "
                             "in, unless an object's state_dict() has a copy of it")
                break

    def _capture(self):
        from . import _plan

        stamps, tensors, rests = [], [], {}
        for name, holder in self._holders.items():
            if self._is_gone(name):
                stamps.append(None)
                continue
            stamp, some, rests[name] = holder.capture()
            stamps.append(stamp)
            tensors += some
        if self._token is not None and self._token.ordinal != 0:
            rests[_RNG]["ordinal"] = self._token.ordinal
        if self._ahead != 0:
            rests[_RNG]["step"] = self._newest
        if self._plan is None or stamps != self._plan.stamps or not self._plan.update(tensors):
            self._plan = _plan.Plan(stamps, self._names(), tensors)
        if self._plan.has_changed():
            self._tell_misfits()
        return self._plan.described() + self._pickle(rests), tensors

    def _tell_misfits(self):
        """What a restart would refuse is said when it begins, and not hours later."""
        for name in list(self._fixed):
            what = self._fixed[name].misfit()
            if what is not None:
                del self._fixed[name]
                _client.warn(f"{name!r} has changed since restore(): {what}. A restart will refuse this, and every later, checkpoint: make that change before "
                             "restore(), at every start")

    def _is_gone(self, name):
        """No dict or list has it any more: asked after those were captured, which come first."""
        return name in self._apart and not any(self._ids[name] in container.held for container in self._containers)

    def _living(self):
        return [holder for name, holder in self._holders.items() if not self._is_gone(name)]

    def _names(self):
        """(holder, number in the holder, tensor's name, place, lazy) of all tensors, in capture's order."""
        self._find_owned()  # a parameter group may have been added
        return [(holder.name, number, tensor, place, holder.lazy(number)) for holder in self._living()
                for number, (tensor, place) in enumerate(holder.names())]

    def _pickle(self, rests):
        for name in self._simplified & rests.keys():
            rests[name], _ = self._holders[name].simplified(rests[name])
        try:
            pickled = pickle.dumps(rests, protocol=4)
        except Exception:  # whatever a user's __reduce__ raises
            rests = {name: self._simplify(name, rest) for name, rest in rests.items()}
            pickled = pickle.dumps(rests, protocol=4)
        if not self._read_back or any([container.news for container in self._containers]):
            self._check_read_back(rests, pickled)
        return pickled

    def _check_read_back(self, rests, pickled):
        """A restart is too late to find out. Once, and where a dict or list has got an object of a new type."""
        from . import _containers, _holding, _tensors

        self._read_back = True
        if len(pickled) > _LONG:
            return
        try:
            pickle.loads(pickled)
        except (MemoryError, _holding.OUT_OF_MEMORY):  # a restart has the room
            return
        except Exception:  # whatever a class's own constructor raises
            for path, value, error in filter(None, (_containers.unreadable(rest, [name]) for name, rest in rests.items())):
                raise _tensors.CheckpointError(f"{_holding.name_of(path)} is a {type(value).__name__} that can be saved and not be loaded again ({error}): "
                                               "give it a __reduce__() that calls its class as it must be called, or keep plain values of it") from error

    def _simplify(self, name, rest):
        """What pickle takes instead of it, from now on. A training whose state has something that it can do without does not end for that."""
        from . import _containers, _tensors

        error = _containers.refusal(rest)
        if error is None:
            return rest
        rest, lost = self._holders[name].simplified(rest)
        still = _containers.refusal(rest)
        if still is not None:
            raise _tensors.CheckpointError(f"{name!r} can't be saved: {still}; its state must consist of tensors and values that pickle knows") from still
        self._simplified.add(name)
        _client.warn(f"{name!r} can't be saved as it is ({error}): {lost}")
        return rest

    def _make_room(self, meta_size):
        needed = self._plan.needed(meta_size)
        if needed > self._capacity:
            self._capacity = self._client.capacity()  # of an earlier epoch, perhaps: to make it larger is to copy what it holds
        if needed > self._capacity:
            wanted = needed + needed // 50 + 65536  # logs and cursors grow: not with every step a new buffer
            if self._client.buffers(wanted) != _client.OK:
                if self._saves > 0:
                    self._stop_saving()
                return False
            self._capacity = wanted
        return True

    def _stop_saving(self):
        self._every = None
        _client.warn(f"rank {self._client.rank} trains on without checkpoints: {self._client.error()}")

    # ---- the optimizers ----

    def _find_owned(self):
        self._owned.clear()
        for holder in self._optimizer_holders():
            self._owned.update(map(id, holder.parameters()))

    def _optimizer_holders(self):
        return [holder for holder in self._living() if hasattr(holder, "optimizer")]

    def _watch_optimizers(self):
        self._find_owned()
        for holder in self._optimizer_holders():
            before_every_step(holder.optimizer, self._before_optimizer_step)
            after_every_step(holder.optimizer, lambda: self._client.mark(_client.OTHER))

    def _watch_modules(self):
        """When forward begins and ends, for the record of the step. Of DistributedDataParallel only: nobody scripts that wrapper, as hooks
        on a model itself would forbid. Once, however many checkpoints hold it."""
        from torch.nn.parallel import DistributedDataParallel

        for holder in self._holders.values():
            module = getattr(holder, "module", None)
            if isinstance(module, DistributedDataParallel) and not any(isinstance(hook, _Mark) for hook in module._forward_hooks.values()):
                module.register_forward_pre_hook(_Mark(_client.FORWARD))
                module.register_forward_hook(_Mark(_client.BACKWARD))

    def _before_optimizer_step(self):
        if self._client.has_left:  # this hook is of a call before; an object that is older than both keeps it
            self._watched = self._plan = None
            return
        self._client.mark(_client.OPTIMIZER)
        if self._watched is not None:
            self._end_copy()

    def _end_copy(self):
        """The copy must still be of step(): the client compares what it copied, and torch counts what is written to a tensor. A write
        before the tensor's turn in the copy is seen by both, a later one by torch alone."""
        stale = self._client.save_wait() == _client.STALE
        moved = None if self._watched is None else self._plan.moved()
        written = self._written()
        self._watched = None
        if moved is None and written is None and not stale:
            return
        if not stale and self._saves > _TRIAL_SAVES:
            self._client.save_spoil()
        self._lazy = False
        if moved is not None:
            _client.warn(f"the memory of {moved} was replaced between step() and optimizer.step(), by share_memory(), a queue of torch.multiprocessing "
                         "or storage().resize_(): from now on step() itself copies everything")
        elif written is None:
            _client.warn("what step() was copying was written before optimizer.step(), by something that torch does not count (such as .data): "
                         "that checkpoint is thrown away, and from now on step() itself copies everything")
        else:
            _client.warn(f"{written} was written between step() and optimizer.step(), by something other than the optimizer: "
                         "from now on step() itself copies everything")

    def _versions(self, tensors):
        wholes = [pair for holder in self._living() if hasattr(holder, "wholes") for pair in holder.wholes()]
        watched = self._plan.lazy_ones(tensors) + [tensor for _, tensor in wholes]
        return watched, [tensor._version for tensor in watched], wholes

    def _written(self):
        """Name of a tensor under copy that was written since step(), by torch's count; None where there is none."""
        if self._watched is None:
            return None
        tensors, versions, wholes = self._watched
        now = [tensor._version for tensor in tensors]
        if now == versions:
            return None
        names = self._plan.lazy_names() + [name for name, _ in wholes]
        return next(name for name, a, b in zip(names, versions, now) if a != b)

    # ---- restoring ----

    def _load(self, step, meta, buffer):
        """Returns the script's number of the step."""
        from . import _tensors

        table, layout, rest = split_meta(meta)
        if layout.startswith(b"{"):  # no pickle: made by `lockstep checkpoint import`
            from . import _imported

            ordered = {name: self._holders[name] for name in sorted(self._holders, key=self._restore_order)}
            _imported.load(ordered, table, layout, buffer, _client.warn if self._client.rank == 0 else lambda text: None)
            return step
        entries, rests = pickle.loads(layout), _tensors.unpickled(rest, f"the checkpoint of step {step}")
        if rests.keys() != self._holders.keys() - (self._apart - rests.keys()):
            raise _tensors.CheckpointError(f"the checkpoint of step {step} holds {_listed(rests)}, but this script gives {_listed(self._holders)}: "
                                           "restore with the script that wrote it, or start the run afresh")
        layouts = [_tensors.Layout.from_tuple(values) for _, _, values in entries]
        gpu = self._gpu_of_parameters()
        for layout in layouts if gpu is not None else ():
            layout.index = gpu
        saved = {name: {} for name in rests}
        for (name, number, _), pair in zip(entries, _tensors.views(layouts, buffer)):
            saved[name][number] = pair
        for container in self._containers:
            container.restored = {self._ids[name] for name in rests if name != _RNG}
        for name in sorted(rests, key=self._restore_order):
            self._holders[name].restore([saved[name][number] for number in sorted(saved[name])], rests[name])
        if rests[_RNG].get("ordinal", 0) != 0:
            _client.warn_once(f"the checkpoint of step {step} was saved by a later Checkpoint than this script's first, which it is loaded into: a script that "
                              "trains in stages needs one Checkpoint of all stages, with the number of the stage in it")
        return rests[_RNG].get("step", step)

    def _gpu_of_parameters(self):
        """Its number, if there is one: this rank may have had another when it saved."""
        holders = self._holders.values()
        parameters = [one for holder in holders if hasattr(holder, "module") for one in holder.module.parameters()]
        parameters += [one for holder in self._optimizer_holders() for one in holder.parameters()]
        found = {one.device.index for one in parameters if one.device.type == "cuda"}
        return found.pop() if len(found) == 1 else None

    def _cut_anew(self, step, reshape):
        from . import _tensors, _written

        epoch, ranks = self._client.restore_on_disk()
        if reshape is None:
            raise _tensors.CheckpointError(f"the checkpoint of step {step} was written by {ranks} ranks, by a script that cuts its state anew for a world of "
                                           "another size: give restore(reshape=...) here too, or start with that many ranks")
        written = _written.open(step, epoch)
        reshape(written)
        rest = written.value(_RNG, self._client.rank % ranks)
        self._holders[_RNG].seed_anew(rest)
        return rest.get("step", step)

    def _restore_order(self, name):
        """Optimizers after the modules whose shapes are checked; RNG last, since loading may draw from it."""
        return name == _RNG, hasattr(self._holders[name], "optimizer")


class _Token:
    """Of a Checkpoint that has stepped: the client has it, and not the Checkpoint, which would outlive its function there."""

    __slots__ = ("ordinal",)

    def __init__(self, ordinal):
        self.ordinal = ordinal


class _Mark:
    """A hook that tells what the script is at from now on. A copy of its module, and one that was saved whole, has an idle one instead,
    made of the standard library alone: whoever loads it need not have Lockstep."""

    def __init__(self, part):
        import torch

        self._part = part
        # torch.compile of the wrapper leaves it out, for a call of C would break its graph.
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def __call__(self, *_):
        client = None if self._is_compiling() else _client.join()
        if client is not None:
            client.mark(self._part)

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")


def split_meta(meta):
    """(JSON table, pickled layout, pickled rest) of a slot's meta part."""
    parts = []
    for _ in range(2):
        size, = struct.unpack_from("<Q", meta)
        parts.append(meta[8 : 8 + size])
        meta = meta[8 + size :]
    return *parts, meta


def _listed(names):
    return ", ".join(name for name in names if name != _RNG)


def before_every_step(optimizer, callback):
    """optimizer.step() calls `callback` first."""
    def hook(*_):
        callback()  # and no result: torch would take it for new arguments

    try:
        optimizer.register_step_pre_hook(hook)
    except AttributeError:  # before torch 2, or a wrapper that is not made as an optimizer is
        _wrap_step(optimizer, before=callback)


def after_every_step(optimizer, callback):
    """optimizer.step() calls `callback` last."""
    def hook(*_):
        callback()

    try:
        optimizer.register_step_post_hook(hook)
    except AttributeError:  # as above
        _wrap_step(optimizer, after=callback)


def before_next_step(optimizer, callback):
    """The next optimizer.step() calls `callback` first, and later ones do not. Leaves a test of one list behind in every step."""
    once = [callback]
    before_every_step(optimizer, lambda: once and once.pop()())


def _wrap_step(optimizer, before=None, after=None):
    """torch 1.13 has no hooks for it, and schedulers look at step's attributes (`_with_counter`) and expect a bound method."""
    original = optimizer.step

    def step(self, *args, **kwargs):
        if before:
            before()
        result = original(*args, **kwargs)
        if after:
            after()
        return result

    optimizer.step = types.MethodType(functools.wraps(original)(step), optimizer)
