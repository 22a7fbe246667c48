"""What a curious server or party could learn of a run, measured on the frames that its roles really send.

    RUN/parameters ──▶ roles ──rounds, step size 0──▶ frames ──as receivers decode them──▶ views ──attacks──▶ numbers

The roles are those of the run with their initial and with their final parameters, and play rounds in which nothing
moves: every frame is one that the federation sends at either end of training. At the end each row comes as often as it
came in training, 20 times at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import one_hot

from cvfl.audit.attacks import AUDIT, FEW, by_direction, by_norm, by_weights, infer_labels, invert, with_directions
from cvfl.audit.last_pass import told_last
from cvfl.audit.subject import ROWS, Subject
from cvfl.audit.told import joint_attacks
from cvfl.audit.views import EMBEDDING, GRADIENT, SUM, Sights, Tap, View
from cvfl.config.schema import RunConfig
from cvfl.protocol import Loss
from cvfl.rng import stream
from cvfl.runs import audit as recorded
from cvfl.runs.audit import Audit, FeaturesFound, LabelsFound, Stage, ToldFound
from cvfl.runtime import rounds
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.types import OnStep

COLUMNS = 1024
"""Most columns that one attack recovers, drawn at random from more."""
_FEWEST = 10  # rows that an attacker must know for figures to mean anything


def audit_run(run: Path, on_step: OnStep = lambda *_: None) -> Audit:
    """Audit a run directory whose data can be loaded here; nothing is written."""
    subject = Subject.of(run, on_step)
    plan, features, labels = subject.federation.plan, list[FeaturesFound](), list[LabelsFound]()
    with one_thread_a_role(), threadpool_limits(1):  # figures do not depend on the number of cores
        views = [*_played(subject, "start", on_step), *_played(subject, "end", on_step)]
        views += [("end", view) for view in told_last(subject)]
        for done, (stage, view) in enumerate(views):
            on_step("attacking", done, len(views))
            for looks, seen in _looks(view):
                features += _features(subject, stage, view, looks, seen)
                labels += _labels(subject, stage, view, looks, seen)
        own, by_labels = _alone(subject, on_step)
        told = joint_attacks(subject, [view for stage, view in views if stage == "end"], _order)
    rows = len(subject.data.train_labels)
    return Audit(
        compressor=subject.config.compressor_of(""),
        bits=subject.bits,
        privacy=privacy_mode(subject.config),
        algorithm=plan.algorithm,
        parties_get="gradients" if plan.algorithm == 2 else "sums" if plan.folding or plan.secure else "embeddings",
        score="R2" if plan.loss is Loss.SQUARED else "ROC AUC",
        rows=rows,
        known=len(_order(rows, subject.config.seed)) // 2,
        looks=subject.looks,
        few=FEW,
        has_labels=subject.label_holders,
        blind=("server",) if subject.reader != "server" else (),
        task=subject.task,
        own=own,
        by_labels=by_labels,
        features=tuple(features),
        labels=tuple(labels),
        told=tuple(told),
    )


def audit_told(run: Path, on_step: OnStep = lambda *_: None) -> tuple[ToldFound, ...]:
    """The joint attacks on told labels alone, on one message about each row: half a minute in place of minutes."""
    subject = Subject.of(run, on_step, most=1)
    with one_thread_a_role(), threadpool_limits(1):
        return tuple(joint_attacks(subject, [view for _, view in _played(subject, "end", on_step)], _order))


def _played(subject: Subject, stage: Stage, on_step: OnStep) -> Iterator[tuple[Stage, View]]:
    """What everybody sees of the rounds that the roles play; held-out rows at the end alone."""
    fed = subject.before if stage == "start" else subject.federation
    # Where a party holds the labels, messages are sealed on their way and these when opened; so they are played open.
    sights = Sights(fed, subject.reader)
    for report in rounds(fed.server, fed.parties, Tap(sights.see), workers=1):
        on_step(f"playing rounds as at the {stage}", report.t0 + 1, fed.plan.rounds)
    return ((stage, view) for view in sights.views() if stage == "end" or not view.held_out)


def _looks(view: View) -> Iterator[tuple[int, Tensor]]:
    """The last message about every row, and the mean of all, if they say more."""
    yield 1, view.last
    if float((view.last - view.mean).norm()) > 1e-5 * float(view.last.norm()):
        yield view.looks, view.mean


def _features(subject: Subject, stage: Stage, view: View, looks: int, seen: Tensor) -> Iterator[FeaturesFound]:
    """Attack the columns of all parties that the view may tell of, at once."""
    order = _order(len(seen), subject.config.seed)
    known = len(order) // 2
    if not view.of or known < _FEWEST:
        return
    parts = [subject.columns(m, COLUMNS // len(view.of), view.held_out) for m in view.of]
    truth = torch.cat([part.read(order) for part in parts], 1)
    x = with_directions(seen[order]) if view.sees == GRADIENT else seen[order]
    errors, start = invert(x, truth, known, subject.config.seed), 0
    for m, part in zip(view.of, parts, strict=True):
        own = errors.of(slice(start, start := start + len(part.places)))
        best, place = own.best()
        psnr, baseline_psnr = own.psnr() if part.shaped else (None, None)
        yield FeaturesFound(
            observers=view.observers,
            sees=view.sees,
            party=subject.data.names[m - 1],
            stage=stage,
            looks=looks,
            held_out=view.held_out,
            r2=own.r2,
            best=best,
            best_column=part.name(place),
            mse=float(own.attack.mean()),
            baseline_mse=float(own.baseline.mean()),
            psnr=psnr,
            baseline_psnr=baseline_psnr,
        )


def _labels(subject: Subject, stage: Stage, view: View, looks: int, seen: Tensor) -> Iterator[LabelsFound]:
    """Attack the labels of training rows, without any known, with a few, and with many."""
    order, loss = _order(len(seen), subject.config.seed), subject.loss
    known = len(order) // 2
    if view.held_out or known < _FEWEST:
        return
    x, y = seen[order], subject.truth[order]
    told = with_directions(x) if view.sees == GRADIENT else x
    found: dict[str, float | None] = {
        recorded.FEW_KNOWN: infer_labels(told, y, loss, known, few=True),
        recorded.MANY_KNOWN: infer_labels(told, y, loss, known),
    }
    if view.sees == GRADIENT:
        found |= {recorded.NORM: by_norm(x, y, loss), recorded.DIRECTION: by_direction(x, y, loss)}
    if view.weights is not None:
        found[recorded.WEIGHTS] = by_weights(x, view.weights, y, loss)
    seen_of = {EMBEDDING: subject.data.names[view.of[0] - 1] if view.of else "", SUM: "all parties"}
    for attack, score in found.items():
        if score is not None:
            yield LabelsFound(
                observers=view.observers,
                sees=view.sees,
                party=seen_of.get(view.sees, view.observers[0]),
                stage=stage,
                looks=looks,
                attack=attack,
                score=score,
            )


def _alone(subject: Subject, on_step: OnStep) -> tuple[dict[str, float], dict[str, float]]:
    """What takes no federation: labels from a party's own columns, and its columns from labels, by party."""
    data, own, by_labels = subject.data, {}, {}
    order = _order(len(data.train_labels), subject.config.seed)
    known, y, told = len(order) // 2, subject.truth[order], data.train_labels[order]
    told = told[:, None] if subject.loss is Loss.SQUARED else one_hot(told.long())
    for m, name in enumerate(data.names, start=1):
        on_step("without the federation", m - 1, len(data.names))
        x = subject.columns(m, COLUMNS).read(order)
        own[name] = infer_labels(x, y, subject.loss, known)
        by_labels[name] = invert(told, x, known, subject.config.seed).r2
    return own, by_labels


def privacy_mode(config: RunConfig) -> str:
    """The privacy mode of a run in words."""
    privacy, said = config.privacy, []
    if privacy.label_epsilon is not None:
        said.append(f"labels told with epsilon {privacy.label_epsilon:g}")
    elif privacy.private_labels:
        said.append(f"labels at {'the server' if privacy.labels == 'server' else privacy.labels}")
    if privacy.secure:
        said.append("secure aggregation")
    if privacy.noise is not None:
        said.append(f"{'shared noise' if privacy.noise_shared else 'noise'} {privacy.noise:g}")
    elif privacy.clip is not None:
        said.append(f"clip {privacy.clip:g}")
    return ", ".join(said) or "open"


def _order(rows: int, seed: int) -> Tensor:
    """All rows, at most ROWS of them, in random order: the first half is what the attacker knows."""
    return torch.from_numpy(stream(seed, AUDIT, "known", rows).permutation(rows)[:ROWS])
