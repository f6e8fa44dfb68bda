"""``sp4 fit|validate|test``: YAML experiments of the agent, or of your own LightningModule."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger

from sp4_lightning.agents import DQNAgent
from sp4_lightning.callback import SP4Callback
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean
from sp4_lightning.tables import console, result_table


class SP4ArgumentParser(LightningArgumentParser):
    """Says in one line what is wrong with a key or value, and which key was probably meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the line and exit with status 2."""
        keys = {action.dest for parser in self._all_parsers() for action in parser._actions}
        unknown = re.search(r"(?:option|key|argument)s?:? ['\"]?-*([\w.]+)", message)
        named = unknown.group(1) if unknown else ""
        hint = "" if named in keys else did_you_mean(named, keys)
        print(f"sp4: error: {' '.join(message.split())}{hint}", file=sys.stderr)
        sys.exit(2)

    def _all_parsers(self) -> list[Any]:
        commands = getattr(self, "_subcommands_action", None)
        return [self, *(commands._name_parser_map.values() if commands else ())]


class SP4CLI(LightningCLI):
    """LightningCLI with a first-class ``sp4:`` section for the callback.

    Example:
        >>> SP4CLI(MyModule)  # in your own script: python train.py fit --config my.yaml
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"parser_class": SP4ArgumentParser, **kwargs})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the section, and the number of threads."""
        parser.add_lightning_class_args(SP4Callback, "sp4")
        # Small networks lose by threads, and on a busy machine threads that wait for each other cost tenfold.
        parser.add_argument("--threads", type=PositiveInt, default=1, help="CPU threads for torch's operators.")

    def before_instantiate_classes(self) -> None:
        """Apply the number of threads."""
        torch.set_num_threads(self._get(self.config, "threads"))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer; its loggers share one run directory.

        Raises:
            ConfigurationError: The callback is in ``trainer.callbacks`` too.
        """
        listed = self._get(self.config_init, "trainer.callbacks") or []
        if any(isinstance(callback, SP4Callback) for callback in (listed if isinstance(listed, list) else [listed])):
            raise ConfigurationError(
                "SP4Callback is in trainer.callbacks and in the sp4 section. Keep the sp4 section."
            )
        trainer: Trainer = super().instantiate_trainer(**kwargs)
        share_version(trainer.loggers)
        return trainer

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Train, then print what came out."""
        start = time.monotonic()
        self.trainer.fit(*args, **kwargs)
        metrics = {key: float(value) for key, value in self.trainer.callback_metrics.items()}
        console().print(result_table(metrics, time.monotonic() - start, self.trainer.log_dir))


def share_version(loggers: Sequence[Logger]) -> None:
    """Give loggers that number their runs themselves the first one's number, so that a run is one directory."""
    numbered = [logger for logger in loggers if getattr(logger, "_version", 0) is None]
    for logger in numbered[1:]:
        logger._version = numbered[0].version  # type: ignore[attr-defined]


def run(args: list[str] | None = None) -> None:
    """Run the agent's command line; ``sp4_lightning.__main__`` turns errors into lines."""
    warnings.filterwarnings("ignore", message="Experiment logs directory .* exists and is not empty")
    SP4CLI(DQNAgent, args=args, seed_everything_default=0, parser_kwargs={"allow_abbrev": False})
