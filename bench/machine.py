"""Where a measurement was taken: without it no figure means anything."""
import os
import platform
import subprocess


def cpu_model():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_gb():
    with open("/proc/meminfo") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemTotal"))
    return round(kilobytes / 1e6, 1)


def distribution():
    try:
        with open("/etc/os-release") as file:
            fields = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return "unknown"
    return fields.get("PRETTY_NAME", "unknown").strip('"')


def torch_version(python):
    probe = "import torch, platform; print(platform.python_version(), torch.__version__)"
    answer = subprocess.run([python, "-c", probe], stdout=subprocess.PIPE, text=True, check=True)
    return answer.stdout.split()


def describe(python):
    version, torch = torch_version(python)
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "memory_gb": memory_gb(), "kernel": platform.release(),
            "os": distribution(), "python": version, "torch": torch, "load_before": os.getloadavg()}


def sentence(machine):
    load = ", ".join(f"{value:.2f}" for value in machine["load_before"])
    return (f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['os']}, kernel {machine['kernel']}, "
            f"Python {machine['python']}, torch {machine['torch']}; load average before: {load}")
