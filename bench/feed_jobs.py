"""Four jobs that read the same photos, from one data service, beside four torch DataLoaders with two workers each that share the machine. Measured on CPU."""
import consumers
import figure

JOBS = 4
PHOTOS, SECONDS, ROUNDS = (256, 1024), (4, 15), (1, 4)  # of --quick; else
GOAL = 11
CACHES = {"1G": "pixels of all photos fit", "64M": "pixels of one photo in twelve fit: in each epoch all are decoded anew, once for all jobs"}


def measure(tools, quick):
    count, seconds, rounds = (pair[0 if quick else 1] for pair in (PHOTOS, SECONDS, ROUNDS))
    jobs = [["--count", count, "--seconds", seconds]] * JOBS
    ours, torchs = {cache: [] for cache in CACHES}, []
    with consumers.photos(tools, count) as folder:
        for _ in range(rounds):  # in turns, so that all meet the same machine
            torchs.append(consumers.rate(consumers.of_torch(tools, folder, jobs)))
            for cache in CACHES:
                ours[cache].append(consumers.rate(consumers.of_service(tools, folder, jobs, cache)))
    return list(figures(ours, torchs, count))


def figures(ours, torchs, count):
    yield figure.from_samples(f"baseline: {JOBS} torch DataLoaders, 2 workers each, together", "images/s", torchs,
                              note=f"{count} photos each; torchvision's RandomResizedCrop(224) and flip, bytes out, batches of 64; the time to start is in all of these")
    for cache, what in CACHES.items():
        yield figure.from_samples(f"{JOBS} jobs of one service, --cache {cache}, together", "images/s", ours[cache], note=what if count == PHOTOS[1] else "")
    for cache in CACHES:
        yield figure.from_samples(f"... --cache {cache}, against the baseline", "x", [a / b for a, b in zip(ours[cache], torchs)], goal=GOAL, at_least=True)
