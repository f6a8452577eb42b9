"""``smelt trust``: manage the keys whose engines this user trusts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from smelt.cli._console import print_json, show
from smelt.cli._options import json_option

if TYPE_CHECKING:
    from smelt.engine import TrustedKey


@click.group(short_help="Show, add or remove the keys trusted to sign engines.")
def trust() -> None:
    r"""Show, add or remove the keys trusted to sign engines.

    An engine contains machine code, which runs only if the engine is signed by a key that you
    trust. These are your own key, which is created when you first build an engine, and the keys
    that you add. Other engines still load where smelt's compiler is installed: their code is then
    generated again from their plan.

    \b
    Examples, to run the engines of a colleague (there: the colleague's machine):
      there:  smelt trust show
      here:   smelt trust add "smelt-ed25519 AAAA… colleague"
      here:   smelt trust remove colleague

    SMELT_TRUSTED_KEYS lists further files and folders of trusted keys.
    """


@trust.command("show", short_help="List the trusted keys, each as a line for `smelt trust add`.")
@json_option()
def list_keys(*, as_json: bool) -> None:
    """List the trusted keys, each as a line for `smelt trust add` on another machine."""
    from smelt.engine import show_trusted_keys

    keys = show_trusted_keys()
    if as_json:
        print_json({"keys": [_to_json(key) for key in keys]})
    elif keys:
        for key in keys:  # not a table, whose lines may be broken: a key's line is to be copied
            show(f"{key.key_id}  {key.label}  (from {key.origin})", f"    {key.text}")
    else:
        show("No key is trusted yet; your own key is created when you first build an engine.")


@trust.command()
@click.argument("key", metavar="KEY")
@click.option(
    "--label", default="", show_default=False, help="Label of the key.  [default: the label in KEY]"
)
@json_option()
def add(*, key: str, label: str, as_json: bool) -> None:
    r"""Trust KEY: a line of `smelt trust show`, or a file that holds one.

    \b
    Examples:
      smelt trust add "smelt-ed25519 AAAA… colleague"
      smelt trust add colleague.pub --label colleague
    """
    from smelt.engine import add_trusted_key

    _show_change("trusted", add_trusted_key(key, label), as_json=as_json)


@trust.command()
@click.argument("name", metavar="ID|LABEL")
@json_option()
def remove(*, name: str, as_json: bool) -> None:
    """Stop trusting the key of this ID or LABEL."""
    from smelt.engine import remove_trusted_key

    _show_change("removed", remove_trusted_key(name), as_json=as_json)


def _show_change(change: str, key: TrustedKey, *, as_json: bool) -> None:
    if as_json:
        print_json({change: _to_json(key)})
    else:
        show(f"{change} {key.key_id} {key.label}".rstrip())


def _to_json(key: TrustedKey) -> dict[str, object]:
    return {"id": key.key_id, "label": key.label, "origin": key.origin, "text": key.text}
