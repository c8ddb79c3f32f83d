"""What torch_npu adds to a device: checks for real hardware and for the stub CANN alike."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable

import numpy as np
import torch
from torch import nn

from precision_align.core.terms import Role, Source, Status, Verdict
from precision_align.storage.base import Dump
from precision_align.testing import models
from precision_align.testing.devices import DeviceConformance, Inapplicable

FRACTAL_NZ = 29  # aclFormat: blocks of 16 x 16, in which the matrix unit reads


class Twice(nn.Module):
    """y = x W, recorded as one module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(models.WIDTH, models.WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 16] to [B, 16]."""
        result: torch.Tensor = self.inner(x)
        return result


class Falls(nn.Module):
    """An operator that no torch_npu has a kernel for, and a cast that no NPU can do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 16] to a number."""
        bent: torch.Tensor = torch.special.modified_bessel_i0(x)
        return bent.double().mean()


class AscendConformance(DeviceConformance):
    """The device conformance suite for torch_npu."""

    device_name = "npu"

    @property
    def torch_npu(self) -> Any:
        """The module, loaded by opening the device."""
        assert self.device.kind == "npu"
        return sys.modules["torch_npu"]

    @property
    def npu(self) -> Any:
        """The module torch.npu."""
        assert self.device.kind == "npu"
        return vars(torch)["npu"]

    def record_forward(self, model: nn.Module, inputs: torch.Tensor, **options: Any) -> Dump:
        """The dump of one forward pass."""

        def run(recorder: Any) -> None:
            with recorder.step():
                model(inputs)

        return self.record(run, model, **options)

    def assert_input(self, dump: Dump, scope: str, expected: torch.Tensor) -> None:
        """The recorded input of a module is what it should be."""
        (record,) = (
            record
            for record in dump.records
            if record.key.scope == scope and record.key.role == Role.INPUT and record.key.source == Source.MODULE
        )
        assert np.array_equal(dump.values(record.key), expected.numpy())

    def test_versions_name_the_chain(self) -> None:
        versions = self.device.versions()
        assert versions["torch_npu"] == self.torch_npu.__version__
        assert versions["soc"].startswith("Ascend")

    def test_float64_is_not_taken_for_supported(self) -> None:
        """torch_npu gives float32 where float64 was asked for."""
        assert not self.device.supports("float64") or torch.ones(2, device="npu").double().dtype == torch.float64

    def test_hf32_switches_show_in_modes_and_dumps(self) -> None:
        switch = self.npu.matmul
        before = switch.allow_hf32
        try:
            for wanted in (True, False):
                switch.allow_hf32 = wanted
                assert self.device.modes()["matmul.allow_hf32"] is wanted
                dump = self.record_forward(models.build("npu"), models.make_batches("npu", 1)[0][0])
                assert dump.info.capture["modes"]["npu.matmul.allow_hf32"] is wanted
        finally:
            switch.allow_hf32 = before

    def test_inputs_still_on_their_way_are_waited_for(self) -> None:
        """The copy to the device is queued; capture reads what the model reads."""
        model = Twice().to("npu")
        host = torch.randn(1 << 12, models.WIDTH).pin_memory()
        dump = self.record_forward(model, host.to("npu", non_blocking=True))
        self.assert_input(dump, "inner", host)

    def test_work_on_another_stream_is_waited_for(self) -> None:
        model, host = Twice().to("npu"), torch.randn(64, models.WIDTH)
        stream = self.npu.Stream()
        with self.npu.stream(stream):
            dump = self.record_forward(model, host.to("npu") * 2)
        self.npu.current_stream().wait_stream(stream)
        self.assert_input(dump, "inner", host * 2)

    def test_tensors_in_private_formats_have_their_logical_values(self) -> None:
        self.npu.config.allow_internal_format = True
        try:
            model = Twice().to("npu")
            weight = model.inner.weight.detach().cpu()
            model.inner.weight.data = self.torch_npu.npu_format_cast(model.inner.weight.data, FRACTAL_NZ)
            if "NZ" not in str(self.torch_npu.get_npu_format(model.inner.weight)):
                raise Inapplicable("this device keeps weights in plain order")
            inputs = torch.randn(8, models.WIDTH)
            dump = self.record_forward(model, inputs.to("npu"))
        finally:
            self.npu.config.allow_internal_format = False  # its default; it can be set and not be read
        (record,) = (record for record in dump.records if record.key.role == Role.PARAMETER)
        assert np.array_equal(dump.values(record.key), weight.numpy())
        (output,) = (r for r in dump.records if r.key.role == Role.OUTPUT and r.key.scope == "inner")
        expected = inputs.double() @ weight.double().t()
        assert np.allclose(dump.values(output.key), expected.numpy(), atol=1e-2)

    def test_the_generator_and_its_position_are_recorded(self) -> None:
        self.device.manual_seed(11)
        model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)).to("npu")
        dump = self.record_forward(model, torch.ones(64, models.WIDTH, device="npu"))
        positions = [call.modes["rng"]["npu:0"] for call in sorted(dump.calls, key=lambda call: call.enter)]
        assert all(text.startswith("11+") for text in positions)
        first, second = (int(text.partition("+")[2]) for text in positions[-2:])
        assert second > first

    def test_autocast_follows_torch_npus_lists(self) -> None:
        def run(recorder: Any) -> None:
            with recorder.step(), torch.autocast("npu", dtype=torch.float16):
                model(inputs)

        model, (inputs, _) = models.build("npu"), models.make_batches("npu", 1)[0]
        dump = self.record(run, model)
        dtypes = {r.key.scope: r.dtype for r in dump.records if r.key.role == Role.OUTPUT and r.key.source == "module"}
        assert dtypes["blocks.0.norm"] == "float32"
        assert dtypes["blocks.0.up"] == "float16"

    def test_the_accelerator_interface_is_this_device(self) -> None:
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is None:
            raise Inapplicable(f"torch {torch.__version__} has no torch.accelerator")
        assert accelerator.current_accelerator() == torch.device("npu")
        assert accelerator.device_count() == self.npu.device_count()

    def test_cpu_fallbacks_and_lowered_dtypes_are_told_with_their_line(self) -> None:
        """torch_npu writes of both to stderr only, without a line."""
        inputs = torch.rand(4, models.WIDTH, device="npu")
        dump = self.record_forward(Falls(), inputs, sources=("modules", "operators"))
        path, first = inspect.getsourcefile(Falls.forward), inspect.getsourcelines(Falls.forward)[1]
        notes = "\n".join(dump.notes)
        assert f"CPU fallback: aten::special_modified_bessel_i0 ran on the CPU at {path}:{first + 2}" in notes
        assert f"dtype lowered: aten._to_copy.default turned float64 to float32 at {path}:{first + 3}" in notes
        clean = self.record_forward(models.build("npu"), inputs, sources=("modules", "operators"))
        assert not [note for note in clean.notes if "fallback" in note or "lowered" in note]

    def test_a_replay_module_on_the_device_is_replayed_on_the_host(self) -> None:
        """float64 on the device would silently be float32."""
        from precision_align.workflows.comparing import compare

        dump, _ = self.record_training("npu", 1)
        report = compare(None, dump, replay=models.build("npu"))
        assert report.verdict == Verdict.ALIGNED, report.first

    def test_fused_operators_pass_their_cases(self) -> None:
        """Forward and backward, against float64."""
        from precision_align.library.runner import run_cases

        cases = ["rope/interleaved", "attention/causal-square", "rms_norm/plain", "swiglu/gate-first"]
        report = run_cases(cases, device=self.device_name, replacement="torch_npu")
        assert {result.op for result in report.results} == {case.partition("/")[0] for case in cases}
        failed = [result for result in report.results if result.status == Status.FAIL]
        assert not failed, failed[0]

    def test_fused_operators_are_units_of_a_dump(self) -> None:
        call: Callable[..., Any] = self.torch_npu.npu_rms_norm

        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(models.WIDTH))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = call(x, self.weight, 1e-6)[0]
                return result

        inputs = torch.randn(4, models.WIDTH)
        dump = self.record_forward(Normed().to("npu"), inputs.to("npu"), sources=("modules", "functions", "operators"))
        outputs = {r.key.op: r for r in dump.records if r.key.role == Role.OUTPUT and "npu_rms_norm" in r.key.op}
        assert outputs, sorted({record.key.op for record in dump.records})
        golden = inputs.double() * (inputs.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        for record in outputs.values():
            if record.key.path.endswith("0"):
                assert np.allclose(dump.values(record.key), golden.numpy(), atol=1e-4)
