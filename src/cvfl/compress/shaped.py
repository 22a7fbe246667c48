"""A basis and steps that follow the loss: what an embedding says beside the point costs nothing.

An error e in h raises the loss by about e G e / 2, where G is the curvature of the loss in h: the mean outer product of
gradients for labels that the model itself would draw (Gauss-Newton). So the sender, who sees them, chooses

    z = h L W              G = L L', and W decorrelates h L: the loss sees unit steps of all z alike
    q = z / s, rounded     s^2 = 24 aim / K: K components with an error of s^2/12 raise the loss by the aim
    ĥ = (q + r) S          S = s / E[z z] W' L' E[h h']: the best guess of h from z; r: the mean of what rounding left

The aim is a small share (`tolerance`) of the loss, or of what the model has learned over saying the mean, whichever is
less, and it diminishes over the epochs. Receivers need S alone, which is sent as bytes when it is new. Parties to whom
the loss is sensitive have small steps, and with them most of the bits.

Two things keep a model from standing still because nothing is sent because nothing is learned: directions to which
the loss is blind count a little, and steps keep within sight of their components. And a certificate: the sender
compares the gradient that its message causes with the exact one, and asks for less error when they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cvfl.compress.base import LARGEST, Compressor, Context, extremes, flat, no_scalars, rows_of, width_of
from cvfl.compress.basis import MOST, NOTHING, Basis, View, in_turn, within
from cvfl.compress.deadzone import CELL_WIDTH, DEAD, PEAK, WIDTH, finite, quantized, unzigzag, zigzag
from cvfl.compress.moments import Moments, directions
from cvfl.errors import ConfigError, DecodeError
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet, Plane

SHARES = 16
"""Parts of a step in which the mean of what rounding left is told."""
_MEMORY = 0.8  # of the aim of earlier rounds
_LEAST = 1e-60  # trace of G that says anything: with one below, or as far above one, floats cannot compute
_OFF = 3.0  # times the noise that is aimed at, or as much less: steps are told anew
_WORSE = 2.0  # times what the basis could not show when it was new: it is told anew
_PAUSE = 8  # times as many rounds as this share of its age a basis serves at least
_LONGER = 2.0  # times what the cosine may lack of one: most that the logarithm of squared lengths may differ
_AGREED = (1.0, 0.0)  # a cosine of one, and no difference of lengths
_FINEST = 2.0**-20


class Shaped(Compressor):
    """Send few components of each row, at steps that raise the loss by about `tolerance` of itself.

    After so many epochs it is tolerance / (1 + epochs)^fading, since Theorem 2 asks for an error that diminishes.
    A `budget` is the most bits that a row may take, by the entropy of its components; steps are doubled until it holds.
    There are components enough for what the loss sees now, and for all directions if these together count `curiosity`
    times as much. No step is larger than `coarsest` times the root mean square of its component. With `certificate` 0
    the tolerance stays as it is, whatever gradients messages cause; else `agreement` is the least cosine that they may
    have with the exact ones.
    """

    learns = True
    follows = True

    def __init__(
        self,
        tolerance: float = 0.1,
        budget: float = math.inf,
        fading: float = 0.5,
        certificate: int = 1,
        agreement: float = 0.9,
        curiosity: float = 0.0,
        coarsest: float = 2.0,
    ) -> None:
        if not 1e-6 <= tolerance <= 1:
            raise ConfigError(f"tolerance is a share of the loss from 1e-6 to 1, not {tolerance}")
        if not budget > 0:
            raise ConfigError(f"budget is a number of bits above 0, not {budget}")
        if not 0 <= fading <= 4:
            raise ConfigError(f"fading is a power of the epochs from 0 to 4, not {fading}")
        if certificate not in (0, 1):
            raise ConfigError(f"certificate is 1, or 0 for none, not {certificate}")
        if not 0 < agreement < 1:
            raise ConfigError(f"agreement is a cosine above 0 and below 1, not {agreement}")
        if not 0 <= curiosity <= 100:
            raise ConfigError(f"curiosity is a weight from 0 to 100, not {curiosity}")
        if not 0 < coarsest <= 64:
            raise ConfigError(f"coarsest is a number of root mean squares above 0 and up to 64, not {coarsest}")
        self.curiosity, self.coarsest = float(curiosity), float(coarsest)
        self.tolerance, self.budget, self.fading = float(tolerance), float(budget), float(fading)
        self.certificate, self.agreement = bool(certificate), float(agreement)
        self._forget()

    def _forget(self) -> None:
        self.basis, self.age, self.epochs = NOTHING, 0, 0.0
        self._latest = NOTHING
        self.curvature, self.moments = Moments(), Moments()
        self.aim, self.ease, self.least, self.told = 0.0, 1.0, 0.0, 0
        self.missed = self.would_miss = 0.0
        self.agreed: tuple[float, ...] = _AGREED
        self._seen: View | None = None

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Whole steps of each component, and the mean of what that leaves; and the basis if it is new."""
        basis, _, z = self._chosen(_rows(h), context)
        q = quantized(z.clamp(-PEAK, PEAK), 1.0)
        steps = torch.cat([q, _left(z, q)]) if q.numel() else q
        planes: tuple[Plane, ...] = (Plane(zigzag(steps).reshape(-1), WIDTH, max(1, len(basis.cells))),)
        cells, rows = basis.planes()
        if basis.bytes is not self.basis.bytes:
            planes += cells, rows
        elif basis.cells != self.basis.cells:
            planes += (cells,)
        return Packet(tuple(h.shape), planes, dtype=flat(h).dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """(q + r) S, the same bits at every receiver."""
        self._latest, q = basis, _ = self._read(packet)
        if not q.numel():
            return torch.zeros(packet.shape, dtype=packet.dtype)
        parts = q[:-1] * SHARES + q[-1:]
        h = parts.double() @ basis.rows if basis.exact else in_turn(parts, basis, width_of(packet.shape))
        return finite((h / SHARES).to(packet.dtype)).reshape(packet.shape)

    def settle(self, packet: Packet, decoded: Tensor, context: Context) -> None:
        """Keep the basis that came with the packet."""
        basis, _ = self._read(packet)
        rows = math.prod(packet.shape[:-1])
        self.age, self.epochs = self.age + 1, self.epochs + rows / max(1, rows, context.total)
        if basis.bytes is not self.basis.bytes:
            self.told, self.missed = self.age, self.would_miss
        self.basis = basis

    @property
    def span(self) -> Tensor | None:
        """That of the basis: what was sent in another one would stay with its row for ever, and be learned by heart."""
        return self._latest.span

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """What the basis cannot show of this tensor, and what rounding leaves of each component."""
        basis, x, z = self._chosen(_rows(h), context)
        rows = basis.rows
        q = quantized(z.clamp(-PEAK, PEAK), 1.0)
        over = (z.abs() - PEAK).clamp_(0.5 + DEAD) + (_left(z, q).double().abs() / SHARES if q.numel() else 0)
        left = float((x - (z @ rows if len(rows) else 0)).norm()) + float(rows.norm()) * float(over.norm())
        error = (left + 1e-6 * float(x.norm())) ** 2
        return ErrorBound(error, error)

    def nominal_bits(self, t0: int) -> float:
        """Of a plain packing; an entropy coder is what this is for."""
        return WIDTH

    def prime(self, gradient: Tensor, sent: Tensor) -> None:
        """Begin with this much, if nothing was observed yet."""
        if self.curvature.kept is None:
            self.observe(gradient, 0.0, sent)

    def observe(self, gradient: Tensor, loss: float = 1.0, sent: Tensor | None = None) -> None:
        """Follow the curvature, the loss that is at stake, and how what is sent varies."""
        g = _numbers(gradient)
        own = len(g) ** 2  # a sample's own gradient is the batch's times its size
        if not (0 <= loss < math.inf and _LEAST < own * float(g.square().sum()) < 1 / _LEAST):
            return
        self.aim = loss if self.aim == 0 else _MEMORY * self.aim + (1 - _MEMORY) * loss
        self.curvature.add(g, own)
        if sent is not None and sent.numel():
            self.moments.add(_numbers(sent))
        self._seen = None

    def certify(self, exact: float, across: float, caused: float) -> None:
        """Less error is allowed when messages cause another gradient than they should, more again when they do not."""
        if not self.certificate or exact <= 0:
            return
        longer = max(caused / exact, _LEAST)
        now = across / exact / math.sqrt(longer), math.log(longer)
        self.agreed = tuple(_MEMORY * old + (1 - _MEMORY) * new for old, new in zip(self.agreed, now, strict=True))
        if self.agreed[0] >= self.agreement and abs(self.agreed[1]) <= _LONGER * (1 - self.agreement):
            self.ease = min(1.0, self.ease * 1.1)
        else:
            self.ease, self.agreed = max(_FINEST, min(1.0, self.least), self.ease / 2), _AGREED

    def loosen(self, least: float) -> None:
        """Take at least so much of the tolerance."""
        self.least = least

    def state_dict(self) -> dict[str, Tensor]:
        """The basis that both ends have, and what the sender learned."""
        misses, ages = [self.missed, self.would_miss], [self.epochs, self.age, self.told]
        numbers = [self.aim, self.ease, *misses, *ages, *self.agreed]
        state = {
            "bytes": self.basis.bytes,
            "cells": torch.tensor(self.basis.cells, dtype=torch.int32),
            "numbers": torch.tensor(numbers, dtype=torch.float64),
        }
        if self.least:
            state["least"] = torch.tensor(self.least, dtype=torch.float64)
        learnt = {"curvature": self.curvature.kept, "moments": self.moments.kept}
        return state | {key: value for key, value in learnt.items() if value is not None}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore both."""
        self._forget()
        if state:
            self.basis = self._latest = Basis(state["bytes"], tuple(state["cells"].tolist()))
            self.aim, self.ease, *numbers = state["numbers"].tolist()
            self.missed, self.would_miss, self.epochs, age, told, *agreed = numbers
            self.age, self.told, self.agreed = int(age), int(told), tuple(agreed)
            self.least = float(state["least"]) if "least" in state else 0.0
            self.curvature, self.moments = (
                Moments(state[key].clone() if key in state else None) for key in ("curvature", "moments")
            )

    def _view(self, x: Tensor) -> View | None:
        """What is known for choosing a basis; these rows stand for what is sent if nothing was observed of that."""
        if self.curvature.kept is None or not len(x):
            return None
        if self.moments.kept is None:
            varies = Moments()
            varies.add(x)
            return self._view_of(varies)
        if self._seen is None:
            self._seen = self._view_of(self.moments)
        return self._seen

    def _view_of(self, varies: Moments) -> View:
        space = directions(self.curvature, varies)
        within = self.curvature.within(space), varies.within(space)
        return View(*within, space, self.curiosity, self.coarsest)

    def _chosen(self, x: Tensor, context: Context) -> tuple[Basis, Tensor, Tensor]:
        """The basis for a message, with steps that the budget allows, what is to be sent, and that in these steps."""
        whole = None if context.whole is None else _numbers(context.whole)
        view = self._view(x if whole is None else whole)
        basis = self.basis if view is None else self._fitting(view)
        if whole is not None and basis.span is not None:
            x = whole - within(whole - x, basis.span)  # of what is known, receivers take no more than the basis shows
        if view is None or not basis.cells:
            return basis, x, _components(x, basis)
        z = x @ view.analysis(basis)
        while math.isfinite(self.budget) and _bits(quantized(z, 1.0)) > self.budget:
            basis = basis.scaled(torch.full((len(basis.cells),), 2.0))
            z = x @ view.analysis(basis)
        return basis, x, z

    def _fitting(self, view: View) -> Basis:
        """The basis that both ends have, the same with other steps, or a new one."""
        share = self.tolerance * max(self.ease, self.least) / (1 + self.epochs) ** self.fading
        # Of what is at stake, or of a quarter of what is sent if that is more, as long as nothing is learned yet.
        aim, finest = share * max(self.aim, view.missed(NOTHING) / 4), math.sqrt(3 * share)
        if self._outdated(view, aim):
            basis = view.new(aim, finest)
            if basis is not None:
                self.would_miss = view.missed(basis)
                return basis
        if not self.basis.cells:
            return self.basis
        factors = view.factors(self.basis, aim, finest)
        off = float(factors.max()) ** 2 > _OFF or float(factors.min()) ** 2 < 1 / _OFF
        return self.basis.scaled(factors) if off else self.basis

    def _outdated(self, view: View, aim: float) -> bool:
        """Whether the basis fails to show what it should, and is not so new that another one would cost too much."""
        if not self.basis.cells:
            return True
        if self.age - self.told < self.told // _PAUSE:
            return False
        return view.missed(self.basis) > max(aim, _WORSE * self.missed) or self.age >= 2 * self.told

    def _read(self, packet: Packet) -> tuple[Basis, Tensor]:
        """The basis of a packet and its symbols, row by row; the last row is that of what rounding left."""
        no_scalars(packet)
        P, n = width_of(packet.shape), math.prod(packet.shape[:-1])
        basis = self.basis
        match packet.planes:
            case (symbols,):
                pass
            case (symbols, cells):
                basis = Basis(basis.bytes, _codes(cells))
            case (symbols, cells, bytes_) if bytes_.width == 8 and bytes_.symbols.numel() == cells.symbols.numel() * P:
                rows = (bytes_.symbols.reshape(cells.symbols.numel(), P).int() - 128).to(torch.int8)
                basis = Basis(rows, _codes(cells))
            case _:
                raise DecodeError("expected symbols, and perhaps cells and a basis")
        K = len(basis.cells)
        known, rows_told = basis.bytes.shape == (K, P) or not K, n + 1 if n else 0
        if not known or symbols.width != WIDTH or symbols.symbols.numel() != rows_told * K:
            raise DecodeError(f"{symbols.symbols.numel()} symbols for {n} rows of {K} components")
        return basis, unzigzag(symbols.symbols).reshape(rows_told, K)


def _components(x: Tensor, basis: Basis) -> Tensor:
    """Without a view: the nearest steps, all directions alike."""
    if not basis.cells:
        return x.new_zeros(len(x), 0)
    z: Tensor = x @ torch.linalg.pinv(basis.rows)
    return z


def _left(z: Tensor, q: Tensor) -> Tensor:
    """The mean of what rounding left of each component, in shares of a step, as a row."""
    return ((z - q).mean(0, keepdim=True) * SHARES).round().clamp(-PEAK, PEAK).to(torch.int32)


def _bits(q: Tensor) -> float:
    """Bits a row by the entropy of its components as they are distributed over these rows."""
    bits = 0.0
    for column in q.t():
        share = torch.unique(column, return_counts=True)[1].double() / max(1, len(column))
        bits -= float((share * share.log2()).sum())
    return bits


def _codes(plane: Plane) -> tuple[int, ...]:
    if plane.width != CELL_WIDTH or not 1 <= plane.symbols.numel() <= MOST:
        raise DecodeError(f"from 1 to {MOST} cells of {CELL_WIDTH} bits make a basis")
    return tuple(int(code) for code in plane.symbols)


def _rows(h: Tensor) -> Tensor:
    """Rows of the last dimension, exact; refuses what cannot be compressed."""
    extremes(flat(h), LARGEST[flat(h).dtype])
    return _numbers(h)


def _numbers(h: Tensor) -> Tensor:
    return rows_of(flat(h).double().cpu(), h.shape)
