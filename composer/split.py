"""How tensor parallelism cuts buffers, and what a rank's bytes are called because of it."""

from __future__ import annotations

from collections.abc import Sequence

from composer.errors import ConfigError, Problems
from composer.expression import Fields, evaluate_size
from composer.schema import SplitConfig, Unit
from composer.spec import BufferSpec, Split

Ranges = tuple[tuple[int, int], ...]


def resolve_split(
    split: SplitConfig, shape: tuple[int, ...], fields: Fields, rank: int, size: int
) -> Split:
    """This rank's share of a buffer of ``shape``; keys of problems are below the split.

    Each part is cut into ``size`` equal runs of units. A part of fewer units than ranks is held
    whole units at a time, the same unit by several neighbouring ranks.

    Raises:
        ConfigError: Axis, parts, units and number of ranks do not fit.
    """
    if not 0 <= split.axis < len(shape):
        raise ConfigError.of("axis", f"axis {split.axis} of a shape of {len(shape)} axes")
    parts = _parts(split, shape, fields)
    unit_size = _unit_sizes(split, parts, fields)
    counts = [part // unit for part, unit in zip(parts, unit_size, strict=True)]
    problems = Problems()
    for part, count in zip(parts, counts, strict=True):
        if count % size and size % count:
            legal = [n for n in range(1, size + count + 1) if not (count % n and n % count)]
            reason = f"a part of {part} is {count} units, which {size} ranks cannot share equally"
            problems.add("", reason, f"Legal tp sizes: {', '.join(map(str, legal))}")
    problems.raise_if_any()
    ranges = unit_ranges(counts, rank, size)
    return Split(split.axis, parts, unit_size, ranges)


def unit_ranges(counts: Sequence[int], rank: int, size: int) -> Ranges:
    """Per part of ``counts`` units: first and past-the-last unit of a rank."""
    return tuple(
        (rank * count // size, (rank + 1) * count // size)
        if count >= size
        else (rank // (size // count), rank // (size // count) + 1)
        for count in counts
    )


def share(full: tuple[int, ...], split: Split | None) -> tuple[int, ...]:
    """Shape of a rank's share of a buffer."""
    if split is None:
        return full
    units = zip(split.unit_ranges, split.unit_size, strict=True)
    length = sum((end - first) * size for (first, end), size in units)
    return (*full[: split.axis], length, *full[split.axis + 1 :])


def name_shard(buffers: Sequence[BufferSpec], unit: Unit, rank: int, size: int) -> tuple[str, str]:
    """Name and class of what a rank holds of a pool: equal names mean equal bytes.

    Returns:
        ``("r", "replicated")`` where nothing is split; ``("h2-3of8", "heads")`` for token buffers
        all cut alike in one part; else ``("s1of4", "rank")``, the share among distinct shares.
    """
    splits = [buffer.split for buffer in buffers if buffer.split is not None]
    if not splits:
        return "r", "replicated"
    counts = [_counts(split) for split in splits]
    if unit is Unit.token and len(set(counts)) == 1 and len(counts[0]) == 1:
        first, end = splits[0].unit_ranges[0]
        return f"h{first}-{end - 1}of{counts[0][0]}", "heads"
    flat = [count for part_counts in counts for count in part_counts]
    shares = list(dict.fromkeys(unit_ranges(flat, other, size) for other in range(size)))
    return f"s{shares.index(unit_ranges(flat, rank, size))}of{len(shares)}", "rank"


def lower_twins(buffers: Sequence[BufferSpec], rank: int, size: int) -> tuple[int, ...]:
    """The ranks below ``rank`` that hold the same bytes of a pool."""
    splits = [buffer.split for buffer in buffers if buffer.split is not None]
    counts = [count for split in splits for count in _counts(split)]
    own = unit_ranges(counts, rank, size)
    return tuple(other for other in range(rank) if unit_ranges(counts, other, size) == own)


def _counts(split: Split) -> tuple[int, ...]:
    return tuple(part // unit for part, unit in zip(split.parts, split.unit_size, strict=True))


def _parts(split: SplitConfig, shape: tuple[int, ...], fields: Fields) -> tuple[int, ...]:
    length = shape[split.axis]
    if split.parts is None:
        return (length,)
    parts = tuple(evaluate_size(part, fields) for part in split.parts)
    if sum(parts) != length:
        raise ConfigError.of(
            "parts", f"parts {list(parts)} add up to {sum(parts)}, the axis has {length}"
        )
    return parts


def _unit_sizes(split: SplitConfig, parts: tuple[int, ...], fields: Fields) -> tuple[int, ...]:
    given = split.unit_size
    sizes = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if len(sizes) not in (1, len(parts)):
        raise ConfigError.of("unit_size", f"{len(sizes)} unit sizes for {len(parts)} parts")
    units = [evaluate_size(size, fields) for size in sizes] * (len(parts) // len(sizes))
    for part, unit in zip(parts, units, strict=True):
        if part % unit:
            raise ConfigError.of("unit_size", f"a part of {part} is no whole number of {unit}")
    return tuple(units)
