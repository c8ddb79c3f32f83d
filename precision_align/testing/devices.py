"""What a device has to do: subclass, name the device, and pytest or ``doctor --self-test`` runs every check.

    class TestOurs(DeviceConformance):
        device_name = "npu"

Needs torch, no pytest. A check raises AssertionError; ``Inapplicable`` says why one has no meaning here.
"""

from __future__ import annotations

import contextlib
import json
import unittest
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import torch

from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role, Source, Status, Verdict
from precision_align.devices.base import Device
from precision_align.devices.injection import inject
from precision_align.devices.selection import open_device
from precision_align.recording.session import capture
from precision_align.storage.base import Dump
from precision_align.storage.memory import MemorySink
from precision_align.testing import models

# Every dtype that the dump stores and torch can copy; whether a device computes in it is its own matter.
DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64", "float64")


class Inapplicable(unittest.SkipTest):
    """A check without meaning on this device or with this torch; the text says why. pytest shows it as a skip."""


class DeviceConformance:
    """The checks, each a method ``test_…``; ``device_name`` as for ``--device``."""

    device_name = "cpu"

    @property
    def device(self) -> Device:
        """The device; opening it again is cheap."""
        return open_device(self.device_name)

    @property
    def kind(self) -> str:
        """Its torch device type."""
        return self.device.kind

    def record(self, run: Callable[[Any], Any], model: torch.nn.Module, optimizer: Any = None, **options: Any) -> Dump:
        """The dump of ``run(recorder)``."""
        sink = MemorySink()
        with capture(model, None, sink=sink, optimizer=optimizer, **options) as recorder:
            run(recorder)
        return sink.dump()

    def record_training(self, kind: str, steps: int = 2, autocast: Optional[torch.dtype] = None, **options: Any) -> Any:
        """(dump, final state on the CPU) of a training of the small model."""
        model = models.build(kind)
        optimizer = models.make_optimizer(model)

        def run(recorder: Any) -> None:
            for batch in models.make_batches(kind, steps):
                with recorder.step():
                    models.train_step(model, optimizer, batch, autocast)

        dump = self.record(run, model, optimizer, **options)
        return dump, {name: tensor.cpu() for name, tensor in model.state_dict().items()}

    # ---- the protocol

    def test_is_a_device(self) -> None:
        device = self.device
        assert isinstance(device, Device)
        assert device.is_available()
        assert device.name
        assert torch.ones(2, device=device.kind).device.type == device.kind
        assert ("emulated" in device.describe()) == device.emulated

    def test_versions_are_texts(self) -> None:
        versions = dict(self.device.versions())
        assert {"python", "torch", "numpy"} <= set(versions)
        assert all(isinstance(text, str) and text for name, text in versions.items() if name != "cann")

    def test_modes_can_be_written_down(self) -> None:
        modes = dict(self.device.modes())
        assert "deterministic" in modes
        assert json.loads(json.dumps(modes)) == modes

    def test_determinism_is_switched_and_switched_back(self) -> None:
        device = self.device
        before = device.modes()["deterministic"]
        try:
            for wanted in (True, False):
                device.set_deterministic(wanted)
                assert device.modes()["deterministic"] is wanted
        finally:
            device.set_deterministic(bool(before))

    def test_memory_is_counted(self) -> None:
        device = self.device
        before = device.memory()
        kept = torch.ones(1 << 20, device=device.kind)
        device.synchronize()
        after = device.memory()
        assert all(isinstance(value, int) and value >= 0 for value in after.values())
        if "allocated" in after:
            assert after["allocated"] >= before["allocated"] + kept.numel() * kept.element_size()
            assert after["peak"] >= after["allocated"]
        if "total" in after:
            assert after["total"] > after.get("allocated", 0)

    def test_seeds_repeat_and_states_come_back(self) -> None:
        device = self.device
        device.manual_seed(3)
        first = torch.rand(16, device=device.kind).cpu()
        state = device.get_rng_state()
        second = torch.rand(16, device=device.kind).cpu()
        device.set_rng_state(state)
        assert torch.equal(torch.rand(16, device=device.kind).cpu(), second)
        device.manual_seed(3)
        assert torch.equal(torch.rand(16, device=device.kind).cpu(), first)
        assert not torch.equal(first, second)

    # ---- tensors

    def test_supported_dtypes_come_back_bit_for_bit(self) -> None:
        device = self.device
        assert device.supports("float32")
        assert not device.supports("float31")
        for name in DTYPES:
            if device.supports(name):
                self._send_and_fetch(getattr(torch, name))

    def _send_and_fetch(self, dtype: torch.dtype) -> None:
        values = (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
        for host in (values, values.t(), values[::2, 1:], values[0, 0], values[:0]):
            for sent in (host.to(self.kind), host.to(self.kind, copy=True).t().t() if host.dim() == 2 else host):
                assert sent.dtype == dtype, f"{dtype} became {sent.dtype}"
                assert torch.equal(sent.cpu(), host)

    def test_queued_copies_are_waited_for(self) -> None:
        host = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
        sent = host.to(self.kind, non_blocking=True)
        fetched = (sent * 1).to("cpu", non_blocking=True)
        self.device.synchronize()
        assert torch.equal(fetched, host)

    # ---- capture

    def test_capture_changes_no_bit(self) -> None:
        _, watched = self.record_training(self.kind)
        model = models.build(self.kind)
        optimizer = models.make_optimizer(model)
        for batch in models.make_batches(self.kind, 2):
            models.train_step(model, optimizer, batch)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.cpu(), watched[name]), name

    def test_every_record_has_the_values_of_the_device(self) -> None:
        model = models.build(self.kind)
        outputs: dict[str, np.ndarray[Any, Any]] = {}
        for scope, module in model.named_modules():
            module.register_forward_hook(self._keep(outputs, scope))
        (inputs, _), *_ = models.make_batches(self.kind, 1)

        def run(recorder: Any) -> None:
            with recorder.step():
                model(inputs)

        dump = self.record(run, model)
        records = [r for r in dump.records if r.key.source == Source.MODULE and r.key.role == Role.OUTPUT]
        assert {record.key.scope for record in records} == set(outputs)
        for record in records:
            assert torch.device(record.device).type == self.kind
            assert np.array_equal(dump.values(record.key), outputs[record.key.scope])

    @staticmethod
    def _keep(outputs: dict[str, Any], scope: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: torch.Tensor) -> None:
            outputs[scope] = output.detach().cpu().numpy()

        return hook

    def test_statistics_are_summed_in_float64(self) -> None:
        """Not on the device: some have no float64, and hand out float32 for it."""
        values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0)) + 3
        model = torch.nn.Identity()

        def run(recorder: Any) -> None:
            with recorder.step():
                model(values.to(self.kind))

        dump = self.record(run, model, payload="statistics")
        (record,) = (record for record in dump.records if record.key.role == Role.INPUT)
        wide = values.double().numpy()
        assert record.statistics is not None
        assert np.isclose(record.statistics.mean, wide.mean(), rtol=1e-13)
        assert np.isclose(record.statistics.l2, np.sqrt((wide * wide).sum()), rtol=1e-13)
        assert not np.isclose(float(values.sum()) / values.numel(), wide.mean(), rtol=1e-13), "the test tells nothing"

    def test_gradients_parameters_and_optimizer_are_recorded(self) -> None:
        dump, state = self.record_training(self.kind)
        assert _without_payload(dump) == []
        sources = {(str(record.key.source), str(record.key.role)) for record in dump.records}
        assert {("module", "gradient"), ("parameters", "parameter"), ("optimizer", "gradient")} <= sources
        updated = [r for r in dump.records if r.key.source == Source.OPTIMIZER and r.key.role == Role.PARAMETER]
        last = max(record.key.step for record in updated)
        for record in updated:
            if record.key.step == last and record.key.path.startswith("after"):
                name = ".".join(filter(None, [record.key.scope, record.key.path.partition(".")[2]]))
                assert np.array_equal(dump.values(record.key), state[name].numpy()), name

    def test_operators_are_recorded(self) -> None:
        dump, _ = self.record_training(self.kind, 1, sources=("modules", "operators"))
        assert _without_payload(dump) == []
        names = {record.key.op.partition(".")[2].partition(".")[0] for record in dump.records if record.key.op}
        assert {"native_layer_norm", "gelu", "mean"} <= names
        phases = {record.key.phase for record in dump.records if record.key.source == Source.ATEN}
        assert {Phase.FORWARD, Phase.BACKWARD} <= phases

    def test_autocast_is_recorded(self) -> None:
        dump, _ = self.record_training(self.kind, 1, autocast=torch.bfloat16)
        dtypes = {r.key.scope: r.dtype for r in dump.records if r.key.role == Role.OUTPUT and r.key.source == "module"}
        assert dtypes["blocks.0.up"] == dtypes["head"] == "bfloat16"
        assert any("bfloat16" in str(call.autocast) for call in dump.calls if call.scope == "head")

    def test_a_gradient_scaler_works_under_capture(self) -> None:
        make = getattr(torch.amp, "GradScaler", None)
        if make is None:
            raise Inapplicable(f"torch {torch.__version__} has no torch.amp.GradScaler")
        if not self.device.supports("float16"):
            raise Inapplicable("no float16 here")
        model = models.build(self.kind)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), make(self.kind, init_scale=8.0)
        before = model.head.weight.detach().cpu().clone()

        def run(recorder: Any) -> None:
            for number, (inputs, _) in enumerate(models.make_batches(self.kind, 2)):
                with recorder.step():
                    optimizer.zero_grad()
                    loss = model(inputs).square().mean() * (float("inf") if number == 0 else 1.0)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    if number == 0:
                        assert torch.equal(model.head.weight.detach().cpu(), before), "an infinite step was taken"

        self.record(run, model, optimizer)
        assert scaler.get_scale() == 4.0
        assert not torch.equal(model.head.weight.detach().cpu(), before)

    # ---- comparison

    def test_two_runs_are_aligned(self) -> None:
        from precision_align.workflows.comparing import compare

        first, second = (self.record_training(self.kind)[0] for _ in range(2))
        report = compare(first, second, replay=models.build("cpu"))
        assert report.verdict == Verdict.ALIGNED, report.first

    def test_against_the_cpu_a_comparison_judges(self) -> None:
        """Whether the arithmetic of a device is the CPU's is its own matter; that it can be judged is not."""
        reference, candidate = self._lockstep_pair()
        report = self._lockstep(reference, candidate)
        assert report.verdict in (Verdict.ALIGNED, Verdict.DIVERGED)
        assert all(report.coverage[phase].share > 0.5 for phase in (Phase.FORWARD, Phase.BACKWARD))

    def test_a_fault_is_found_where_it_was_put(self) -> None:
        reference, candidate = self._lockstep_pair()
        with inject(candidate, "scale@blocks.1.down:mm:forward:value=1.05:call=*") as injection:
            report = self._lockstep(reference, candidate)
        assert injection.fired
        assert report.verdict == Verdict.DIVERGED
        assert report.first is not None
        assert report.first.scope == "blocks.1.down"

    def _lockstep_pair(self) -> tuple[Any, Any]:
        return models.build("cpu"), models.build(self.kind)

    def _lockstep(self, reference: Any, candidate: Any) -> Any:
        from precision_align.workflows.lockstep import lockstep

        sides = {"cpu": models.make_batches("cpu", 1)[0], "candidate": models.make_batches(self.kind, 1)[0]}
        return lockstep(
            reference,
            candidate,
            sides["cpu"],
            candidate_inputs=sides["candidate"],
            step=models.backward_step,
        )

    def test_a_forced_capture_returns_the_references_numbers(self) -> None:
        reference, _ = self.record_training("cpu", 1)
        forced, _ = self.record_training(self.kind, 1, force=reference)
        assert forced.info.forced
        inputs = [r for r in forced.records if r.key.role == Role.INPUT and r.key.source == Source.MODULE]
        assert inputs
        known = {record.key: record for record in reference.records}
        for record in inputs:
            assert record.digest == known[record.key].digest, f"{record.key} was not the reference's"

    def test_cases_of_the_library_run(self) -> None:
        from precision_align.library.runner import run_cases

        report = run_cases(["rms_norm/plain", "rms_norm/empty", "swiglu/gate-first"], device=self.device_name)
        assert report.results
        failed = [result for result in report.results if result.status == Status.FAIL]
        assert not failed, failed[0]


def _without_payload(dump: Dump) -> list[TensorRecord]:
    return [record for record in dump.records if record.reason]


def list_checks(suite: type[DeviceConformance]) -> list[str]:
    """The names of a suite's checks, in the order in which they are written."""
    ordered: dict[str, None] = {}
    for base in reversed(suite.__mro__):
        ordered.update(dict.fromkeys(name for name in vars(base) if name.startswith("test_")))
    return list(ordered)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Runs are compared bit for bit; the number of threads may change the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
