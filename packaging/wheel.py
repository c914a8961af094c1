"""Makes a wheel of an installed tree: python3 packaging/wheel.py TREE FOLDER [--readme README.md]

TREE is what `cmake --install --strip` made. The same tree gives the same bytes. In the wheel:

    lockstep/            the Python package, for scripts that are started in another way, and the console command
    lockstep/_install/   the tree without its documents, and in lib/lockstep/ the libraries that the binary needs but for glibc

The package is there twice: workers may run in another Python (a container's), which must see our package but not the rest of this
site-packages. The wheel is for every Python 3.9 or later, since nothing in it is compiled against one, and for every glibc that is not older
than what its files ask for: the tag says which.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# Parts of glibc: they belong to the dynamic linker of the machine.
GLIBC = re.compile(r"(ld-linux[^/]*|libc|libm|libdl|librt|libpthread|libresolv|linux-vdso)\.so[.\d]*")
METADATA = """Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: Launches, watches and restarts synchronous AI training jobs
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: lockstep packaging/wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""
COMMANDS = "[console_scripts]\nlockstep = lockstep._command:main\n"


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def libraries(binary):
    """{name: path} of the shared libraries that `binary` needs, directly or not, without glibc."""
    found = {}
    for name, path in re.findall(r"^\s*(\S+) => (.*) \(0x", output_of("ldd", str(binary)), re.MULTILINE):
        if not GLIBC.fullmatch(name):
            found[name] = pathlib.Path(path).resolve()
    return found


def missing(binary):
    return re.findall(r"(\S+) => not found", output_of("ldd", str(binary)))


def glibc_of(files):
    """The newest version of glibc that a symbol of these files asks for, as (major, minor)."""
    asked = re.findall(r"GLIBC_(\d+)\.(\d+)", "".join(output_of("readelf", "--version-info", "--wide", str(path)) for path in files))
    return max((int(major), int(minor)) for major, minor in asked)


def licences(paths):
    """{package: path of its copyright file} of the Debian packages that these files come from."""
    found = {}
    for path in paths:
        for spelling in (path, pathlib.Path(str(path).removeprefix("/usr"))):  # dpkg knows some by the path before the merge of /usr
            asked = subprocess.run(["dpkg-query", "--search", str(spelling)], capture_output=True, text=True)
            if asked.returncode == 0:
                package = asked.stdout.split(":")[0]
                found[package] = pathlib.Path("/usr/share/doc") / package / "copyright"
                break
        else:
            sys.exit(f"wheel.py: no Debian package owns {path}: expected one, whose copyright file the wheel must carry")
    return found


def files_of(folder, under):
    return {f"{under}/{path.relative_to(folder)}": path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


class Wheel:
    """A zip archive whose RECORD names every file with its digest."""

    def __init__(self, path, info):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.info, self.record = info, []

    def add(self, name, content, executable=False):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}\n")

    def close(self):
        name = f"{self.info}/RECORD"
        self.add(name, "".join([*self.record, f"{name},,\n"]).encode())
        self.archive.close()


def contents(tree, bundled):
    """{name in the wheel: path} of everything but what is written here."""
    package = tree / "share/lockstep/python/lockstep"
    return {
        **files_of(package, "lockstep"),
        "lockstep/_command.py": HERE / "command.py",
        **files_of(tree / "bin", "lockstep/_install/bin"),
        **files_of(tree / "lib", "lockstep/_install/lib"),
        **files_of(tree / "include", "lockstep/_install/include"),
        **files_of(tree / "share/lockstep", "lockstep/_install/share/lockstep"),
        **{f"lockstep/_install/lib/lockstep/{name}": path for name, path in bundled.items()},
    }


def build(tree, folder, readme):
    binary = tree / "bin/lockstep"
    if lost := missing(binary):
        sys.exit(f"wheel.py: {binary} needs {', '.join(lost)}, which this machine lacks: build and pack on one machine")
    version = output_of(str(binary), "--version").split()[1]
    bundled = libraries(binary)
    major, minor = glibc_of([binary, *(tree / "lib").glob("*.so"), *bundled.values()])
    tag = f"py3-none-manylinux_{major}_{minor}_{os.uname().machine}"
    path, info = folder / f"lockstep-{version}-{tag}.whl", f"lockstep-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = Wheel(path, info)
    for name, source in sorted(contents(tree, bundled).items()):
        wheel.add(name, source.read_bytes(), executable=os.access(source, os.X_OK))
    wheel.add(f"{info}/METADATA", METADATA.format(version=version, readme=readme.read_text()).encode())
    wheel.add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.add(f"{info}/entry_points.txt", COMMANDS.encode())
    wheel.add(f"{info}/licenses/LICENSE", (HERE.parent / "LICENSE").read_bytes())
    for package, source in sorted(licences(bundled.values()).items()):
        wheel.add(f"{info}/licenses/{package}", source.read_bytes())
    wheel.close()
    return path


def main():
    parser = argparse.ArgumentParser(description="Make a wheel of an installed tree.")
    parser.add_argument("tree", type=pathlib.Path, help="what `cmake --install --strip --prefix TREE` made")
    parser.add_argument("folder", type=pathlib.Path, help="where to put the wheel")
    parser.add_argument("--readme", type=pathlib.Path, default=HERE.parent / "README.md")
    flags = parser.parse_args()
    print(build(flags.tree, flags.folder, flags.readme))


if __name__ == "__main__":
    main()
