"""Two walks that every stage needs: over what something is made of, and to a fixpoint above it."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def postorder(
    roots: Iterable[T], below: Callable[[T], Iterable[T]], known: Container[T] = ()
) -> Iterator[T]:
    """Everything distinct that the roots need, operands before users, depth first.

    known: what is left out, with what only that needs.
    """
    seen: set[T] = set()
    stack = [(root, False) for root in reversed([*roots])]
    while stack:
        x, done = stack.pop()
        if done:
            yield x
        elif x not in seen and x not in known:
            seen.add(x)
            stack.append((x, True))
            stack.extend((k, False) for k in reversed([*below(x)]))


def fixpoint(needs: Mapping[T, Iterable[T]], refresh: Callable[[T], bool]) -> None:
    """Refresh everything in the order of `needs`, then what needs something that changed, again.

    refresh: makes a thing anew of what it needs; True if it changed.
    """
    users: dict[T, dict[T, None]] = {}
    for x, below in needs.items():
        for k in below:
            users.setdefault(k, {})[x] = None
    place = {x: i for i, x in enumerate(needs)}
    dirty = [*needs]
    while dirty:
        changed = {user for x in dirty if refresh(x) for user in users.get(x, ())}
        dirty = sorted(changed, key=place.__getitem__)
