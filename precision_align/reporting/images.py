"""A comparison of two images as a page."""

from __future__ import annotations

import math

from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.messages import translate_message
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_number, format_share
from precision_align.training.images.comparing import ImageReport


def describe_images(report: ImageReport, language: str = "en") -> Page:
    """The page: figures, where the error sits, and its map."""
    psnr = "∞" if math.isinf(report.psnr) else f"{report.psnr:.2f}"
    height, width, channels = report.shape
    values = {"psnr": psnr, "ssim": format_number(report.ssim), "size": f"{width} x {height} x {channels}"}
    sentence = say(language, "image.sentence", **values)
    rows = [
        (say(language, "image.max"), format_number(report.max_error)),
        (say(language, "image.mean"), format_number(report.mean_error)),
        (say(language, "image.wrong"), format_share(report.wrong)),
        (say(language, "image.nonfinite"), str(report.nonfinite)),
    ]
    places = [
        (say(language, f"image.place.{place.name}"), format_share(place.share), place.detail) for place in report.places
    ]
    columns = [say(language, f"image.{name}") for name in ("where", "share", "detail")]
    differs = report.differs
    blocks = [
        Block(say(language, "image.figures"), rows=rows),
        Block(say(language, "image.places"), columns=columns, rows=places) if places else Block(),
        Block(say(language, "image.map"), pictures=[(say(language, "image.map.caption"), report.picture)]),
        Block(lines=[translate_message(note, language) for note in report.notes]),
    ]
    word = say(language, "image.different" if differs else "image.same")
    return Page(Verdict.DIVERGED if differs else Verdict.ALIGNED, word, sentence, blocks)
