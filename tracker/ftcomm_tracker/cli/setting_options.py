"""Options of the commands that begin a job: one for each job setting, made from its declaration."""

from collections.abc import Callable
from typing import Any

import click

from ftcomm.config.job_settings import SETTINGS, Setting
from ftcomm.config.setting_kinds import (
    ByteSize,
    Choice,
    Number,
    Period,
    StoreName,
    WholeNumber,
    bytes_in,
)
from ftcomm.errors import ConfigError
from ftcomm_tracker.cli.options import option


class Size(click.ParamType[int]):
    """A number of bytes: 1000000, 512MiB, 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number with an optional unit."""
        if isinstance(value, int):
            return value
        try:
            return bytes_in(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SettingText(click.ParamType[str]):
    """A text that its setting reads as it reads its variable: ``none`` may be an empty one."""

    name = "text"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The setting's value, not yet checked."""
        try:
            return str(self._setting.kind.read(self._setting.name, value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _parser_of(setting: Setting) -> tuple[click.ParamType[Any], str | None]:
    """The option's parser and the name of its value; the settings themselves check ranges."""
    match setting.kind:
        case Choice(choices=choices):
            return click.Choice(choices), None
        case ByteSize():
            return Size(), "SIZE"
        case StoreName():
            return SettingText(setting), "STORE"
        case Period():
            return SettingText(setting), "TIME"
        case WholeNumber():
            return click.INT, "N"
        case Number():
            return click.FLOAT, "SECONDS"
    raise AssertionError(f"no option reads {setting.kind!r}")


def _option(setting: Setting) -> Callable[..., Any]:
    meaning = setting.kind.meaning
    default = f" [default: {setting.default_text}]" if setting.default != "" else ""
    text = f"{meaning[0].upper()}{meaning[1:]}{default}"
    parser, value = _parser_of(setting)
    return option(setting.group, setting.option, type=parser, metavar=value, help=text)


SETTING_OPTIONS = tuple(map(_option, SETTINGS.values()))
