"""The ``sp4`` command: one line and exit status 2 for whatever the user can mend."""

from __future__ import annotations

import sys

from sp4_lightning.errors import SP4Error


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: The arguments; None takes them from ``sys.argv``.
    """
    try:
        from sp4_lightning.cli import run  # noqa: PLC0415 - what it needs is optional, and may be missing

        run(args)
    except Exception as error:
        line = _mendable(error)
        if line is None:
            raise
        print(f"sp4: error: {line}", file=sys.stderr)
        sys.exit(2)


def _mendable(error: BaseException | None) -> str | None:
    """What to say of an error that is, or was caused by, one of ours, of the file system, or a missing package."""
    while error is not None:
        if isinstance(error, (SP4Error, OSError)):
            return str(error)
        if isinstance(error, ModuleNotFoundError):
            return f"{error} Install what the command needs: pip install 'sp4-lightning[rl]'."
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    main()
