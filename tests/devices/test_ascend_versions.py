"""CANN, driver and firmware versions, from files as Ascend's installers write them."""

from __future__ import annotations

import sys
import types

import pytest

from precision_align.devices import ascend

pytestmark = pytest.mark.live

DRIVER = """Version=24.1.rc3
ascendhal_version=7.35.23
aicpu_version=1.0
tdt_version=1.0
"""
FIRMWARE = """Version=7.5.0.1.129
firmware_version=1.0
package_version=24.1.rc3
"""
TOOLKIT = """package_name=Ascend-cann-toolkit
version=8.0.RC3
innerversion=V100R001C19SPC001B191
arch=aarch64
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host without anything of Ascend's; what is written below its folder is seen."""
    for name in ("CANN_VERSION", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ascend, "_ROOT", str(tmp_path / "usual"))
    monkeypatch.setattr(ascend, "_INSTALL_INFO", str(tmp_path / "ascend_install.info"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ascend._ask_smi.cache_clear()
    yield tmp_path
    ascend._ask_smi.cache_clear()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_host_without_ascend_has_none(host):
    assert ascend.find_ascend_versions() == {}


def test_files_where_the_installers_put_them(host, monkeypatch):
    write(host / "usual" / "driver" / "version.info", DRIVER)
    write(host / "usual" / "firmware" / "version.info", FIRMWARE)
    write(host / "toolkit" / "aarch64-linux" / "ascend_toolkit_install.info", TOOLKIT)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(host / "toolkit"))
    expected = {"cann": "8.0.RC3", "driver": "24.1.rc3", "firmware": "7.5.0.1.129"}
    assert ascend.find_ascend_versions() == expected
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME")
    monkeypatch.setenv("CANN_VERSION", "8.1.RC1")
    assert ascend.find_ascend_versions() == {**expected, "cann": "8.1.RC1"}


def test_folders_that_the_installer_was_told(host):
    write(host / "ascend_install.info", f"UserName=HwHiAiUser\nDriver_Install_Path_Param={host / 'own'}\n")
    write(host / "own" / "driver" / "version.info", DRIVER)
    assert ascend.find_ascend_versions() == {"driver": "24.1.rc3"}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf '| npu-smi 23.0.rc3          Version: 23.0.rc3      |\\n'", {"driver": "23.0.rc3"}),
        ("printf 'dcmi module initialize failed. ret is -8005\\n'; exit 1", {}),
    ],
)
def test_npu_smi_is_asked_where_there_is_no_file(host, script, expected):
    write(host / "bin" / "npu-smi", f"#!/bin/sh\n{script}\n")
    (host / "bin" / "npu-smi").chmod(0o755)
    assert ascend.find_ascend_versions() == expected


def test_a_dump_says_them(host, monkeypatch):
    from precision_align.recording.environment import find_versions

    write(host / "usual" / "driver" / "version.info", DRIVER)
    module = types.ModuleType("torch_npu")
    module.__version__ = "2.6.0.post2"
    module.version = types.SimpleNamespace(git_version="5dfe1ee")
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    versions = find_versions()
    assert (versions["torch_npu"], versions["torch_npu commit"]) == ("2.6.0.post2", "5dfe1ee")
    assert versions["driver"] == "24.1.rc3"
    assert "firmware" not in versions
