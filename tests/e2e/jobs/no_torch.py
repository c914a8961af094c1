"""A job without torch: the step clock is all that Lockstep sees of it."""
import argparse
import os
import signal
import time

import lockstep


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-time", type=float, default=0.05, metavar="S")
    parser.add_argument("--kill", metavar="RANK:STEP", help="this rank kills itself at this step, in epoch 1 only")
    parser.add_argument("--out", metavar="FILE", help="each rank writes FILE.RANK when it is done")
    flags = parser.parse_args()
    rank = os.environ.get("RANK", "0")
    total = 0
    for step in range(flags.steps):
        if flags.kill == f"{rank}:{step}" and os.environ.get("LOCKSTEP_EPOCH", "1") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        total += step
        time.sleep(flags.step_time)
        lockstep.step(step, loss=1 / (step + 1))
    if flags.out:
        with open(f"{flags.out}.{rank}", "w") as file:
            file.write(f"{total}\n")


if __name__ == "__main__":
    main()
