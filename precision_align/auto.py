"""``import precision_align.auto``: capture this program as the file says that PRECISION_ALIGN in the environment names.

Without that variable nothing happens. The wheel's ``precision_align.pth`` imports this at the start of every Python
process that has the variable; where that file is not in site-packages, this line at the script's top does the same.
"""

from precision_align.recording.arming import arm


def _start(path: str, below: bool) -> None:
    from precision_align.cli.unattended import start_unattended

    start_unattended(path, below)


arm(_start)
