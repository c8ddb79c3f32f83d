"""Every error this package raises on purpose.

PrecisionAlignError
├── UsageError            the call or the command line is wrong           (exit status 2)
│   └── RuleError         a rule file or mapping row is wrong
├── DumpError             a dump cannot be used                           (exit status 3)
│   ├── DumpNotFound
│   ├── DumpDamaged       truncated, or a stored hash does not fit
│   ├── DumpForeign       an HDF5 file or a folder that is not ours
│   ├── SchemaTooNew      written by a newer version: upgrade
│   ├── LogUnreadable     a log, table or series that cannot be read as step and value
│   ├── NothingCaptured   a session ended without one call: the text says why
│   └── NothingInCommon   two dumps without one pair of records
├── StorageFull           disk or quota is full                           (exit status 3)
└── Unavailable           an optional package or a device is not there    (exit status 2)

Each carries a stable ``code`` to search for; the text says what, where, and what to do next.
"""

from __future__ import annotations


class PrecisionAlignError(Exception):
    """Base of all. ``exit_status`` is what the command line ends with."""

    code = "PA000"
    exit_status = 3

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class UsageError(PrecisionAlignError, ValueError):
    """The call or the command line is wrong."""

    code = "PA100"
    exit_status = 2


class RuleError(UsageError):
    """A rule file, a mapping row or a case is wrong; all problems are reported at once."""

    code = "PA110"


class DumpError(PrecisionAlignError):
    """A dump cannot be used."""

    code = "PA200"


class DumpNotFound(DumpError, FileNotFoundError):
    """No dump at that path."""

    code = "PA201"


class DumpDamaged(DumpError):
    """The file is truncated, incomplete, or a stored hash does not fit its bytes."""

    code = "PA202"


class DumpForeign(DumpError):
    """The file or folder was not written by this package."""

    code = "PA203"


class SchemaTooNew(DumpError):
    """The dump was written by a newer version of this package."""

    code = "PA204"


class NothingInCommon(DumpError):
    """Two dumps have not one pair of records."""

    code = "PA205"


class LogUnreadable(DumpError):
    """A log, table or series cannot be read as steps and values; the text names the line."""

    code = "PA206"


class NothingCaptured(DumpError):
    """A capture session ended without one call recorded; the text names the likely reasons and what to do."""

    code = "PA207"


class StorageFull(PrecisionAlignError, OSError):
    """The disk or the quota is full."""

    code = "PA210"


class Unavailable(PrecisionAlignError, ImportError):
    """An optional package or a device is not there."""

    code = "PA300"
    exit_status = 2
