"""Names of storage objects: ``{namespace}/{scope}/{object}/{shard}/{page_hash}``.

A key says what an object holds, never who wrote it. One function builds keys, one parses them;
names inside a part are percent-encoded, so that a slash in a pool's name cannot shift the parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

FORMAT_VERSION = 1


@dataclass(frozen=True)
class ObjectKey:
    """The parts of a storage key.

    Attributes:
        namespace: Digest of everything that changes the meaning of the bytes.
        scope: Tenant, see page_hash.scope_name.
        object: Index space, or index space and pools.
        shard: Which part of the model's bytes, e.g. ``h0-3of8.l0-30``.
        page_hash: 32 bytes.
    """

    namespace: str
    scope: str
    object: str
    shard: str
    page_hash: bytes

    @property
    def prefix(self) -> str:
        """Everything before the page hash, with the slash: shared by all pages of an arena."""
        parts = (self.namespace, self.scope, self.object, self.shard)
        return "".join(f"{quote(part, safe=_PLAIN)}/" for part in parts)


_MANIFEST = "+manifest"
_PLAIN = "-+:,"  # beside letters, digits and ``_.~``


def build_key(key: ObjectKey) -> str:
    """The text of one key."""
    return key.prefix + key.page_hash.hex()


def build_keys(prefix: str, page_hashes: Sequence[bytes]) -> list[str]:
    """The texts of many keys of one arena, equal to ``build_key`` of each."""
    return [prefix + page_hash.hex() for page_hash in page_hashes]


def parse_key(text: str) -> ObjectKey:
    """The parts of a key's text.

    Raises:
        ValueError: The text is no key of ours.
    """
    parts = text.split("/")
    if len(parts) != 5 or len(parts[4]) != 64:
        raise ValueError(f"{text!r} is no storage key: namespace/scope/object/shard/page_hash")
    namespace, scope, name, shard = (unquote(part) for part in parts[:4])
    key = ObjectKey(namespace, scope, name, shard, bytes.fromhex(parts[4]))
    if build_key(key) != text:  # another spelling would be another object to a backend
        raise ValueError(f"{text!r} is no storage key as this version spells them")
    return key


def manifest_key(namespace: str) -> str:
    """Key of what tells about a namespace; no index space can have the name of its object."""
    return build_key(ObjectKey(namespace, "-", _MANIFEST, "-", bytes(32)))


def is_manifest(key: str) -> bool:
    """Whether a key is a manifest's."""
    return f"/{_MANIFEST}/" in key


def object_name(space: str, pools: Iterable[str] = (), buffer: str | None = None) -> str:
    """Name of an arena's objects: its index space, and its pools unless they are the main ones.

    Args:
        space: Index space.
        pools: Pools whose bytes they hold.
        buffer: The one buffer that they hold; None: all.
    """
    names = ",".join(quote(pool, safe="") for pool in pools)
    part = "" if buffer is None else f"+{quote(buffer, safe='')}"
    return quote(space, safe="") + (f":{names}{part}" if names else "")


def namespace_digest(manifest: Mapping[str, object]) -> str:
    """128 bits of SHA-256 over the manifest as canonical JSON, as hex."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
