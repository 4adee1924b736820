"""Is search enough? Verdicts over rankings made by hand, and what must hold over all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import MIN_LABELS, Bundle, Calibration, Catalog
from bundle_router.core.search.passes import ScoredId
from bundle_router.core.search.ranking import Ranking
from bundle_router.core.search.sufficiency import (
    REMEMBERED,
    SHIPPED,
    Judgement,
    is_harmless,
    judge,
    shortlist_length,
)
from bundle_router.core.values import EFFECTS, Effect
from bundle_router.core.values.evidence import Evidence
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.selecting.catalogs import BUNDLES, catalog, step

GOOD = Evidence(
    strength=2.0, known=1.0, coverage=0.9, margin=0.6, entropy=0.2, agreement=1.0, relevance=0.9
)
CLOSE = replace(GOOD, strength=1.9, margin=0.1, entropy=0.8)
ALL = [bundle.id for bundle in BUNDLES]


def ranking(*scored: tuple[str, float], evidence: Evidence = GOOD) -> Ranking:
    return Ranking(tuple(ScoredId(id_, score) for id_, score in scored), evidence)


def judged(found: Ranking, of: Catalog | None = None, **more: Any) -> Judgement:
    return judge(of or catalog(), step("x", **more), found)


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(GOOD, relevance=0.1), "relevance 0.10 is under 0.25"),
        (replace(GOOD, coverage=0.2, strength=0.5), "docs.fetch covers 0.20 of it, under 0.30"),
    ],
)
def test_what_fits_nothing_is_novel_however_far_ahead_it_is(evidence: Evidence, why: str) -> None:
    found = judged(ranking(("docs.fetch", 1.0), evidence=evidence))
    assert (found.use.verdict, found.ids, found.stand_in) == ("novel", (), None)
    assert why in found.use.why


@pytest.mark.parametrize(
    ("remembered", "verdict"),
    [(0.0, "novel"), (REMEMBERED - 0.01, "novel"), (REMEMBERED, "ambiguous"), (4.0, "ambiguous")],
)
def test_what_past_steps_speak_for_is_not_novel_and_never_enough_by_that_alone(
    remembered: float, verdict: str
) -> None:
    unheard_of = replace(GOOD, relevance=0.1, coverage=0.0, remembered=remembered)
    found = judged(ranking(("docs.fetch", 1.0), evidence=unheard_of))
    assert found.use.verdict == verdict
    writes = judged(ranking(("issues.write", 1.0), evidence=unheard_of))
    assert writes.ids == ()


def test_an_empty_ranking_is_novel() -> None:
    found = judged(Ranking((), Evidence()))
    assert (found.use.verdict, found.use.ranked, found.ids) == ("novel", (), ())


def test_of_a_long_request_a_small_share_may_be_a_whole_wish() -> None:
    found = judged(ranking(("docs.fetch", 1.0), evidence=replace(GOOD, coverage=0.2, strength=1.5)))
    assert found.use.verdict == "ambiguous"


@pytest.mark.parametrize(
    ("evidence", "enough"),
    [
        (GOOD, True),
        (replace(GOOD, margin=0.0, entropy=0.9, coverage=0.7), False),
        (replace(GOOD, strength=0.7), False),
        (replace(GOOD, strength=0.8, agreement=0.3), False),
        (replace(GOOD, coverage=0.3, margin=0.1), False),
    ],
)
def test_without_a_calibration_what_ships_says_how_likely_the_first_is_right(
    evidence: Evidence, enough: bool
) -> None:
    found = judged(ranking(("repo.readonly", 1.0), ("issues.write", 0.6), evidence=evidence))
    assert (found.use.verdict == "enough") is enough
    assert (found.use.thresholds, found.use.threshold) == ("shipped/3", 0.90)
    assert found.use.probability is not None
    assert (found.use.probability >= 0.90) is enough
    assert found.ids == (("repo.readonly",) if enough else ())


@pytest.mark.parametrize("id_", ["issues.write", "shell.run"])
def test_without_a_calibration_only_what_reads_is_shown_unasked(id_: str) -> None:
    found = judged(ranking((id_, 1.0)))
    assert (found.use.verdict, found.ids, found.stand_in) == ("ambiguous", (), None)
    assert "writes without a calibration of its own" in found.use.why
    assert (found.use.threshold, found.use.thresholds) == (None, SHIPPED.version)


def calibrated(probability: float, labels: int = MIN_LABELS, **settings: Any) -> Catalog:
    """A calibration that gives this probability for an agreement of 1."""
    from math import log

    fitted = Calibration(
        "fit-7", labels, 0.0, (("agreement", log(probability / (1 - probability))),)
    )
    return catalog(calibration=fitted, **settings)


@pytest.mark.parametrize(
    ("id_", "probability", "verdict"),
    [
        ("repo.readonly", 0.91, "enough"),
        ("repo.readonly", 0.89, "ambiguous"),
        ("docs.fetch", 0.91, "enough"),
        ("strangers.mail", 0.91, "enough"),
        ("strangers.mail", 0.89, "ambiguous"),
        ("issues.write", 0.96, "ambiguous"),
        ("issues.write", 0.975, "enough"),
        ("shell.run", 0.999, "ambiguous"),
    ],
)
def test_with_a_calibration_the_threshold_follows_from_what_a_bundle_can_do(
    id_: str, probability: float, verdict: str
) -> None:
    found = judged(ranking((id_, 1.0), evidence=CLOSE), calibrated(probability))
    assert found.use.verdict == verdict
    assert found.use.thresholds == "fit-7"
    assert found.use.probability == pytest.approx(probability, abs=1e-6)
    assert found.use.threshold == {"issues.write": 0.97, "shell.run": None}.get(id_, 0.90)


def test_a_calibration_from_too_few_labels_is_not_in_force() -> None:
    found = judged(ranking(("issues.write", 1.0)), calibrated(0.999, labels=MIN_LABELS - 1))
    assert (found.use.verdict, found.use.thresholds) == ("ambiguous", SHIPPED.version)


def test_novel_comes_before_any_probability() -> None:
    found = judged(
        ranking(("repo.readonly", 1.0), evidence=replace(GOOD, relevance=0.0)), calibrated(0.999)
    )
    assert (found.use.verdict, found.ids) == ("novel", ())


TWO = (("repo.readonly", 1.0), ("docs.fetch", 0.9), ("shell.run", 0.49))


def test_what_is_plausible_and_only_reads_is_shown_together() -> None:
    found = judged(ranking(*TWO, evidence=CLOSE))
    assert (found.use.verdict, found.ids) == ("union", ("repo.readonly", "docs.fetch"))
    assert "costs 300 tokens: repo.readonly, docs.fetch" in found.use.why


@pytest.mark.parametrize(
    ("probability", "verdict"), [(0.75, "ambiguous"), (0.85, "union"), (0.9, "enough")]
)
def test_a_union_is_as_likely_to_hold_what_is_right_as_a_single_answer(
    probability: float, verdict: str
) -> None:
    found = judged(ranking(*TWO, evidence=GOOD), calibrated(probability))
    assert found.use.verdict == verdict
    assert ("one of 2 is right with probability 0.88" in found.use.why) is (verdict == "ambiguous")


@pytest.mark.parametrize(
    ("scored", "settings", "of_step", "why"),
    [
        ((*TWO, ("shell.run", 0.5)), {}, {}, "shell.run does more than read"),
        ((*TWO, ("strangers.mail", 0.5)), {}, {}, "strangers.mail is not trusted"),
        (TWO, {"max_union": 1}, {}, "2 bundles are plausible, at most 1 may be"),
        (TWO, {}, {"max_bundles": 1}, "2 bundles are plausible, at most 1 may be"),
        (TWO, {"max_union_tokens": 299}, {}, "they cost 300 tokens, at most 299 may be"),
        (TWO, {}, {"max_tokens": 299}, "they cost 300 tokens, at most 299 may be"),
    ],
)
def test_a_union_is_small_cheap_trusted_and_only_reads(
    scored: tuple[tuple[str, float], ...],
    settings: dict[str, Any],
    of_step: dict[str, Any],
    why: str,
) -> None:
    found = judged(ranking(*scored, evidence=CLOSE), catalog(**settings), **of_step)
    assert (found.use.verdict, found.ids) == ("ambiguous", ())
    assert why in found.use.why
    assert found.stand_in == "repo.readonly"


@pytest.mark.parametrize(
    "change", [{"patterns": ("wiki.*",)}, {"tools": ("repo.grep", "repo.unknown")}]
)
def test_what_nobody_knows_the_cost_of_is_no_part_of_a_union(change: dict[str, Any]) -> None:
    bundles = (replace(BUNDLES[0], **change), *BUNDLES[1:])
    found = judged(ranking(*TWO, evidence=CLOSE), catalog(bundles=bundles))
    assert found.use.verdict == "ambiguous"
    assert "what their tools cost is not known" in found.use.why


def test_the_stand_in_is_the_best_that_only_reads_not_the_best() -> None:
    found = judged(
        ranking(("issues.write", 1.0), ("docs.fetch", 0.8), ("repo.readonly", 0.7), evidence=CLOSE)
    )
    assert (found.ids, found.stand_in) == ((), "docs.fetch")


effects: st.SearchStrategy[tuple[Effect, ...]] = st.lists(
    st.sampled_from(EFFECTS), unique=True
).map(tuple)
shares = st.floats(0, 1, allow_nan=False)
evidences = st.builds(
    Evidence, strength=st.floats(0, 9), known=shares, coverage=shares, margin=shares, entropy=shares, agreement=shares,
    remembered=st.floats(0, 9), relevance=shares,
)  # fmt: skip
calibrations = st.none() | st.builds(
    Calibration,
    st.just("fit"),
    st.sampled_from((MIN_LABELS - 1, MIN_LABELS)),
    st.floats(-5, 20),
    st.lists(
        st.tuples(st.sampled_from(("margin", "coverage", "agreement")), st.floats(-20, 20))
    ).map(tuple),
)


@given(
    st.lists(effects, min_size=len(BUNDLES), max_size=len(BUNDLES)),
    st.lists(st.tuples(st.sampled_from(ALL), st.floats(1e-6, 3)), unique_by=lambda row: row[0]),
    evidences,
    calibrations,
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 800),
)
def test_whatever_is_ranked_search_never_shows_what_it_must_not(
    given_effects: list[tuple[Effect, ...]],
    scored: list[tuple[str, float]],
    evidence: Evidence,
    calibration: Calibration | None,
    max_bundles: int | None,
    max_tokens: int | None,
) -> None:
    bundles = tuple(
        replace(bundle, effects=own) for bundle, own in zip(BUNDLES, given_effects, strict=True)
    )
    of = catalog(bundles=bundles, calibration=calibration)
    scored.sort(key=lambda row: (-row[1], row[0]))
    found = judged(
        ranking(*scored, evidence=evidence), of, max_bundles=max_bundles, max_tokens=max_tokens
    )
    shown: list[Bundle] = [of.bundles[id_] for id_ in found.ids]
    ids = [id_ for id_, _ in scored]
    assert [bundle.id for bundle in shown] == [id_ for id_ in ids if id_ in found.ids], (
        "in the ranking's order"
    )
    assert all("exec" not in bundle.effects and bundle.effects for bundle in shown)
    if calibration is None or calibration.labels < MIN_LABELS:
        assert all("write" not in bundle.effects for bundle in shown)
        assert found.use.thresholds == SHIPPED.version
    if found.use.verdict == "union":
        assert all(is_harmless(bundle) for bundle in shown)
        assert len(shown) <= min(3, 4 if max_bundles is None else max_bundles)
        assert 100 * len({tool for b in shown for tool in b.tools}) <= (
            4_000 if max_tokens is None else max_tokens
        )
    assert bool(found.ids) is (found.use.verdict in ("enough", "union"))
    assert len(found.ids) == 1 or found.use.verdict != "enough"
    if found.stand_in is not None:
        assert found.use.verdict == "ambiguous"
        assert is_harmless(of.bundles[found.stand_in])
    assert found == judged(
        ranking(*scored, evidence=evidence), of, max_bundles=max_bundles, max_tokens=max_tokens
    )


@pytest.mark.parametrize(
    ("bundles", "configured", "max_tokens", "length"),
    [
        (50, None, None, 8),
        (51, None, None, 16),
        (200, None, None, 16),
        (201, None, None, 24),
        (201, 3, None, 3),
        (201, 0, None, 0),
        (201, None, 100, 4),
        (201, None, 24, 0),
        (50, None, 4_000, 8),
    ],
)
def test_a_shortlist_grows_with_the_catalog_within_the_steps_tokens(
    bundles: int, configured: int | None, max_tokens: int | None, length: int
) -> None:
    of = catalog(
        bundles=[Bundle(f"b{number}", "Reads", ()) for number in range(bundles)]
        + [Bundle("off", "Reads", (), enabled=False)],
        max_shortlist=configured,
    )
    assert shortlist_length(of, step("look", max_tokens=max_tokens)) == length
