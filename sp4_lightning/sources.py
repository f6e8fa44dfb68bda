"""Where the compiled code's sources are: inside an installed wheel, beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

from sp4_lightning.errors import BackendError


def kernel_directory() -> Path:
    """The directory with the sources of compiled code and their README.

    Raises:
        BackendError: The installation lacks it.
    """
    package = Path(__file__).parent
    for directory in (package / "kernels", package.parent / "kernels"):
        if (directory / "README.md").is_file():
            return directory
    raise BackendError(
        f"The sources of the compiled backends are missing in and beside {package}. Install sp4-lightning again, or "
        f"set backend='torch'."
    )
