"""liblockstep-stage.so by ctypes: stage.h and infer.h, call by call. Found by LOCKSTEP_STAGE_LIB, else where an installation has it.

ctypes releases the interpreter lock during a call, so waiting for a step doesn't hold up other Python threads.
"""
import ctypes
import functools
import os

OK, REFUSED, TIMEOUT, ORDER, END, DIED, ABSENT, SPILL, AGAIN = range(9)
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint8": 5, "float16": 6}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
POLICIES = {"lossless": 1, "latest": 2, "reservoir": 3, "replay": 4}
POLICY_NAMES = {number: name for name, number in POLICIES.items()}
ACTIVATIONS = {"none": 0, "relu": 1, "tanh": 2, "sigmoid": 3}

_pointer, _u32, _u64, _i32, _i64, _int = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int
_text, _double = ctypes.c_char_p, ctypes.c_double


class StageError(Exception):
    """What is wrong, where, what was expected, what to do."""


class Timeout(StageError):
    pass


class EndOfStream(StageError):
    """Every rank of the simulation has closed the stream, and all was read."""


class WriterDied(StageError):
    """A rank of the simulation is gone without closing. Whoever asks again waits for one that takes its place."""


class Absent(StageError):
    """No such stream or model, or no such step in it (any more)."""


_ERRORS = {TIMEOUT: Timeout, END: EndOfStream, DIED: WriterDied, ABSENT: Absent}


class Options(ctypes.Structure):
    _fields_ = [("policy", _i32), ("k", _u32), ("spare", _u32), ("readers", _u32), ("seed", _u64), ("spill", _text)]


class StepAt(ctypes.Structure):
    _fields_ = [("step", _i64), ("index", _i64), ("memory", _pointer), ("slot", _u32), ("reserved", _u32)]


class Facts(ctypes.Structure):
    COUNTERS = ("visible", "incomplete", "unread", "writer_waits", "readers_reaped", "spilled", "spill_failures", "skipped")
    _fields_ = [("dtype", _i32), ("ndim", _i32), ("shape", _i64 * 8), ("ranks", _i32), ("policy", _i32), ("k", _u32), ("reserved", _u32),
                ("part_bytes", _u64), ("part_stride", _u64), *((name, _u64) for name in COUNTERS), ("spill", ctypes.c_char * 256)]


class Dense(ctypes.Structure):
    _fields_ = [("inputs", _u32), ("outputs", _u32), ("activation", _u32), ("reserved", _u32)]


_SIGNATURES = {
    "ls_stage_last_error": (_text, []),
    "ls_stage_slices": (None, [_double]),
    "ls_stage_open": (_int, [_text, _int, _int, _int, _int, _pointer, _pointer, _double, _pointer]),
    "ls_stage_reserve": (_int, [_pointer, _i64, _double, _pointer]),
    "ls_stage_commit": (_int, [_pointer]),
    "ls_stage_abandon": (_int, [_pointer]),
    "ls_stage_last_step": (_i64, [_pointer]),
    "ls_stage_linger": (_int, [_pointer, _double]),
    "ls_stage_close": (_int, [_pointer, _double]),
    "ls_stage_attach": (_int, [_text, _int, _int, _double, _pointer]),
    "ls_stage_look": (_int, [_pointer, _pointer]),
    "ls_stage_next": (_int, [_pointer, _double, _pointer]),
    "ls_stage_get": (_int, [_pointer, _i64, _pointer]),
    "ls_stage_list": (_int, [_pointer, _pointer, _int]),
    "ls_stage_release": (_int, [_pointer, _pointer]),
    "ls_stage_detach": (_int, [_pointer]),
    "ls_stage_leave": (_int, [_pointer]),
    "ls_stage_crc32c": (_u32, [_pointer, _u64]),
    "ls_infer_open": (_int, [_text, _double, _pointer]),
    "ls_infer_refresh": (_u64, [_pointer]),
    "ls_infer_sizes": (_int, [_pointer, _pointer, _pointer]),
    "ls_infer": (_int, [_pointer, _pointer, _int, _pointer]),
    "ls_infer_close": (_int, [_pointer]),
    "ls_model_open": (_int, [_text, _int, _pointer, _pointer]),
    "ls_model_publish": (_int, [_pointer, _pointer, _u64]),
    "ls_model_generation": (_u64, [_pointer]),
    "ls_model_close": (_int, [_pointer]),
}


def _path():
    named = os.environ.get("LOCKSTEP_STAGE_LIB")
    if named:
        return named
    package = os.path.dirname(os.path.abspath(__file__))  # PREFIX/share/lockstep/python/lockstep; that of a wheel; TREE/python/lockstep
    places = [os.path.join(package, place, "liblockstep-stage.so") for place in ("../../../../lib", "_install/lib", "../../build/release/lib")]
    return next((place for place in places if os.path.exists(place)), places[0])


@functools.lru_cache(None)
def library():
    try:
        found = ctypes.CDLL(_path())
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise StageError(f"{error} (LOCKSTEP_STAGE_LIB names the library)") from None
    return found


_SLICE_S = 0.1  # an interrupt is seen within it


def waits(name, *arguments):
    """The result of a call that waits."""
    found = library()
    call = getattr(found, name)
    found.ls_stage_slices(_SLICE_S)
    try:
        while True:
            result = call(*arguments)
            if result != AGAIN:
                return result
    finally:
        found.ls_stage_slices(0.0)


def check(result):
    if result != OK:
        raise _ERRORS.get(result, StageError)(library().ls_stage_last_error().decode("utf-8", "replace"))
