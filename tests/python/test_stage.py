"""lockstep.stage against writers of its own, in Python and in Fortran."""
import contextlib
import ctypes
import gc
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(ROOT, "python"))
LIB_DIR = os.path.join(os.path.dirname(os.environ.get("LOCKSTEP_BINARY") or os.path.join(ROOT, "build/release/bin/lockstep")), "..", "lib")
os.environ.setdefault("LOCKSTEP_STAGE_LIB", os.path.join(LIB_DIR, "liblockstep-stage.so"))

import numpy
import torch

from lockstep import _stage, stage
from lockstep.stage import Absent, EndOfStream, Spill, StageError, Stream, Timeout, Writer


class Room(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.room = os.path.join(self.folder, "room")
        self.enterContext(mock.patch.dict(os.environ, LOCKSTEP_STAGE_DIR=self.room))
        self.addCleanup(lambda: self.assertFalse(os.path.exists(self.room), "something is left"))

    @contextlib.contextmanager
    def error(self, kind, *texts):
        with self.assertRaises(kind) as context:
            yield
        for text in texts:
            self.assertIn(text, str(context.exception))


def field(step, shape=(3, 5)):
    return numpy.full(shape, step, "float32") + numpy.arange(math.prod(shape), dtype="float32").reshape(shape) / 100


def crc_of(content):
    return _stage.library().ls_stage_crc32c((ctypes.c_char * len(content)).from_buffer(bytearray(content)), len(content))


class Streams(Room):
    def test_files_of_others_stay(self):
        os.mkdir(self.room, 0o700)
        others = {"best.model": b"m" * 100000, "log.stream": b"short"}
        for name, content in others.items():
            with open(os.path.join(self.room, name), "wb") as file:
                file.write(content)
        Writer("s", "float32", (3, 5)).close()
        for name, content in others.items():
            with open(os.path.join(self.room, name), "rb") as file:
                self.assertEqual(content, file.read())
        shutil.rmtree(self.room)

    def test_all_steps_and_then_the_end(self):
        writer = Writer("s", "float32", (3, 5), k=4)
        stream = Stream("s", dtype="float32", shape=(1, 3, 5))
        for step in range(4):
            writer.put(step, field(step))
        writer.close()
        seen = [(step.step, step.index, step.array.copy()) for step in stream]
        self.assertEqual([(i, i) for i in range(4)], [(step, index) for step, index, _ in seen])
        for step, _, array in seen:
            numpy.testing.assert_array_equal(field(step)[None], array)
        self.assertRaises(EndOfStream, stream.next)
        stream.close()

    def test_ranks(self):
        writers = [Writer("s", "int64", (7,), rank=rank, ranks=3, k=2) for rank in range(3)]
        stream = Stream("s")
        for rank in (2, 0, 1):
            self.assertEqual([], stream.steps())
            writers[rank].put(5, numpy.arange(7) + 100 * rank)
        got = stream.next()
        numpy.testing.assert_array_equal([numpy.arange(7) + 100 * rank for rank in range(3)], got.array)
        self.assertEqual(got.array.__array_interface__["data"][0], got.tensor().data_ptr())
        self.assertTrue(torch.equal(got.tensor(), torch.from_numpy(got.array.copy())))
        for writer in writers:
            writer.close()
        stream.close()

    def test_ranks_in_processes_of_their_own(self):
        ranks, steps, children = 3, 300, []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                writer = Writer("s", "int64", (7,), rank=rank, ranks=ranks, k=2, timeout_s=60)
                for step in range(steps):
                    writer.put(step, numpy.arange(7) + 100 * rank + step)
                writer.close(linger_s=60)
                os._exit(0)
            children.append(child)
        with Stream("s", timeout_s=60) as stream:
            for i, step in enumerate(stream):
                numpy.testing.assert_array_equal([numpy.arange(7) + 100 * rank + i for rank in range(ranks)], step.array)
            self.assertEqual(steps - 1, i)
        self.assertEqual([0] * ranks, [os.waitpid(child, 0)[1] for child in children])
        del step
        gc.collect()

    def test_a_view_holds_its_step_even_beyond_the_stream(self):
        writer = Writer("s", "float32", (3, 5), k=1, timeout_s=0.001)
        stream = Stream("s")
        writer.put(0, field(0))
        view = stream.next().array[0, 1:]
        tensor = stream.get(0).tensor()
        self.assertRaises(Timeout, writer.put, 1, field(1))
        with self.assertRaises(ValueError):
            view[0, 0] = 9
        stream.close()
        self.assertRaises(StageError, stream.next)
        self.assertRaises(Timeout, writer.put, 1, field(1))
        numpy.testing.assert_array_equal(field(0)[1:], view)
        del view
        gc.collect()
        self.assertRaises(Timeout, writer.put, 1, field(1))
        del tensor
        gc.collect()
        writer.put(1, field(1))
        writer.close()

    def test_a_commit_that_times_out_is_made_up_for_by_the_next_put(self):
        library = _stage.library()

        class Locked:  # by a process that was stopped
            def __getattr__(self, name):
                return (lambda *_: _stage.TIMEOUT) if name == "ls_stage_commit" else getattr(library, name)

        with Writer("s", "float32", (3, 5), policy="latest", k=8) as writer, Stream("s") as stream:
            for step, following in ((0, 1), (2, 2), (4, 5)):
                with mock.patch.object(_stage, "library", Locked):
                    self.assertRaises(Timeout, writer.put, step, field(step))
                    self.assertRaises(Timeout, writer.put, following, field(following))
                writer.put(following, field(following))
            with mock.patch.object(_stage, "library", Locked):
                self.assertRaises(Timeout, writer.put, 6, field(6))
            writer.abandon()
            writer.put(7, field(7))
            self.assertEqual([0, 1, 2, 4, 5, 7], stream.steps())

    def test_what_cannot_be_put_does_not_end_the_writer(self):
        with Writer("s", "float32", (2,), policy="latest", k=8) as writer, Stream("s") as stream:
            with self.error(StageError, "step 0 has values of <U7 that float32, which the stream has, would change"):
                writer.put(0, ["no", "numbers"])
            writer.put(1, [1, 2])
            self.assertEqual([1], stream.steps())

    def test_values_are_rounded_and_changed_in_no_other_way(self):
        names = iter("abcdefgh")
        for dtype, array in (("int32", [1.7, 2.2]), ("int32", [math.nan, 1]), ("int32", [1 << 40, 1]), ("uint8", numpy.array([300, 1])), ("uint8", [-1, 1]),
                             ("int64", numpy.array([1 << 63, 1], "uint64")), ("float32", [1j, 2])):
            with Writer(next(names), dtype, (2,), policy="latest", k=8) as writer:
                with self.error(StageError, f"step 0 has values of {numpy.asarray(array).dtype} that {dtype}, which the stream has, would change", "array.astype"):
                    writer.put(0, array)
        for dtype, array in (("float32", [1, 2]), ("float32", [0.1, 2]), ("float16", numpy.array([0.1, 2])), ("uint8", [0, 255]), ("int32", numpy.array([-9, 9])),
                             ("int32", numpy.array([1, 2], ">i4")), ("int64", torch.tensor([1, 2])), ("uint8", [True, False])):
            with Writer("s", dtype, (2,), policy="latest", k=8) as writer, Stream("s") as stream:
                writer.put(0, array)
                numpy.testing.assert_array_equal([numpy.asarray(array).astype(dtype)], stream.get(0).array)

    def test_a_folder_that_the_user_made_stays(self):
        os.mkdir(self.room, 0o700)
        Writer("s", "float32", (2,)).close()
        self.assertEqual([], os.listdir(self.room))
        os.rmdir(self.room)

    def test_a_release_does_not_wait_for_a_next(self):
        writer = Writer("s", "float32", (3, 5), k=1, timeout_s=30)
        stream = Stream("s")
        writer.put(0, field(0))
        first, got = [stream.next()], []
        waiting = threading.Thread(target=lambda: got.append(stream.next(30).step))
        waiting.start()
        putting = threading.Thread(target=writer.put, args=(1, field(1)))
        putting.start()
        first.clear()
        waiting.join()
        putting.join()
        self.assertEqual([1], got)
        writer.close()
        stream.close()

    def test_close_does_not_wait_for_a_next_of_another_thread(self):
        writer = Writer("s", "float32", (3, 5), k=4)
        stream, got = Stream("s"), []
        waiting = threading.Thread(target=lambda: got.append(stream.next(60).array.copy()), daemon=True)
        waiting.start()
        while not stream._attached._calls.locked():
            waiting.join(0.001)
        closing = threading.Thread(target=stream.close, daemon=True)
        closing.start()
        closing.join(20)
        self.assertFalse(closing.is_alive())
        self.assertRaises(StageError, stream.next)
        writer.put(7, field(7))
        waiting.join()
        numpy.testing.assert_array_equal(field(7)[None], got[0])
        writer.close()

    def test_a_forked_child_waits_for_no_thread_of_its_parent_and_lets_go_of_nothing(self):
        writer = Writer("s", "float32", (3, 5), k=1, timeout_s=0.001)
        writer.put(0, field(0))
        stream, has, forked = Stream("s"), threading.Event(), threading.Event()
        view = stream.next()

        def count():
            with stream._attached._counting:
                has.set()
                forked.wait()

        counting = threading.Thread(target=count)
        counting.start()
        has.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                stream.next(0)
            except StageError as error:
                del view
                gc.collect()
                stream.close()
                stage._leave_all()
                os._exit(0 if "before a fork" in str(error) else 1)
            os._exit(2)
        status = os.waitpid(child, 0)[1]
        forked.set()
        counting.join()
        self.assertEqual(0, status)
        self.assertRaises(Timeout, writer.put, 1, field(1))
        numpy.testing.assert_array_equal(field(0)[None], view.array)
        writer.close()
        stream.close()

    def ends(self, script, says):
        """A reader that ends in its own way, and leaves nothing that the writer has not taken back by its end."""
        child = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")},
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child, lambda: self.assertEqual((says, 0), (child.communicate(timeout=30)[0], child.returncode))

    def test_at_its_end_a_process_still_reads_what_it_has(self):
        """After its functions for the end, and as the last one that has the stream."""
        writer = Writer("s", "float32", (3, 5), k=4)
        writer.put(0, field(0))
        child, finish = self.ends("""if True:
            import atexit
            last = []
            atexit.register(lambda: print(round(float(last[-1].array[0, 0, 1]), 2), flush=True))
            from lockstep.stage import Stream
            stream = Stream("s")
            last.append(stream.next())
            print("has it", flush=True)
            stream.next()
            last.append(stream.get(1))
            """, "1.01\n")
        self.assertEqual("has it\n", child.stdout.readline())
        writer.put(1, field(1))
        writer.close()
        finish()

    def test_a_process_ends_while_a_thread_waits_for_a_step(self):
        with Writer("s", "float32", (3, 5), k=4) as writer:
            writer.put(0, field(0))
            _, finish = self.ends("""if True:
                import threading
                from lockstep.stage import Stream
                stream, first = Stream("s"), threading.Event()

                def read():
                    for step in stream:
                        first.set()

                threading.Thread(target=read, daemon=True).start()
                first.wait()
                while not stream._attached._calls.locked():
                    pass
                print("ends", flush=True)
                """, "ends\n")
            finish()

    def interrupted(self, call):
        """What a process says that is interrupted while it sleeps in `call`, of a writer w of lossless steps and a reader s of another stream."""
        script = f"""if True:
            import numpy
            from lockstep.stage import Stream, Timeout, Writer
            s, w = Stream("s"), Writer("w", "float32", (1,), k=1)
            w.put(0, numpy.zeros(1, "float32"))
            print("waits", flush=True)
            try:
                {call}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            try:
                w.close()
            except Timeout:  # there was no reader
                pass
            """
        child = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")},
                                 stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual("waits\n", child.stdout.readline())
            while pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                self.assertIsNone(child.poll())
            child.send_signal(signal.SIGINT)
            said, _ = child.communicate(timeout=60)
            self.assertEqual(0, child.returncode)
            return said
        finally:
            child.kill()
            child.wait()

    def test_an_interrupt_is_seen_while_one_waits(self):
        with Writer("s", "float32", (3, 5)) as writer:
            writer.put(0, field(0))
            for call in ("s.next(), s.next(600)", "Stream('none', timeout_s=600)", "[w.reserve(i, 600) and w.commit() for i in range(1, 9)]",
                         "w.close(600)"):
                self.assertEqual("interrupted\n", self.interrupted(call), call)

    def test_what_is_waited_in_slices_is_one_wait(self):
        with Writer("s", "float32", (3, 5), k=2) as writer:
            with self.error(Timeout, "no room for step 2 in 0.35 s"):
                for step in range(3):
                    writer.put(step, field(step), timeout_s=0.35)
            with Stream("s") as stream:
                self.assertEqual(1, stream.counters()["writer_waits"])
                stream.next(), stream.next()
                gc.collect()
                with self.error(Timeout, "no step after index 1 in 0.35 s"):
                    stream.next(0.35)
        with self.error(Absent, "no writer has opened it in 0.35 s"):
            Stream("none", timeout_s=0.35)
        writer = Writer("s", "float32", (3, 5), readers=2)
        writer.put(0, field(0))
        with self.error(Timeout, "closed before 2 readers had come, in 0.35 s: 0 did"):
            writer.close(0.35)

    def test_sample_of_the_reservoir_and_of_the_latest(self):
        for policy in ("reservoir", "latest"):
            with Writer("s", "float32", (3, 5), policy=policy, k=8, seed=3) as writer, Stream("s") as stream:
                self.assertRaises(Absent, stream.sample, 1, 0)
                for step in range(200):
                    writer.put(step, field(step))
                self.assertEqual(8, len(stream))
                drawn = stream.sample(50, seed=4)
                self.assertEqual([step.step for step in drawn], [step.step for step in stream.sample(50, seed=4)])
                self.assertLessEqual({step.step for step in drawn}, set(stream.steps()))
                self.assertGreater(len({step.step for step in drawn}), 4)
                for step in drawn:
                    numpy.testing.assert_array_equal(field(step.step)[None], step.array)
                if policy == "latest":
                    self.assertEqual(list(range(192, 200)), stream.steps())
                del drawn, step

    def test_replay_draws_from_all_steps(self):
        path = os.path.join(self.folder, "all.spill")
        with Writer("s", "float32", (3, 5), policy="replay", k=1, spill=path) as writer, Stream("s") as stream:
            for step in range(100):
                writer.put(step, field(step))
                if step == 50:
                    self.assertLessEqual(max(got.step for got in stream.sample(200, seed=1)), 50)
            drawn = stream.sample(400, seed=1)
            self.assertEqual(100, len(stream))
            self.assertGreater(len({step.step for step in drawn}), 90)
            for step in drawn:
                numpy.testing.assert_array_equal(field(step.step)[None], step.array)
            del drawn, step
        spill = Spill(path)
        self.assertEqual((100, (3, 5), "float32"), (len(spill), spill.part_shape, spill.dtype.name))
        numpy.testing.assert_array_equal(field(99)[None], spill[99].array)

    def test_a_spill_file_that_is_larger_than_memory(self):
        """Here with two records that lie far apart, in a file of holes."""
        path, memory = os.path.join(self.folder, "all.spill"), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with Writer("s", "float32", (3, 5), policy="replay", k=1, spill=path) as writer:
            for step in range(2):
                writer.put(step, field(step))
        with open(path, "r+b") as file:
            stride, = struct.unpack_from("<Q", file.read(Spill.HEAD), Spill._head.fields["record_stride"][1])
            file.seek(Spill.HEAD + stride)
            second, far = bytearray(file.read(stride)), 4 * memory // stride
            struct.pack_into("<QI", second, Spill._record.fields["index"][1], far, 0)
            struct.pack_into("<I", second, Spill._record.fields["crc"][1], crc_of(second[8:24] + second[64:128]))
            file.seek(Spill.HEAD + far * stride)
            try:
                file.write(second)
            except OSError as error:
                self.skipTest(f"no file of that size: {error}")
        spill = Spill(path)
        self.assertEqual(far + 1, len(spill))
        for step, index in enumerate((0, far)):
            numpy.testing.assert_array_equal(field(step)[None], spill[index].array)

    def test_a_spill_file_that_ends_in_the_middle_or_is_damaged(self):
        path = os.path.join(self.folder, "all.spill")
        with Writer("s", "float32", (3, 5), policy="replay", k=1, spill=path) as writer:
            for step in range(3):
                writer.put(step, field(step))
        with open(path, "rb") as file:
            whole = bytearray(file.read())
        record = len(whole[4096:]) // 3

        def write(content):
            with open(path, "wb") as file:
                file.write(content)

        for cut in range(4096 + 2 * record, len(whole)):  # the last record cut anywhere
            write(whole[:cut])
            self.assertEqual(2, len(Spill(path)))
        line = 4096 + 2 * record
        write(whole[:line] + bytes(64) + whole[line + 64:])  # its own line, which is written last, is not there yet
        self.assertEqual(2, len(Spill(path)))
        for at in (8, 16, 24, 64 + 7):  # its step, index, CRC, and parts
            damaged = bytearray(whole)
            damaged[4096 + record + at] ^= 2
            write(damaged)
            self.assertEqual([0, 2], [Spill(path)[index].step for index in (0, 2)])
            with self.error(StageError, "index 1, is damaged"):
                Spill(path)[1]
        swapped = whole[:4096] + whole[4096 + record:4096 + 2 * record] + whole[4096:4096 + record] + whole[line:]
        write(swapped)
        with self.error(StageError, "step 1, index 0, is damaged"):
            Spill(path)[0]
        write(whole)
        spill = Spill(path)
        step = spill[0]
        os.truncate(path, line + 64)
        with self.error(StageError, "index 2 is not there any more: the file has been cut short"):
            spill[2]
        os.truncate(path, 0)
        numpy.testing.assert_array_equal(field(0)[None], step.array)

    def test_a_spill_file_of_version_1(self):
        """Its CRCs are of the parts alone."""
        path = os.path.join(self.folder, "all.spill")
        with Writer("s", "float32", (3, 5), policy="replay", k=1, spill=path) as writer:
            for step in range(2):
                writer.put(5 + step, field(step))
        with open(path, "rb") as file:
            whole = bytearray(file.read())
        struct.pack_into("<I", whole, 8, 1)
        for record in (4096, 4096 + 128):
            struct.pack_into("<I", whole, record + 24, crc_of(whole[record + 64:record + 128]))
        with open(path, "wb") as file:
            file.write(whole)
        for index, step in enumerate(Spill(path)):
            self.assertEqual(5 + index, step.step)
            numpy.testing.assert_array_equal(field(index)[None], step.array)
        self.assertEqual(1, index)

    def test_a_spill_file_whose_head_is_damaged(self):
        path = os.path.join(self.folder, "all.spill")
        with Writer("s", "float32", (3, 5), policy="replay", k=1, spill=path) as writer:
            writer.put(0, field(0))
        with open(path, "rb") as file:
            whole = file.read()
        for at in {"dtype", "ndim", "ranks", "shape", "part_bytes", "part_stride", "record_stride"}:
            at = Spill._head.fields[at][1]
            for value in (-1, 0, 7, 99, 1 << 30):
                damaged = bytearray(whole)
                struct.pack_into("<i", damaged, at, value)
                with open(path, "wb") as file:
                    file.write(damaged)
                with self.error(StageError, f"spill file {path} is damaged: its head has dtype "):
                    Spill(path)

    def test_shards_and_a_dataset(self):
        writer = Writer("s", "float32", (2,), k=10, readers=2)
        streams = [Stream("s", shard=shard, shards=2) for shard in range(2)]
        for step in range(10):
            writer.put(step, [step, -step])
        writer.close()
        for shard, stream in enumerate(streams):
            loader = torch.utils.data.DataLoader(stream.as_dataset(), batch_size=2)
            self.assertEqual([float(step) for step in range(shard, 10, 2)], [value for batch in loader for value in batch[:, 0, 0].tolist()])
            stream.close()

    def test_bad_input(self):
        with self.error(Absent, "no stream s in ", "no writer has opened it"):
            Stream("s", timeout_s=0)
        with self.error(StageError, "no policy 'newest'", "reservoir"):
            Writer("s", "float32", (2,), policy="newest")
        with self.error(StageError, "no dtype 'complex64'"):
            Writer("s", "complex64", (2,))
        with self.error(StageError, "k is 0"):
            Writer("s", "float32", (2,), k=0)
        for how in ({"k": -1}, {"k": (1 << 32) + 8}, {"k": 2.5}, {"spare": 1 << 32}, {"readers": -1}, {"rank": 1 << 32}, {"ranks": (1 << 32) + 1}):
            (what, value), = how.items()
            with self.error(StageError, f"stream s: {what} is {value}: expected a whole number from 0 to 2147483647"):
                Writer("s", "float32", (2,), **how)
        with self.error(StageError, "is no spill file"):
            Spill(__file__)
        with Writer("s", "float32", (2,)) as writer:
            with self.error(StageError, "has a writer of rank 0 already"):
                Writer("s", "float32", (2,))
            with self.error(StageError, "step 0 has shape [3]: expected [2]"):
                writer.put(0, [1, 2, 3])
            with self.error(StageError, "has float32 [1, 2]", "expected float64 [1, 2]"):
                Stream("s", dtype="float64")
            with self.error(StageError, "expected float32 [2, 2]"):
                Stream("s", shape=(2, 2))


@unittest.skipUnless(shutil.which("gfortran"), "no gfortran")
class Fortran(Room):
    def test_a_program(self):
        sources = [os.path.join(ROOT, "examples/insitu", name) for name in ("lockstep_stage.f90", "heat.f90")]
        program = os.path.join(self.folder, "heat")
        subprocess.run(["gfortran", *sources, "-J", self.folder, "-o", program, "-L", LIB_DIR, "-llockstep-stage", f"-Wl,-rpath,{LIB_DIR}"], check=True)
        running = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
        self.addCleanup(running.wait)
        self.addCleanup(running.kill)
        with Stream("rod", timeout_s=30) as stream:
            fields = [stream.next().array[0].copy() for _ in range(20)]
            stage.publish_model("rod", [(numpy.ones((1, 32)), [0.5], "none")])
            answer, _ = running.communicate(timeout=60)
            self.assertRaises(EndOfStream, stream.next)
        stage.withdraw_model("rod")
        self.assertEqual(0, running.returncode)
        for before, after in zip(fields, fields[1:]):
            numpy.testing.assert_allclose(after, before + 0.25 * (numpy.roll(before, -1) - 2 * before + numpy.roll(before, 1)), atol=1e-6)
        publication, said, total = map(float, answer.split())
        self.assertEqual(1, publication)
        self.assertAlmostEqual(8, total, 4)  # heat is conserved: 8 of 32 points were at 1
        self.assertAlmostEqual(8.5, said, 4)


if __name__ == "__main__":
    unittest.main()
