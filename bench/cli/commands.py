"""Command classes: help that groups options, and errors for repeated or misplaced options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperOption

from bench.core.errors import BenchError, nearest_names

if TYPE_CHECKING:
    from bench.interface.registry import Registry

UsageError: Any = typer.BadParameter.__base__  # typer does not export this type

FEW = 8
"""A command with at most this many options shows them as one group."""


class Command(TyperCommand):
    """A command of this program: `rich_help_panel` names an option's group in the help, the epilog gives examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, in the order of their first options."""
        found = [(p, line) for p in self.get_params(ctx) if (line := p.get_help_record(ctx)) is not None]
        many = sum(p.param_type_name == "option" and p.name != "help" for p, _ in found) > FEW
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter, line in found:
            group = getattr(parameter, "rich_help_panel", None) if many else None
            groups.setdefault(group or f"{parameter.param_type_name.title()}s", []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args`; raise :class:`BenchError` on unknown words, a repeated option or an empty path."""
        extra: list[str] = []
        try:
            given, extra, order = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(p for p in order if isinstance(p, TyperOption)).items():
                alike = option.multiple or (option.is_flag and not option.secondary_opts)
                if times > 1 and not alike:
                    commas = ", with commas between the values" if "comma" in (option.help or "") else ""
                    raise BenchError(f"{max(option.opts, key=len)} is given {times} times. Give it once{commas}.")
            rest = super().parse_args(ctx, args)
        except UsageError as error:
            said = self._remedy(error, extra, args) or str(error.format_message()).replace("Value error, ", "")
            end = "" if said.endswith(("?", ".")) else "."
            raise BenchError(f"{said}{end} `{ctx.command_path} -h` shows its options.") from error
        for name, parsed in ctx.params.items():
            words, paths = given.get(name), parsed
            if isinstance(parsed, Path):
                words, paths = [words], [parsed]
            if isinstance(paths, list) and any(
                w == "" and isinstance(p, Path) for w, p in zip(words or (), paths, strict=False)
            ):
                raise BenchError(f"an empty path is given for {name}. The working directory is `.`.")
        return rest

    def _remedy(self, error: Exception, extra: Sequence[str], args: Sequence[str]) -> str:
        """Return what is wrong and what the user probably meant, or "" if the error already says so."""
        option = getattr(error, "option_name", None) if "possibilities" in vars(error) else None
        names = {parameter.name for parameter in self.params}
        if option is not None:
            field, kind = option.lstrip("-").replace("-", "_"), "an attack" if self.name == "attack" else "a method"
            if field in ("epsilon", "epsilons") and "eps" in names:  # also a setting of some methods
                return f"there is no option {option}. Did you mean --eps?"
            if "set_" in names and field in _settings(kind):
                after = dropwhile(lambda word: word.partition("=")[0] != option, args)
                value = next(after, "").partition("=")[2] or next(after, "VALUE")
                return f"{field} is a setting of {kind}. Give it by --set {field}={value}."
            options = [name.removeprefix("--") for p in self.params for name in p.opts if name.startswith("--")]
            # Compare without dashes, which make all options look similar.
            near = nearest_names(option.lstrip("-"), [*options, "help"], 1, cutoff=0.6)
            return f"there is no option {option}." + (f" Did you mean --{near[0]}?" if near else "")
        if not extra:
            return ""
        from bench.data.datasets import DATASETS
        from bench.interface.registry import METHODS, method_groups

        meant = ",".join(extra)
        for name, known in (("methods", {*METHODS, *method_groups()}), ("datasets", set(DATASETS))):
            if name in names and set(meant.split(",")) <= known:
                return f"{' '.join(extra)} is not expected here. Did you mean --{name} {meant}?"
        return f"{' '.join(extra)} is not expected here."


def _settings(kind: str) -> set[str]:
    from bench.interface.registry import ATTACKS, METHODS

    members: Registry[Any] = ATTACKS if kind == "an attack" else METHODS
    return {field.name for name in members for field in fields(members.get(name).Config)}


def dress(app: typer.Typer) -> None:
    """Make every command of `app`, and of the groups in it, a :class:`Command`."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            dress(group.typer_instance)
