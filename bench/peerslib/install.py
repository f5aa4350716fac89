"""Builds the peers for this CPU (or for AVX2) from their source packages on PyPI, each in a venv of its own.

A venv each, because both packages put files of the same names into site-packages/include and bin.
"""
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

# engine -> (package with its version, name to import). The versions are the ones this bench was tried with.
PACKAGES = {
    "llama.cpp": ("llama-cpp-python==0.3.36", "llama_cpp"),
    "ik_llama.cpp": ("ik-llama-cpp-python==0.1.5", "ik_llama_cpp"),
}

AVX512 = ("GGML_AVX512", "GGML_AVX512_VBMI", "GGML_AVX512_VNNI", "GGML_AVX512_BF16")
CMAKE_ARGS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
             "-DGGML_BMI2=ON"] + [f"-D{name}=OFF" for name in AVX512],
}

# The source package of ik-llama-cpp-python 0.1.5 lacks this script of its own build (packing left out every folder
# called cmake), which fills in common/build-info.cpp. A script with the same effect stands in.
BUILD_INFO = Path("vendor/ik_llama.cpp/common")
BUILD_INFO_SCRIPT = """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "${CMAKE_HOST_SYSTEM_PROCESSOR}")
configure_file(common/build-info.cpp.in common/build-info.cpp)
"""


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "colibri" / "peers"


def venv_of(cache, isa, engine):
    return Path(cache) / isa / engine


def find_package(venv, engine):
    """The folder of the engine's Python package inside a venv, or None."""
    for lib in sorted(Path(venv).glob("lib*/python3*/site-packages/" + PACKAGES[engine][1])):
        if any(lib.glob("lib/libllama*")) or any(lib.parent.glob("lib*/libllama*")):
            return lib
    return None


def package_version(package):
    """Version of an installed package, from the name of its dist-info folder."""
    for info in package.parent.glob(package.name + "*-*.dist-info"):
        found = re.match(re.escape(package.name) + r"(?:_python)?-(.+)\.dist-info$", info.name)
        if found:
            return found.group(1)
    return "unknown"


def run(command, **more):
    print("+", " ".join(map(str, command)), file=sys.stderr, flush=True)
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr, **more)


def unpack(archive, into):
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(into, filter="data")
        else:
            tar.extractall(into)
    (folder,) = [path for path in Path(into).iterdir() if path.is_dir()]
    return folder


def repair(source):
    """Puts the build script that the package lacks into an unpacked source tree, if it is missing there."""
    script = source / BUILD_INFO / "cmake" / "build-info-gen-cpp.cmake"
    if (source / BUILD_INFO).is_dir() and not script.exists():
        script.parent.mkdir(exist_ok=True)
        script.write_text(BUILD_INFO_SCRIPT)
        return True
    return False


def install(engine, isa, cache, jobs):
    """Builds one peer from source; does nothing if it is there."""
    venv = venv_of(cache, isa, engine)
    if find_package(venv, engine):
        return venv
    requirement = PACKAGES[engine][0]
    python = venv / "bin" / "python"
    run([sys.executable, "-m", "venv", venv])
    work = venv / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    env = dict(os.environ, CMAKE_ARGS=" ".join(CMAKE_ARGS[isa]), CMAKE_BUILD_PARALLEL_LEVEL=str(jobs),
               TMPDIR=str(work))
    package = requirement.split("==")[0]
    run([python, "-m", "pip", "download", "--no-deps", "--no-binary", package, "-d", work / "sdist", requirement],
        env=env)
    (archive,) = (work / "sdist").glob("*.tar.gz")
    source = unpack(archive, work / "source")
    if repair(source):
        print(f"note: {archive.name} lacks a script of its own build; a stand-in was added", file=sys.stderr)
    run([python, "-m", "pip", "install", source], env=env)
    if not find_package(venv, engine):
        raise SystemExit(f"bench/peers: {requirement} was installed in {venv}, but its library is not there")
    shutil.rmtree(work)
    return venv


def install_all(isa, cache, jobs, engines=tuple(PACKAGES)):
    """Builds every peer it can; a peer that does not build is named and left out."""
    failed = []
    for engine in engines:
        try:
            print(f"{engine}: {install(engine, isa, cache, jobs)}")
        except subprocess.CalledProcessError as error:
            failed.append(engine)
            print(f"bench/peers: {engine} did not build for {isa}: {error}", file=sys.stderr)
    return 1 if failed else 0
