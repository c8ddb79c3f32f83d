"""Routes without a wheel: names in a library's bytes, the fake libopapi, files, differences."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precision_align.core.errors import UsageError
from precision_align.devices.stub_cann.routes import build_routes, find_names
from precision_align.library.routing import (
    Routes,
    compare_routes,
    phrase_route,
    read_routes,
    record_routes,
    render_routes,
    write_routes,
)

REPORTS = Path(__file__).resolve().parents[2] / "reports" / "torch_npu"
PATHS = {
    "aten.mul.Tensor": [["aclnnMul"]],
    "aten.rms_norm.default": [["aclnnMean", "aclnnRsqrt"]],
    "aten.view.default": [],
}
ROUTES = Routes("2.13.0", "2.13.0", "Ascend910B1", 3, 2, PATHS, {"odd": "RuntimeError: no"})


def test_names_come_from_the_librarys_texts() -> None:
    texts = b"\0aclnnMul\0aclnnMulGetWorkspaceSize\0aclStftGetWorkspaceSize\0xaclnnNot\0aclnnAddV2\0the aclnn kernel\0"
    assert find_names(texts) == ["aclStft", "aclnnAddV2", "aclnnMul"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_fake_library_notes_who_was_run_and_not_who_was_asked_for_its_workspace(tmp_path: Path) -> None:
    build_routes(tmp_path, ["aclnnMul", "aclnnAdd"])
    code = (
        "import sys; from pathlib import Path; from precision_align.devices.stub_cann.routes import Notebook\n"
        f"n = Notebook(Path({str(tmp_path)!r})); l = n._library\n"
        "l.aclnnMulGetWorkspaceSize(); l.aclnnMul(); l.aclnnAdd(); n.note('aclop:Pad'); print(n.read())\n"
        "n.clear(); print(n.read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['aclnnMul', 'aclnnAdd', 'aclop:Pad']", "[]"]


def test_routes_are_written_read_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "routes.json"
    write_routes(file, ROUTES)
    assert read_routes(file) == ROUTES
    assert compare_routes(ROUTES, ROUTES) == {}
    moved = dataclasses.replace(ROUTES, routes={**PATHS, "aten.rms_norm.default": [["aclnnRmsNorm"]]})
    assert compare_routes(ROUTES, moved) == {"aten.rms_norm.default": ("aclnnMean, aclnnRsqrt", "aclnnRmsNorm")}
    assert phrase_route([]) == "no CANN operator"
    text = render_routes(ROUTES)
    assert "not numerics" in text
    assert "3 aten overloads, 2 ask CANN, for 3 different operators" in text
    file.write_text("{}")
    with pytest.raises(UsageError, match="no routes"):
        read_routes(file)
    with pytest.raises(UsageError, match="holds no torch_npu"):
        record_routes(tmp_path)


def test_the_committed_recordings_show_what_was_known_of_the_dispatcher() -> None:
    routes = read_routes(REPORTS / "routes-2.13.0-Ascend910B1.json")
    assert routes.clean / routes.operators > 0.9
    assert routes.routes["aten.gelu.default"] == [["aclnnGelu"]]  # the argument approximate is dropped
    assert routes.routes["aten._softmax.default"] == [["aclnnSoftmax"]]
    assert len({name for paths in routes.routes.values() for path in paths for name in path}) > 300
