"""Memory that Lockstep's own processes hold beside the checkpoint buffers."""
import figure
import session

GOAL_MB = 64


def measure(tools, quick):
    restarts = 1 if quick else 5
    command = [session.EXAMPLE, "--steps", "100000000"]
    with session.Session(tools, command, 4, ["--metrics-port", "0"]) as run:
        for index in range(restarts):
            session.kill(run.running(epoch=index + 1, steps=3)["ranks"][index % 4]["pid"])
        run.running(epoch=restarts + 1, steps=10)
        watcher, starter = own_mb(run.process.pid), own_mb(run.starter_pid())
    return [
        figure.single("resident memory, watcher and starter", "MB", watcher + starter, goal=GOAL_MB,
                      note=f"private and file pages (RssAnon + RssFile) of `lockstep run` with /metrics on, {watcher:.1f} MB, and of its starter, "
                           f"{starter:.1f} MB, after {restarts} restarts of train_gpt.py with 4 ranks; buffers and board are shared memory and not in it"),
    ]


def own_mb(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1000
