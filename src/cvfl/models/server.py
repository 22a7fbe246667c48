"""Server models: they take the list of all parties' embeddings, and fuse it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn


class Joined(nn.Module, ABC):
    """Any model of one tensor, applied to what the embeddings are joined to."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeddings: Sequence[Tensor] | Tensor) -> Tensor:
        """B x outputs; the embeddings may be joined already."""
        x = embeddings if isinstance(embeddings, Tensor) else self.join(embeddings)
        output: Tensor = self.head(x)
        return output

    @abstractmethod
    def join(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The embeddings as one tensor."""


class Concat(Joined):
    """head([h_1, ..., h_M]): the embeddings side by side."""

    def join(self, embeddings: Sequence[Tensor]) -> Tensor:
        """[h_1, ..., h_M] as one tensor."""
        return torch.cat(list(embeddings), dim=1)

    def grown(self, old: nn.Module, was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, Tensor]:
        """Columns of the first layer go where their party is now; those of a new one are as they were made."""
        if not self.folds:
            raise ValueError("the head does not start with a linear layer")
        state, first = dict(old.state_dict()), self._first.weight
        key = next(key for key, value in self.named_parameters() if value is first)
        kept = dict(zip(was, torch.split(state[key], list(was.values()), 1), strict=True))
        fresh = dict(zip(now, torch.split(first.detach(), list(now.values()), 1), strict=True))
        return state | {key: torch.cat([kept.get(name, W) for name, W in fresh.items()], 1)}

    def hold(self, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
        """The model as a function of h_m: the others pass through the first linear layer once.

        A linear layer of a concatenation is a sum: W [h_1, ..., h_M] + b = W_m h_m + (b + sum of W_j h_j).
        """
        before, after = list(embeddings[:m]), list(embeddings[m + 1 :])
        if not self.folds or len(embeddings) == 1:
            return lambda h: self([*before, h, *after])
        first = self._first
        start = sum(h.shape[1] for h in before)
        end = first.in_features - sum(h.shape[1] for h in after)
        others = torch.cat([first.weight[:, :start], first.weight[:, end:]], 1).t()
        with torch.no_grad():
            constant = torch.cat([*before, *after], 1) @ others
            if first.bias is not None:
                constant += first.bias
        return self.unfold(constant, slice(start, end))

    @property
    def folds(self) -> bool:
        """Whether the head starts with a linear layer."""
        return type(_layers(self.head)[0]) is nn.Linear

    @property
    def _first(self) -> nn.Linear:
        first = _layers(self.head)[0]
        assert isinstance(first, nn.Linear)
        return first

    def enter(self, joined: Tensor) -> Tensor:
        """W [h_1, ..., h_M] + b."""
        total: Tensor = self._first(joined)
        return total

    def leave(self, total: Tensor) -> Tensor:
        """The layers after the first."""
        for layer in _layers(self.head)[1:]:
            total = layer(total)
        return total

    def fold(self, embeddings: Sequence[Tensor]) -> list[Tensor]:
        """For each party b + the sum of the others' W_j h_j."""
        first = self._first
        with torch.no_grad():
            widths = [h.shape[1] for h in embeddings]
            parts = [h @ W.t() for h, W in zip(embeddings, torch.split(first.weight, widths, 1), strict=True)]
            start = torch.zeros_like(parts[0]) + (0 if first.bias is None else first.bias)
            return _sums_of_others(parts, start)

    def pieces(self, columns: slice) -> dict[str, Tensor]:
        """W_m and everything after the first layer; b is in the sums."""
        first = self._first
        found = {key: value for key, value in self.named_parameters() if value is not first.bias}
        return {key: value[:, columns] if value is first.weight else value for key, value in found.items()}

    def slope(self, columns: slice) -> Tensor | None:
        """W_m, if the head is that one layer."""
        return self._first.weight[:, columns] if self.folds and len(_layers(self.head)) == 1 else None

    def unfold(self, partial: Tensor, columns: slice) -> Callable[[Tensor], Tensor]:
        """W_m h_m + the sum over the others, and on."""
        own = self._first.weight[:, columns].t()
        return lambda h: self.leave(torch.addmm(partial, h, own))


class Bias(nn.Module):
    """x + b."""

    def __init__(self, b: Tensor) -> None:
        super().__init__()
        self.b = nn.Parameter(b.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """x + b."""
        return x + self.b


class Beside(nn.Module):
    """Of z the first `outputs` numbers as they are, plus a model of the rest."""

    def __init__(self, outputs: int, model: nn.Module) -> None:
        super().__init__()
        self.outputs, self.model = outputs, model

    def forward(self, z: Tensor) -> Tensor:
        """B x outputs."""
        output: Tensor = z[:, : self.outputs] + self.model(z[:, self.outputs :])
        return output


class Sum(Joined):
    """head(h_1 + ... + h_M): the embeddings, which have one width, added up."""

    def join(self, embeddings: Sequence[Tensor]) -> Tensor:
        """h_1 + ... + h_M."""
        return torch.stack(list(embeddings)).sum(0)

    def grown(self, old: nn.Module, was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, Tensor]:
        """As it was: a sum has any number of terms."""
        return dict(old.state_dict())

    def hold(self, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
        """The model as a function of h_m: the others are added up once."""
        others = [*embeddings[:m], *embeddings[m + 1 :]]
        if not others:
            return self
        return self.unfold(self.join(others), slice(0))

    @property
    def folds(self) -> bool:
        """It is a sum."""
        return True

    def enter(self, joined: Tensor) -> Tensor:
        """The sum, which joining has made."""
        return joined

    def leave(self, total: Tensor) -> Tensor:
        """The head."""
        return self(total)  # type: ignore[no-any-return]

    def fold(self, embeddings: Sequence[Tensor]) -> list[Tensor]:
        """For each party the sum of the others."""
        return _sums_of_others(embeddings, torch.zeros_like(embeddings[0]))

    def pieces(self, columns: slice) -> dict[str, Tensor]:
        """The whole head: every embedding meets all of it."""
        return dict(self.named_parameters())

    def slope(self, columns: slice) -> Tensor | None:
        """W, if the head is one linear layer: every embedding meets all of it."""
        first, *rest = _layers(self.head)
        return first.weight if type(first) is nn.Linear and not rest else None

    def unfold(self, partial: Tensor, columns: slice) -> Callable[[Tensor], Tensor]:
        """The own embedding added to the others."""
        return lambda h: self(partial + h)


def parted(model: nn.Module, widths: Sequence[int]) -> tuple[list[Tensor], Sum] | None:
    """W_1, ..., W_M of the first layer, and the rest of the model over the sum of the W_m h_m, if that is what it is.

    Every party can then hold its own W_m: what it sends are the H numbers of W_m h_m.
    """
    if not (isinstance(model, Concat) and model.folds):
        return None
    first, *rest = _layers(model.head)
    assert isinstance(first, nn.Linear)
    b = torch.zeros(first.out_features, dtype=first.weight.dtype) if first.bias is None else first.bias
    slices = [W.detach().clone() for W in torch.split(first.weight, list(widths), 1)]
    return slices, Sum(nn.Sequential(Bias(b), *rest))


class Ended(nn.Module):
    """A party's model, and its own part of the server model's first layer after it."""

    def __init__(self, model: nn.Module, W: Tensor) -> None:
        super().__init__()
        self.model = model
        self.end = nn.Linear(W.shape[1], W.shape[0], bias=False, dtype=W.dtype)
        with torch.no_grad():
            self.end.weight.copy_(W)

    def forward(self, x: Tensor) -> Tensor:
        """W_m h_m."""
        output: Tensor = self.end(self.model(x))
        return output


class Attention(nn.Module):
    """A mean of the parties' embeddings whose weights the data decide, and a model of that mean.

    Each embedding is mapped to a common width d; a learned query q scores it, and a softmax over the M parties makes
    weights of the scores: w = softmax(q . tanh(v_m) / sqrt(d)), output = head(sum of w_m v_m). At first q is zero, so
    that all parties weigh alike. No randomness, and nothing that depends on the other rows of the batch.
    """

    def __init__(self, widths: Sequence[int], head: nn.Module, width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(own, width) for own in widths)
        self.query = nn.Parameter(torch.zeros(width))
        self.head = head

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        """B x outputs."""
        values = torch.stack([to_common(h) for to_common, h in zip(self.maps, embeddings, strict=True)], 1)
        weights = (values.tanh() @ self.query / len(self.query) ** 0.5).softmax(1)
        output: Tensor = self.head((weights[:, :, None] * values).sum(1))
        return output

    def grown(self, old: nn.Module, was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, Tensor]:
        """Maps go where their party is now; that of a new one is as it was made."""
        assert isinstance(old, Attention)
        kept = dict(zip(was, old.maps, strict=True))
        maps = nn.ModuleList(kept.get(name, own) for name, own in zip(now, self.maps, strict=True))
        return old.state_dict() | maps.state_dict(prefix="maps.")


def _sums_of_others(parts: Sequence[Tensor], start: Tensor) -> list[Tensor]:
    """For each part the sum of all others, added to what every sum starts with."""
    return [sum((part for j, part in enumerate(parts) if j != m), start) for m in range(len(parts))]


def _layers(head: nn.Module) -> list[nn.Module]:
    """The layers of a plain sequence, without a leading flatten of what is flat already; else the head itself."""
    if not isinstance(head, nn.Sequential) or type(head).forward is not nn.Sequential.forward or not len(head):
        return [head]
    layers = list(head)
    return layers[1:] if isinstance(layers[0], nn.Flatten) and len(layers) > 1 else layers
