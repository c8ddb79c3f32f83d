"""What npu-smi prints, in the forms of several driver versions."""

from __future__ import annotations

import pytest

from precision_align.doctor import chips
from precision_align.doctor.checks import ABSENT, BAD, GOOD, NOTE

RULE = "+---------------------------+---------------+----------------------------------------------------+\n"
HEAD = (
    RULE
    + "| npu-smi 24.1.1                   Version: 24.1.1                                               |\n"
    + RULE
    + "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
    + "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n"
    + "+===========================+===============+====================================================+\n"
)


def chip_lines(npu: int, name: str, health: str = "OK", chip: int = 0, physical: str = "") -> str:
    return (
        f"| {npu}     {name:<18}  | {health:<13} | 88.2        30                0    / 0             |\n"
        f"| {chip}     {physical:<18}  | 0000:C{npu}:00.0  | 0           0    / 0          2683 / 32768         |\n"
        + RULE
    )


def process_lines(*places: tuple[int, int]) -> str:
    head = RULE + "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
    rows = "".join(
        f"| {npu}       0                 | {process}          | python3                  | 3021                    |\n"
        for npu, process in places
    )
    return (
        head
        + (rows or "| No running processes found in NPU 0                                                |\n")
        + RULE
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (chip_lines(0, "910B4") + chip_lines(1, "910B4"), [(0, 0, "910B4", "OK"), (1, 0, "910B4", "OK")]),
        (
            chip_lines(0, "Ascend910", chip=0, physical="0") + chip_lines(0, "Ascend910", chip=1, physical="1"),
            [(0, 0, "910", "OK"), (0, 1, "910", "OK")],
        ),
        (chip_lines(3, "310P3", health="Warning"), [(3, 0, "310P3", "Warning")]),
        ("", []),
    ],
)
def test_chips_of_the_table(lines: str, expected: list[tuple[int, int, str, str]]) -> None:
    table = chips.parse_table(HEAD + lines + process_lines())
    assert [(chip.npu, chip.chip, chip.name, chip.health) for chip in table.chips] == expected
    assert table.version == "24.1.1"
    assert table.processes == ()


def test_a_table_of_nonsense_has_no_chips() -> None:
    assert chips.parse_table("npu-smi: command failed\n| a | b |\n").chips == ()
    assert [check.status for check in chips.check_chips(chips.Table(), 0)] == [ABSENT]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("910B3", "training"),
        ("Ascend910B1", "training"),
        ("910B4", "training or inference (Atlas 800I A2 servers carry it, for inference only)"),
        ("310P3", "inference"),
        ("Ascend310B1", "inference"),
        ("950PR", "training"),
        ("H200", ""),
    ],
)
def test_what_a_part_is_for(name: str, use: str) -> None:
    assert chips.find_use(name) == use


def statuses(text: str, count: int | None) -> dict[str, str]:
    return {check.name: check.status for check in chips.check_chips(chips.parse_table(HEAD + text), count)}


def test_a_healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    found = statuses(chip_lines(0, "910B3") + chip_lines(1, "910B3") + process_lines((0, 11), (1, 12)), 2)
    assert set(found.values()) == {GOOD}


def test_sick_hidden_and_inference_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert statuses(chip_lines(0, "910B3", "Alarm"), 1)["npu-smi"] == BAD
    assert statuses(chip_lines(0, "310P3"), 1)["chip 310P3"] == NOTE
    two = chip_lines(0, "910B3") + chip_lines(1, "910B3")
    assert statuses(two, 1)["visible devices"] == BAD
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert statuses(two, 1)["visible devices"] == GOOD
    assert statuses(two, 0)["visible devices"] == BAD


def test_all_processes_on_card_0_are_seen() -> None:
    two = chip_lines(0, "910B3") + chip_lines(1, "910B3")
    assert statuses(two + process_lines((0, 11), (0, 12)), None)["placement"] == BAD
    assert "placement" not in statuses(two + process_lines((0, 11)), None)
    assert "placement" not in statuses(chip_lines(0, "910B3") + process_lines((0, 11), (0, 12)), None)


def test_driver_and_firmware_of_a_board() -> None:
    text = "\tNPU ID          : 0\n\tSoftware Version     : 24.1.1\n\tFirmware Version     : 7.5.0.5.220\n"
    assert chips.parse_board(text) == {"ascend driver": "24.1.1", "ascend firmware": "7.5.0.5.220"}
    assert chips.parse_board("Firmware Version : NA\nnothing\n") == {}
