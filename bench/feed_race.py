"""Networks that train on photos, one job and four jobs with overlapping sets, from one data service and from torch DataLoaders (two workers each).

ResNet-18 is trained at 64 x 64 pixels, where a step of 64 images takes two cores 0.4 s and the preparation of as many photos by torchvision 0.07 s:
at 224 x 224 a step takes twelve times as long, and no loader would matter. The small network stands for a fast device, whose jobs mostly wait for
photos. Measured on CPU; what trains and what prepares share the two cores."""
import consumers
import figure

SIZE = 64
PHOTOS, ROUNDS = (128, 512), (1, 3)  # of --quick; else
EPOCHS = {"resnet18": (1, 2), "small": (2, 12)}
JOBS = (1, 4)
CACHE = "48M"  # pixels of one photo in ten fit: each epoch decodes anew


def measure(tools, quick):
    count, rounds = (pair[0 if quick else 1] for pair in (PHOTOS, ROUNDS))
    found = []
    with consumers.photos(tools, count) as folder:
        for network, epochs in EPOCHS.items():
            for jobs in JOBS:
                threads = 2 if network == "resnet18" and jobs == 1 else 1
                flags = ["--count", count, "--size", SIZE, "--network", network, "--epochs", epochs[0 if quick else 1], "--threads", threads]
                wanted = [[*flags, "--part", part] for part in range(jobs)]
                pairs = [(consumers.of_torch(tools, folder, wanted), consumers.of_service(tools, folder, wanted, CACHE)) for _ in range(rounds)]  # in turns
                found += figures(f"{network}, {jobs} job{'s' if jobs > 1 else ''}", pairs)
    return found


def figures(name, pairs):
    torchs, ours = zip(*pairs)
    images = sum(one["images"] for one in torchs[0])
    yield figure.from_samples(f"{name}: baseline, torch DataLoader", "images/s", [images / consumers.makespan(one) for one in torchs],
                              note=f"{images} images in all; by the time until the last job is done")
    yield figure.from_samples(f"{name}: data service", "images/s", [images / consumers.makespan(one) for one in ours])
    yield figure.from_samples(f"{name}: makespan, against the baseline", "%", [100 * (consumers.makespan(a) / consumers.makespan(b) - 1) for b, a in pairs],
                              note="-45 % is the best that Seneca's authors report, on other machines")
