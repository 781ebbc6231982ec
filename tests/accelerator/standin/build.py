"""Build the backend once per torch version, and load it."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

_NAME = "standin_backend"
_SOURCES = (Path(__file__).with_name("backend.cpp"), Path(__file__).with_name("runtime.h"))


def missing() -> str | None:
    """Return why the backend can be neither loaded nor built here, or None."""
    if _library().exists():
        return None
    absent = [program for program in ("g++", "ninja") if shutil.which(program, path=_path()) is None]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        absent.append("Python.h")
    return f"the stand-in accelerator cannot be built: missing {', '.join(absent)}" if absent else None


@cache
def load() -> ModuleType:
    """Load the backend into this process. The first call on a machine builds it, which takes about a minute."""
    from standin import device

    library = _library()
    if not library.exists():
        _build(library.parent)
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    device.backend = backend
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", device)
    return backend


def _library() -> Path:
    """Return where the backend for this Python, this torch and these sources is cached."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raybcgd"
    folder = Path(os.environ.get("RAYBCGD_ACCELERATOR_CACHE") or default)
    sources = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()
    version = f"{sys.implementation.cache_tag}-torch{torch.__version__}-{sources[:12]}"
    return folder / f"standin-{version}" / f"{_NAME}.so"


def _path() -> str:
    """Return the search path with the folder of the interpreter, which contains ninja if it is installed from PyPI."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _build(folder: Path) -> None:
    """Build in another process and in a temporary folder, so that no process loads a partly written library."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "standin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # another process built it in the meantime
            return
        building = Path(tempfile.mkdtemp(prefix="standin-", dir=folder.parent))
        settings = {"PATH": _path(), "CXX": "g++", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        command = [sys.executable, "-c", _BUILD, str(_SOURCES[0]), str(building)]
        try:
            subprocess.run(command, env=os.environ | settings, check=True)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)


_BUILD = f"""
import sys
from torch.utils.cpp_extension import load
load("{_NAME}", [sys.argv[1]], extra_cflags=["-O1"], build_directory=sys.argv[2])
"""
