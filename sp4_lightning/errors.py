"""Every error this package raises on purpose.

SP4Error
├── ConfigurationError   a setting, group, pattern or environment that cannot be used as given
├── UnsupportedError     a tensor or optimizer that cannot be protected
├── CheckpointError      saved state that does not fit what is being trained
├── BackendError         a backend was asked for by name and cannot be had
└── SkipStreakError      an optimizer has skipped more updates in a row than the user allows
"""


class SP4Error(Exception):
    """Base class of this package's errors."""


class ConfigurationError(SP4Error, ValueError):
    """A setting, group, pattern or environment that cannot be used as given."""


class UnsupportedError(SP4Error, TypeError):
    """A tensor or optimizer that cannot be protected."""


class CheckpointError(SP4Error, ValueError):
    """Saved state that does not fit what is being trained."""


class BackendError(SP4Error, RuntimeError):
    """A backend was asked for by name and cannot be had."""


class SkipStreakError(SP4Error, RuntimeError):
    """An optimizer has skipped more updates in a row than the user allows."""
