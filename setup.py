"""Build of steelyard: Python rooms as a namespace package, native code by CMake (see CMakeLists.txt)."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
ROOMS = ("native", "envs", "agents", "trainers", "deploy", "benchmarks")


def packages() -> list[str]:
    """Every room and its sub-packages, by import name."""
    names = []
    for room in ROOMS:
        names += [f"steelyard.{room}"] + [f"steelyard.{room}.{sub}" for sub in find_packages(room)]
    return names


class CMakeBuild(build_ext):
    """Builds target _native with CMake in build/cmake-<config> (kept between builds) and copies it out."""

    def build_extension(self, ext: Extension) -> None:
        """Configure, build and install the one extension; concurrent builds of a checkout take turns."""
        import pybind11

        build_dir = ROOT / "build" / ("cmake-debug" if self.debug else "cmake-release")
        build_dir.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build_dir), "-DSTEELYARD_PYTHON=ON"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
        configure += [f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}"]
        if shutil.which("ninja") and not (build_dir / "Makefile").exists():
            configure += ["-G", "Ninja"]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        with open(build_dir / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
            subprocess.run(
                ["cmake", "--build", str(build_dir), "--target", "_native", "-j", jobs], check=True
            )
            self.install(build_dir, Path(self.get_ext_fullpath(ext.name)))

    def install(self, build_dir: Path, target: Path) -> None:
        """Put the built module at its import place by rename, since a running process may have it mapped."""
        (built,) = (build_dir / "native").glob(f"_native{target.name.removeprefix('_native')}")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        shutil.copy2(built, partial)
        partial.replace(target)


setup(
    packages=packages(),
    package_dir={f"steelyard.{room}": room for room in ROOMS},
    ext_modules=[Extension("steelyard.native._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
