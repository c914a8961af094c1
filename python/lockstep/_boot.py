"""What every worker gets at its start, whichever way it was started: stacks on request, a note of the exception that ends it, and faults on
request where the run allows drills.

Nothing here may fail the job: each piece is attempted on its own and left out when the interpreter lacks it.
"""

import atexit
import json
import opcode
import os
import signal
import sys
import time

from lockstep import _anew


def prepare_worker():
    """Call at the start of each epoch, before the script runs. Needs LOCKSTEP_STACKS_FILE and LOCKSTEP_ERROR_FILE; without them does nothing."""
    _anew.hide_removed()
    _answer_stack_requests(os.environ.get("LOCKSTEP_STACKS_FILE"))
    _note_uncaught_exceptions()
    _take_drills(os.environ.get("LOCKSTEP_DRILL_FILE"))  # set by `lockstep run --allow-drill` only
    if "LOCKSTEP_REPLAY" in os.environ:
        from lockstep import _replay

        _replay.end_with_runner()


def _answer_stack_requests(path):
    if not path:
        return
    try:
        import faulthandler

        # A real-time signal: scripts and schedulers use SIGUSR1 and SIGUSR2 for themselves.
        stacks = _open_out_of_the_way(path)
        faulthandler.register(signal.SIGRTMIN + 7, file=stacks, all_threads=True, chain=False)
        _keep_open[:] = [stacks]
    except (ImportError, AttributeError, OSError, ValueError):
        pass


_keep_open = []  # faulthandler keeps only the number of the descriptor


def _open_out_of_the_way(path):
    """To append, under a high number: a script that closes the descriptors it does not know, and opens files of its own, would get stacks into those."""
    import fcntl

    file = open(path, "ab", buffering=0)
    try:
        return open(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY), "ab", buffering=0)
    except OSError:
        return file  # so many descriptors may not be opened


_OUT_OF_THE_WAY = 512


def _take_drills(path):
    if not path:
        return
    from lockstep import _drill

    _drill.take_requests(path)


def _note_uncaught_exceptions():
    if "LOCKSTEP_ERROR_FILE" not in os.environ or _hooked:
        return
    _hooked.append(sys.excepthook)
    before = sys.excepthook

    def note_then_pass_on(kind, value, trace):
        trace = without_our_frames(trace)
        if _interpreter_calls():
            note_exception(value, trace)
        before(kind, value.with_traceback(trace), trace)

    sys.excepthook = note_then_pass_on
    atexit.register(_note_what_ended_us)


_hooked = []


def _interpreter_calls():
    """The hook: nothing is below it then. A script that calls it of itself goes on, perhaps."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code is getattr(sys.excepthook, "__code__", None)


def _note_what_ended_us():
    """For a script that has set a sys.excepthook of its own: the interpreter keeps what it has given to that."""
    value = getattr(sys, "last_value", None)
    if isinstance(value, BaseException) and _ended_script(value) and not os.path.exists(os.environ.get("LOCKSTEP_ERROR_FILE", "")):
        note_exception(value, value.__traceback__)


def _ended_script(value):
    """Who catches an exception may keep it where the interpreter does, and go on. Then it was caught in a function that another has called, or what the
    script did last was another thing than to raise."""
    trace = value.__traceback__
    if trace is None:
        return isinstance(value, SyntaxError)  # it can't be compiled
    frame = trace.tb_frame
    return frame.f_back is None and (frame.f_lasti == trace.tb_lasti or "RAISE" in opcode.opname[frame.f_code.co_code[frame.f_lasti]])


def note_exception(value, trace):
    """Says what ends this worker, once it is sure to end; not of a forked child. Raises nothing."""
    try:
        if os.environ.get("LOCKSTEP_WORKER_PID") == str(os.getpid()):
            write_exception(os.environ["LOCKSTEP_ERROR_FILE"], value, trace)
    except BaseException:
        pass  # the exit status still tells


def without_our_frames(trace):
    """A traceback begins at the script, not in the zygote that runs it. None: it does not get there, as of a script that can't be compiled."""
    ours = os.path.dirname(__file__)
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == ours:
        trace = trace.tb_next
    return trace


def write_exception(path, value, trace):
    """Writes {type, message, where, raised_in, earlier, at_ns} to `path` in one rename. `where` is the innermost frame outside installed packages; of code that can't be compiled, its line."""
    note = {
        "type": _NAME.__get__(type(value)),
        "message": _message_of(value),
        "where": _place_of(value, trace),
        "raised_in": _raised_in(value, trace),
        "earlier": _earlier(value),
        "at_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    }
    try:
        with open(path + ".next", "wb") as file:
            file.write(_encoded(note))
        os.replace(path + ".next", path)
    except OSError:  # the disk is full
        _write_into_room(os.path.join(os.environ["LOCKSTEP_RUN"], "room", os.path.basename(path)), note)


def _write_into_room(path, note):
    """Over bytes that the starter has kept for it, as many as there are: none is new to the disk, and what a restart leaves there is of another epoch."""
    note = dict(note, epoch=int(os.environ["LOCKSTEP_EPOCH"]))
    with open(path, "r+b", buffering=0) as file:
        room = os.fstat(file.fileno()).st_size
        if len(_encoded(note)) > room:
            note.update(message=note["message"][:1000], earlier=[dict(one, message=one["message"][:300]) for one in note["earlier"][:5]])
        file.write(_encoded(note)[:room].ljust(room))


def _encoded(note):
    return json.dumps(note, ensure_ascii=False).encode("utf-8", "replace")  # messages may hold bytes that are no text


_NAME = type.__dict__["__name__"]  # a metaclass may have another, which is none


def _message_of(value):
    try:
        return "%.4000s" % (value,)
    except BaseException:  # SystemExit, too, if its __str__ raises that
        return "<exception str() failed>"  # as traceback says it


def _place_of(value, trace):
    try:
        if isinstance(value, SyntaxError) and value.lineno and os.path.isfile(value.filename or ""):  # not of eval() and the like
            return f"{os.path.basename(value.filename)}:{value.lineno}"
    except BaseException:
        pass  # a script may raise one with anything in it
    return _innermost_user_frame(trace)


def _innermost_user_frame(trace):
    own, any_frame = "", ""
    while trace is not None:
        code = trace.tb_frame.f_code
        any_frame = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        installed = "-packages" in code.co_filename or code.co_filename.startswith(("<frozen", os.path.dirname(__file__)))
        if not installed and "/lib/python" not in code.co_filename:
            own = any_frame
        trace = trace.tb_next
    return own or any_frame


def _earlier(value):
    """[{message, raised_in, retold}] of the errors that may tell of a lost peer, of those for which it was raised or while they were handled. `retold`: it
    is the same in other words, by way of those between if there are any."""
    found, retold = [], True
    try:
        for _ in range(_LONGEST_CHAIN):
            before = value.__cause__ or value.__context__
            if before is None:
                break
            retold = retold and _retells(value, before)
            value = before
            if isinstance(value, (RuntimeError, OSError)) and value.__traceback__ is not None:  # without one it was not raised here
                found.append({"message": _message_of(value), "raised_in": _raised_in(value, value.__traceback__), "retold": retold})
    except BaseException:
        pass  # a script's own class may do anything here
    return found


def _retells(value, before):
    """The program says so by `from`, or raised it in the function that had caught the other one. What a function raises that is called there may be a
    fault of its own, as of training that goes on within an `except`; and with `from None` it says that it has nothing to do with it."""
    if value.__cause__ is not None:
        return value.__cause__ is before
    if value.__suppress_context__ or value.__traceback__ is None or before.__traceback__ is None:
        return False
    raised = _innermost(value.__traceback__)
    return raised.tb_frame is before.__traceback__.tb_frame and _raises(raised)


_LONGEST_CHAIN = 20


def _raised_in(value, trace):
    """The module that raised it, in an installed package too: "torch.distributed.rendezvous", "socket". "": not known, it may come out of torch's
    compiled code."""
    if trace is None:
        return ""
    trace = _innermost(trace)
    try:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        of_interpreter = isinstance(value, OSError) and value.errno is not None  # as its sockets raise; what C++ throws has none
        may_be_compiled = isinstance(value, (RuntimeError, OSError)) and not _raises(trace) and not of_interpreter
        return "" if may_be_compiled and module.split(".")[0] != "torch" else module
    except BaseException:
        return ""  # a script's own class may do anything here


def _innermost(trace):
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _raises(trace):
    """By a statement of its own: it calls nothing that does."""
    code = trace.tb_frame.f_code.co_code
    return 0 <= trace.tb_lasti < len(code) and "RAISE" in opcode.opname[code[trace.tb_lasti]]
