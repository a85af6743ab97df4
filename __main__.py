"""The program `logweir`, as ``python -m logweir``."""

from logweir.tools.cli.main import run

if __name__ == "__main__":
    run()
