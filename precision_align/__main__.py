"""``python -m precision_align``: the command line where the script is not on PATH."""

from precision_align.cli.leaving import run_program

if __name__ == "__main__":
    run_program()
