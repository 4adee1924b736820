"""Is search enough? Two questions about a ranking, and what follows from them.

Rules:
1. Novel: nothing was ranked, the relevance lies under the floor, or the best bundle covers too little of the request.
   Search then shows nothing, however far ahead its first bundle is. What past steps of this deployment speak for
   (`REMEMBERED`) is not novel, whatever words it is put in; that alone never makes it enough without a calibration.
2. Enough: the best bundle is the right one with a probability that suffices for what it can do. Reading, here or over
   the network, needs `read_threshold`, writing `write_threshold`; executing, and effects nobody declared, are never
   shown by search alone.
3. Without a calibration (or with one from fewer than `MIN_LABELS` labels) there is no probability, and a conservative
   rule stands in for it: a margin, a coverage, and scorers that agree. Of the steps it settles on seven labelled sets
   it is right in 63 to 98 % where every bundle is permitted and in 85 to 100 % among a dozen (see
   tests/benchmarks/selecting.py): enough for reading only, where a wrong bundle costs tokens.
   No union rests on it where a shortlist can be offered instead: a quarter of such unions held nothing needed.
4. Union: not enough, and every plausible bundle is harmless, they are few, and their tools' definitions are known to be
   cheap. Then all of them: a superfluous bundle costs tokens, a missing one the step.
5. Harmless is what only reads, here or over the network, and whose tools all live on trusted servers. A network is no
   more than policy permits the step anyway; text by strangers does not come along on a guess.
6. Ambiguous is everything else. `stand_in` then names the harmless bundle to fall back to when the model fails, and
   `shortlist` the best bundles to offer behind search, whatever they can do: exposure is not execution. Also where
   nothing seems to fit: who is wrong about that leaves the step empty-handed.
7. What `[search] offer` says of a bundle's effects bounds all of this: `none`, and search never names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

from bundle_router.core.catalog import MIN_LABELS, Bundle, Calibration, Catalog, SearchSettings
from bundle_router.core.models import Candidate, SearchUse, Step, Verdict
from bundle_router.core.models.evidence import Evidence, Logistic
from bundle_router.core.search.ranking import Ranking
from bundle_router.core.tools.exposure import may_be_offered, offer_of

CONSERVATIVE: Final = "conservative/2"
"""The version recorded where no calibration is in force. Changes with any of the numbers below."""
MIN_MARGIN: Final = 0.4
MIN_COVERAGE: Final = 0.7
NOVEL_COVERAGE: Final = 0.3
"""Share of the request's known words that the best bundle must cover. With the floor it finds 28 to 93 % of requests
novel whose right bundle was taken away, and 0 to 44 % of those that have it (same sets): these go to the model."""
REMEMBERED: Final = 0.7
"""What memory has to add for a permitted bundle for a request to count as known. Of held-back requests of the catalog
that a memory was learned on, 5 to 44 % reach it, and there memory's first bundle is right in 84 to 90 %; of requests
of other catalogs 0 to 7 % do (MetaTool, StableToolBench, Seal-Tools)."""
PLAUSIBLE: Final = 0.5
"""Share of the best score that makes a bundle plausible. A union then holds a right one in 67 to 100 % (same sets)."""
KEPT: Final = 10
"""Ranked candidates that are recorded."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What search may do with a question: show `ids` (verdicts `enough` and `union`), or pass it on. `stand_in` is what
    it would show in place of a model that fails, `shortlist` what it would offer behind search, best first."""

    use: SearchUse
    ids: tuple[str, ...] = ()
    stand_in: str | None = None
    shortlist: tuple[str, ...] = ()


def thresholds_version(settings: SearchSettings) -> str:
    """The version of what `judge` rests on under these settings."""
    calibration = _in_force(settings)
    return calibration.version if calibration is not None else CONSERVATIVE


def judge(catalog: Catalog, step: Step, ranking: Ranking) -> Judgement:
    """Judges a ranking of the step's permitted candidates."""
    settings, evidence = catalog.settings.search, ranking.evidence
    ranked = tuple(Candidate(row.id, round(row.score, 6)) for row in ranking.scored[:KEPT])
    cut = round(PLAUSIBLE * ranking.scored[0].score, 6) if ranking.scored else 0.0
    use = SearchUse("novel", "", thresholds_version(settings), cut=cut, evidence=evidence, ranked=ranked)
    may = (row.id for row in ranking.scored if may_be_offered(catalog, catalog.bundles[row.id]))
    shortlist = tuple(itertools.islice(may, settings.max_shortlist))
    why = _novel(evidence, settings, ranking)
    if why:
        return Judgement(_said(use, "novel", why), (), None, shortlist)
    plausible = [catalog.bundles[row.id] for row in ranking.scored if row.score >= cut]
    first, calibration = plausible[0], _in_force(settings)
    threshold = _threshold(catalog, first, calibrated=calibration is not None)
    if calibration is not None:
        probability = round(Logistic(calibration.bias, calibration.weights)(asdict(evidence)), 6)
        use = _with(use, probability, threshold)
        enough, why = _calibrated(first, probability, threshold)
    else:
        enough, why = _conservative(first, evidence, allowed=threshold is not None)
    if enough:
        return Judgement(_said(use, "enough", why), (first.id,))
    refused = _no_union(catalog, step, plausible, settings)
    if not refused and calibration is None and "shortlist" in catalog.settings.fallback.order:
        refused = "without a calibration several are offered behind search"
    if not refused:
        names = ", ".join(bundle.id for bundle in plausible)
        tokens = _tokens(catalog, plausible)
        return Judgement(
            _said(use, "union", f"{why}; all that is plausible only reads and costs {tokens:,} tokens: {names}"),
            tuple(bundle.id for bundle in plausible),
        )
    directly = (bundle for bundle in plausible if offer_of(catalog, bundle) == "direct")
    stand_in = next((bundle.id for bundle in directly if is_harmless(bundle)), None)
    why += f"; not shown on a guess, since {refused}" if is_harmless(first) else ""
    return Judgement(_said(use, "ambiguous", why), (), stand_in, shortlist)


def is_harmless(bundle: Bundle) -> bool:
    """Whether it only reads, here or over the network, from trusted servers. Undeclared effects are not harmless."""
    return bool(bundle.effects) and set(bundle.effects) <= {"read", "network"} and bundle.trust == "trusted"


def _in_force(settings: SearchSettings) -> Calibration | None:
    calibration = settings.calibration
    return calibration if calibration is not None and calibration.labels >= MIN_LABELS else None


def _novel(evidence: Evidence, settings: SearchSettings, ranking: Ranking) -> str:
    if not ranking.scored:
        return "search found no bundle that any word of the step speaks for"
    if evidence.remembered >= REMEMBERED:
        return ""
    if evidence.relevance < settings.floor:
        return f"search found nothing that fits: relevance {evidence.relevance:.2f} is under {settings.floor:.2f}"
    if evidence.coverage < NOVEL_COVERAGE:
        best = ranking.scored[0].id
        return (
            f"search found nothing that fits: {best} covers {evidence.coverage:.2f} of it, under {NOVEL_COVERAGE:.2f}"
        )
    return ""


def _threshold(catalog: Catalog, bundle: Bundle, *, calibrated: bool) -> float | None:
    """How likely the bundle has to be the right one. None: never shown by search alone."""
    effects, settings, offer = set(bundle.effects), catalog.settings.search, offer_of(catalog, bundle)
    if not effects or "exec" in effects or offer == "none" or (offer != "direct" and "write" not in effects):
        return None
    if "write" in effects:
        return settings.write_threshold if calibrated else None
    return settings.read_threshold


def _calibrated(first: Bundle, probability: float, threshold: float | None) -> tuple[bool, str]:
    said = f"search: {first.id} is right with probability {probability:.2f}"
    if threshold is None:
        return False, f"{said}, and what executes, or [search] offer withholds, is never shown by search alone"
    return probability >= threshold, f"{said}, {threshold:.2f} is needed"


def _conservative(first: Bundle, evidence: Evidence, *, allowed: bool) -> tuple[bool, str]:
    if not allowed:
        return False, f"search ranks {first.id} first, which does more than read or is withheld by [search] offer"
    lead = f"search: {first.id} leads by {evidence.margin:.2f}"
    if evidence.margin < MIN_MARGIN:
        return False, f"{lead}, {MIN_MARGIN:.2f} is needed"
    if evidence.coverage < MIN_COVERAGE:
        return False, f"{lead} and covers {evidence.coverage:.2f}, {MIN_COVERAGE:.2f} is needed"
    if evidence.agreement < 1.0:
        return False, f"{lead}, but the scorers do not agree"
    return True, f"{lead}, covers {evidence.coverage:.2f}, and the scorers agree"


def _no_union(catalog: Catalog, step: Step, plausible: list[Bundle], settings: SearchSettings) -> str:
    """Why the plausible bundles can't all be shown; empty when they can."""
    most = settings.max_union if step.max_bundles is None else min(settings.max_union, step.max_bundles)
    if len(plausible) > most:
        return f"{len(plausible)} bundles are plausible, at most {most} may be"
    held = next((bundle for bundle in plausible if offer_of(catalog, bundle) != "direct"), None)
    if held is not None and is_harmless(held):
        return f"[search] offer does not show {held.id} directly"
    other = next((bundle for bundle in plausible if not is_harmless(bundle)), None)
    if other is not None:
        return f"{other.id} {'does more than read' if other.trust == 'trusted' else 'is not trusted'}"
    tokens = _tokens(catalog, plausible)
    if tokens is None:
        return "what their tools cost is not known"
    budget = settings.max_union_tokens if step.max_tokens is None else min(settings.max_union_tokens, step.max_tokens)
    return f"they cost {tokens:,} tokens, at most {budget:,} may be" if tokens > budget else ""


def _tokens(catalog: Catalog, bundles: Iterable[Bundle]) -> int | None:
    """Tokens of the bundles' tools, each once; None where one of them is not known."""
    named = tuple(bundles)
    tools = {tool for bundle in named for tool in bundle.tools}
    if any(bundle.patterns for bundle in named) or not tools <= catalog.cards.keys():
        return None
    return sum(catalog.cards[tool].tokens for tool in tools)


def _with(use: SearchUse, probability: float, threshold: float | None) -> SearchUse:
    return replace(use, probability=probability, threshold=threshold)


def _said(use: SearchUse, verdict: Verdict, why: str) -> SearchUse:
    return replace(use, verdict=verdict, why=why)
