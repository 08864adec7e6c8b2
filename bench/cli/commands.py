"""Commands whose help shows many options in groups, and that refuse an option given twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from bench.core.errors import BenchError

FEW = 8
"""Up to so many options are one group."""


class Command(TyperCommand):
    """A command of this program: `rich_help_panel` is an option's group in the help, the epilog holds examples."""

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
        """Write the examples, one a line."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args`; raise :class:`BenchError` on a second value for an option of one."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(p for p in order if isinstance(p, TyperOption)).items():
            alike = option.multiple or (option.is_flag and not option.secondary_opts)
            if times > 1 and not alike:
                commas = ", with commas between its values" if "commas" in (option.help or "") else ""
                raise BenchError(f"{max(option.opts, key=len)} is given {times} times. Give it once{commas}.")
        return super().parse_args(ctx, args)


def dress(app: typer.Typer) -> None:
    """Make every command of `app`, and of the groups in it, a :class:`Command`."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            dress(group.typer_instance)
