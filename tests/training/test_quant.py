"""A model quantised to int8 by torch itself: what each module loses, injected faults of scales, sensitivities."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

from precision_align.core.errors import NothingInCommon, UsageError
from precision_align.reporting.quant import describe_quant
from precision_align.reporting.resultpages import render_page
from precision_align.training.quantising.comparing import compare_quantised, measure_spread, measure_sqnr

torch = pytest.importorskip("torch")
quantization = pytest.importorskip("torch.ao.quantization", reason="this torch has no quantisation of its own")
nn = torch.nn
# torch announces that torchao takes its place, and its observers warn of settings of ours that are their defaults
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PROGRAM = """
import warnings

warnings.simplefilter("ignore")
import torch
import torch.ao.quantization as quantization
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.act, self.middle, self.last = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.leave(self.last(self.middle(self.act(self.first(self.enter(x))))))


def reference():
    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        model.middle.weight[:, 0] *= 40.0  # a column that only rare inputs reach: hard to quantise
    return model


def inputs(seed=1, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(64, 16, generator=generator) * scale for _ in range(2)]


def candidate(scale=1.0):
    model = reference()
    torch.backends.quantized.engine = "qnnpack"
    model.qconfig = quantization.QConfig(
        activation=quantization.MinMaxObserver.with_args(dtype=torch.quint8),
        weight=quantization.MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
    )
    prepared = quantization.prepare(model)
    with torch.no_grad():
        for batch in inputs(7, scale):
            prepared(batch)
    return quantization.convert(prepared)
"""


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": "quantised_model"}
    exec(PROGRAM, made)
    return made


def record(model: Any, batches: list[Any], path: Path) -> Path:
    from precision_align.recording.session import capture

    with capture(model, path) as recorder, torch.no_grad():
        for batch in batches:
            with recorder.step():
                model(batch)
    return path


@pytest.fixture(scope="module")
def runs(code: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quantised")
    made = {
        "float": record(code["reference"](), code["inputs"](), folder / "float"),
        "int8": record(code["candidate"](), code["inputs"](), folder / "int8"),
        "narrow": record(code["candidate"](0.2), code["inputs"](), folder / "narrow"),
        "calibration": record(code["reference"](), code["inputs"](7, 0.2), folder / "calibration"),
    }
    wide = code["candidate"]()
    wide.last.scale *= 30.0
    made["wide"] = record(wide, code["inputs"](), folder / "wide")
    shifted = code["candidate"]()
    shifted.first.zero_point = 200
    made["shifted"] = record(shifted, code["inputs"](), folder / "shifted")
    return made


def list_problems(runs: dict[str, Path], name: str) -> set[tuple[str, str]]:
    report = compare_quantised(runs["float"], runs[name])
    return {(module.scope, problem) for module in report.faults for problem in module.problems}


def test_a_sound_quantisation_has_no_problem(runs: dict[str, Path]) -> None:
    report = compare_quantised(runs["float"], runs["int8"])
    assert not report.faults
    outputs = {module.scope: module for module in report.modules if module.step == 0}
    assert {"enter", "first", "act", "middle", "last", ""} <= set(outputs)
    assert 15 < outputs[""].sqnr < outputs["enter"].sqnr < 60
    assert outputs["first"].dtype == "quint8"
    assert outputs["first"].before.maximum == pytest.approx(outputs["first"].after.maximum, rel=0.2)


def test_one_clipped_value_of_a_small_output_is_no_share(tmp_path: Path) -> None:
    def make(reach: float) -> Any:
        model = nn.Sequential(quantization.QuantStub(), nn.ReLU(), quantization.DeQuantStub()).eval()
        torch.backends.quantized.engine = "qnnpack"
        model.qconfig = quantization.get_default_qconfig("qnnpack")
        prepared = quantization.prepare(model)
        prepared(torch.linspace(-reach, reach, 512).reshape(1, -1))
        return quantization.convert(prepared)

    inputs = torch.linspace(-1, 1, 512).reshape(1, -1)
    inputs[0, 0] = -1.2
    plain = nn.Sequential(nn.Identity(), nn.ReLU(), nn.Identity()).eval()
    paths = [record(model, [inputs], tmp_path / str(i)) for i, model in enumerate((plain, make(1.0), make(0.9)))]
    clipped = [
        [module.scope for module in compare_quantised(paths[0], path).faults if "clipped" in module.problems]
        for path in paths[1:]
    ]
    assert clipped[0] == []
    assert "0" in clipped[1]


def test_equal_runs_lose_nothing(runs: dict[str, Path]) -> None:
    report = compare_quantised(runs["float"], runs["float"])
    assert not report.faults
    assert {module.sqnr for module in report.modules} == {float("inf")}


def test_scales_from_too_narrow_inputs_clip(runs: dict[str, Path]) -> None:
    assert ("enter", "clipped") in list_problems(runs, "narrow")
    report = compare_quantised(runs["float"], runs["narrow"], runs["calibration"])
    assert "enter" in {one.scope for one in report.exceeded}
    widest = report.exceeded[0]
    assert widest.real[1] > widest.calibrated[1]
    assert widest.share > 0.1
    assert not compare_quantised(runs["float"], runs["int8"], runs["float"]).exceeded


def test_a_scale_that_is_too_wide_leaves_codes_unused(runs: dict[str, Path]) -> None:
    assert ("last", "range unused") in list_problems(runs, "wide")


def test_a_wrong_zero_point_is_told_from_a_narrow_scale(runs: dict[str, Path]) -> None:
    problems = list_problems(runs, "shifted")
    assert ("first", "codes shifted") in problems
    assert ("first", "clipped") not in problems


def test_runs_without_common_outputs(runs: dict[str, Path], tmp_path: Path) -> None:
    other = record(nn.Sequential(nn.Linear(16, 4)), [torch.randn(2, 16)], tmp_path / "other")
    with pytest.raises(NothingInCommon, match="payload full"):
        compare_quantised(other, _without_root(runs["float"]))


def _without_root(path: Path) -> Any:
    from precision_align.storage.opening import open_dump

    class View:
        def __init__(self) -> None:
            self._dump = open_dump(path)
            self.records = [record for record in self._dump.records if record.key.scope]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._dump, name)

    return View()


def round_to(values: Any, module: Any) -> Any:
    return torch.fake_quantize_per_tensor_affine(values, float(module.scale), int(module.zero_point), 0, 255)


def test_the_order_of_sensitivity_is_the_measured_one(code: dict[str, Any]) -> None:
    from precision_align.workflows.quantising import find_switchable, measure_sensitivity

    model, quantised, batches = code["reference"](), code["candidate"](), code["inputs"]()
    assert find_switchable(model, quantised) == ["first", "middle", "last"]
    base, found, keep = measure_sensitivity(model, quantised, batches, budget=2)
    # the same by hand: a copy whose one module rounds its input, weight and output as the quantised model does
    feeds = {"first": quantised.enter, "middle": quantised.first, "last": quantised.middle}
    measured = {}
    with torch.no_grad():
        golden = torch.cat([model(batch) for batch in batches]).numpy()
        for name, feed in feeds.items():
            changed = copy.deepcopy(model)
            module = getattr(quantised, name)
            getattr(changed, name).weight.copy_(module.weight().dequantize())
            getattr(changed, name).register_forward_pre_hook(lambda _, args, feed=feed: (round_to(args[0], feed),))
            getattr(changed, name).register_forward_hook(lambda _, args, out, module=module: round_to(out, module))
            measured[name] = measure_sqnr(golden, torch.cat([changed(batch) for batch in batches]).numpy())
    assert {one.scope: one.alone for one in found} == pytest.approx(measured, abs=0.5)
    assert [one.scope for one in found] == sorted(measured, key=lambda name: measured[name])
    assert found[0].scope == "middle"
    assert found[0].weight < min(one.weight for one in found[1:])
    assert keep[0][0] == max(found, key=lambda one: one.gain).scope
    assert keep[1][1] >= keep[0][1] - 1.0
    assert keep[0][1] > base


def test_models_are_left_as_they_were(code: dict[str, Any]) -> None:
    from precision_align.workflows.quantising import measure_sensitivity

    model, quantised, batches = code["reference"](), code["candidate"](), code["inputs"]()
    model.train()
    before = [dict(side.named_modules()) for side in (model, quantised)]
    measure_sensitivity(model, quantised, batches)
    assert [dict(side.named_modules()) for side in (model, quantised)] == before
    assert model.training
    with pytest.raises(UsageError, match="no module"):
        measure_sensitivity(model, model, batches)


def test_figures_are_those_of_the_definition() -> None:
    values = np.linspace(-1, 1, 1001)
    assert measure_sqnr(values, values + 0.01) == pytest.approx(10 * np.log10((values**2).sum() / (1001 * 1e-4)))
    assert np.isnan(measure_sqnr(values, np.where(values > 0.5, np.nan, values)))
    assert measure_spread(values).high == pytest.approx(0.998)


def test_the_verb(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(PROGRAM)
    words = ["-m", "precision_align", "quant", str(runs["float"]), str(runs["narrow"]), "--json"]
    options = ["--code", "models.py", "--keep", "1", "--calibration", str(runs["calibration"]), "-o", "p.html"]
    done = run_python(*words, *options, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["keep"][0]["scope"] in ("first", "middle", "last")
    assert result["exceeded"]
    assert "enter" in (tmp_path / "p.html").read_text("utf-8")
    report = compare_quantised(runs["float"], runs["narrow"], runs["calibration"])
    for language, word in (("en", "too small"), ("zh", "太小")):
        assert word in render_page(describe_quant(report, language), 120)
