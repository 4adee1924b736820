"""The word lists of search, reviewed by hand: stop words, words that say little, and words that stand for others.

Rules for changing them:
1. A list holds general words of requests and tools, never a name from one catalog or one set of labelled queries.
2. A change is kept when it helps on several sets of `tests/benchmarks/routing`, not on one.
3. Entries are unstemmed, lower case, one word each.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS: Final = _words(
    """
a am an and are as at be been being but by can could d did do does doing for from had has have having he her
here hers him his how i if in into is it its itself ll m me my myself of on or our ours re s she should so t
than that the their theirs them then there these they this those to too ve was we were what when where which
while who whom why will with would you your yours
"""
)
"""Dropped everywhere: they hold a sentence together and say nothing of what it wants."""

GENERIC: Final = _words(
    """
able access add additionally advice also answer assist assistance available based best certain change check
complete comprehensive create current currently data delete detail detailed details different display entire
exact exactly experience explain explore fetch find first following full gather get give given go good great
help id include including info information interest interested interesting item items know last latest learn
let like list look looking lot make many much name names need new next nice number obtain one option options
overall particular people plan planning please popular possible provide put question really recent recently
recommend recommendation regarding related remove result results retrieve run search see set several show some
specific start suggest suggestion sure take tell thing things tips today top try two type types understand
update use user users using value values various view want way work working
"""
)
"""Words most requests and most tools share. They count less, and least when bundles are ranked."""

CONVERSATION: Final = _words(
    """
analyst assistant chatbot company curious decided developer enjoy feel feeling friend friends heard hello hey
hi hope issue kindly love loved manager month organization researcher thank thanks think thinking trouble
trying ugh upcoming week wish wondering year years
"""
)
"""Words by which people introduce a wish. They count less than what is wished for."""

_ALIKE: Final = """
delete remove erase drop | create add make new generate | update edit modify change alter
fetch retrieve get obtain | list enumerate | buy purchase order | sell selling sale
search find lookup query discover | send deliver | picture photo image photograph | movie film | show series
song track music | car vehicle automobile auto | house home property | rent rental lease | apartment flat
job career employment vacancy | salary wage pay | company business firm corporation organization
stock share equity | price cost rate | cheap affordable inexpensive | flight airline airfare
hotel accommodation lodging stay | trip travel vacation journey holiday | restaurant dining eatery
meal dish food | recipe cooking cook | film cinema | doctor physician | disease illness condition
medicine drug medication | lawyer attorney | legal law | error bug issue defect | fix repair resolve
picture drawing | directory folder | document file | repository repo | website site webpage | url link
email mail | message text chat | phone telephone mobile cell | translate translation
summary summarize summarise | schedule calendar appointment | meeting event
weather forecast temperature climate | map location place | near nearby local | route direction navigation
distance far | currency exchange | cryptocurrency crypto bitcoin ethereum | loan mortgage credit
invest investment portfolio | tax taxation | bill invoice | student pupil | teacher tutor instructor
course class lesson | learn study education | university college | paper article publication
research academic scholar | science scientific | news headline | soccer football | team club | game play
score result | match fixture | player athlete | exercise workout fitness gym | diet nutrition calorie
present gift | clothes clothing outfit apparel | fashion style wear | beauty cosmetic makeup | pet dog cat
plant garden gardening | vm machine | db database | k8s kubernetes | js javascript | py python
auth authentication | config configuration setting | app application | env environment
doc documentation document | docs documentation | info information | pic picture | vid video | msg message
dir directory | param parameter | admin administrator | permission access | role permission
secret credential password | cert certificate | monitor monitoring | metric measurement | log logging
backup snapshot | deploy deployment | container docker | cluster node | storage blob | quota limit
usage consumption | subscription plan | sku tier | chart graph plot diagram | spreadsheet excel sheet
slide presentation powerpoint | astrology horoscope zodiac | quote quotation saying | joke funny humor
book novel read | author writer | poem poetry | word vocabulary dictionary | crossword puzzle
coupon discount deal promo | shop store shopping | product item merchandise | review rating feedback
advertisement ad advertising marketing | seo ranking | domain dns | security vulnerability | hack attack cyber
speed fast performance | train railway rail | bus transit | ship shipping freight | package parcel
track tracking | address street | postcode zip postal | country nation | city town | population demographic
government politics political | election vote | crime police | history historical | voice speech audio
podcast episode | subtitle caption transcript | compare comparison | convert conversion
calculate calculator compute | equation math mathematics formula | reminder remind | todo task | note notes
idea brainstorm | name naming | logo branding | resume cv | hire recruit hiring recruitment
candidate applicant | customer client | lead prospect | revenue income earnings | profit margin
budget spending expense | insurance policy | health medical healthcare | mental therapy
baby child kid children | parent family | wedding marriage | tarot divination | space astronomy planet
satellite orbit | earthquake disaster | sky star | ocean sea | boat yacht | animal wildlife
"""
"""Groups: each word may stand for every other of its group."""

_BROADER: Final = """
actor: movie | airport: flight | album: music | algorithm: code | apartment: rent house | artist: music
arxiv: paper research | baseball: sport | basketball: sport | bedroom: house rent | beer: drink
birthday: gift | bitcoin: crypto | brand: product | breakfast: recipe | browser: website
cancer: disease clinical | cart: shopping | checkout: shopping | chicken: recipe food | chinese: language
chord: guitar music | christmas: gift | clip: video | cocktail: drink | code: programming
coding: code programming | competitor: company market | concert: event music ticket | css: website
debug: code error | developer: code | dinner: restaurant recipe | dividend: stock | dress: clothes fashion
entrepreneur: business | essay: writing | etf: fund stock | exam: test study | facebook: social
firewall: server network security | flashcard: memory study | football: sport | french: language
function: code | gasoline: fuel petrol gas | german: language | github: code repository | golf: sport
grammar: writing text | guitar: music | hashtag: social | hike: travel outdoor | hockey: sport
homepage: website | homework: study tutor | hosting: domain website | html: website | humidity: weather
ingredient: recipe | instagram: social | itinerary: travel trip | japanese: language | journal: paper
landlord: rent house | laptop: product electronic | league: sport | linkedin: job | lipstick: beauty
lunch: restaurant | lyric: song music | makeup: beauty | mlb: baseball sport | mortgage: house
nasdaq: stock market | nba: basketball sport | netflix: stream movie show | nfl: football sport
nhl: hockey sport | petrol: fuel gas | playoff: sport | programming: code | pronounce: language
proofread: grammar | pubmed: paper medical | quiz: question test | rain: weather | refund: order
rephrase: paraphrase rewrite | rewrite: paraphrase rephrase | sake: drink | scientist: research
shirt: clothes fashion | shoe: clothes fashion | sightseeing: travel trip | skincare: beauty
smartphone: phone product | snow: weather | soccer: sport | spanish: language | spotify: music playlist
sql: database query | startup: business company | stockmarket: stock | storm: weather | streaming: watch
sunny: weather | symptom: health disease | teenager: child | tennis: sport | ticker: stock
tiktok: video social | toddler: child | tokyo: travel | tourist: travel trip attraction | trial: clinical
tweet: twitter social | twitter: social | umbrella: weather | vaccine: health | valentine: gift
vegetarian: recipe diet | visit: travel trip | vocabulary: language | warranty: product
wifi: internet network | wine: drink | youtube: video
"""
"""`word: broader words`: a wish for the first may be served by what names one of the others, not the reverse."""


def _synonyms() -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, dict[str, None]] = {}
    for group in _ALIKE.replace("\n", " | ").split("|"):
        members = group.split()
        for word in members:
            table.setdefault(word, {}).update(dict.fromkeys(other for other in members if other != word))
    for row in _BROADER.replace("\n", " | ").split("|"):
        word, _, broader = row.partition(":")
        if broader:
            table.setdefault(word.strip(), {}).update(dict.fromkeys(broader.split()))
    return tuple((word, tuple(others)) for word, others in sorted(table.items()))


SYNONYMS: Final = _synonyms()
"""`(word, words it may stand for)`, by word."""
