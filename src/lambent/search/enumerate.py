"""All candidate kernels of a saturated e-graph: dynamic programming over its classes.

A signature is (class, leaves, reductions inside). For each signature the body with the least work
as a DAG stays: shared terms count once (a tree sum once kept a body that ran a product twice). The
body of a class whose operands are leaves wherever they can be stored stays, so a cover always
exists. Nothing is dropped by rank unless `keep` is hit, and then the report names the roots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lambent.algebra.egraph import ClassRef, Saturated
from lambent.algebra.term import REDUCTIONS, Term, Terms, walk
from lambent.graph.dim import Size, axes_in, value
from lambent.graph.dtypes import DType
from lambent.graph.prove import substitute
from lambent.kernel.kernel import Kernel, Output
from lambent.search.space import (
    ONE,
    Alt,
    Const,
    Prices,
    Space,
    Stored,
    bits,
    own_cost,
    prepare,
    sides,
)  # fmt: skip

MAX_REDUCTIONS = 6  # reductions fused in one kernel
SLACK = (
    4.0  # a body this much slower than the cheapest plan of its class is never part of a best plan
)

ALIKE = 3  # bodies kept that read the same costly values
COSTLY = 0.03  # of the program's time, from which on a value is costly


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that may make stored class number `root` from the stored classes `leaves`."""

    root: int
    leaves: tuple[int, ...]
    kernel: Kernel
    work: float  # seconds of arithmetic, as a DAG, at the optimistic prices
    basic: bool  # part of the cover that always exists


@dataclass(frozen=True, slots=True)
class Candidates:
    """`capped` names the stored values of which some bodies were dropped by rank."""

    stored: tuple[Stored, ...]
    candidates: tuple[Candidate, ...]
    capped: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Body:
    """One way to compute `cls` inside a kernel. `alt` None: a load of the stored class."""

    cls: int
    alt: Alt | None
    kids: tuple[Body, ...]
    leaves: int
    reductions: int
    parts: int  # the bodies below that cost something, as a bit set; this one included
    work: float
    basic: bool = False
    uid: int = -1  # its number once it is kept


Key = tuple[int, int]


@dataclass(slots=True)
class _Search:
    space: Space
    keep: int
    leaf_bit: dict[str, int] = field(default_factory=dict)
    leaf_bytes: list[float] = field(default_factory=list)
    leaf_togo: list[float] = field(default_factory=list)
    reduction_bit: dict[int, int] = field(default_factory=dict)
    uids: dict[Any, int] = field(default_factory=dict)
    part_work: list[float] = field(default_factory=list)
    own: dict[tuple[int, Alt], float] = field(default_factory=dict)
    shared: dict[int, float] = field(default_factory=dict)
    costs: dict[int, tuple[float, float]] = field(default_factory=dict)
    table: dict[int, dict[Key, Body]] = field(default_factory=dict)
    stored: dict[int, Body] = field(default_factory=dict)
    capped: set[int] = field(default_factory=set)
    costly: int = 0  # leaves that take a good part of the program to make

    # ---- leaves and shared work ----

    def leaf(self, name: str) -> int:
        """The bit of a buffer: stored values first, so that they share bits with reductions."""
        return 1 << self.leaf_bit[name]

    def number_leaves(self) -> None:
        s = self.space
        for i in s.stored:
            cheap = s.weights(i.cls) and not i.output
            togo = 0.0 if cheap else s.cost[i.cls] + s.bytes(i.cls) * s.prices.byte
            self._add(i.buffer.name, s.bytes(i.cls), togo if cheap else togo + s.prices.launch)
        for name in sorted(s.source.buffers):
            if name not in self.leaf_bit:
                self._add(name, self._region(name), 0.0)
        for f, c in s.chief.items():
            self.reduction_bit[f] = s.item.get(c, len(self.leaf_bit) + len(self.reduction_bit))

    def _add(self, name: str, size: float, togo: float) -> None:
        if togo > COSTLY * self.space.total:
            self.costly |= 1 << len(self.leaf_bit)
        self.leaf_bit[name] = len(self.leaf_bit)
        self.leaf_bytes.append(size)
        self.leaf_togo.append(togo)

    def _region(self, name: str) -> float:
        """Bytes of an input that some kernel may read at least: its largest access."""
        s = self.space
        loads = [c for c in s.alts for a in s.alts[c] if a.op == "in" and a.args[0] == name]
        size = s.source.buffers[name].dtype.itemsize
        most = max((s.volume(s.free[c]) * size for c in loads), default=0.0)
        return min(s.buffer_bytes(name), most)

    def work(self, parts: int) -> float:
        """Seconds of a set of parts."""
        found = self.shared.get(parts)
        if found is None:
            found = self.shared[parts] = sum(self.part_work[i] for i in bits(parts))
        return found

    def time(self, leaves: int, work: float) -> float:
        """Optimistic seconds of a kernel; `rank` adds what its leaves cost to make."""
        return max(work, self._leaf_costs(leaves)[0] * self.space.prices.byte)

    def rank(self, leaves: int, work: float) -> float:
        size, togo = self._leaf_costs(leaves)
        return max(work, size * self.space.prices.byte) + togo

    def _leaf_costs(self, leaves: int) -> tuple[float, float]:
        found = self.costs.get(leaves)
        if found is None:
            size = sum(self.leaf_bytes[i] for i in bits(leaves))
            togo = sum(self.leaf_togo[i] for i in bits(leaves))
            found = self.costs[leaves] = (size, togo)
        return found

    # ---- bodies ----

    def options(self, c: int) -> list[Body]:
        stored = self.stored.get(c)
        return [*self.table[c].values()] if stored is None else [*self.table[c].values(), stored]

    def combine(self, c: int, alt: Alt) -> dict[Key, tuple[int, float, tuple[Body, ...]]]:
        """The cheapest choice of operand bodies for each signature: parts, work, bodies."""
        leaves = self.leaf(str(alt.args[0])) if alt.op == "in" else 0
        found: dict[Key, tuple[int, float, tuple[Body, ...]]] = {(leaves, 0): (0, 0.0, ())}
        for kid in alt.kids:
            new: dict[Key, tuple[int, float, tuple[Body, ...]]] = {}
            options = self.options(kid)
            for (l1, r1), (p1, w1, kids) in found.items():
                for b in options:
                    key = (l1 | b.leaves, r1 | b.reductions)
                    if key[0] & key[1] or key[1].bit_count() > MAX_REDUCTIONS:
                        continue
                    both = p1 & b.parts
                    w = w1 + b.work - (self.work(both) if both else 0.0)
                    old = new.get(key)
                    if old is None or w < old[1]:
                        new[key] = (p1 | b.parts, w, (*kids, b))
            found = self._thin(c, new)
        return found

    def _thin(
        self, c: int, found: dict[Key, tuple[int, float, tuple[Body, ...]]]
    ) -> dict[Key, tuple[int, float, tuple[Body, ...]]]:
        if len(found) <= 3 * self.keep:
            return found
        self.capped.add(c)
        order = sorted(found, key=lambda k: (self.rank(k[0], found[k][1]), k))
        return {k: found[k] for k in order[: 3 * self.keep]}

    def _fits(self, c: int, alt: Alt, key: Key) -> bool:
        """A body never passes through its own class again, loaded or computed."""
        item = self.space.item.get(c)
        if item is not None and key[0] >> item & 1:
            return False
        own = self.reduction_bit[self.space.family[c]] if alt.op in REDUCTIONS else None
        return own is None or not key[1] >> own & 1

    def _own_reduction(self, c: int, alt: Alt) -> int:
        return 1 << self.reduction_bit[self.space.family[c]] if alt.op in REDUCTIONS else 0

    def _own(self, c: int, alt: Alt) -> float:
        found = self.own.get((c, alt))
        if found is None:
            found = self.own[c, alt] = own_cost(self.space, c, alt)
        return found

    def _number(self, body: Body) -> None:
        """Give a body that is kept its number, by structure, and its bit among the parts."""
        if body.uid < 0:
            name = (body.cls, body.alt, tuple(k.uid for k in body.kids))
            body.uid = self.uids.setdefault(name, len(self.uids))
            if body.uid == len(self.part_work):
                self.part_work.append(0.0 if body.alt is None else self._own(body.cls, body.alt))
            if self.part_work[body.uid]:
                body.parts |= 1 << body.uid

    def basic(self) -> None:
        """For every class the body of its cheapest tree, cut at every value that can be stored."""
        s = self.space
        for c in self._operands_first():
            alt = s.best[c]
            kids = tuple(self.stored.get(k) or self._basic_kid(k) for k in alt.kids)
            leaves = self.leaf(str(alt.args[0])) if alt.op == "in" else 0
            parts = reductions = 0
            for k in kids:
                leaves, parts, reductions = (
                    leaves | k.leaves, parts | k.parts, reductions | k.reductions,
                )  # fmt: skip
            reductions |= self._own_reduction(c, alt)
            work = self.work(parts) + self._own(c, alt)
            body = Body(c, alt, kids, leaves, reductions, parts, work, basic=True)
            self._number(body)
            self.table[c] = {(body.leaves, body.reductions): body}

    def _operands_first(self) -> list[int]:
        """The classes in the order of their cheapest trees (costs alone may tie)."""
        order: dict[int, None] = {}
        stack = [(c, False) for c in sorted(self.space.best, reverse=True)]
        while stack:
            c, done = stack.pop()
            if done:
                order[c] = None
            elif c not in order:
                stack.append((c, True))
                stack.extend((k, False) for k in self.space.best[c].kids if k not in order)
        return list(order)

    def _basic_kid(self, c: int) -> Body:
        return next(iter(self.table[c].values()))

    def whole(self, c: int) -> Body:
        """The cheapest tree of a class of weights, with nothing stored: it runs once, at load."""
        alt = self.space.best[c]
        kids = tuple(self.whole(k) for k in alt.kids)
        leaves = self.leaf(str(alt.args[0])) if alt.op == "in" else 0
        body = Body(c, alt, kids, leaves, 0, 0, self._own(c, alt))
        self._number(body)
        return body

    def refresh(self, c: int) -> bool:
        """Recompute the table of a class from its operands' tables; True if it changed."""
        s = self.space
        found: dict[Key, Body] = dict(self.table.get(c, {}))
        for alt in s.alts[c]:
            if any(k not in self.table for k in alt.kids):
                continue
            own, reduction = self._own(c, alt), self._own_reduction(c, alt)
            for key, (parts, work, kids) in self.combine(c, alt).items():
                if not self._fits(c, alt, key):
                    continue
                leaves, reductions = key[0], key[1] | reduction
                old = found.get((leaves, reductions))
                if old is None or (work + own < old.work * (1 - 1e-9) and not old.basic):
                    new = Body(c, alt, kids, leaves, reductions, parts, work + own)
                    found[leaves, reductions] = new
        found = self._prune(c, found)
        old_table = self.table.get(c, {})
        changed = found.keys() != old_table.keys() or any(
            found[k] is not old_table[k] for k in found
        )
        for body in found.values():
            self._number(body)
        self.table[c] = found
        return changed

    def _prune(self, c: int, found: dict[Key, Body]) -> dict[Key, Body]:
        ranks = {k: self.rank(k[0], b.work) for k, b in found.items()}
        order = sorted(found, key=lambda k: (ranks[k], k))
        if self.space.weights(c):
            return {k: found[k] for k in order if self._free_of_weights(found[k])}
        kept: dict[Key, Body] = {}
        alike: Counter[int] = Counter()  # bodies by the costly values that they read
        for key in order:
            body, costly = found[key], key[0] & self.costly
            if body.basic:
                kept[key] = body
            elif self.time(key[0], body.work) > SLACK * ranks[order[0]]:
                continue
            elif len(kept) >= self.keep:
                self.capped.add(c)
                break
            elif alike[costly] >= ALIKE:
                self.capped.add(c)
            elif not self._dominated(body, kept.values()):
                kept[key] = body
                alike[costly] += 1
        kept.update((k, b) for k, b in found.items() if b.basic)
        return kept

    def _free_of_weights(self, body: Body) -> bool:
        return body.basic or body.leaves == 0 or (body.alt is not None and body.alt.op == "in")

    @staticmethod
    def _dominated(body: Body, kept: Iterable[Body]) -> bool:
        """Another body reads a part of its leaves and does no more work."""
        return any(b.leaves & ~body.leaves == 0 and b.work <= body.work * (1 + 1e-9) for b in kept)

    def run(self) -> None:
        s = self.space
        self.number_leaves()
        for i in s.stored:
            if i.cls not in self.stored and s.item[i.cls] == self.leaf_bit[i.buffer.name]:
                leaf = Body(i.cls, None, (), self.leaf(i.buffer.name), 0, 0, 0.0)
                self._number(leaf)
                self.stored[i.cls] = leaf
        self.basic()
        users: dict[int, set[int]] = {}
        for c, alts in s.alts.items():
            for a in alts:
                for k in a.kids:
                    users.setdefault(k, set()).add(c)
        order = {c: i for i, c in enumerate(sorted(s.cost, key=lambda c: (s.cost[c], c)))}
        dirty = set(order)
        while dirty:
            now, dirty = sorted(dirty, key=order.__getitem__), set()
            for c in now:
                if self.refresh(c):
                    dirty |= users.get(c, set()) & order.keys()


# ---- kernels ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Builder:
    """Bodies as terms. Constants and small factors are multiplied in where they cost least."""

    space: Space
    terms: Terms = field(default_factory=Terms)
    done: dict[int, Term] = field(default_factory=dict)

    def term(self, body: Body) -> Term:
        found = self.done.get(body.uid)
        if found is None:
            found = self.done[body.uid] = self._make(body)
        return found

    def _make(self, body: Body) -> Term:
        s, alt, t = self.space, body.alt, self.terms
        dtype = s.source.classes[body.cls].dtype
        if alt is None:
            stored = s.stored[s.item[body.cls]]
            return t.load(stored.buffer.name, stored.index, dtype)
        kids = [self.term(k) for k in body.kids]
        free = [s.volume(s.free[k.cls]) for k in body.kids]
        if alt.op == "in":
            index = tuple(_resolve(i, dict(zip(alt.kids, kids, strict=True))) for i in alt.args[1])
            return t.load(str(alt.args[0]), index, dtype)
        if alt.op == "add":
            return self._chain("add", kids, free)
        const = None if alt.const == ONE else _constant(t, alt.const, dtype)
        if alt.op == "mul":
            if const is not None:
                least = min(range(len(kids)), key=lambda i: (free[i], i))
                kids[least] = t.binary("mul", const, kids[least])
            return self._chain("mul", kids, free)
        if alt.op in ("sum", "fold", "part"):
            cut = 0 if alt.op == "sum" else 1
            v, size = kids[cut:], free[cut:]
            groups = sides(s, [k.cls for k in body.kids[cut:]])
            parts = [self._chain("mul", [v[i] for i in g], [size[i] for i in g]) for g in groups]
            whole = t.make(
                alt.op,
                alt.args,
                (*kids[:cut], self._chain("mul", parts, [0.0] * len(parts))),
                dtype,
            )
            return whole if const is None else t.binary("mul", const, whole)
        return t.make(alt.op, alt.args, kids, dtype)

    def _chain(self, op: str, operands: list[Term], sizes: list[float]) -> Term:
        """Operands joined, smallest first."""
        order = sorted(range(len(operands)), key=lambda i: (sizes[i], i))
        whole = operands[order[0]]
        for i in order[1:]:
            whole = self.terms.binary(op, whole, operands[i])
        return whole

    def kernel(self, stored: Stored, body: Body) -> Kernel | None:
        """The kernel that stores a body; None if it depends on an axis that the buffer lacks."""
        term = self.term(body)
        have = frozenset[int]().union(*(axes_in(i) for i in stored.index))
        if not term.free <= have:
            return None
        names = dict.fromkeys(t.args[0] for t in walk(term) if t.op == "in")
        by_name = self.space.by_name
        inputs = tuple(
            self.space.stored[by_name[n]].buffer if n in by_name else self.space.source.buffers[n]
            for n in names
        )
        axes = have.union(*(t.free | t.axes for t in walk(term)))
        extents = {a: self.space.source.extents[a] for a in sorted(axes)}
        return Kernel((Output(stored.buffer, stored.index, term),), inputs, extents)


def _constant(terms: Terms, const: Const, dtype: DType) -> Term:
    return terms.const(Fraction(const[0], const[1]), dtype, const[2])


def _resolve(index: Size, kids: dict[int, Term]) -> Size:
    return substitute(
        index,
        lambda atom: (
            value(kids[atom.args[0].id])
            if atom.kind == "value" and isinstance(atom.args[0], ClassRef)
            else None
        ),
    )


def enumerate_kernels(source: Saturated, prices: Prices, keep: int = 24) -> Candidates:
    """Every candidate kernel for the stored values that the outputs may need.

    Raises:
        ValueError: a root that no body computes (a fault of the e-graph).
    """
    search = _Search(prepare(source, prices), keep)
    search.run()
    space, builder = search.space, _Builder(search.space)
    found: list[Candidate] = []
    todo = [i for i, s in enumerate(space.stored) if s.output]
    seen = set(todo)
    for root in todo:  # grows
        stored = space.stored[root]
        for body in _bodies(search, root):
            kernel = builder.kernel(stored, body)
            if kernel is None:
                continue
            leaves = tuple(space.by_name[b.name] for b in kernel.inputs if b.name in space.by_name)
            found.append(Candidate(root, leaves, kernel, body.work, body.basic))
            new = [i for i in leaves if i not in seen]
            seen.update(new)
            todo += new
    made = {c.root for c in found}
    for i in todo:
        if i not in made:
            raise ValueError(f"no kernel computes {space.stored[i].buffer.name}")
    capped = sorted(
        space.stored[space.item[c]].buffer.name for c in search.capped if c in space.item
    )
    return Candidates(tuple(space.stored), tuple(found), tuple(capped))


def _bodies(search: _Search, root: int) -> list[Body]:
    s, stored = search.space, search.space.stored[root]
    if s.weights(stored.cls) and not stored.output:
        return [search.whole(stored.cls)]
    bodies = list(search.table[stored.cls].values())
    if s.item[stored.cls] != root:  # another buffer of the same class: copying is a candidate too
        bodies.append(search.stored[stored.cls])
    return bodies
