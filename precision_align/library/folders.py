"""Where the library's files lie, and how its Python is loaded. Usable without TOML, on Python 3.9.

Python is executed only from the bundled library or from a folder that the user named.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Union

from precision_align.core.errors import RuleError, Unavailable, UsageError

if TYPE_CHECKING:
    from precision_align.library.cases import Compute, Operator

PathLike = Union[str, Path]
FAULTS = (Exception, SystemExit)  # what a user's code may do to us; sys.exit() in it must not end as "passed"


class HasFolders(Protocol):
    """What has been loaded already: a :class:`~precision_align.library.loading.Library`."""

    @property
    def folders(self) -> Folders: ...


@dataclass(frozen=True)
class Folders:
    """``cases`` holds one folder an operator, ``functions`` the golden functions (it may not exist)."""

    cases: Path
    functions: Path

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators that have a cases.py, sorted."""
        return tuple(sorted(file.parent.name for file in self.cases.glob("*/cases.py")))


def find_folders(path: PathLike | HasFolders | None = None) -> Folders:
    """The bundled library, or the one at ``path``: a folder with ``op_cases/`` in it, an op_cases folder, or a Library.

    Raises UsageError when nothing of the kind is there.
    """
    if path is None:
        return _find_bundled()
    if not isinstance(path, (str, Path)):
        return path.folders
    root = Path(path)
    if not root.is_dir():
        raise UsageError(f"no library at {root}: name a folder that holds op_cases/<operator>/mapping.toml or cases.py")
    cases = root / "op_cases" if (root / "op_cases").is_dir() else root
    if not any(cases.glob("*/mapping.toml")) and not any(cases.glob("*/cases.py")):
        raise UsageError(f"no library at {root}: it holds neither <operator>/mapping.toml nor <operator>/cases.py")
    return Folders(cases, root / "golden" / "functions")


def _find_bundled() -> Folders:
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_bundled", package.parent):
        if (root / "op_cases").is_dir() and (root / "golden").is_dir():
            return Folders(root / "op_cases", root / "golden" / "functions")
    raise Unavailable(f"the operator library is missing beside {package}: reinstall precision-align, or name a folder")


def load_operator(folders: Folders, name: str) -> Operator:
    """Run ``<name>/cases.py`` and attach its golden function. Raises RuleError."""
    from precision_align.library.cases import check_operator

    file = folders.cases / name / "cases.py"
    if not file.is_file():
        raise RuleError(f"{file} does not exist: operator {name!r} has no cases yet")
    module = _run_file(file, name)
    operator = check_operator(getattr(module, "OPERATOR", None), str(file))
    if operator.name != name:
        raise RuleError(f"{file}: OPERATOR.name is {operator.name!r}, its folder is called {name!r}")
    return operator


def load_golden(name: str, folder: PathLike | None = None) -> Compute:
    """The float64 reference function ``name`` of the file ``<folder>/<name>.py``; None is the bundled folder.

    Raises RuleError.
    """
    file = Path(folder if folder is not None else _find_bundled().functions) / f"{name}.py"
    if not file.is_file():
        raise RuleError(f"{file} does not exist: no function for {name!r}")
    found = getattr(_run_file(file, name), name, None)
    if not callable(found):
        raise RuleError(f"{file} defines no function {name}")
    return found  # type: ignore[no-any-return]


def _run_file(file: Path, name: str) -> ModuleType:
    """Import a file under a name of its own. A user's mistake becomes a RuleError, a missing torch Unavailable."""
    state = file.stat()  # an edited file is another module: notebooks run for days
    identity = f"{file.resolve()} {state.st_mtime_ns} {state.st_size}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    unique = f"_precision_align_{file.stem}_{name}_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    specification = spec_from_file_location(unique, file)
    if specification is None or specification.loader is None:
        raise RuleError(f"{file} cannot be loaded as Python")
    module = module_from_spec(specification)
    sys.modules[unique] = module  # dataclasses look their module up while it runs
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[unique]
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise Unavailable("cases need torch: pip install torch") from error
        if isinstance(error, (RuleError, Unavailable)) or not isinstance(error, FAULTS):
            raise
        raise RuleError(f"{file} raised {type(error).__name__}: {error}{_line_of(error, file)}") from error
    return module


def _line_of(error: BaseException, file: Path) -> str:
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(file) else line
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def load_replacements(folder: PathLike) -> dict[str, Compute]:
    """A team's own replacements: ``<folder>/<operator>.py``, each with a function of that name. Its Python is run.

    Raises UsageError where there is none, RuleError for a broken file.
    """
    files = [file for file in sorted(Path(folder).glob("*.py")) if not file.stem.startswith("_")]
    if not files:
        raise UsageError(f"no replacements at {folder}: it must hold <operator>.py with a function of that name")
    return {file.stem: load_golden(file.stem, folder) for file in files}


def load_callable(text: str) -> Any:
    """The callable behind "module:attribute". Raises UsageError with what is wrong with the text."""
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{text!r} is not of the form module:callable")
    try:
        found: Any = import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{text!r}: module {module_name!r} cannot be imported: {error}") from error
    except FAULTS as error:
        raise UsageError(f"{text!r}: importing {module_name!r} raised {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{text!r}: {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{text!r} is {type(found).__name__}, not callable")
    return found
