"""The command line's parser: what is wrong, in one line, with the nearest thing that would be right."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser

from sp4_lightning.naming import did_you_mean
from sp4_lightning.settings import LearnedBound


class SP4ArgumentParser(LightningArgumentParser):
    """Says in one line what is wrong with a key or value, and what was probably meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the line and exit with status 2."""
        line = " ".join(message.split())
        print(f"sp4: error: {line}{self._hint(line)}", file=sys.stderr)
        sys.exit(2)

    def _hint(self, line: str) -> str:
        for pattern, suggest in _HINTS:
            if found := re.search(pattern, line):
                return suggest(*found.groups())
        if found := re.search(r"(?i)(?:option|key|argument)s?:? ['\"]?-*([\w.]+)", line):
            keys = {action.dest for parser in self._all_parsers() for action in parser._actions}
            return "" if found[1] in keys else did_you_mean(found[1], keys) or did_you_mean(found[1], _nested_keys())
        return ""

    def _all_parsers(self) -> list[Any]:
        commands = getattr(self, "_subcommands_action", None)
        return [self, *(commands._name_parser_map.values() if commands else ())]


def _nested_keys() -> Iterable[str]:
    """Keys that the parser knows only once it has seen which class they belong to."""
    yield from (field.name for field in dataclasses.fields(LearnedBound))
    for module in (callbacks, loggers):
        for name in module.__all__:
            yield from inspect.signature(getattr(module, name)).parameters


def _near_file(missing: str) -> str:
    path = Path(missing)
    return did_you_mean(path.name, (other.name for other in path.parent.glob("*")))


_HINTS: list[tuple[str, Callable[..., str]]] = [
    (
        r"Literal\[(.+?)\]\. Got value: (\S+)",
        lambda choices, value: did_you_mean(value, re.findall(r"'(.+?)'", choices)),
    ),
    (
        r"invalid choice: '(.+?)' \(choose from (.+)\)",
        lambda value, choices: did_you_mean(value, re.findall(r"[\w-]+", choices)),
    ),
    (r"File does not exist: '(.+?)'", _near_file),
    (
        r"(?:import path string: |'class_path': ')(\w+)",
        lambda name: did_you_mean(name, (*callbacks.__all__, *loggers.__all__)),
    ),
]
"""Patterns of jsonargparse's messages, and what to say to those that are met first."""
