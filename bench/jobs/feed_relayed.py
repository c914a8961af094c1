"""Batches of items that need no work, from a data service and from a relay of it over loopback: what the way between machines costs (feed_batches.py)."""
import os
import pathlib
import tempfile
import time

ITEMS, ITEM_BYTES = 1024, 224 * 224 * 3
BATCH = 64


def rates(seconds):
    """{"direct", "relayed": {"mb_per_s": [...], "cpu_ns_per_byte": of the service and the relay}}."""
    import numpy
    from feed_service import Service, free_port

    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        data = pathlib.Path(folder, "bytes.npy")
        numpy.save(data, numpy.random.default_rng(1).integers(0, 256, (ITEMS, ITEM_BYTES), numpy.uint8))
        address = f"127.0.0.1:{free_port()}"
        with Service(data, "--cache", "512M", "--listen", address, name="bytes") as service, Service(f"feed://{address}", name="bytes") as relay:
            return {"direct": rate(service, [service], seconds), "relayed": rate(relay, [service, relay], seconds)}


def rate(from_service, processes, seconds):
    import lockstep.feed

    samples = []
    with lockstep.feed.Loader("bytes", job="a", batch=BATCH, prefetch=8, seed=1, socket=from_service.socket) as loader:
        for _ in range(2 * ITEMS // BATCH):  # all is in memory
            loader.next_batch()
        before, carried = sum(map(processor_time, processes)), 0
        for _ in range(seconds):
            begin, count = time.monotonic(), 0
            while time.monotonic() < begin + 1:
                batch = loader.next_batch()
                count += len(batch)
                del batch
            samples.append(count * ITEM_BYTES / (time.monotonic() - begin) / 1e6)
            carried += count * ITEM_BYTES
    return {"mb_per_s": samples, "cpu_ns_per_byte": 1e9 * (sum(map(processor_time, processes)) - before) / carried}


def processor_time(service):
    """Seconds."""
    words = pathlib.Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
