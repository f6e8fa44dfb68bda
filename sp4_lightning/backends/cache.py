"""Where compiled code is kept between runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """A file of the cache, made if it is not there.

    Args:
        name: Of the file; it must tell all that the content depends on.
        make: Writes the content to the path it is given.
    """
    file = cache_directory() / name
    if not file.is_file():
        # Into a file of its own and then renamed, so that of several processes each finds all of it or nothing.
        with tempfile.TemporaryDirectory(dir=file.parent) as directory:
            made = Path(directory) / name
            make(made)
            os.replace(made, file)
    return file


def cache_directory() -> Path:
    """``$SP4_CACHE``, else ``$XDG_CACHE_HOME/sp4_lightning``, else ``~/.cache/sp4_lightning``, made if need be."""
    own = os.environ.get("SP4_CACHE")
    directory = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sp4_lightning"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    # Compiled anew in every process, but private to it.
    return Path(tempfile.mkdtemp(prefix="sp4_lightning-"))
