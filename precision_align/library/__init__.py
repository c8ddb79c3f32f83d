"""The operator-mapping library: rows (what replaces which operator), golden functions, cases, and their runner.

Reading and checking rows needs no torch (:mod:`~precision_align.library.rows`, :mod:`~precision_align.library.loading`,
:mod:`~precision_align.library.tables`); running cases does and belongs to the live half
(:mod:`~precision_align.library.cases`, :mod:`~precision_align.library.folders`,
:mod:`~precision_align.library.references`, :mod:`~precision_align.library.runner`).
"""
