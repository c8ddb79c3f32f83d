"""``precision-align image``: two rendered images, how far apart and where."""

from __future__ import annotations

import argparse

SUMMARY = "compare two rendered images and say where the error sits"

_EPILOGUE = """\
A side is .npy or .npz (height, width, channels), or a picture (.png, .jpg, .tif; needs precision-align[image]).
Exit status: 0 no pixel is off by half a level of an 8-bit image, 1 some are, 2 wrong usage, 3 not comparable.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two images."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("reference", metavar="REF", help="the image that is right")
    parser.add_argument("candidate", metavar="CAND", help="the image under suspicion")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html (with the error map) or .json")


def run(arguments: argparse.Namespace) -> int:
    """Compare and show. Returns 0 where nothing can be seen, 1 where something can."""
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.images import describe_images
    from precision_align.reporting.saving import check_page_target
    from precision_align.training.images.comparing import compare_images

    if arguments.output:
        check_page_target(arguments.output)
    report = compare_images(arguments.reference, arguments.candidate)
    show_pages(arguments, report.to_dict(), lambda language: describe_images(report, language))
    return int(report.differs)
