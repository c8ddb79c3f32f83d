"""Reports: terminal, JSON, HTML, JUnit, Markdown."""
