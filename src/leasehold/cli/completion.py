"""``leasehold completion``: what completes commands in a shell, and the names of locks that commands complete."""

from __future__ import annotations

import faulthandler
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class
from click.shell_completion import split_arg_string as split

from leasehold.cli.options import Exit, Failed
from leasehold.cli.store import connected

SHELLS = ("bash", "zsh", "fish")

PLAIN = re.compile(r"[\w.:/@%+=,][\w.:/@%+=,-]*", re.ASCII)
"""Names that are completed. Strangers write names, and a shell must not read one as a command or an option."""

RESPONSE_TIMEOUT = 0.4  # seconds that the store has to answer
ENDS_AFTER = 0.5
"""Seconds after which a completion ends without a proposal, whatever it is stuck in, such as the DNS."""


def lock_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of locks that are held and begin with ``incomplete``; none if the store does not answer."""
    namespace = ctx.params.get("namespace") or os.environ.get("LEASEHOLD_NAMESPACE") or "default"
    with open(os.devnull, "w") as nowhere:
        try:
            with connected(ctx.params.get("url"), namespace, response_timeout=RESPONSE_TIMEOUT) as client:
                faulthandler.dump_traceback_later(ENDS_AFTER, exit=True, file=nowhere)
                names = [info.name for info in client.holds(incomplete)]
        except Exception:  # a person who presses Tab cannot do anything about it here
            return []
        finally:
            faulthandler.cancel_dump_traceback_later()
    return [name for name in names if PLAIN.fullmatch(name)]


@add_completion_class
class Bash(BashComplete):
    """Completes in bash words with a colon, at which bash splits: it gets what follows the last colon."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' item
    COMPREPLY=()
    for item in $(COMP_LINE="${COMP_LINE:0:$COMP_POINT}" %(complete_var)s=bash_complete "$1"); do
        case "$item" in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            *) COMPREPLY+=("${item#*,}") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
    _dropped = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the one at it."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # the script is one of click's own
            return super().get_completion_args()
        words = split(line)[1:]
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        self._dropped = incomplete[: max(map(incomplete.rfind, ":=")) + 1]
        return words, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return a proposal without the part that bash has already."""
        return f"{item.type},{str(item.value).removeprefix(self._dropped)}"


@click.command()
@click.argument("action", type=click.Choice(["install", *SHELLS]), metavar="[install]", required=False)
@click.argument("shell", type=click.Choice(SHELLS), metavar="[bash|zsh|fish]", required=False)
def completion(action: str | None, shell: str | None) -> None:
    """Print the script that completes commands, options and the names of locks, or install it.

    Without the name of a shell it is the one of $SHELL. `install` writes one file in your home, and says where.
    """
    install = action == "install"
    if action is not None and not install:
        if shell is not None:
            raise Failed(f"two shells are named, {action} and {shell}; name one", Exit.USAGE)
        shell = action
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise Failed(f"which shell is not known; name one of {', '.join(SHELLS)}", Exit.USAGE)
    script = _script(shell)
    if not install:
        click.echo(script, nl=False)
        return
    try:
        path, then = _place(shell)
    except RuntimeError:
        raise Failed("there is no home directory; set HOME", Exit.USAGE) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}", Exit.USAGE) from None
    click.echo(f"written: {path}\n{then}")


def _script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(click.Command("leasehold"), {}, "leasehold", "_LEASEHOLD_COMPLETE").source()


def _place(shell: str) -> tuple[Path, str]:
    """Return the file that a shell reads, and what to do so that it does."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places: Mapping[str, Path] = {
        "bash": data / "bash-completion" / "completions" / "leasehold",
        "zsh": data / "zsh" / "site-functions" / "_leasehold",
        "fish": config / "fish" / "completions" / "leasehold.fish",
    }
    path = places[shell]
    hints: Mapping[str, str] = {
        "bash": f"new shells load it by the package bash-completion; without that add to ~/.bashrc: source '{path}'",
        "zsh": f"add to ~/.zshrc, before compinit: fpath+=('{path.parent}')",
        "fish": "new shells load it",
    }
    return path, hints[shell]
