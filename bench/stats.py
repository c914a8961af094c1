"""Summaries of samples. Every figure of the bench is made here, so that p99 means the same everywhere."""
import random
import statistics


def quantile(samples, share):
    """The quantile by linear interpolation between order statistics; share in 0..1, samples not empty."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summary(samples):
    """{n, p5, median, p95, p99, min, max}. A p99 of fewer than 100 samples is little more than the maximum: n says so."""
    if not samples:
        return {"n": 0}
    shares = {"p5": 0.05, "median": 0.5, "p95": 0.95, "p99": 0.99}
    values = {name: quantile(samples, share) for name, share in shares.items()}
    return {"n": len(samples), **values, "min": min(samples), "max": max(samples)}


def median_interval(samples, rounds=4000, seed=1):
    """The 95 % bootstrap interval (percentile method) of the median of independent samples."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(samples, k=len(samples))) for _ in range(rounds))
    return quantile(medians, 0.025), quantile(medians, 0.975)


def rate_bound(seen, tries, confidence=0.95):
    """A sentence with the upper bound on the rate of what was seen so many times in so many tries (Clopper-Pearson; n >> seen)."""
    low, high = seen / tries, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        if at_most(seen, tries, rate) > 1 - confidence:
            low = rate
        else:
            high = rate
    return f"the rate is below {high:.1e} with {confidence:.0%} confidence"


def at_most(seen, tries, rate):
    """The probability of so many or fewer, binomial."""
    term = total = (1 - rate) ** tries
    for k in range(seen):
        term *= (tries - k) / (k + 1) * rate / (1 - rate)
        total += term
    return total
