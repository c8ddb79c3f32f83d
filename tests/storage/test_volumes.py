"""Volumes: cut, carried, put together; interrupted and damaged on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precision_align.core.errors import DumpDamaged, UsageError
from precision_align.storage.volumes import read_manifest, read_volumes, write_volumes

pytestmark = pytest.mark.live


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_files(folder: Path, *sizes: int) -> list[tuple[str, Path]]:
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    found = []
    for number, size in enumerate(sizes):
        path = folder / f"file{number}"
        path.write_bytes(generator.bytes(size))
        found.append((f"deep/{path.name}", path))
    return found


@pytest.mark.parametrize("volume", [1, 7, 100, 1000, 5000])
def test_every_size_of_volume_gives_the_files_back(tmp_path: Path, volume: int) -> None:
    files = make_files(tmp_path / "source", 100, 0, 33, 0)
    manifest, outcome = write_volumes(files, tmp_path / "volumes", volume)
    assert len(outcome.written) == len(manifest.volumes) == -(-133 // volume)
    assert all(piece.nbytes == volume for piece in manifest.volumes[:-1])
    read_volumes(tmp_path / "volumes", tmp_path / "target")
    assert list_files(tmp_path / "target") == {name: path.read_bytes() for name, path in files}


def test_a_pack_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files(tmp_path / "source", 1000, 1000)
    volumes = tmp_path / "volumes"
    real = Path.replace

    def stop(self: Path, target: Path) -> Path:
        if str(target).endswith("volume00004.pav"):
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            write_volumes(files, volumes, 300)
    with pytest.raises(DumpDamaged.__base__, match=r"no manifest\.json"):
        read_volumes(volumes, tmp_path / "target")
    manifest, outcome = write_volumes(files, volumes, 300)
    assert outcome.kept == [f"volume{number:05d}.pav" for number in (1, 2, 3)]
    (volumes / "volume00002.pav").unlink()
    (volumes / "volume00005.pav").write_bytes(b"x" * 300)
    again, outcome = write_volumes(files, volumes, 300)
    assert outcome.written == ["volume00002.pav", "volume00005.pav"]
    assert again == manifest
    files[0][1].write_bytes(b"y" * 1000)
    with pytest.raises(UsageError, match="another content"):
        write_volumes(files, volumes, 300)
    read_volumes(volumes, tmp_path / "target")


def test_unpacking_names_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    files = make_files(tmp_path / "source", 1000, 1000)
    whole, carried, target = tmp_path / "whole", tmp_path / "carried", tmp_path / "target"
    write_volumes(files, whole, 300)
    carried.mkdir()
    for path in whole.iterdir():
        if path.name != "volume00003.pav":
            (carried / path.name).write_bytes(path.read_bytes())
    damaged = bytearray((carried / "volume00006.pav").read_bytes())
    damaged[17] ^= 1
    (carried / "volume00006.pav").write_bytes(damaged)
    with pytest.raises(DumpDamaged, match=r"5 of 7 .* volume00003\.pav \(missing\), volume00006\.pav \(damaged\)"):
        read_volumes(carried, target)
    for number in (1, 2, 4, 5, 7):  # the carrier's disk is small: what was taken need not stay
        (carried / f"volume{number:05d}.pav").unlink()
    for name in ("volume00003.pav", "volume00006.pav"):
        (carried / name).write_bytes((whole / name).read_bytes())
    read_volumes(carried, target)
    assert list_files(target) == {name: path.read_bytes() for name, path in files}
    with pytest.raises(UsageError, match="not empty"):
        read_volumes(carried, target)


def test_what_an_interrupted_pack_left_does_not_leave_with_the_next_one(tmp_path: Path) -> None:
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    for name in ("volume00003.pav", "volume00002.pav.tmp", "volume00009.pav.tmp"):
        (volumes / name).write_bytes(b"secret")
    write_volumes(make_files(tmp_path / "source", 100, 100), volumes, 100)
    assert sorted(path.name for path in volumes.iterdir()) == ["manifest.json", "volume00001.pav", "volume00002.pav"]


@pytest.mark.parametrize("moved", [0, 1])
def test_unpacking_that_was_stopped_at_its_very_end_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    files = make_files(tmp_path / "source", 100, 0)
    volumes, target = tmp_path / "volumes", tmp_path / "target"
    write_volumes(files, volumes, 100)
    real, left = Path.replace, [moved]

    def stop(self: Path, place: Path) -> Path:
        if place.parent == target:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        return real(self, place)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        patch.setattr("shutil.rmtree", lambda place: stop(place, target / "removed"))
        with pytest.raises(KeyboardInterrupt):
            read_volumes(volumes, target)
    for path in volumes.glob("*.pav"):  # what was taken need not stay
        path.unlink()
    read_volumes(volumes, target)
    assert list_files(target) == {name: path.read_bytes() for name, path in files}


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../b", ".unpacking/x"])
def test_a_manifest_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    files = make_files(tmp_path / "source", 10)
    write_volumes([(name, files[0][1])], tmp_path / "volumes", 100)
    with pytest.raises(DumpDamaged, match="outside of its folder"):
        read_volumes(tmp_path / "volumes", tmp_path / "target")
    manifest = tmp_path / "volumes" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(name, "harmless"))
    with pytest.raises(DumpDamaged, match="changed on its way"):
        read_manifest(tmp_path / "volumes")
