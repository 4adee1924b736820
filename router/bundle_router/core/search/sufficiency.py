"""Decides whether search suffices for a step, and what follows from its ranking.

Rules:
1. Novel: nothing was ranked, the relevance is below the floor, or the best bundle covers little of
   the request both as a share and in all (of a long request a small share may be a whole wish).
   Then search shows nothing, however far ahead its first bundle is. A request that past steps of
   this deployment support (`REMEMBERED`) is not novel, whatever its words.
2. Enough: the probability that the best bundle is right suffices for its effects. Reading, here or
   over the network, needs `read_threshold`, writing `write_threshold`. Search alone never shows
   bundles that execute or whose effects are undeclared.
3. Without a calibration (or with one from fewer than `MIN_LABELS` labels) the probability is that
   of `SHIPPED`, fitted on other people's catalogs: enough only for reading, where a wrong bundle
   costs tokens.
4. Union: not enough, but every plausible bundle is harmless, they are few, their tools' definitions
   are known to be cheap, and one of them is right with the probability that a single one would
   need.
5. Harmless bundles only read, here or over the network, and have only trusted servers. Policy
   permits the step the network anyway; untrusted text is never added on a guess.
6. Ambiguous: everything else. `stand_in` is the harmless bundle to show if the model fails, and
   `shortlist` the best bundles to offer behind search, whatever their effects: exposure is not
   execution. There is a shortlist even if nothing seems to fit, because that may be wrong and would
   leave the step empty-handed.
7. If there are several wishes, the right bundle may answer only one: the shortlist is added to what
   is enough for it.
8. `[search] offer` bounds all of this by a bundle's effects: with `none`, search never names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from bundle_router.core.catalog import MIN_LABELS, Bundle, Calibration, Catalog, SearchSettings
from bundle_router.core.exposure.placing import may_be_offered, offer_of
from bundle_router.core.search.ranking import Ranking
from bundle_router.core.values import Candidate, SearchUse, Step
from bundle_router.core.values.evidence import Evidence, Logistic

SHIPPED: Final = Calibration(
    "shipped/3",
    10_612,
    -2.3302,
    (("matched", 1.3977), ("distinct", 1.5593), ("clear", 2.1403), ("agreement", 0.4806)),
)
"""The calibration used until a deployment has enough labels of its own.

Made by `tests/benchmarks/routing/doubt.py --fit --queries 600 --examples FOLDER`, over mcp_mix,
MetaTool single and several, Seal-Tools, BFCL, StableToolBench, LiveMCPBench and goals over 53 real
servers, MetaTool and the goals once more with examples, each query with every bundle permitted, a
dozen, and none that is right. The fitted bias is -1.7802. A set that it was not fitted on is less
sure than those that it was: with the bias here, of what it shows there 2 % is wrong in the mean of
the sets, where it was 4 % (the same program; RESULTS.md).
"""
NOVEL_COVERAGE: Final = 0.3
NOVEL_STRENGTH: Final = 0.6
"""Minimum that the best bundle must reach in one way: a share of the request's known words, or so
many fully matched rarest words. Of requests whose right bundle was removed 7 to 88 % reach neither,
of those that search ranks right 0 to 5 %, and 18 % of those for several tools (MetaTool). The share
alone stopped 0 to 15 %, and 43 %.
"""
REMEMBERED: Final = 0.7
"""Minimum that memory must add to a permitted bundle for a request to count as known.

Of held-back requests of the catalog that a memory was learned on, 5 to 44 % reach it, and there
memory's first bundle is right in 84 to 90 %; of requests of other catalogs 0 to 7 % do (MetaTool,
StableToolBench, Seal-Tools).
"""
PLAUSIBLE: Final = 0.5
"""Minimum share of the best score for a bundle to be plausible."""
NOT_RANKED: Final = 0.3
"""Share of the doubt about the best bundle that goes to no other one.

The rest goes to the others by squared scores.
"""
SHORTLISTS: Final = ((50, 8), (200, 16))
"""Bundles of a catalog, and the length of its shortlists where the config names none."""
LONGEST_SHORTLIST: Final = 24
"""Length of the shortlists of larger catalogs. On LiveMCPBench's 70 servers the first 8 hold all
that is needed for 0.61 of the requests, 16 for 0.80, 24 for 0.89; of mcp_mix's 436 for 0.930, 0.947
and 0.960.
"""
LINE_TOKENS: Final = 25
"""Tokens of a bundle's line in the guidance."""
KEPT: Final = 10
"""Maximum ranked candidates that are recorded."""
_NEVER: Final = (
    "what executes, writes without a calibration of its own, or is withheld is never shown by"
    " search alone"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What search may do with a question: show `ids` (verdicts `enough` and `union`), or pass it
    on. `stand_in` is shown in place of a model that fails, `shortlist` is offered behind search,
    best first.
    """

    use: SearchUse
    ids: tuple[str, ...] = ()
    stand_in: str | None = None
    shortlist: tuple[str, ...] = ()


def features_of(evidence: Evidence) -> dict[str, float]:
    """Return what a calibration may weigh: the evidence, and products of it, which tell right from
    wrong on sets that a calibration was not fitted on better than their factors do.
    """
    return {
        **asdict(evidence),
        "matched": evidence.strength * evidence.coverage,
        "distinct": evidence.strength * (1.0 - evidence.entropy),
        "clear": evidence.coverage * evidence.margin,
    }


def thresholds_version(settings: SearchSettings) -> str:
    """Return the version of the thresholds that `judge` uses under these settings."""
    return _in_force(settings).version


def judge(catalog: Catalog, step: Step, ranking: Ranking) -> Judgement:
    """Judge a ranking of the step's permitted candidates."""
    settings = catalog.settings.search
    evidence = ranking.evidence
    ranked = tuple(Candidate(row.id, round(row.score, 6)) for row in ranking.scored[:KEPT])
    cut = round(PLAUSIBLE * ranking.scored[0].score, 6) if ranking.scored else 0.0
    use = SearchUse(
        "novel", "", thresholds_version(settings), cut=cut, evidence=evidence, ranked=ranked
    )
    may = (row.id for row in ranking.scored if may_be_offered(catalog, catalog.bundles[row.id]))
    shortlist = tuple(itertools.islice(may, shortlist_length(catalog, step)))
    if "shortlist" in catalog.settings.fallback.order:
        withheld = tuple(
            row.id for row in ranked if not may_be_offered(catalog, catalog.bundles[row.id])
        )
        use = replace(use, withheld=withheld)
    reason = _why_novel(evidence, settings, ranking)
    if reason:
        return Judgement(replace(use, verdict="novel", why=reason), (), None, shortlist)
    plausible = [catalog.bundles[row.id] for row in ranking.scored if row.score >= cut]
    first = plausible[0]
    calibration = _in_force(settings)
    probability = round(Logistic(calibration.bias, calibration.weights)(features_of(evidence)), 6)
    threshold = _threshold(catalog, first, own=calibration is not SHIPPED)
    also_offered = shortlist if ranking.several else ()
    use = replace(use, probability=probability, threshold=threshold)
    reason = f"search: {first.id} is right with probability {probability:.2f}"
    if threshold is not None and probability >= threshold:
        return Judgement(
            replace(use, verdict="enough", why=f"{reason}, {threshold:.2f} is needed"),
            (first.id,),
            None,
            also_offered,
        )
    reason += f", {threshold:.2f} is needed" if threshold is not None else f", and {_NEVER}"
    refusal = _no_union(catalog, step, plausible, settings)
    if (
        not refusal
        and (union_probability := _one_of(ranking, len(plausible), probability))
        < settings.read_threshold
    ):
        refusal = f"one of {len(plausible)} is right with probability {union_probability:.2f}"
    if not refusal:
        ids = tuple(bundle.id for bundle in plausible)
        tokens = _tokens(catalog, plausible)
        reason += (
            f"; all that is plausible only reads and costs {tokens:,} tokens: {', '.join(ids)}"
        )
        return Judgement(replace(use, verdict="union", why=reason), ids, None, also_offered)
    directly = (bundle for bundle in plausible if offer_of(catalog, bundle) == "direct")
    stand_in = next((bundle.id for bundle in directly if is_harmless(bundle)), None)
    reason += (
        f"; not shown on a guess, since {refusal}"
        if is_harmless(first) and len(plausible) > 1
        else ""
    )
    return Judgement(replace(use, verdict="ambiguous", why=reason), (), stand_in, shortlist)


def shortlist_length(catalog: Catalog, step: Step) -> int:
    """Return how many bundles a shortlist of the step may have: more of a larger catalog, and no
    more than the step has tokens for a line each.
    """
    configured = catalog.settings.search.max_shortlist
    if configured is not None:
        length = configured
    else:
        bundles = sum(bundle.enabled for bundle in catalog.bundles.values())
        length = next((most for upto, most in SHORTLISTS if bundles <= upto), LONGEST_SHORTLIST)
    if step.max_tokens is not None:
        length = min(length, step.max_tokens // LINE_TOKENS)
    return length


def is_harmless(bundle: Bundle) -> bool:
    """Return whether it only reads, here or over the network, from trusted servers.

    Undeclared effects are not harmless.
    """
    return (
        bool(bundle.effects)
        and set(bundle.effects) <= {"read", "network"}
        and bundle.trust == "trusted"
    )


def _in_force(settings: SearchSettings) -> Calibration:
    calibration = settings.calibration
    if calibration is not None and calibration.labels >= MIN_LABELS:
        return calibration
    return SHIPPED


def _why_novel(evidence: Evidence, settings: SearchSettings, ranking: Ranking) -> str:
    if not ranking.scored:
        return "search found no bundle that any word of the step speaks for"
    if evidence.remembered >= REMEMBERED:
        return ""
    if evidence.relevance < settings.floor:
        return (
            f"search found nothing that fits: relevance {evidence.relevance:.2f} is under"
            f" {settings.floor:.2f}"
        )
    if evidence.coverage < NOVEL_COVERAGE and evidence.strength < NOVEL_STRENGTH:
        best = ranking.scored[0].id
        return (
            f"search found nothing that fits: {best} covers {evidence.coverage:.2f} of it, under"
            f" {NOVEL_COVERAGE:.2f}"
        )
    return ""


def _threshold(catalog: Catalog, bundle: Bundle, *, own: bool) -> float | None:
    """Return the probability of being right that the bundle needs.

    None: search alone never shows it.
    """
    settings = catalog.settings.search
    offer = offer_of(catalog, bundle)
    if offer == "none" or not bundle.effects or "exec" in bundle.effects:
        return None

    if "write" in bundle.effects:
        if not own:
            return None
        return settings.write_threshold
    if offer != "direct":
        return None
    return settings.read_threshold


def _one_of(ranking: Ranking, number: int, probability: float) -> float:
    """Return the probability that one of the best `number` is right, given that of the first."""
    squares = [row.score**2 for row in ranking.scored[1:]]
    share = sum(squares[: number - 1]) / sum(squares) if squares else 0.0
    return probability + (1.0 - probability) * (1.0 - NOT_RANKED) * share


def _no_union(
    catalog: Catalog, step: Step, plausible: list[Bundle], settings: SearchSettings
) -> str:
    """Return why the plausible bundles can't all be shown; empty if they can."""
    if step.max_bundles is None:
        max_bundles = settings.max_union
    else:
        max_bundles = min(settings.max_union, step.max_bundles)
    if len(plausible) > max_bundles:
        return f"{len(plausible)} bundles are plausible, at most {max_bundles} may be"
    withheld = next((bundle for bundle in plausible if offer_of(catalog, bundle) != "direct"), None)
    if withheld is not None and is_harmless(withheld):
        return f"[search] offer does not show {withheld.id} directly"
    harmful = next((bundle for bundle in plausible if not is_harmless(bundle)), None)
    if harmful is not None:
        fault = "does more than read" if harmful.trust == "trusted" else "is not trusted"
        return f"{harmful.id} {fault}"
    tokens = _tokens(catalog, plausible)
    if tokens is None:
        return "what their tools cost is not known"
    if step.max_tokens is None:
        budget = settings.max_union_tokens
    else:
        budget = min(settings.max_union_tokens, step.max_tokens)
    if tokens > budget:
        return f"they cost {tokens:,} tokens, at most {budget:,} may be"
    return ""


def _tokens(catalog: Catalog, bundles: Sequence[Bundle]) -> int | None:
    """Return the tokens of the bundles' tools, each counted once; None if one of them is
    unknown.
    """
    tools = {tool for bundle in bundles for tool in bundle.tools}
    if any(bundle.patterns for bundle in bundles) or not tools <= catalog.cards.keys():
        return None
    return sum(catalog.cards[tool].tokens for tool in tools)
