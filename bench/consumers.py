"""Jobs that take photos at the same time (jobs/feed_consumer.py), from one data service or each from a DataLoader of its own."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import session


@contextlib.contextmanager
def photos(tools, count):
    """A folder of so many."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        subprocess.run([tools.python, os.path.join(session.HERE, "photos.py"), folder, str(count)], stdout=subprocess.DEVNULL, check=True, timeout=600)
        yield folder


def together(tools, jobs):
    """What each of the jobs (lists of flags) says. They begin together, once all are ready."""
    command = [tools.python, session.job("feed_consumer.py")]
    running = [subprocess.Popen([*command, *map(str, flags)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for flags in jobs]
    try:
        for job in running:
            if job.stdout.readline() != "ready\n":
                raise RuntimeError(f"{' '.join(map(str, job.args))} did not start")
        for job in running:
            job.stdin.write("go\n")
            job.stdin.flush()
        answers = [job.communicate(timeout=600)[0] for job in running]
    finally:
        for job in running:
            if job.poll() is None:
                job.kill()
                job.wait()
    return [json.loads(answer) for answer in answers]


def of_service(tools, folder, jobs, cache):
    """The same jobs on a service of their own with two threads."""
    os.environ["LOCKSTEP_BINARY"] = tools.binary
    sys.path.insert(0, os.path.join(session.ROOT, "tests", "python"))
    from feed_service import Service

    with Service(folder, "--threads", 2, "--cache", cache) as service:
        return together(tools, [["--service", service.socket, *flags] for flags in jobs])


def of_torch(tools, folder, jobs):
    return together(tools, [["--folder", folder, *flags] for flags in jobs])


def rate(answers):
    """Images per second of all together, each by its own time."""
    return sum(one["images"] / (one["ended"] - one["began"]) for one in answers)


def makespan(answers):
    """Seconds until the last is done."""
    return max(one["ended"] for one in answers) - min(one["began"] for one in answers)
