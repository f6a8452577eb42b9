"""Ways to change an input that keep most of its structure: bytes, tokens, JSON trees, messages.

Each takes an input, a source of chance and the corpus to borrow from, and gives another input. One
that does not have the structure which a mutator expects is changed as bytes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    Mutator = Callable[[bytes, random.Random, Sequence[bytes]], bytes]

MAXIMUM_BYTES: Final = 1 << 16
INTEGERS: Final = (
    0, 1, 2, 3, 4, 7, 16, 100, 127, 255, 256, 4096, 65535, 65536, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -5, -128,
    -(1 << 31), -(1 << 63),
)  # fmt: skip
TEXTS: Final = ("", "x", "nan", "-inf", "\0", "ü", "../x", "a" * 3000, "%s", "[]", "1//0", '"')
_JSON_VALUES: Final[tuple[object, ...]] = (
    None,
    True,
    False,
    0.5,
    1e300,
    [],
    {},
    "",
    *INTEGERS,
    1 << 200,
    *TEXTS,
)
_TOKEN: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\w.+-]+|\s+|.', re.DOTALL)
_OPENING: Final = {"{": "}", "(": ")", "[": "]"}
_DEEP: Final = (10, 60, 300, 3000)
_DEEP_TREE: Final = (10, 60, 300, 800)
"""Of JSON, whose own reader and writer end at about 1000."""


# ---- bytes


def mutate_bytes(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Flip, overwrite, insert, repeat, remove, cut off or join bytes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        data = chance.choice(_BYTE_CHANGES)(data, chance, corpus)[:MAXIMUM_BYTES]
    return data


def _flip(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    width = chance.choice((1, 2, 4, 8))
    value = (chance.choice(INTEGERS) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    at = chance.randrange(len(data) + 1)
    return data[:at] + value + data[at + width :]


def _insert(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.choice((1, 1, 2, 4, 9))) + data[at:]


def _repeat(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    start, stop = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:stop] * chance.choice((1, 1, 2, 50)) + data[stop:]


def _remove(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.choice((1, 1, 2, 4, 8, 64)) :]


def _cut(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    del corpus
    return data[: chance.randrange(len(data) + 1)]


def _join(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    other = chance.choice(corpus) if corpus else data
    at, there = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    return data[:at] + other[there:]


_BYTE_CHANGES: Final = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _insert,
    _repeat,
    _remove,
    _cut,
    _join,
)


# ---- tokens


def mutate_tokens(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change numbers and words, move and repeat blocks of a text."""
    if chance.random() < 0.1:
        return mutate_bytes(data, chance, corpus)
    tokens = _tokens(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        if not tokens:
            break
        at = _solid(tokens, chance)
        choice = chance.randrange(8)
        if choice <= 2:
            tokens[at] = _other_token(tokens[at], tokens, chance, corpus)
        elif choice == 3:
            del tokens[at : _end(tokens, at)]
        elif choice == 4:
            tokens[at:at] = tokens[at : _end(tokens, at)] * chance.choice((1, 1, 2, 9))
        elif choice == 5:
            other = _tokens(chance.choice(corpus)) if corpus else tokens
            start = _solid(other, chance) if other else 0
            tokens[at:at] = [*other[start : _end(other, start)], " "]
        elif choice == 6:
            line = "".join(tokens).splitlines(keepends=True)
            line.insert(chance.randrange(len(line) + 1), chance.choice(line))
            tokens = _TOKEN.findall("".join(line))
        else:
            block = tokens[at : _end(tokens, at)]
            if len(block) > 1:
                depth = chance.choice(_DEEP)
                tokens[at:at] = block[:-1] * min(depth, MAXIMUM_BYTES // len("".join(block)))
    return "".join(tokens).encode("utf-8", "surrogateescape")[:MAXIMUM_BYTES]


def _tokens(data: bytes) -> list[str]:
    return _TOKEN.findall(data.decode("utf-8", "surrogateescape"))


def _solid(tokens: list[str], chance: random.Random) -> int:
    """The position of a token, rather not of space between tokens."""
    at = chance.randrange(len(tokens))
    return (at + 1) % len(tokens) if tokens[at].isspace() else at


def _end(tokens: list[str], at: int) -> int:
    """One past the block that starts at a token: up to the bracket that closes it."""
    depth = 0
    for position in range(at, min(len(tokens), at + 400)):
        depth += tokens[position] in _OPENING
        depth -= tokens[position] in _OPENING.values()
        if depth <= 0 and not (tokens[position].isspace() or _opens_soon(tokens, position)):
            return position + 1
    return min(len(tokens), at + 1)


def _opens_soon(tokens: list[str], at: int) -> bool:
    """Whether a name is the head of a block in braces."""
    following = "".join(tokens[at + 1 : at + 3]).strip()
    return following.startswith("{")


def _other_token(
    token: str, tokens: list[str], chance: random.Random, corpus: Sequence[bytes]
) -> str:
    if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", token):
        return str(chance.choice((*INTEGERS, "0.5", "1e30", "nan", "-inf", "1e-30")))
    pool = tokens if chance.random() < 0.6 or not corpus else _tokens(chance.choice(corpus))
    same_kind = [t for t in pool if not t.isspace() and t[:1].isalpha() == token[:1].isalpha()]
    return chance.choice(same_kind or ["x"])


# ---- JSON


def mutate_json(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change a JSON document somewhere in its tree."""
    if chance.random() < 0.05:
        return mutate_bytes(data, chance, corpus)
    try:
        tree: object = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, chance, corpus)
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            tree = mutate_tree(tree, chance)
        return json.dumps(tree).encode()[: 4 * MAXIMUM_BYTES]
    except RecursionError:
        return data


def mutate_tree(tree: object, chance: random.Random) -> object:
    """The tree with one change; texts that are JSON themselves are changed inside."""
    holder: list[object] = [tree]
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [holder]
    while stack:
        parent = stack.pop()
        for key, value in _pairs(parent):
            places.append((parent, key))
            if isinstance(value, dict | list):
                stack.append(value)
    node, key = chance.choice(places)
    value = node[key]
    if isinstance(value, str) and len(value) > 1 and value[0] in "{[" and chance.random() < 0.9:
        try:
            node[key] = json.dumps(mutate_tree(json.loads(value), chance), separators=(",", ":"))
        except (ValueError, RecursionError):
            node[key] = ""
        return holder[0]
    chance.choice(_TREE_CHANGES)(node, key, places, chance)
    return holder[0] if holder else None


def _pairs(node: Any) -> Any:
    return node.items() if hasattr(node, "items") else enumerate(node)


def _set(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    value = node[key]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.7:
        node[key] = chance.choice((value + 1, value - 1, -value, value * 2, *INTEGERS))
    elif isinstance(value, str) and chance.random() < 0.5:
        node[key] = mutate_bytes(value.encode(), chance, ()).decode("utf-8", "replace")
    else:
        node[key] = chance.choice(_JSON_VALUES)
    del places


def _borrow(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    other, there = chance.choice(places)
    value = other[there]
    alike = [n[k] for n, k in places if type(n[k]) is type(node[key])]
    if chance.random() < 0.8:
        value = chance.choice(alike)
    # A copy: a tree that holds itself is none.
    node[key] = json.loads(json.dumps(value))


def _drop(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    del node[key], places, chance


def _double(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    if isinstance(node, list):
        copy = json.loads(json.dumps(node[key]))
        cast("list[object]", node)[key:key] = [copy] * chance.choice((1, 1, 2, 20))
    else:
        node[str(key) + "x"] = node[key]
    del places


def _wrap(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    """Nest a value in lists like its own parent, now and then very deep."""
    value = node[key]
    is_inside = isinstance(node, list) and chance.random() < 0.8
    brothers: list[Any] = cast("Any", node) if is_inside else [value]
    place = key if is_inside else 0
    for _ in range(chance.choice((1, 2, *_DEEP_TREE, _DEEP_TREE[-1]))):
        level = [b if not isinstance(b, list | dict) else None for b in brothers]
        level[place] = value
        value = level
    node[key] = value
    del places


def _swap(node: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    keys: list[Any] = list(cast("Any", node)) if isinstance(node, dict) else [*range(len(node))]
    other = chance.choice(keys)
    node[key], node[other] = node[other], node[key]
    del places


_TREE_CHANGES: Final = (_set, _set, _set, _borrow, _borrow, _drop, _double, _wrap, _swap)


# ---- protobuf messages


def message_mutator(make: Callable[[], Message], words: Sequence[str] = ("",)) -> Mutator:
    """Change messages of one type: fields set, cleared, repeated, exchanged and borrowed.

    ``words`` are texts that mean something in such messages.
    """

    def mutate(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
        message = make()
        try:
            message.ParseFromString(data)
            other = make()
            other.ParseFromString(chance.choice(corpus) if corpus else data)
        except (DecodeError, RuntimeError):
            return mutate_bytes(data, chance, corpus)
        if chance.random() < 0.1:
            return mutate_bytes(data, chance, corpus)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
            _change_message(message, other, chance, words)
        try:
            return message.SerializeToString()[: 4 * MAXIMUM_BYTES]
        except (ValueError, RecursionError):
            return data

    return mutate


def _messages(root: Any) -> list[Any]:
    found: list[Any] = []
    stack: list[Any] = [root]
    while stack:
        message = stack.pop()
        found.append(message)
        for field, content in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                stack.extend([content] if hasattr(content, "ListFields") else content)
    return found


def _change_message(root: Any, other: Any, chance: random.Random, words: Sequence[str]) -> None:
    messages = _messages(root)
    message = chance.choice(messages)
    present = [field for field, _ in message.ListFields()]
    fields = present if present and chance.random() < 0.75 else list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = chance.choice(fields)
    try:
        if field.type == FieldDescriptor.TYPE_STRING and chance.random() < 0.3:
            text = chance.choice(words)
            if not _is_repeated(field):
                setattr(message, field.name, text)
            else:
                getattr(message, field.name).append(text)
        elif _is_repeated(field):
            _change_repeated(message, field, other, chance)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            _change_single(message, field, root, other, chance)
        else:
            setattr(message, field.name, _scalar(field, getattr(message, field.name), root, chance))
    except (ValueError, TypeError):
        message.ClearField(field.name)  # what the field cannot hold


def _change_single(message: Any, field: Any, root: Any, other: Any, chance: random.Random) -> None:
    choice = chance.randrange(4)
    if choice == 0:
        message.ClearField(field.name)
    elif choice == 1:
        getattr(message, field.name).SetInParent()
    else:
        pool = [
            m for m in (*_messages(other), *_messages(root)) if field.message_type == m.DESCRIPTOR
        ]
        if pool:
            copy = type(chance.choice(pool))()
            copy.CopyFrom(chance.choice(pool))
            getattr(message, field.name).CopyFrom(copy)


def _change_repeated(message: Any, field: Any, other: Any, chance: random.Random) -> None:
    content = getattr(message, field.name)
    choice = chance.randrange(6)
    at = chance.randrange(len(content)) if len(content) else None
    if choice == 0 and at is not None:
        del content[at]
    elif choice == 1 and len(content) > 1:
        order = list(content)
        chance.shuffle(order)
        copies = [_copy(item) for item in order]
        message.ClearField(field.name)
        content.extend(copies)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        pool = [m for m in _messages(other) if field.message_type == m.DESCRIPTOR]
        if at is not None and chance.random() < 0.4:
            pool = [content[at]]
        content.append(_copy(chance.choice(pool))) if pool else content.add()
    elif at is not None and choice < 5:
        content[at] = _scalar(field, content[at], message, chance)
    else:
        before = content[at] if at is not None else 0
        content.append(_scalar(field, before, message, chance))


def _is_repeated(field: Any) -> bool:
    return isinstance(field.default_value, list)


def _copy(item: Any) -> Any:
    if not hasattr(item, "CopyFrom"):
        return item
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _scalar(field: Any, value: Any, root: Any, chance: random.Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [v.number for v in field.enum_type.values]
        return chance.choice([*numbers, *numbers, 999])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(value if isinstance(value, bytes) else b"", chance, ())
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice(_names(root)) if chance.random() < 0.8 else chance.choice(TEXTS)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return chance.choice((0.0, -1.0, 0.5, 1e30, float("nan"), float("inf"), 1e-30))
    number = value if isinstance(value, int) else 0
    return chance.choice((number + 1, number - 1, -number, number * 2, *INTEGERS))


def _names(root: Any) -> list[str]:
    """Every short text in a message: what links its parts, and so is worth exchanging."""
    found = [""]
    for message in _messages(root):
        for field, content in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                found.extend([content] if isinstance(content, str) else content)
    return [text for text in found if len(text) < 200]
