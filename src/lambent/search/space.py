"""The e-graph made ready for enumeration: flat alternatives, costs, and what may be stored.

Products and sums are flattened to multisets first: without this, enumeration takes minutes. Every
class gets `alts`, the ways to compute it; a factor list of a `sum` or a `fold` is flat as well, so
that a contraction is one alternative and its last multiplication is free.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, reduce
from typing import Any, NamedTuple

from lambent.algebra.egraph import Saturated, Stored
from lambent.algebra.rules import bits
from lambent.algebra.term import REDUCTIONS, fresh, indices_of
from lambent.backends.base import Calibration
from lambent.backends.roles import outermost_first
from lambent.graph.dim import Size, axes_in, axis, representative, values_in
from lambent.graph.dtypes import float32
from lambent.graph.orders import fixpoint, postorder
from lambent.kernel.kernel import Buffer
from lambent.kernel.rewrite import reindexed, steps
from lambent.search.flatten import ONE, Const, Multiset, families, flatten, times

MATH = 6.0  # operations that the cheapest transcendental function or division takes at least
TRANSCENDENTAL = frozenset(("exp2", "log2", "sin", "sqrt", "recip"))
FREE = frozenset(("in", "const", "inf", "nan", "val"))
PRODUCTS = ("mul", "sum", "fold", "part")  # alternatives that hold a multiset of factors
EPSILON = 1e-12  # seconds; makes every step cost something, so that cheapest bodies have no cycle


class Prices(NamedTuple):
    """Seconds for one unit, of optimistic figures of the device (see `bound.prices`)."""

    op: float
    byte: float
    launch: float
    device: Calibration | None = None  # where products of matrices and repeated work count


class Alt(NamedTuple):
    """One way to compute a class. `kids` of mul, add and sum are multisets; fold and part: a, then
    the factors of v. `const` multiplies the result of mul, sum, fold and part."""

    op: str
    args: tuple[Any, ...]
    kids: tuple[int, ...]
    const: Const = ONE


@dataclass(slots=True)
class Space:
    """The prepared e-graph. Axis sets are bit masks; `cost` is the cheapest tree, in seconds."""

    source: Saturated
    prices: Prices
    free: dict[int, int]
    volume: Callable[[int], float]  # points of an axis set
    alts: dict[int, tuple[Alt, ...]] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)
    best: dict[int, Alt] = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    item: dict[int, int] = field(default_factory=dict)  # class → number in `stored`
    packed: set[int] = field(default_factory=set)  # weights that no product wants as they are
    by_name: dict[str, int] = field(default_factory=dict)
    family: dict[int, int] = field(default_factory=dict)  # class → class equal up to a constant
    chief: dict[int, int] = field(default_factory=dict)  # family → the reduction that is stored
    below: dict[int, set[int]] = field(default_factory=dict)  # what each root is cheapest made of
    beside: set[tuple[int, int]] = field(default_factory=set)  # axes that are one dim somewhere

    def weights(self, cls: int) -> bool:
        return self.source.classes[cls].weights_only

    def chief_of(self, cls: int) -> int | None:
        return self.chief.get(self.family[cls])

    def extent(self, index: Size) -> Size:
        """One more than the greatest value of an index that no axis lessens."""
        return replaced(index, {a: n - 1 for a, n in self.source.extents.items()}) + 1

    def points(self, cls: int) -> float:
        return self.volume(self.free[cls])

    def bytes(self, cls: int) -> float:
        return self.points(cls) * self.source.classes[cls].dtype.itemsize

    def buffer(self, name: str) -> Buffer:
        """What is stored under a name, else the input or weight."""
        own = self.by_name.get(name)
        return self.source.buffers[name] if own is None else self.stored[own].buffer

    def used(self, name: str) -> float:
        """Bytes of a buffer that some kernel may read at least: of an input its largest access."""
        if name in self.by_name:
            return self.buffer(name).bytes
        loads = [c for c in self.alts for a in self.alts[c] if a.op == "in" and a.args[0] == name]
        return min(self.buffer(name).bytes, max(map(self.bytes, loads), default=0.0))

    def repeats(self, alt: Alt) -> dict[int, float]:
        """How often operands are computed: a reduction's for each tile of other axes, alone."""
        device, bound = self.prices.device, mask_of(alt.args[0]) if alt.op in REDUCTIONS else 0
        if not (bound and device and device.held):
            return dict.fromkeys(alt.kids, 1.0)
        free, whole = {k: self.free[k] for k in alt.kids}, _union(self, alt.kids) | bound
        each = {k: (self.volume(whole & ~f), self.volume(f & ~bound)) for k, f in free.items()}
        return {k: max(1.0, m / device.held, device.threads / n) for k, (m, n) in each.items()}

    def compute(self, cls: int) -> bool:
        """Whether the class needs arithmetic on something else than indices and constants."""
        return FREE.isdisjoint(n.op for n in self.source.classes[cls].nodes)


def mask_of(axes: Iterable[int]) -> int:
    return sum(1 << a for a in axes)


def prepare(source: Saturated, prices: Prices) -> Space:
    """Flatten, price, and choose what may be stored."""
    sizes = {a: representative(n) for a, n in source.extents.items()}
    volume = cache(lambda mask: float(math.prod(sizes[a] for a in bits(mask))))
    free = {c: mask_of(e.free) for c, e in source.classes.items()}
    space = Space(source, prices, free, volume)
    space.family = families(source)
    space.stored = [*source.roots]
    space.by_name = {r.buffer.name: n for n, r in enumerate(source.roots)}
    space.item = {r.cls: n for n, r in reversed([*enumerate(source.roots)])}
    flat = {op: flatten(source, op) for op in ("mul", "add")}
    for c in source.classes:
        space.alts[c] = tuple(_alternatives(source, c, flat))
    _price(space, space.alts)
    _price(space, _through_chiefs(space))
    for c, alts in space.alts.items():  # what nothing computes is in no program
        space.alts[c] = tuple(a for a in alts if all(k in space.cost for k in _needs(space, a)))
    groups = _choose_stored(space, flat["mul"])
    sums = {f: (c, k) for c in space.item for k, f in flat["add"][c] if len(f) > 1}
    known = {"add": sums} | dict.fromkeys(PRODUCTS, groups)
    for c, alts in space.alts.items():
        more = (b for a in alts for b in _grouped(a, known.get(a.op, {})) if c not in b.kids)
        space.alts[c] = tuple(dict.fromkeys((*alts, *more)))
    return space


# ---- alternatives -----------------------------------------------------------------------------


Groups = dict[tuple[int, ...], tuple[int, Const]]  # factors → class, and its constant over theirs


def _alternatives(
    source: Saturated, c: int, flat: dict[str, dict[int, list[Multiset]]]
) -> Iterator[Alt]:
    found: list[Alt] = []
    for n in source.classes[c].nodes:
        if n.op in ("sum", "fold", "part"):
            *front, v = n.kids
            sets = [(k, f) if f else (ONE, (v,)) for k, f in flat["mul"][v]]
            found += [Alt(n.op, n.args, (*front, *f), k) for k, f in sets]
        elif n.op in ("in", "val"):
            refs = [r.id for i in n.index for r in values_in(i)]
            found.append(Alt(n.op, n.args, tuple(dict.fromkeys(refs))))
        elif n.op not in ("mul", "scale", "add"):
            found.append(Alt(n.op, n.args, n.kids))
    for op in ("mul", "add"):
        for k, f in flat[op][c]:
            if not f:
                found.append(Alt("const", (Fraction(k[0], k[1]), k[2]), ()))
            elif f != (c,):
                found.append(Alt(op, (), f, k))
    only = source.classes[c].weights_only
    for alt in dict.fromkeys(found):
        loads = only <= all(source.classes[k].weights_only for k in alt.kids)
        if loads and c not in alt.kids:
            yield alt


def _factors(alt: Alt) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The operands before the multiset, and the multiset."""
    cut = 1 if alt.op in ("fold", "part") else 0
    return alt.kids[:cut], alt.kids[cut:]


def contracted(alt: Alt) -> tuple[int, ...]:
    """The factors that a reduction multiplies and sums; none of anything else."""
    return _factors(alt)[1] if alt.op in REDUCTIONS and alt.op != "max" else ()


def _grouped(alt: Alt, groups: Groups) -> Iterator[Alt]:
    """The alternative with one sub-multiset replaced by the class that is its product."""
    front, factors = _factors(alt)
    most = len(factors) - (alt.op in ("mul", "add"))  # all of them: the class itself
    for size in range(2, most + 1):
        for positions in itertools.combinations(range(len(factors)), size):
            group = groups.get(tuple(factors[i] for i in positions))
            if group is not None:
                c, (n, d, k) = group
                rest = [f for i, f in enumerate(factors) if i not in positions]
                sign = 1 if n > 0 else -1
                const = times(alt.const, (d * sign, n * sign, -k))
                yield Alt(alt.op, alt.args, (*front, *sorted([*rest, c])), const)


# ---- costs -----------------------------------------------------------------------------------


def sides(space: Space, factors: Sequence[int]) -> list[list[int]]:
    """Factors of a contraction (as positions), split in groups that have their own axes.

    One group: an elementwise product is reduced. Two: a matrix product. A factor whose axes lie in
    several groups joins the smallest.
    """
    found: list[tuple[int, list[int]]] = []
    free = [space.free[c] for c in factors]
    for i in sorted(range(len(free)), key=lambda i: (-space.volume(free[i]), factors[i], i)):
        homes = [g for g in found if free[i] & ~g[0] == 0]
        if homes:
            min(homes, key=lambda g: space.volume(g[0]))[1].append(i)
        else:
            found.append((free[i], [i]))
    return [g for _, g in found]


def own_cost(space: Space, c: int, alt: Alt) -> float:
    """Seconds of the arithmetic of one alternative, operands not included."""
    out, (front, factors) = space.points(c), _factors(alt)
    scaled = alt.const != ONE
    if alt.op in FREE:
        work = 0.0
    elif alt.op in ("mul", "add"):
        least = min(space.points(k) for k in factors)
        work = _product(space, factors) + scaled * least
    elif alt.op in REDUCTIONS:  # a product and its sum: two operations
        whole = space.volume(_union(space, alt.kids) | mask_of(alt.args[0]))
        groups = [[alt.kids[i] for i in g] for g in sides(space, alt.kids)]
        device, dtype = space.prices.device, space.source.classes[c].dtype
        unit = device.rate(float32) / device.rate(dtype) if device and len(groups) > 1 else 1.0
        work = sum(_product(space, g) for g in groups) + unit * len(groups) * whole + scaled * out
        work += sum(space.points(a) * (2 + MATH) / 2 for a in front)  # two share it
    else:
        work = out * (MATH if alt.op in TRANSCENDENTAL else 1.0)
    return work * space.prices.op


def _union(space: Space, kids: Iterable[int]) -> int:
    return reduce(int.__or__, (space.free[k] for k in kids), 0)


def _product(space: Space, kids: Iterable[int]) -> float:
    """Operations of an elementwise product (or sum) of operands, smallest first."""
    ordered, device = sorted(kids, key=lambda c: (space.points(c), c)), space.prices.device
    _, *wider = itertools.accumulate((space.free[k] for k in ordered), int.__or__)
    each = 1.0 if device and device.held else 2.0  # a CPU takes as long for a product and its sum
    return each * sum(map(space.volume, wider))


def _through_chiefs(space: Space) -> dict[int, tuple[Alt, ...]]:
    """Of reductions equal up to a constant only the cheapest reduces; the others scale it.

    Without this the greedy DAG folds constants in weights and runs a product twice.
    """
    reductions = [c for c in space.cost if any(a.op in REDUCTIONS for a in space.alts[c])]
    for c in sorted(reductions, key=lambda c: (space.cost[c], c)):
        space.chief.setdefault(space.family[c], c)
    alts = dict(space.alts)
    for c in reductions:
        scaled = tuple(a for a in alts[c] if a.op == "mul" and a.kids == (space.chief_of(c),))
        alts[c] = scaled or alts[c]
    return alts


def _price(space: Space, alternatives: dict[int, tuple[Alt, ...]]) -> None:
    """The cheapest DAG of every class, greedily: a class that is used twice is paid once.

    Relaxation to the fixpoint (the "faster greedy DAG" of extraction gym): every class carries
    the classes that its cheapest DAG computes, with what each costs there.
    """
    paid: dict[int, dict[int, float]] = {}
    space.cost, space.best = {}, {}
    ways = {
        c: [(a, _needs(space, a), _own_and_loads(space, c, a)) for a in alts]
        for c, alts in alternatives.items()
    }

    def refresh(c: int) -> bool:
        before = space.cost.get(c)
        for alt, needs, own in ways[c]:
            if any(k not in paid or c in paid[k] for k in needs):
                continue
            parts = dict(itertools.chain(*(paid[k].items() for k in needs)))
            total = own + sum(parts.values())
            if total < space.cost.get(c, math.inf) * (1 - 1e-9):
                load = space.bytes(c) * space.prices.byte + EPSILON
                packed = space.weights(c) and load < total
                space.cost[c], space.best[c] = total, alt
                # weights are made at load, and only read
                paid[c] = {c: load} if packed else {**parts, c: own}
        return space.cost.get(c) != before

    fixpoint({c: [k for _, needs, _ in ws for k in needs] for c, ws in ways.items()}, refresh)


def _needs(space: Space, alt: Alt) -> tuple[int, ...]:
    """The classes that an alternative is made of: operands, or the stored value that it loads."""
    loaded = space.by_name.get(alt.args[0]) if alt.op == "in" else None
    return alt.kids if loaded is None else (*alt.kids, space.stored[loaded].cls)


def _own_and_loads(space: Space, c: int, alt: Alt) -> float:
    """Seconds of an alternative's arithmetic, and of what it loads or stores to load it."""
    cost = own_cost(space, c, alt) + EPSILON
    if alt.op == "in":
        whole = space.buffer(alt.args[0]).bytes
        cost += min(space.bytes(c), whole) * space.prices.byte
        if alt.args[0] in space.by_name:
            cost += whole * space.prices.byte + space.prices.launch
    return cost


# ---- what may be stored ----------------------------------------------------------------------


def _reached(space: Space, roots: Iterable[int]) -> list[int]:
    """Classes of the cheapest programs of some classes, these last."""
    return list(postorder(roots, lambda c: space.best[c].kids))


def _choose_stored(space: Space, products: dict[int, list[Multiset]]) -> Groups:
    """Roots, reductions, values that are used again, operands of contractions, and weights.

    Returns the groups of factors that have become a stored class.
    """
    source = space.source
    space.below = {r.cls: {*_reached(space, [r.cls])} for r in source.roots}
    loads = [a.args[1] for alts in space.alts.values() for a in alts if a.op == "in"]
    for i in dict.fromkeys(itertools.chain(*loads, *(r.index for r in source.roots))):
        step = steps(i)
        every = itertools.permutations(step, 2)
        space.beside |= {(a, b) for a, b in every if step[a] == step[b] * source.extents[b]}
    wanted = [*space.chief.values()]
    reached = _reached(space, space.below)
    pairs = [(k, c) for c in reached for k in dict.fromkeys(space.best[c].kids)]
    uses = Counter(k for k, _ in pairs)
    rows = {k for k, c in pairs if space.points(c) >= 2 * space.points(k)}  # repeated
    load = {c: space.prices.launch + space.bytes(c) * space.prices.byte for c in reached}
    again = sorted((n, k) for c in reached for k, n in space.repeats(space.best[c]).items())
    times = {k: n for n, k in again}  # the most
    dear = [c for c in reached if space.compute(c) and space.cost[c] * times.get(c, 1.0) > load[c]]
    wanted += [_narrow(space, c) for c in dear if uses[c] > 1 or c in rows]
    by_factors = {
        f: (c, k)
        for c, sets in products.items()
        for k, f in sets
        if len(f) > 1 and (k == ONE or (k[0] != 0 and source.classes[c].dtype.is_float))
    }
    operands: Groups = {}
    for c in reached:
        for alt in space.alts[c]:
            factors = contracted(alt)
            both = sides(space, factors)
            weights = [i for i, f in enumerate(factors) if space.weights(f)]
            for group in (*both, weights) if len(both) > 1 else ():
                f = tuple(sorted(factors[i] for i in group))
                if len(f) == 1 and space.compute(f[0]):
                    wanted.append(f[0])
                elif f in by_factors:
                    operands[f] = by_factors[f]
    wanted += [c for c, _ in operands.values()]
    ends = _ends(space, by_factors)
    wanted = [c for c in wanted if c in ends and not space.weights(c)]
    masked = {a.kids[-1] for c in wanted for a in space.alts[c] if a.op == "mask"}
    wanted = [space.chief_of(c) or c for c in wanted if c not in masked or space.chief_of(c) == c]
    space.packed = {c for c in space.alts if space.weights(c) and _packs(space, c)}
    wanted += sorted(space.packed)
    for c in dict.fromkeys(wanted):
        if c not in space.item and c in space.cost:
            _store(space, c, wanted)
    return {f: p for f, p in operands.items() if p[0] in space.item}


def _narrow(space: Space, c: int) -> int:
    """The class, or what it is when it is made wider: that is as good to store, and smaller."""
    k = space.best[c].kids[0] if space.best[c].op == "cast" else c
    return k if space.compute(k) and space.bytes(k) < space.bytes(c) else c


def _ends(space: Space, products: Groups) -> set[int]:
    """Classes that a reduction, an index or a larger value uses as they are.

    Any other is a step of an elementwise chain: what comes after is no larger, and better stored.
    """
    ends: set[int] = set()
    for c, alts in space.alts.items():
        for alt in alts:
            if alt.op in REDUCTIONS:
                front, factors = _factors(alt)
                ends.update(front)
                for group in sides(space, factors):
                    f = tuple(sorted(factors[i] for i in group))
                    ends.update([products[f][0]] if f in products else f if len(f) == 1 else ())
                    ends.update(k for k in f if space.chief_of(k) == k)
            elif alt.op == "in":
                ends.update(alt.kids)
            else:
                size = space.bytes if alt.op == "cast" else space.points
                ends.update(k for k in alt.kids if 2 * size(k) <= size(c))
    return ends


def _packs(space: Space, c: int) -> bool:
    """Whether storing a class of weights at load can pay: neither cheap nor an array as it is."""
    load = space.bytes(c) * space.prices.byte
    if c not in space.best or not space.free[c] or space.cost[c] < load:
        return False
    if all(space.best[k].op != "in" for k in _reached(space, [c])):  # arithmetic of indices
        return False
    last, loads = layout(space, c)[-1], [a.args[1] for a in space.alts[c] if a.op == "in"]
    return not any(_unit(index, last) for index in loads)


def _unit(index: tuple[Size, ...], a: int) -> bool:
    """Whether a step along the axis is a step of one element."""
    moved = [i for i in index if a in axes_in(i)]
    return moved == [*index[-1:]] and steps(index[-1]).get(a) == 1


def _store(space: Space, c: int, wanted: Collection[int]) -> None:
    name = fresh(f"c{c}", {*space.by_name, *space.source.buffers})
    order = layout(space, c)
    dtype = space.source.classes[c].dtype
    if any(part in order for _, part, _ in space.source.cuts):  # parts are added up as they are
        dtype = dtype.compute
    sums = {} if space.weights(c) else _sums(space, c, wanted)
    one = through(sums)
    order = [a for a in order if one.get(a) != 0]
    shape, index = list[Size](), list[Size]()
    for before, a in itertools.pairwise((-1, *order)):
        part = sums.get(a, axis(a))
        if (before, a) not in space.beside or space.weights(c):
            shape, index = [*shape, 1], [*index, 0]
        extent = space.extent(part)
        shape[-1], index[-1] = shape[-1] * extent, index[-1] * extent + part
    finite = space.source.classes[c].finite
    buffer = Buffer(name, dtype, tuple(shape), space.weights(c), finite)
    space.item[c] = space.by_name[name] = len(space.stored)
    space.stored.append(Stored(c, buffer, tuple(index), sums=sums))


def _sums(space: Space, c: int, wanted: Collection[int]) -> dict[int, Size]:
    """Sums of axes through which alone a class depends on them, by the axis that stands for all.

    A padded array that a window passes over is such a class: no offset of it need be stored apart.
    What is stored on the way to it must depend on the same sums, or on none of these axes.
    """
    below = _reached(space, [c])
    used = [i for k in below for i in indices_of(space.best[k].op, space.best[k].args)]
    reduced = [space.best[k].args[0] for k in below if space.best[k].op in REDUCTIONS]
    taken = set[int]().union(*reduced)
    found: dict[int, Size] = {}
    for linear in map(steps, used):
        units = [a for a, step in linear.items() if step == 1]
        if len(linear) < 2 or not units or min(linear.values()) < 1 or taken & linear.keys():
            continue
        kept = max(units, key=lambda a: (space.volume(1 << a), a))
        whole: Size = sum(step * axis(a) for a, step in linear.items())
        one = through({kept: whole})
        inner = [k for k in below[:-1] if k in wanted and space.free[k] & mask_of(linear)]
        if (
            representative(space.extent(whole)) < space.volume(mask_of(linear))
            and all(replaced(i, one) == i for i in used)
            and all(_sums(space, k, wanted).get(kept) == whole for k in inner)
        ):
            found[kept] = whole
            taken.update(linear)
    return found


def through(sums: Mapping[int, Size]) -> dict[int, Size]:
    """What axes may be replaced by where only their sums count: one by all, the others by 0."""
    return {a: whole if a == kept else 0 for kept, whole in sums.items() for a in steps(whole)}


def replaced(index: Size, axes: Mapping[int, Size]) -> Size:
    """The index expression with axes replaced."""
    return reindexed(index, lambda value: value, axes)


def layout(space: Space, c: int) -> list[int]:
    """The order of the axes of a stored class: that of an input with all of them.

    Else it is as results that are made of it have them, then as all results, then as inputs do.
    For a class of weights the axis that only it brings to a contraction comes last.
    """
    made = [r for r in space.source.roots if c in space.below[r.cls]]
    roots = map(outermost_first, itertools.chain(*(r.index for r in (*made, *space.source.roots))))

    def below(k: int) -> list[int]:
        front, rest = _factors(space.best[k])
        return [*front, *sorted(rest, key=lambda x: (space.weights(x), x))]

    read = [space.best[k] for k in postorder([c], below) if space.best[k].op == "in"]
    loads = [[part for _, part, _ in space.source.cuts]]
    loads += ([a for i in alt.args[1] for a in outermost_first(i)] for alt in read)
    free = space.source.classes[c].free
    whole = [load for load in loads if free <= {*load}]  # an input that has all of the axes
    order = dict.fromkeys(itertools.chain(*whole[:1], *roots, *loads, sorted(free)))
    axes = [a for a in order if a in free]
    last = _lane(space, c) if space.weights(c) else None
    return axes if last is None else [*(a for a in axes if a != last), last]


def _lane(space: Space, c: int) -> int | None:
    """The largest axis that a contraction keeps and that no other factor has."""
    own = 0
    for alt in itertools.chain(*space.alts.values()):
        if alt.op == "sum" and c in alt.kids and len(sides(space, alt.kids)) > 1:
            others = _union(space, [k for k in alt.kids if k != c])
            own |= space.free[c] & ~others & ~mask_of(alt.args[0])
    return max(bits(own), key=lambda a: (space.volume(1 << a), -a), default=None)
