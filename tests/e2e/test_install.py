"""Lockstep as users install it: a tree that was moved, a Debian package, a wheel in a virtual environment. Each trains, loses a rank and goes on."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

from harness import BINARY, PYTHON, ROOT, Run, RunTest, ddp, inherited

BUILD = pathlib.Path(BINARY).resolve().parents[1]


class Install(RunTest):
    def assert_works(self, binary, inside, python=PYTHON, examples=ROOT / "examples"):
        """It trains the example, with the package and client library that lie inside the installation, and survives the death of a rank."""
        out = self.folder() / "result.json"
        example = Run(self, str(examples / "train_gpt.py"), "--steps", "10", "--out", str(out), ranks=2, python=python, binary=str(binary))
        example.finish()
        self.assertEqual(10, len(json.loads(out.read_text())["losses"]), example)
        run = Run(self, "ddp.py", *ddp(steps=10, faults=["kill:1:5"]), ranks=2, python=python, binary=str(binary))
        run.finish()
        self.assertEqual([["1"]], run.suspects(), run)
        spec = json.loads((run.dir / "run.json").read_text())
        for name in ("package_dir", "client_lib"):
            self.assertTrue(spec[name].startswith(f"{inside}/"), f"{name} {spec[name]}\n{run}")
        return spec

    def install(self, prefix):
        done("cmake", "--install", BUILD, "--strip", "--prefix", prefix)

    def test_tree(self):
        """It may be moved as a whole: nothing in it knows where it lies."""
        folder = self.folder()
        self.install(folder / "first")
        (folder / "first").rename(folder / "second place")
        tree = folder / "second place"
        self.assert_works(tree / "bin/lockstep", tree, examples=tree / "share/doc/lockstep/examples")
        self.assertTrue((tree / "share/lockstep/alerts/lockstep.rules.yml").exists())
        self.assertTrue((tree / "share/lockstep/presets/clusters/one-node-cpu.toml").exists())

    def test_debian_package(self):
        folder = self.folder()
        done("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder)
        package, = folder.glob("*.deb")
        depends = done("dpkg-deb", "--field", package, "Depends")
        for name in ("libc6", "libdw1", "libsqlite3-0", "python3"):
            self.assertRegex(depends, rf"\b{name}\b")
        if shutil.which("apt-get"):
            planned = done("apt-get", "install", "--simulate", "--no-download", package)
            self.assertIn("Inst lockstep ", planned)
        root = folder / "root"
        done("dpkg-deb", "--extract", package, root)
        self.assert_works(root / "usr/bin/lockstep", root)

    def test_wheel(self):
        folder = self.folder()
        wheel = self.make_wheel(folder, "wheel")
        self.assertEqual(wheel.read_bytes(), self.make_wheel(folder, "again").read_bytes(), "the same sources gave two wheels")
        environment = folder / "venv"
        done(PYTHON, "-m", "venv", "--system-site-packages", environment)
        python = environment / "bin/python3"
        done(python, "-m", "pip", "install", "--no-index", wheel)
        spec = self.assert_works(environment / "bin/lockstep", environment, python=None)
        self.assertEqual(str(python.parent), os.path.dirname(spec["python"]))
        self.assert_brings_its_libraries(environment)
        self.assert_knows_its_profiler(environment)
        done(python, "-m", "pip", "uninstall", "--yes", "lockstep")
        self.assertEqual([], [path for path in environment.rglob("*lockstep*") if path.is_file()])

    def test_wheel_on_another_distribution(self):
        """Debian 13, which has none of the libraries in these versions: binary, package and client library run in there."""
        if not (ROOT / ".cache/trixie/complete").exists():
            self.skipTest("there is no Debian 13 in .cache/trixie")
        folder = self.folder()
        target, binary = folder / "target", folder / "lockstep"
        done(PYTHON, "-m", "pip", "install", "--no-index", "--target", target, self.make_wheel(folder, "wheel"))
        binary.write_text(f'#!/bin/sh\nPYTHONPATH={target} exec {ROOT}/tests/e2e/trixie/python {target}/bin/lockstep "$@"\n')
        binary.chmod(0o755)
        self.assert_works(binary, target, python=None)

    def make_wheel(self, folder, name):
        tree = folder / f"tree of {name}"
        self.install(tree)
        return pathlib.Path(done(PYTHON, ROOT / "packaging/wheel.py", tree, folder / name).strip())

    def assert_brings_its_libraries(self, environment):
        """But for glibc's own, which are the machine's."""
        binary, = environment.rglob("_install/bin/lockstep")
        lines = [line.split() for line in done("ldd", binary).splitlines() if "=>" in line]
        foreign = {words[0] for words in lines if not os.path.realpath(words[2]).startswith(str(environment))}
        self.assertEqual(set(), foreign - {"libc.so.6", "libm.so.6"})

    def assert_knows_its_profiler(self, environment):
        """By both of its paths: a wheel has no links, so the file is there twice."""
        script = self.folder() / "idle.py"
        script.touch()
        paths = list(environment.rglob("liblockstep-nccl-profiler.so"))
        self.assertEqual(["lib", "nccl"], sorted(path.parent.name for path in paths))
        for path in paths:
            options = {"options": ["--nccl-profiler"], "env": {"NCCL_PROFILER_PLUGIN": str(path)}}
            run = Run(self, str(script), ranks=1, python=None, binary=str(environment / "bin/lockstep"), **options)
            run.finish()
            self.assertNotIn("NCCL_PROFILER_PLUGIN", run.stderr(), run)


def done(*command):
    """What it says on stdout; fails with all it said."""
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=inherited(), check=False)
    if answer.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit status {answer.returncode}\n{answer.stdout}{answer.stderr}")
    return answer.stdout


if __name__ == "__main__":
    unittest.main()
