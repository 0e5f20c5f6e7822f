"""All candidate kernels of a saturated e-graph: dynamic programming over its classes.

A signature is (class, leaves, reductions inside). For each signature the body with the least work
as a DAG stays: shared terms count once (a tree sum once kept a body that ran a product twice). The
body of a class whose operands are leaves wherever they can be stored stays, so a cover always
exists. Weights are no leaves: what is made of them alone is made at load, so reading it is all that
it costs. Nothing is dropped by rank unless `keep` is hit, and then the report names the roots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial, reduce
from typing import Any

from lambent.algebra.egraph import Saturated, Stored
from lambent.algebra.rules import bits
from lambent.algebra.term import REDUCTIONS, Term, Terms, indices_of, walk
from lambent.graph.dim import axes_in
from lambent.graph.orders import fixpoint, postorder
from lambent.kernel.kernel import Kernel, Output
from lambent.kernel.rewrite import everywhere, reindexed
from lambent.search.cover import Option
from lambent.search.flatten import ONE
from lambent.search.space import (
    Alt,
    Prices,
    Space,
    contracted,
    mask_of,
    own_cost,
    prepare,
    replaced,
    sides,
    through,
)  # fmt: skip

MAX_REDUCTIONS = 6  # reductions fused in one kernel
KERNELS = 0.5  # the share of kept bodies that become kernels; all of them are parts of others
NEAR = 0.05  # ranks that differ by less are equally good
SAME = 1 + 1e-9  # work that differs less is the same


@dataclass(frozen=True, slots=True)
class Candidate(Option):
    """A kernel that may make stored class number `root` from stored classes of greater numbers.

    `work`: optimistic seconds of its arithmetic as a DAG, and of reading weights.
    """

    kernel: Kernel
    work: float
    reductions: int  # inside of it
    basic: bool  # part of the cover that always exists


@dataclass(frozen=True, slots=True)
class Candidates:
    """`capped` names the stored values of which some kernels were dropped by rank or order."""

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


Key = tuple[int, int]  # leaves, reductions
Partial = tuple[int, float, tuple[Body, ...]]  # parts, work, bodies of the operands so far


class _Search:
    """`table`: the bodies of each class by leaves and reductions; `loads`: of what is stored."""

    def __init__(self, space: Space, keep: int) -> None:
        self.space, self.keep = space, keep
        self.table: dict[int, dict[Key, Body]] = {}
        self.loads: dict[int, Body] = {}
        self.capped: set[int] = set()
        names = list(dict.fromkeys((*space.by_name, *space.source.buffers)))  # stored ones first
        seconds = {name: space.used(name) * space.prices.byte for name in names}
        self.reads = [*seconds.values()]  # by number
        self.leaf = {n: 0 if space.buffer(n).weight else 1 << i for i, n in enumerate(names)}
        self.weights = {n: 0.0 if self.leaf[n] else s for n, s in seconds.items()}
        self.reduction_bit = {
            family: 1 << space.item.get(c, len(names) + n)  # what is computed is not loaded
            for n, (family, c) in enumerate(space.chief.items())
        }
        self.products = 0  # the reductions that multiply values of different axes
        for family, c in space.chief.items():
            if any(len({space.free[f] for f in contracted(a)}) > 1 for a in space.alts[c]):
                self.products |= self.reduction_bit[family]
        self.uids: dict[Any, int] = {}
        self.part_work: list[float] = []  # seconds of each, and of a set of them `shared`
        self.alone, self.repeats = cache(self._alone), cache(space.repeats)
        self.shared = cache(lambda parts: sum(self.part_work[i] for i in bits(parts)))
        self.leaf_costs = cache(self._leaf_costs)
        self.making = cache(self._making)

    # ---- costs ----

    def _alone(self, c: int, alt: Alt) -> float:
        read = self.weights[alt.args[0]] if alt.op == "in" else 0.0
        return read + own_cost(self.space, c, alt)

    def own(self, c: int, alt: Alt, kids: Sequence[Body]) -> float:
        """Seconds of an alternative, and of the operands where they are computed again."""
        times = self.repeats(alt)
        return self.alone(c, alt) + sum((times[k.cls] - 1) * k.work for k in kids if k.alt)

    def _leaf_costs(self, leaves: int) -> tuple[float, float]:
        """Seconds to read leaves, and to make them."""
        needed = reduce(int.__or__, (self.making(i)[0] for i in bits(leaves)), 0)
        read = sum(self.reads[i] for i in bits(leaves))
        return read, sum(self.making(i)[1] for i in bits(needed))

    def _making(self, i: int) -> tuple[int, float]:
        """What is made on the way to stored value number i, itself included, and its own seconds:
        those of the body that is cut at every other."""
        if i >= len(self.space.stored) or self.space.stored[i].output:  # outputs are made anyhow
            return 0, 0.0
        body = next(b for b in self.table[self.space.stored[i].cls].values() if b.basic)
        needed = reduce(int.__or__, (self.making(j)[0] for j in bits(body.leaves)), 1 << i)
        return needed, body.work + self.reads[i] + self.space.prices.launch

    def rank(self, leaves: int, work: float) -> float:
        """Optimistic seconds of a kernel and of what makes its leaves."""
        read, make = self.leaf_costs(leaves)
        return max(work, read) + make

    # ---- bodies ----

    def run(self) -> None:
        s = self.space
        for c, item in s.item.items():
            name = s.stored[item].buffer.name
            self.loads[c] = Body(c, None, (), self.leaf[name], 0, 0, self.weights[name])
            self.number(self.loads[c])
        for c in postorder(sorted(s.best), lambda c: s.best[c].kids):
            body = self.basic(c)
            self.table[c] = {(body.leaves, body.reductions): body}
        order = sorted((c for c in s.cost if not s.weights(c)), key=lambda c: (s.cost[c], c))
        fixpoint({c: [k for a in s.alts[c] for k in a.kids] for c in order}, self.refresh)

    def number(self, body: Body) -> None:
        """Give a body that is kept its number, by structure, and its bit among the parts."""
        if body.uid < 0:
            name = (body.cls, body.alt, tuple(k.uid for k in body.kids))
            body.uid = self.uids.setdefault(name, len(self.uids))
            if body.uid == len(self.part_work):
                own = body.work if body.alt is None else self.own(body.cls, body.alt, body.kids)
                self.part_work.append(own)
            if self.part_work[body.uid]:
                body.parts |= 1 << body.uid

    def basic(self, c: int) -> Body:
        """The body of the cheapest tree, cut at every value that can be stored.

        A class of weights has no other; it is computed at load, and there nothing is cut.
        """
        alt, cut = self.space.best[c], {} if self.space.weights(c) else self.loads
        kids = [cut[k] if k in cut else next(iter(self.table[k].values())) for k in alt.kids]
        return self.made(c, alt, kids, basic=True)

    def made(self, c: int, alt: Alt, kids: Sequence[Body], basic: bool = False) -> Body:
        """The body of these operands, numbered."""
        leaves, parts = self.leaf[alt.args[0]] if alt.op == "in" else 0, 0
        reductions = self.reduction(c, alt)
        for b in kids:
            leaves, reductions = leaves | b.leaves, reductions | b.reductions
            parts |= b.parts
        work = self.shared(parts) + self.own(c, alt, kids)
        body = Body(c, alt, tuple(kids), leaves, reductions, parts, work, basic)
        self.number(body)
        return body

    def reduction(self, c: int, alt: Alt) -> int:
        return self.reduction_bit[self.space.family[c]] if alt.op in REDUCTIONS else 0

    def refresh(self, c: int) -> bool:
        """Recompute the table of a class from its operands' tables; True if it changed."""
        old, itself = self.table[c], 1 << self.space.item[c] if c in self.space.item else 0
        found = dict(old)
        for alt in self.space.alts[c]:
            reduction = self.reduction(c, alt)
            for (leaves, inside), (parts, work, kids) in self.combine(c, alt).items():
                if leaves & itself or inside & reduction:  # it passes through its own class again
                    continue
                key = leaves, inside | reduction
                best, whole = found.get(key), work + self.own(c, alt, kids)
                if best is None or (whole * SAME < best.work and not best.basic):
                    found[key] = Body(c, alt, kids, *key, parts, whole)
        self.table[c] = self.kept(c, found)
        for body in self.table[c].values():
            self.number(body)
        return self.table[c] != old

    def combine(self, c: int, alt: Alt) -> dict[Key, Partial]:
        """The cheapest choice of operand bodies for each signature."""
        found: dict[Key, Partial] = {
            (self.leaf[alt.args[0]] if alt.op == "in" else 0, 0): (0, 0.0, ())
        }
        for kid in alt.kids:
            new: dict[Key, Partial] = {}
            for (leaves, inside), (parts, work, kids) in found.items():
                for b in self.options(kid):
                    key = leaves | b.leaves, inside | b.reductions
                    if key[0] & key[1] or key[1].bit_count() > MAX_REDUCTIONS:
                        continue
                    both = parts & b.parts
                    total = work + b.work - (self.shared(both) if both else 0.0)
                    if key not in new or total < new[key][1]:
                        new[key] = parts | b.parts, total, (*kids, b)
            if len(new) > 3 * self.keep:
                self.capped.add(c)
                order = self.ranked({key: work for key, (_, work, _) in new.items()})
                new = {key: new[key] for key in order[: 3 * self.keep]}
            found = new
        return found

    def options(self, c: int) -> Iterable[Body]:
        """The bodies of a class, and its load: alone where weights are packed as they are read."""
        if c not in self.loads:
            return self.table[c].values()
        load = self.loads[c]
        return (load,) if c in self.space.packed else (*self.table[c].values(), load)

    def ranked(self, work: dict[Key, float]) -> list[Key]:
        """Best first, fewer products inside first where it is near; and of each set of products
        inside the best before the second best of any.

        Else forms of a value that differ in a constant or a bias would drive out ways to fuse.
        """
        better: Counter[int] = Counter()
        places: dict[Key, tuple[bool, int]] = {}
        ranks = {key: self.rank(key[0], w) for key, w in work.items()}
        least = min(ranks.values(), default=0.0)

        def order(key: Key) -> tuple[float, int, float, Key]:
            above = (ranks[key] - least) // (NEAR * least or 1.0)
            return above, (key[1] & self.products).bit_count(), ranks[key], key

        for key in sorted(work, key=order):
            products = key[1] & self.products
            places[key] = ranks[key] > 2 * least, better[products]  # far ones come last
            better[products] += 1
        return sorted(places, key=places.__getitem__)

    def kept(self, c: int, found: dict[Key, Body]) -> dict[Key, Body]:
        """The basic body, and the best that no other of fewer leaves and less work beats."""
        kept: dict[Key, Body] = {}
        for key in self.ranked({key: b.work for key, b in found.items()}):
            b = found[key]
            inside = (k for k in kept.values() if k.leaves & ~b.leaves == 0)
            beaten = any(k.work <= b.work * SAME for k in inside)
            if b.basic or not (beaten or len(kept) >= self.keep):
                kept[key] = b
            elif not beaten:
                self.capped.add(c)
        return kept

    def settled(self, body: Body) -> Body:
        """The body with each class made as is least work beside all the others.

        Operands were chosen apart, so that two of them may make one value in two ways.
        """
        for b in _below(body):
            if b.alt is None:
                continue
            rest = {x.cls: x for x in _below(body, without=b)}
            others = sum(1 << x.uid for x in rest.values())
            least, best = self.shared(b.parts & ~others) / SAME, b
            for alt in self.space.alts[b.cls]:
                kids = [rest[k] if k in rest else self.beside(k, alt, others) for k in alt.kids]
                able = [k for k in kids if k is not None]
                if len(able) < len(kids) or any(x.cls == b.cls for x in _below(*able)):
                    continue
                new = self.made(b.cls, alt, able)
                extra = self.shared(new.parts & ~others)
                if extra < least and new.leaves & ~body.leaves == 0:
                    least, best = extra, new
            if best is not b:
                return self.settled(self.replaced(body, b, best))
        return body

    def apart(self, body: Body) -> Body:
        """The body with each value loaded that is dearer to make than to store, where a kernel has
        few values at hand: what such a loop is made of is made again in the loop that uses it."""
        prices = self.space.prices
        for b in _below(body)[1:] if prices.device and prices.device.held else ():
            store = prices.launch + 2 * self.space.bytes(b.cls) * prices.byte
            if b.alt and b.cls in self.loads and store < b.work:
                return self.apart(self.replaced(body, b, self.loads[b.cls]))
        return body

    def beside(self, c: int, alt: Alt, others: int) -> Body | None:
        """The least that an operand of a reduction takes beside other parts."""
        made = self.table[c].values() if alt.op in REDUCTIONS else ()
        return min(made, key=lambda b: (self.shared(b.parts & ~others), b.uid), default=None)

    def replaced(self, body: Body, old: Body, new: Body) -> Body:
        """A body with another in the place of one of its parts."""
        done = {old.uid: new}
        for b in postorder([body], lambda b: b.kids):
            kids = [done[k.uid] for k in b.kids]
            alt = None if kids == [*b.kids] else b.alt
            done.setdefault(b.uid, self.made(b.cls, alt, kids) if alt else b)
        return done[body.uid]


def _below(*roots: Body, without: Body | None = None) -> list[Body]:
    """The bodies that some are made of, these first, each once."""
    found = postorder(roots, lambda b: b.kids, () if without is None else (without,))
    return list({b.uid: b for b in reversed([*found])}.values())


# ---- kernels ---------------------------------------------------------------------------------


class _Builder:
    """Bodies as terms. Constants and small factors are multiplied in where they cost least."""

    def __init__(self, space: Space) -> None:
        self.space, self.terms = space, Terms()
        self.done: dict[int, Term] = {}

    def term(self, body: Body) -> Term:
        if body.uid not in self.done:
            self.done[body.uid] = self._make(body, [self.term(k) for k in body.kids])
        return self.done[body.uid]

    def _make(self, body: Body, kids: list[Term]) -> Term:
        s, t, alt = self.space, self.terms, body.alt
        dtype = s.source.classes[body.cls].dtype
        if alt is None:
            stored = s.stored[s.item[body.cls]]
            return t.load(stored.buffer.name, stored.index, stored.buffer.dtype)
        if alt.op in ("in", "val"):
            by = dict(zip(alt.kids, kids, strict=True))
            index = tuple(reindexed(i, lambda r: by[r.id]) for i in indices_of(alt.op, alt.args))
            return t.make(alt.op, (alt.args[0], index) if alt.op == "in" else index, (), dtype)
        n, d, power = alt.const
        const = [] if alt.const == ONE else [t.const(Fraction(n, d), dtype, power)]
        if alt.op in ("add", "mul"):
            return self._chain(alt.op, [*const, *kids])
        if alt.op in ("sum", "fold", "part"):
            cut = 0 if alt.op == "sum" else 1
            groups = [[kids[cut + i] for i in g] for g in sides(s, alt.kids[cut:])]
            whole = reduce(partial(t.apply, "mul"), (self._chain("mul", g) for g in groups))
            out = t.make(alt.op, alt.args, (*kids[:cut], whole), dtype)
            return self._chain("mul", [*const, out])
        return t.make(alt.op, alt.args, kids, dtype)

    def _chain(self, op: str, operands: Sequence[Term]) -> Term:
        """Operands joined, smallest first."""
        ordered = sorted(operands, key=lambda t: self.space.volume(mask_of(t.free)))
        return reduce(partial(self.terms.apply, op), ordered)

    def kernel(self, stored: Stored, body: Body) -> Kernel | None:
        """The kernel that stores a body; None if it depends on an axis that the buffer lacks."""
        s, term, index = self.space, self.term(body), stored.index
        if stored.sums:
            same = through(stored.sums)
            if any(replaced(i, same) != i for t in walk(term) for i in t.indices):
                return None
            still = {a: new for a, new in same.items() if new == 0}
            index = tuple(replaced(i, still) for i in index)
            term = everywhere(self.terms, axes=still)(term)
        have = frozenset[int]().union(*map(axes_in, index))
        if not term.free <= have:
            return None
        terms = list(walk(term))
        names = dict.fromkeys(t.args[0] for t in terms if t.op == "in")
        inputs = tuple(map(s.buffer, names))
        axes = have.union(*(t.free | t.axes for t in terms))
        extents = {a: s.source.extents[a] for a in sorted(axes)}
        extents |= {a: s.extent(whole) for a, whole in stored.sums.items()}
        return Kernel((Output(stored.buffer, index, term),), inputs, extents)


def enumerate_kernels(source: Saturated, prices: Prices, keep: int = 12) -> Candidates:
    """Every candidate kernel for the stored values that the outputs may need.

    Raises:
        ValueError: a root that no body computes (a fault of the e-graph).
    """
    search = _Search(prepare(source, prices), keep)
    search.run()
    space, builder, named = search.space, _Builder(search.space), search.space.by_name
    found: list[Candidate] = []
    todo = [i for i, s in enumerate(space.stored) if s.output]
    for root in todo:  # grows as values are read
        stored, before = space.stored[root], len(found)
        every = enumerate(search.table[stored.cls].values())
        bodies = [b for n, b in every if b.basic or n < KERNELS * keep]
        if space.item[stored.cls] != root:  # another buffer of the class: copying is one more
            bodies.append(search.loads[stored.cls])
        others = [f(b) for f in (search.settled, search.apart) for b in bodies]
        known = {b.uid for b in bodies}
        bodies += {b.uid: replace(b, basic=False) for b in others if b.uid not in known}.values()
        for body in bodies:
            kernel = builder.kernel(stored, body)
            if kernel is not None:
                leaves = tuple(named[b.name] for b in kernel.inputs if b.name in named)
                inside = sum(t.op in REDUCTIONS for t in walk(kernel.outputs[0].term))
                found.append(Candidate(root, leaves, kernel, body.work, inside, body.basic))
                todo += [leaf for leaf in leaves if leaf not in todo]
        if len(found) == before:
            raise ValueError(f"no kernel computes {stored.buffer.name}")
    capped = {space.stored[space.item[c]].buffer.name for c in search.capped if c in space.item}
    number = {v: n for n, v in enumerate(_users_first(found, len(space.stored)))}
    kept: list[Candidate] = []
    for c in found:
        root, leaves = number[c.root], tuple(number[x] for x in c.leaves)
        if root < min(leaves, default=len(number)):
            kept.append(replace(c, root=root, leaves=leaves))
        else:
            capped.add(space.stored[c.root].buffer.name)
    values = tuple(space.stored[v] for v in number)
    return Candidates(values, tuple(kept), tuple(sorted(capped)))


def _users_first(found: Sequence[Candidate], count: int) -> Iterator[int]:
    """The stored values, each before what kernels read to make it.

    Where values may need each other some kernels read against the order, but no basic one does.
    """
    left = dict.fromkeys(range(count))
    while left:
        making = [c for c in found if c.root in left]
        read = {x for c in making for x in c.leaves}
        needed = {x for c in making if c.basic for x in c.leaves}
        first = next(v for wanted in (read, needed) for v in left if v not in wanted)
        del left[first]
        yield first
