"""Two images: figures, and where the error sits; on arrays with known errors and on a renderer with known faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

from precision_align.core.errors import DumpDamaged, DumpNotFound, NothingInCommon, Unavailable, UsageError
from precision_align.reporting.images import describe_images
from precision_align.reporting.resultpages import render_page
from precision_align.training.images.comparing import compare_images
from precision_align.training.images.pictures import encode_png
from precision_align.training.images.reading import read_image

Image = Any
NEEDS_SKIMAGE = "the extra 'image' is not installed"


def make_image(size: int = 128) -> Image:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size] / size
    waves = np.stack([np.sin(7 * x + 3 * y), np.cos(5 * y), np.sin(11 * x * y + 1)], -1)
    return 0.5 + 0.3 * waves + 0.1 * rng.random((size, size, 3))


def first_place(candidate: Image, reference: Image | None = None) -> str:
    report = compare_images(make_image() if reference is None else reference, candidate)
    return report.places[0].name if report.places else ""


def spoil(image: Image, rows: slice, columns: slice) -> Image:
    image[rows, columns] += 0.1 * np.random.default_rng(1).standard_normal(image[rows, columns].shape)
    return image


def spoil_border(image: Image) -> Image:
    image[[0, 1, -2, -1]] += 0.2
    image[:, [0, 1, -2, -1]] -= 0.2
    return image


def spoil_edges(image: Image) -> Image:
    for start in range(0, 128, 16):
        image[start] += 0.1
        image[:, start] -= 0.1
    return image


def spoil_pixels(image: Image) -> Image:
    image[[3, 70, 90], [5, 100, 2]] = 1.5
    return image


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda image: image * 1.1 + 0.02, "brightness"),
        (lambda image: image[..., ::-1], "channels swapped"),
        (lambda image: image[::-1], "flipped"),
        (lambda image: np.roll(image, 1, axis=1), "shifted"),
        (spoil_pixels, "a few pixels"),
        (lambda image: spoil(image, slice(32, 48), slice(64, 80)), "whole tiles"),
        (spoil_edges, "edges of tiles"),
        (spoil_border, "the border"),
        (lambda image: image + [0.0, 0.05, 0.0] * np.random.default_rng(2).random((128, 128, 1)), "one channel"),
    ],
)
def test_where_a_known_error_sits(change: Callable[[Image], Image], place: str) -> None:
    assert first_place(change(make_image())) == place


def test_an_error_everywhere_has_no_place() -> None:
    rng = np.random.default_rng(3)
    assert first_place(make_image() + 0.01 * rng.standard_normal((128, 128, 3))) == ""


def test_figures_are_those_of_the_definition() -> None:
    reference = make_image()
    report = compare_images(reference, reference + 0.1)
    assert report.psnr == pytest.approx(20.0)
    assert (report.max_error, report.mean_error, report.wrong) == (pytest.approx(0.1), pytest.approx(0.1), 1.0)
    equal = compare_images(reference, reference)
    assert (equal.psnr, equal.differs, equal.places) == (float("inf"), False, ())
    assert not compare_images(reference, reference + 1e-4).differs


def test_ssim_is_scikit_images() -> None:
    metrics = pytest.importorskip("skimage.metrics", reason=NEEDS_SKIMAGE)
    reference = make_image()
    candidate = reference + 0.05 * np.random.default_rng(4).standard_normal(reference.shape)
    expected = metrics.structural_similarity(reference, candidate, channel_axis=-1, data_range=1.0)
    assert compare_images(reference, candidate).ssim == pytest.approx(expected)
    small = compare_images(reference[:5, :5], candidate[:5, :5])
    assert any("no SSIM" in note for note in small.notes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(value: float) -> None:
    candidate = make_image()
    candidate[4, 4, 1] = value
    report = compare_images(make_image(), candidate)
    assert (report.differs, report.nonfinite) == (True, 1)
    assert report.notes
    both = compare_images(candidate, candidate)  # NaN is no agreement, the same infinity is one
    assert (both.differs, both.nonfinite) == ((True, 1) if np.isnan(value) else (False, 0))
    assert compare_images(np.full_like(candidate, value), np.full_like(candidate, value)).differs


def test_values_over_one_are_judged_by_their_share() -> None:
    depth = 1000 * make_image()
    assert not compare_images(depth, depth * (1 + 1e-4)).differs
    wrong = depth.copy()
    wrong[5, 5] *= 1.01
    assert compare_images(depth, wrong).differs


def test_a_picture_of_eight_bits_is_the_nearest_one() -> None:
    halves = (np.arange(64, dtype=np.float32).reshape(8, 8) + 0.5) / np.float32(255)
    assert not compare_images(halves, np.round(halves.astype(np.float64) * 255) / 255).differs


def test_layouts_and_files(tmp_path: Path) -> None:
    image = make_image(32)
    np.save(tmp_path / "hwc.npy", image.astype(np.float32))
    np.save(tmp_path / "bchw.npy", np.moveaxis(image, -1, 0)[None].astype(np.float32))
    np.savez(tmp_path / "one.npz", image=(image * 255).round().clip(0, 255).astype(np.uint8))
    assert not compare_images(tmp_path / "hwc.npy", tmp_path / "bchw.npy").differs
    assert compare_images(tmp_path / "hwc.npy", tmp_path / "one.npz").max_error <= 0.5 / 255 + 1e-6
    (tmp_path / "bad.npy").write_bytes(b"no")
    np.save(tmp_path / "flat.npy", np.zeros(5))
    for name, error in (("bad.npy", DumpDamaged), ("flat.npy", UsageError), ("x.npy", DumpNotFound)):
        with pytest.raises(error):
            read_image(tmp_path / name)
    with pytest.raises(NothingInCommon, match="sizes"):
        compare_images(image, image[:16])


def test_pictures_are_read_and_written(tmp_path: Path) -> None:
    pytest.importorskip("skimage.io", reason=NEEDS_SKIMAGE)
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    (tmp_path / "map.png").write_bytes(encode_png(levels))
    assert np.array_equal(read_image(tmp_path / "map.png")[..., 0], levels / 255)


def test_without_scikit_image_the_message_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("skimage", "skimage.io", "skimage.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8), np.uint8)))
    with pytest.raises(Unavailable, match="scikit-image"):
        read_image(tmp_path / "a.png")
    assert any("no SSIM" in note for note in compare_images(make_image(), make_image()).notes)


def test_the_verb(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", make_image(64))
    np.save(tmp_path / "b.npy", make_image(64) * 0.9)
    words = ("image", "a.npy", "b.npy", "--json", "-o", "page.html")
    done = run_python("-m", "precision_align", *words, cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, result["places"][0]["name"]) == (1, "brightness")
    assert "data:image/png" in (tmp_path / "page.html").read_text("utf-8")
    for language, word in (("en", "brightness"), ("zh", "亮度")):
        report = compare_images(tmp_path / "a.npy", tmp_path / "b.npy")
        assert word in render_page(describe_images(report, language), 80)


torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def reference() -> Image:
    import gaussian_renderer

    with torch.no_grad():
        return gaussian_renderer.render(gaussian_renderer.Scene().to("cpu")).numpy()


sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def npu() -> Any:
    from precision_align.devices.simulated import install_simulated

    install_simulated("ascend910b")
    return torch.device("npu")


@pytest.mark.parametrize(
    ("fault", "places"),
    [
        ("", set()),
        ("tile order", set()),
        ("depth key", {""}),
        ("blur", {"", "a few pixels"}),
        ("background", {"", "brightness"}),
        ("alpha cap", {""}),
        ("half pixel", {"", "shifted"}),
        ("tile list", {"whole tiles"}),
        ("channel", {"one channel"}),
    ],
)
def test_a_renderer_on_the_simulated_npu(reference: Image, npu: Any, fault: str, places: set[str]) -> None:
    import gaussian_renderer

    with torch.no_grad():
        image = gaussian_renderer.render(gaussian_renderer.Scene().to(npu), fault=fault).cpu().numpy()
    report = compare_images(reference, image)
    assert report.differs == bool(places)
    if places:
        assert (report.places[0].name if report.places else "") in places


def test_the_renderer_is_differentiable() -> None:
    import gaussian_renderer

    parameters = gaussian_renderer.Scene(count=20, size=32).to("cpu")
    gaussian_renderer.render(parameters, 32).square().mean().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in parameters.values())
