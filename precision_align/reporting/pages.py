"""What every HTML page of ours is built with: templates, assets, and a policy that forbids all else."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.core.errors import Unavailable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


def open_templates() -> Environment:
    """The templates, autoescaped. Raises Unavailable where jinja2 is not installed."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise Unavailable(
            "HTML reports need jinja2: pip install 'precision-align[analysis]' "
            "(report.json needs nothing; 'precision-align report' turns it into HTML where jinja2 is)"
        ) from None
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def trust(text: str) -> Markup:
    """Our own assets, and JSON that was escaped: never a text from outside."""
    from markupsafe import Markup

    return Markup(text)


def read_asset(name: str) -> str:
    """A file of the templates folder."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def build_policy(*scripts: str) -> str:
    """A content security policy: nothing is fetched, and only these scripts run, whatever a name may contain."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
