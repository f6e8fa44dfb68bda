"""``sp4 fit|validate|test``: YAML experiments of the agent, or of your own LightningModule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

from sp4_lightning.agents import DQNAgent
from sp4_lightning.callback import SP4Callback
from sp4_lightning.cli.parsing import SP4ArgumentParser
from sp4_lightning.cli.quiet import quieten
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.tables import console, result_table


class SP4CLI(LightningCLI):
    """LightningCLI with a first-class ``sp4:`` section for the callback.

    Example:
        >>> SP4CLI(MyModule)  # in your own script: python train.py fit --config my.yaml
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Loggers number their runs; where there is none, the last run's config.yaml is no reason to stop.
        defaults = {"parser_class": SP4ArgumentParser, "save_config_kwargs": {"overwrite": True}}
        super().__init__(*args, **{**defaults, **kwargs})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the section, and the number of threads."""
        parser.add_lightning_class_args(SP4Callback, "sp4")
        # Small networks lose by threads, and on a busy machine threads that wait for each other cost tenfold.
        parser.add_argument("--threads", type=PositiveInt, default=1, help="CPU threads for torch's operators.")

    def before_instantiate_classes(self) -> None:
        """Apply the number of threads."""
        torch.set_num_threads(self._get(self.config, "threads"))

    def _parse_ckpt_path(self) -> None:
        """Lightning lets a checkpoint's model settings win over files and command line; say where that matters."""
        asked = self._model_settings()
        super()._parse_ckpt_path()
        kept = {key: value for key, value in self._model_settings().items() if asked.get(key, value) != value}
        if kept:
            listed = ", ".join(f"{key}={value!r} instead of {asked[key]!r}" for key, value in kept.items())
            rank_zero_warn(f"The checkpoint's settings of the model are used: {listed}.")

    def _model_settings(self) -> dict[str, Any]:
        section = self.config.get(str(self.config.get("subcommand")), {})
        return dict(vars(section["model"])) if "model" in section else {}

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer; its loggers share one run directory.

        Raises:
            ConfigurationError: The callback is in ``trainer.callbacks`` too, or a setting of the Trainer is bad.
        """
        listed = self._get(self.config_init, "trainer.callbacks") or []
        if any(isinstance(callback, SP4Callback) for callback in (listed if isinstance(listed, list) else [listed])):
            raise ConfigurationError(
                "SP4Callback is in trainer.callbacks and in the sp4 section. Keep the sp4 section."
            )
        try:
            trainer: Trainer = super().instantiate_trainer(**kwargs)
        except (ValueError, MisconfigurationException) as error:
            raise ConfigurationError(f"The Trainer cannot be made: {error}") from error
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
    quieten()
    SP4CLI(DQNAgent, args=args, seed_everything_default=0, parser_kwargs={"allow_abbrev": False})
