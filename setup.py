"""Build of steelyard: Python rooms as a namespace package, native code by CMake (see CMakeLists.txt)."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
ROOMS = ("native", "envs", "agents", "trainers", "deploy", "benchmarks")


def packages() -> list[str]:
    """Every room and its sub-packages, by import name."""
    names = []
    for room in ROOMS:
        names += [f"steelyard.{room}"] + [f"steelyard.{room}.{sub}" for sub in find_packages(room)]
    return names


class FreshBuild(build):
    """Starts a wheel from an empty folder: a module deleted since the last build must not be shipped."""

    def run(self) -> None:
        """Forget the last build's copies (not its objects), then build."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Builds target _native with CMake in build/cmake-<config> (kept between builds) and copies it out."""

    def build_extension(self, ext: Extension) -> None:
        """Configure, build and install the one extension; concurrent builds of a checkout take turns."""
        import pybind11

        build_dir = self.build_dir()
        build_dir.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build_dir), "-DSTEELYARD_PYTHON=ON"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
        configure += [f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}"]
        if "STEELYARD_MARCH" in os.environ:
            configure += [f"-DSTEELYARD_MARCH={os.environ['STEELYARD_MARCH']}"]
        # Named anew each time: pip's isolated builds bring a ninja of their own, gone by the next build.
        if (ninja := shutil.which("ninja")) and not (build_dir / "Makefile").exists():
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        with open(build_dir / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
            subprocess.run(
                ["cmake", "--build", str(build_dir), "--target", "_native", "-j", jobs], check=True
            )
            self.install(ext)

    def copy_extensions_to_source(self) -> None:
        """For an editable install: the module and its flags beside native/__init__.py."""
        for ext in self.extensions:
            self.install(ext)

    def build_dir(self) -> Path:
        """Where CMake works."""
        return ROOT / "build" / ("cmake-debug" if self.debug else "cmake-release")

    def install(self, ext: Extension) -> None:
        """Put module and flags in place by rename, since a running process may have the old ones open."""
        module = Path(self.get_ext_fullpath(ext.name))
        module.parent.mkdir(parents=True, exist_ok=True)
        for name in (module.name, "build_flags.txt"):
            partial = module.with_name(name + ".partial")
            shutil.copy2(self.build_dir() / "native" / name, partial)
            partial.replace(module.with_name(name))


setup(
    packages=packages(),
    package_dir={f"steelyard.{room}": room for room in ROOMS},
    ext_modules=[Extension("steelyard.native._native", sources=[])],
    cmdclass={"build": FreshBuild, "build_ext": CMakeBuild},
)
