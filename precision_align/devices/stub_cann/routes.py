"""Which CANN operator torch_npu asks for: a fake ``libopapi.so`` that computes nothing and notes every name.

torch_npu finds its aclnn functions by name when it needs them. Here each of the names that the wheel knows is a
function that returns success; the compiled operators ("aclop") are noted by the runtime's own callback. Shapes, dtypes
and the choice of the operator are torch_npu's; the values are whatever lay in memory.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from precision_align.core.errors import Unavailable

LIBRARY = "libopapi.so"
# An operator is asked for its workspace, then run; only running is noted.
_NAME = re.compile(rb"\baclnn[A-Z]\w*?(?=\0|GetWorkspaceSize\0)|\bacl[A-Z]\w*?(?=GetWorkspaceSize\0)")
_HEAD = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define API __attribute__((visibility("default")))
static char taken[1 << 16];
static size_t used;
static void note(const char *name) {
    size_t length = strlen(name);
    if (used + length + 2 > sizeof taken) return;
    memcpy(taken + used, name, length);
    used += length;
    taken[used++] = '\\n';
    taken[used] = 0;
}
API void routes_note(const char *name) { note(name); }
API void routes_clear(void) { used = 0; taken[0] = 0; }
API const char *routes_read(void) { return taken; }
static char thing[64];
#define MAKE(name) API void *name(void) { return thing; }
#define DONE(name) API int name(void) { return 0; }
MAKE(aclCreateTensor) MAKE(aclCreateScalar) MAKE(aclCreateIntArray) MAKE(aclCreateFloatArray)
MAKE(aclCreateBoolArray) MAKE(aclCreateTensorList) MAKE(aclCreateScalarList)
DONE(aclDestroyTensor) DONE(aclDestroyScalar) DONE(aclDestroyIntArray) DONE(aclDestroyFloatArray)
DONE(aclDestroyBoolArray) DONE(aclDestroyTensorList) DONE(aclDestroyScalarList) DONE(aclDestroyAclOpExecutor)
/* The size of a result that depends on values: one element. The caller frees what it is given. */
API int aclGetViewShape(const void *tensor, int64_t **sizes, uint64_t *count) {
    (void)tensor;
    *sizes = malloc(sizeof **sizes);
    **sizes = 1;
    *count = 1;
    return 0;
}
#define ROUTE(name) \\
    API int name##GetWorkspaceSize(void) { return 0; } \\
    API int name(void) { note(#name); return 0; }
"""


def find_names(library: bytes) -> list[str]:
    """The aclnn functions that ``libtorch_npu.so`` may ask for, from its texts."""
    return sorted({found.decode() for found in _NAME.findall(library)})


def build_routes(folder: Path, names: Iterable[str]) -> Path:
    """Compile the fake ``libopapi.so`` into the folder of the stub. Raises Unavailable."""
    source = folder / "routes.c"
    source.write_text(_HEAD + "\n".join(f"ROUTE({name})" for name in names) + "\n", encoding="utf-8")
    target = folder / LIBRARY
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("Routes need a C compiler (cc, gcc, clang); none is on PATH.")
    command = [compiler, "-std=gnu99", "-O0", "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(target)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise Unavailable(f"The fake {LIBRARY} does not compile: {done.stderr.strip()[:2000]}")
    return target


class Notebook:
    """The names that were asked for since the last look."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / LIBRARY), mode=ctypes.RTLD_GLOBAL)
        self._library.routes_read.restype = ctypes.c_char_p

    def clear(self) -> None:
        """Forget."""
        self._library.routes_clear()

    def read(self) -> list[str]:
        """In the order of the calls."""
        return (self._library.routes_read() or b"").decode().split()

    def note(self, name: str) -> None:
        """Add a name that came another way (a compiled operator)."""
        self._library.routes_note(name.encode())
