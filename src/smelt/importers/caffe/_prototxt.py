"""Parsing of a prototxt into layers of the TEST phase, in one form for both formats."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import text_format

from smelt.errors import GraphError, ModelFormatError
from smelt.importers.caffe._schema import V1_NAMES, new_message
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger(__name__)

MAXIMUM_LAYERS: Final = 100_000
"""Largest number of layers of a prototxt."""
_TEST: Final = 1
"""Number of the TEST phase in Caffe's ``Phase`` enumeration."""
_MANY_BACKSLASHES: Final = "\\" * 33
"""No name has so many in a row; protobuf takes quadratic time to unescape them."""
_LONG_LINE: Final = 1_000
"""Characters from which a line is broken: for each unknown field protobuf formats an error with the
whole line, which it discards."""
_STRING_COMMENT_OR_BREAK: Final = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|\#[^\n]*)|[ \t:;,{}<>\[\]]+"""
)
"""A string or a comment (group 1), or characters after which a line may be broken.

A string that has no end is one match: no later quote is tried as its start again."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a prototxt, in the same form for both formats."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    message: Any
    """The protobuf message of the layer, which ``parameters`` reads."""

    def parameters(self, field: str) -> Any:
        """Return the message ``field``, with the defaults if the layer does not have it."""
        if field in self.message.DESCRIPTOR.fields_by_name:
            return getattr(self.message, field)
        return getattr(new_message("LayerParameter"), field)

    def __str__(self) -> str:
        return f"{self.type} layer {self.name!r}"


@dataclass(frozen=True, slots=True)
class Prototxt:
    """A parsed prototxt."""

    name: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Inputs that are not declared as layers: name and extents, batch first."""
    layers: tuple[Layer, ...]
    """The layers of the TEST phase, in order."""


def parse_prototxt(text: str, what: str) -> Prototxt:
    """Parse a prototxt in the current or the V1 format.

    Raises:
        ModelFormatError: the text is malformed (with line and column), or in the V0 format.
        GraphError: two layers have the same name.
    """
    net = _parse(text, what)
    if net.layer and net.layers:
        raise ModelFormatError(
            f"{what} mixes `layer` and `layers`, the current and the V1 format; use `layer` "
            "for all layers"
        )
    if not text.strip():
        raise ModelFormatError(f"{what} is empty; give the network's prototxt")
    if not (net.layer or net.layers):
        raise ModelFormatError(
            f"{what} has no layers: is it a solver's prototxt? Give the network's prototxt"
        )
    if len(net.layer) + len(net.layers) > MAXIMUM_LAYERS:
        raise ModelFormatError(f"{what} has more than {MAXIMUM_LAYERS} layers")
    if any(layer.HasField("layer") for layer in net.layers):
        raise ModelFormatError(
            f"{what} is in the V0 format of 2013; upgrade it with Caffe's upgrade_net_proto_text"
        )
    layers = tuple(_kept_layers(net, what))
    _refuse_duplicates(layers)
    return Prototxt(str(net.name) or "network", tuple(_declared_inputs(net, what)), layers)


def _parse(text: str, what: str) -> Any:
    """Parse the text as a network; unknown fields are ignored with a warning."""
    if _MANY_BACKSLASHES in text:
        raise ModelFormatError(
            f"{what} has more than {len(_MANY_BACKSLASHES)} backslashes in a row"
        )
    text = "\n".join(map(_with_breaks, text.split("\n")))
    try:
        try:
            return text_format.Parse(text, new_message("NetParameter"))
        except text_format.ParseError as error:
            if "has no field named" not in str(error):
                raise
            net = text_format.Parse(text, new_message("NetParameter"), allow_unknown_field=True)
            _log.warning(
                "%s, line:column %s This field and other unknown fields are ignored.",
                what,
                _clean(error),
            )
            return net
    except text_format.ParseError as error:
        raise ModelFormatError(
            f"{what} cannot be parsed at line:column {_clean(error)} Correct the text, or give the "
            "network's prototxt"
        ) from error
    except (RecursionError, UnicodeError, ValueError) as error:
        reason = str(error)[:200] or type(error).__name__
        raise ModelFormatError(
            f"{what} cannot be parsed ({reason}): is it the prototxt of a network?"
        ) from error


def _with_breaks(line: str) -> str:
    """Return a line, broken between its tokens if it is long; positions in errors then differ."""
    if len(line) <= _LONG_LINE:
        return line
    return _STRING_COMMENT_OR_BREAK.sub(lambda m: m[1] or f"{m[0]}\n", line)


def _clean(error: Exception) -> str:
    """Return protobuf's message, shortened and without the package name.

    At the end of the text protobuf reports the token ``''``, which is replaced by an explanation.
    """
    text = re.sub(r"smelt\.caffe\.(\w+Scope\.)?", "", str(error))[:400]
    return text.replace(" : '': ", ": the text ends too early (is it truncated?). ")


def _kept_layers(net: Any, what: str) -> Iterator[Layer]:
    """Yield the layers of the TEST phase."""
    stages = frozenset(net.state.stage)
    for index, message in enumerate(net.layer or net.layers):
        kind = message.type if net.layer else V1_NAMES.get(message.type, "")
        name = message.name or f"layer{index}"
        if not kind:
            raise ModelFormatError(f"{what}: layer {name!r} has no type; every layer needs one")
        layer = Layer(name, kind, tuple(message.bottom), tuple(message.top), message)
        if _runs_in_test(layer, net.state.level, stages):
            yield layer


def _runs_in_test(layer: Layer, level: int, stages: frozenset[str]) -> bool:
    """Return whether the include or exclude rules of a layer select the TEST phase."""
    include, exclude = layer.message.include, layer.message.exclude
    if include and exclude:
        raise ModelFormatError(f"{layer} has both include and exclude rules; keep one kind")
    if include:
        return any(_rule_holds(rule, level, stages) for rule in include)
    return not any(_rule_holds(rule, level, stages) for rule in exclude)


def _rule_holds(rule: Any, level: int, stages: frozenset[str]) -> bool:
    if rule.HasField("phase") and rule.phase != _TEST:
        return False
    if rule.HasField("min_level") and level < rule.min_level:
        return False
    if rule.HasField("max_level") and level > rule.max_level:
        return False
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)


def _refuse_duplicates(layers: Iterable[Layer]) -> None:
    """Check that no two layers have the same name."""
    by_name: dict[str, Layer] = {}
    for layer in layers:
        if layer.name in by_name:
            raise GraphError(
                f"the prototxt has two layers of this name, of types {by_name[layer.name].type} "
                f"and {layer.type}: weights are found by name; rename one of them",
                node=f"layer {layer.name!r}",
            )
        by_name[layer.name] = layer


def _declared_inputs(net: Any, what: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the inputs that are not declared as layers."""
    names = list(net.input)
    shapes = [tuple(shape.dim) for shape in net.input_shape]
    dims = list(net.input_dim)
    if not shapes and dims:
        shapes = [tuple(dims[start : start + 4]) for start in range(0, len(dims), 4)]
    if len(shapes) != len(names):
        raise ModelFormatError(
            f"{what} names {counted(len(names), 'input')} but gives "
            f"{counted(len(shapes), 'shape')}; each `input:` needs four `input_dim:` or one "
            "`input_shape`"
        )
    yield from zip(names, shapes, strict=True)
