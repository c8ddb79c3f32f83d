"""Every exception as a message: what happened, and what to do next."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from precision_align.core.errors import DumpNotFound, PrecisionAlignError, StorageFull, Unavailable
from precision_align.reporting.languages import say, translate
from precision_align.reporting.messages import advise, translate_message

# what a verb may import -> what brings it
PACKAGES = {
    "numpy": "numpy",
    "h5py": "h5py",
    "torch": "'precision-align[torch]'",
    "jinja2": "'precision-align[analysis]'",
    "markupsafe": "'precision-align[analysis]'",
    "tomli": "'precision-align[analysis]'",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile(
    "|".join(
        [
            *(f"errno = {number}\\b|{re.escape(os.strerror(number))}" for number in _FULL),
            r"\d requested and \d+ written",
        ]
    )
)


def phrase_error(error: PrecisionAlignError, language: str) -> str:
    """One of our errors as shown: code, what kind of problem (in the user's language), what exactly, what to do."""
    text = str(error).partition("] ")[2] or str(error)
    near = suggest_paths(error, language)
    advice = "" if near else advise(error.code, text, language)
    head = f"{say(language, 'cli.error')} [{error.code}]"
    if language == "en":
        end = ". " + near if near else "; " + advice if advice else ""
        return f"{head} {text}{end}"
    title, end = translate(language, f"title.{error.code}", ""), near or say(language, "cli.advice", advice=advice)
    return f"{head} {title}：{translate_message(text, language).rstrip('。')}。{end}"


def suggest_paths(error: BaseException, language: str) -> str:
    """ "Did you mean 'k1'?" where a path that is not there resembles one that is; else ""."""
    if not isinstance(error, DumpNotFound):
        return ""
    cause = error.__cause__ or error.__context__
    named = getattr(cause, "filename", None)
    if not isinstance(named, (str, bytes)):
        return ""
    path = Path(os.fsdecode(named))
    try:
        names = [child.name for child in path.parent.iterdir()]
    except OSError:
        return ""
    near = [str(path.parent / name) for name in difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)]
    return say(language, "cli.meant", names=" / ".join(map(repr, near))) if near else ""


def phrase_crash(error: BaseException, language: str) -> str:
    """Any other exception in one line."""
    text = " ".join(str(error).split()) or "no message"
    return f"{say(language, 'cli.error')} [PA999] " + say(language, "cli.crash", kind=type(error).__name__, text=text)


def phrase_exit(stop: SystemExit) -> str:
    """The call that ended a program."""
    return f"sys.exit({'' if stop.code is None else repr(stop.code)})"


def recognize(error: BaseException) -> PrecisionAlignError | None:
    """A package that is not installed, or a full disk, as an error of ours; None for anything else."""
    if is_full(error):
        place = getattr(error, "filename", None)
        return StorageFull(f"{os.fsdecode(place)}: no space left on device" if place else "no space left on device")
    return find_missing_package(error) or find_broken_backend(error)


def find_broken_backend(error: BaseException) -> Unavailable | None:
    """A torch that does not load because torch_npu, which it loads by itself, has no CANN; None for other errors."""
    if not isinstance(error, RuntimeError) or "Failed to load the backend extension" not in str(error):
        return None
    causes = [str(one).strip().splitlines() for one in list(_list_causes(error))[1:]]
    reason = next((f" ({lines[0]})" for lines in causes if lines), "")
    return Unavailable(
        f"torch does not load, as torch_npu, which it loads by itself, fails{reason}: source CANN's set_env.sh, or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use torch without torch_npu"
    )


def find_missing_package(error: BaseException) -> Unavailable | None:
    """A verb that needs a package which is not installed here, said as such; None for any other error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in PACKAGES:
        return None
    return Unavailable(f"this needs {name}, which is not installed: pip install {PACKAGES[name]}")


def is_full(error: BaseException) -> bool:
    """Whether an error, or one that led to it, says that the disk or the quota is full.

    HDF5 wraps the system's error into a text of its own, as OSError or RuntimeError; NumPy tells of a short write.
    """
    causes = list(_list_causes(error))
    return any(getattr(one, "errno", None) in _FULL or _FULL_TEXT.search(str(one)) for one in causes)


def mute_full_disk() -> None:
    """From now on say nothing of failures that are only a full disk, where no ``except`` can catch them.

    HDF5 objects that could not be written fail again when they are freed, one by one, until the process ends; h5py
    reports each through the two hooks. Anything else is reported as before.
    """
    report, report_ignored = sys.excepthook, sys.unraisablehook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not is_full(error):
            report(kind, error, trace)

    def ignored_hook(found: sys.UnraisableHookArgs) -> None:
        if found.exc_value is None or not is_full(found.exc_value):
            report_ignored(found)

    sys.excepthook, sys.unraisablehook = hook, ignored_hook


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
