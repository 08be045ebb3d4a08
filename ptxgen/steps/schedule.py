"""Which output tiles a CTA computes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Operand, Parameter, Register
from ptxgen.ir.ops import Compare, GroupedTile, LoadParameter, ReadSpecial, RowMajorTile, Section, SetConstant
from ptxgen.rules import BANDED
from ptxgen.spec import GemmSpec
from ptxgen.steps import hilbert
from ptxgen.steps.builder import Builder
from ptxgen.steps.claims import TileClaims
from ptxgen.steps.segments import Segments

_GROUP = "tile scheduler"


class Schedule:
    """A CTA per tile (grid), CTAs that walk tile ids c, c + grid, ... (persistent), or claims (clc)."""

    def __init__(self, builder: Builder, spec: GemmSpec) -> None:
        self._builder = builder
        self._scheduler = spec.scheduler
        self._tile = spec.tile
        self._cluster_tile = spec.cluster_tile
        self.persistent = spec.scheduler.kind == "persistent"
        self.claims = TileClaims(builder, spec) if spec.scheduler.kind == "clc" else None
        self.segments = Segments(builder, spec) if spec.scheduler.divides_k else None
        self._pair = spec.cta_group == 2
        self._banded = spec.scheduler.order in BANDED
        self._by_id = self.persistent or self._pair or self._banded
        self.parameters: tuple[Parameter, ...] = ()
        if self._banded or self.persistent:
            self.parameters += (Parameter(name="m_tiles", kind="u32", comment="tile rows, ceil(M / tile.m)"),)
        if self._by_id:
            self.parameters += (Parameter(name="n_tiles", kind="u32", comment="tile columns, ceil(N / tile.n)"),)
        self._m_tile = builder.register("m_tile", _GROUP)
        self._n_tile = builder.register("n_tile", _GROUP)
        self.m_coord = builder.register("m_coord", _GROUP)
        self.n_coord = builder.register("n_coord", _GROUP)
        self._plan = spec.plan
        self._cluster = spec.cluster
        self._walker = "pair" if self._pair else "cluster" if spec.cluster_ctas > 1 else "CTA"
        shares_a, shares_b = (shared > 1 for shared in spec.multicast)
        self.a_coord = builder.register("a_coord", _GROUP) if shares_a else self.m_coord
        self.b_coord = builder.register("b_coord", _GROUP) if self._pair or shares_b else self.n_coord

    def set_up(self) -> None:
        """Read the tile counts and compute what the order needs, once per CTA."""
        builder = self._builder
        counts = {}
        for parameter in self.parameters:
            counts[parameter.name] = builder.register(parameter.name, _GROUP)
            builder.emit(LoadParameter(dst=counts[parameter.name], parameter=parameter, comment=parameter.comment))
        if self._banded:
            group = builder.register("group", _GROUP)
            span = builder.register("span", _GROUP)
            builder.integer(
                "min.u32",
                group,
                counts["m_tiles"],
                self._scheduler.group or 1,
                comment="tile rows in a band",
            )
            builder.integer("mul.lo.u32", span, group, counts["n_tiles"], comment="tiles in a band")
        if self.persistent:
            builder.integer(
                "mul.lo.u32",
                builder.register("tile_count", _GROUP),
                counts["m_tiles"],
                counts["n_tiles"],
                comment="tiles of the problem",
            )
        if self.segments:
            self.segments.set_up()

    @property
    def first_k_tile(self) -> Operand:
        """The first K tile that this CTA multiplies of the present tile."""
        return self.segments.first_k_tile if self.segments else 0

    @property
    def end_k_tile(self) -> Register:
        """The K tile behind the last one."""
        return self.segments.end_k_tile if self.segments else self._builder.registers["k_tiles"]

    @contextmanager
    def tiles(self, turn: Register | None = None, *, located: bool = True) -> Iterator[None]:
        """The body runs once for every tile of this CTA, or every segment of one, with m_coord and n_coord set.

        turn: 0 or 1, for warps that take every second one of them only. located: false where the body
        sets the coordinates itself, by `locate`.
        """
        builder = self._builder
        if self.claims:
            with self.claims.tiles():
                self.locate()
                yield
            return
        if self.segments:
            with self.segments.each():
                if located:
                    self.locate()
                yield
            return
        if not self.persistent:
            builder.emit(Section(comment="this CTA's output tile"))
            self.locate()
            yield
            return
        tile = builder.register("tile", _GROUP)
        grid = builder.register("grid_size", _GROUP)
        leave = builder.register("no_tile_left", _GROUP, "pred")
        alone = self._walker == "CTA"
        builder.emit(
            Section(comment=f"output tiles: this {self._walker}'s id, then every grid-th"),
            ReadSpecial(dst=tile, special="%ctaid.x" if alone else "%clusterid.x", comment="first tile"),
            ReadSpecial(
                dst=grid,
                special="%nctaid.x" if alone else "%nclusterid.x",
                comment=f"{self._walker}s in the grid",
            ),
        )
        if turn is not None:
            builder.integer("mad.lo.u32", tile, turn, grid, tile, comment="consumer 1 begins with the second tile")
            builder.integer("mul.lo.u32", grid, grid, 2, comment="and each takes every other one")
        head = Compare(
            opcode="ge.u32", dst=leave, left=tile, right=builder.registers["tile_count"], comment="no tile is left"
        )
        with builder.while_not("tile_loop", "tiles_done", leave, (head,)):
            if located:
                self.locate()
            yield
            builder.integer("add.u32", tile, tile, grid, comment=f"next tile of this {self._walker}")

    def locate(self) -> None:
        """Tile coordinates, then element coordinates of the tile's first row and column."""
        builder, registers = self._builder, self._builder.registers
        if self._scheduler.kind == "single":
            for coord in (self.m_coord, self.n_coord):
                builder.emit(SetConstant(dst=coord, value=0, comment="the only tile"))
            return
        if not self._by_id:
            builder.emit(
                ReadSpecial(dst=self._n_tile, special="%ctaid.x", comment="tile column"),
                ReadSpecial(dst=self._m_tile, special="%ctaid.y", comment="tile row"),
            )
        else:
            tile = self._tile_id()
            common = {"tile": tile, "m_tile": self._m_tile, "n_tile": self._n_tile}
            if self._scheduler.order == "hilbert":
                hilbert.locate(builder, tile, self._m_tile, self._n_tile, self._scheduler.group or 1)
            elif self._scheduler.order == "grouped":
                scratch = {name: builder.register(name, _GROUP) for name in ("band", "first", "rows", "rest")}
                builder.emit(
                    GroupedTile(
                        **common,
                        **scratch,
                        m_tiles=registers["m_tiles"],
                        group=registers["group"],
                        span=registers["span"],
                        comment=f"grouped order: bands of {self._scheduler.group} tile rows",
                    )
                )
            else:
                builder.emit(RowMajorTile(**common, n_tiles=registers["n_tiles"], comment="row-major order"))
        for axis, tile_register, coord, size in (
            ("row", self._m_tile, self.m_coord, self._cluster_tile.m),
            ("column", self._n_tile, self.n_coord, self._cluster_tile.n),
        ):
            builder.integer("mul.lo.u32", coord, tile_register, size, comment=f"first {axis} of the tile")
        if self._pair:
            rank = registers["rank"]
            m, n = self._tile.m // 2, self._tile.n // 2
            builder.integer("mad.lo.u32", self.m_coord, rank, m, self.m_coord, comment="rows of this CTA")
            builder.integer("mad.lo.u32", self.b_coord, rank, n, self.n_coord, comment="rows of B of this CTA")
        elif self._walker == "cluster":
            self._locate_in_cluster()

    def _locate_in_cluster(self) -> None:
        """This CTA's tile in the cluster's, and the part that it loads of the operand that they share."""
        builder, rank = self._builder, self._builder.registers["rank"]
        a, b = self._plan.a, self._plan.b
        if self._cluster[0] > 1:
            m, n = self.m_coord, self.n_coord
            builder.integer("mad.lo.u32", m, rank, self._tile.m, m, comment="rows of this CTA")
            builder.integer("mad.lo.u32", self.b_coord, rank, b.load_rows, n, comment="rows of B that it loads")
        else:
            m, n = self.m_coord, self.n_coord
            builder.integer("mad.lo.u32", n, rank, self._tile.n, n, comment="columns of this CTA")
            builder.integer("mad.lo.u32", self.a_coord, rank, a.load_rows, m, comment="rows of A that it loads")

    def _tile_id(self) -> Register:
        if self.persistent or self.claims:
            return self._builder.registers["tile"]
        tile = self._builder.register("tile", _GROUP)
        special = "%clusterid.x" if self._pair else "%ctaid.x"
        self._builder.emit(ReadSpecial(dst=tile, special=special, comment="tile id"))
        return tile
