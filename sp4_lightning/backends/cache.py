"""Where compiled code is kept between runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
