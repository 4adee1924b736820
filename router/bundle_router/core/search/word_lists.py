"""The word lists of search, reviewed by hand: stop words, words that say little, and synonyms.

Rules for changing them:
1. A list holds general words of requests and tools, never a name from one catalog or one set of labelled queries.
2. A change is kept if it helps on several sets of `tests/benchmarks/routing`, not on one.
3. Entries are unstemmed, lower case, one word each.
"""

from __future__ import annotations

from types import MappingProxyType
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
"""Dropped everywhere: they connect a sentence but do not say what it wants."""

FOREIGN_STOP_WORDS: Final = MappingProxyType(
    {
        "de": _words(
            """
aber alle als am an auch auf aus bei bin bis bitte das dass dein dem den der des die dies diese diesem diesen dieser
dieses dir doch du durch ein eine einem einen einer eines er es euch euer für hat habe haben hier ich ihm ihn ihr ihre
im in ist ja kann kannst können man mein meine meinem meinen meiner mir mit nach nicht noch nur ob oder ohne sein seine
sich sie sind so soll über um und uns unser unsere unserem unseren unter vom von vor was welche welchen welcher wenn
wer werden wie wir wird wo zu zum zur
"""
        ),
        "fr": _words(
            """
à au aux avec ce ces cette comme dans de des du elle en est et eux il ils je la le les leur leurs lui ma mais me mes
moi mon ne nos notre nous on ou où par pas peux pour qu que quel quelle quelles quels qui sa sans se ses si son sont
sur ta te tes toi ton tu un une vos votre vous
"""
        ),
        "es": _words(
            """
a al algo como con cual cuál de del desde donde dónde el ella ellos en entre era es esa ese eso esta está este esto
hay la las le les lo los más me mi mis muy nos nuestra nuestro o para pero por puedes que qué quién se ser si sin
sobre son su sus también te tiene tu un una unos y ya
"""
        ),
        "it": _words(
            """
a al alla alle anche che chi ci come con cosa da dai dal dalla dei del della delle di dove e ed è gli ha hai ho i il in
io la le lei lo loro ma mi mio nel nella non o per perché più puoi quale quali se si sono su sul sulla tra tu un una uno
"""
        ),
        "pt": _words(
            """
a ao aos as às até com como da das de do dos e é ela ele em entre esta está este eu foi isso já mais mas me meu minha
na nas no nos não o onde os ou para pela pelo pode por porque qual quais que quem se sem seu sua são também te tem um
uma você
"""
        ),
        "nl": _words(
            """
aan al als bij dat de deze die dit door een en er het hij hoe hun ik in is je jij kan kun maar me met mijn naar niet
nog of om onder ons onze ook op over te tot uit uw van voor waar was wat we welke wie wij wordt zal ze zij zijn zo
"""
        ),
    }
)
"""Dropped from a request in that language. Nothing is dropped from indexed texts."""

FILE_KINDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("doc", "docx", "odt", "rtf"), "word document"),
        **dict.fromkeys(("xls", "xlsx", "xlsm", "ods", "tsv"), "excel spreadsheet workbook"),
        "csv": "csv spreadsheet table",
        **dict.fromkeys(("ppt", "pptx", "odp"), "powerpoint presentation slide"),
        "pdf": "pdf document",
        "ipynb": "jupyter notebook",
        "md": "markdown",
        **dict.fromkeys(("png", "jpg", "jpeg", "gif", "webp", "svg", "bmp", "tiff"), "image picture"),
        **dict.fromkeys(("mp3", "wav", "ogg", "flac", "m4a"), "audio"),
        **dict.fromkeys(("mp4", "mov", "mkv", "webm"), "video"),
        **dict.fromkeys(("py", "js", "ts", "go", "rs", "java", "rb", "cpp", "sh"), "code file"),
        **dict.fromkeys(("txt", "log", "json", "yaml", "yml", "toml", "ini", "xml", "env"), "file"),
        "sql": "sql database",
        "parquet": "table data",
        **dict.fromkeys(("html", "htm"), "web page"),
        **dict.fromkeys(("zip", "gz", "tar", "7z"), "archive file"),
    }
)
"""File extension: words for the kind of file."""

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
"""Words that most requests and most tools share. They count less, and least when bundles are ranked."""

CONVERSATION: Final = _words(
    """
analyst assistant chatbot company curious decided developer enjoy feel feeling friend friends heard hello hey
hi hope issue kindly love loved manager month organization researcher thank thanks think thinking trouble
trying ugh upcoming week wish wondering year years
"""
)
"""Words that introduce a wish. They count less than the wish itself."""

ACTIONS: Final = MappingProxyType(
    {
        "read": _words(
            """
check compare count describe display enumerate fetch find get inspect list look lookup query read retrieve search show
summarize tell view
"""
        ),
        "create": _words("add create generate insert make new provision register"),
        "update": _words("adjust alter change configure edit modify patch rename replace resize set update"),
        "delete": _words("cancel clear delete drop erase remove uninstall unregister"),
    }
)
"""The actions that requests ask for and tools' names say, by the words for them."""
PREFACE: Final = _words("help kindly like need please want")
"""Words that may precede the action in a request."""

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
"""Groups of synonyms: each word may stand for every other of its group."""

_BROADER: Final = """
attraction: tourist | audio: listen recording sound speech voice | baseball: mlb | basketball: nba | beauty: lipstick
makeup skincare | book: author fiction library novel read | business: company entrepreneur firm startup | calculator:
calculate divide equation multiply percent root square sum | calendar: appointment event meeting reminder schedule |
car: dealer dealership mileage sedan suv truck vehicle | chart: diagram graph plot visualization visualize | child:
teenager toddler | clinical: cancer trial | clothes: dress shirt shoe | clothing: dress jacket outfit shirt shoe |
cloud: aws azure server | code: algorithm coding compiler debug developer function github java javascript programming
python repository snippet software | company: business competitor corporation enterprise firm startup | contact: email
person phone | container: docker kubernetes pod | convert: conversion exchange | course: certification class
curriculum learning lesson skill teach teacher training tutorial | credit: debt payoff repayment | crypto: bitcoin
blockchain ethereum token wallet | currency: dollar eur euro exchange gbp usd yen | data: dataset metric statistic |
database: query sql table | design: graphic layout logo | diet: calorie meal nutrition protein vegetarian weight |
disease: cancer symptom | document: file page pdf | domain: hosting | dream: nightmare sleep | drink: beer cocktail
sake wine | education: college curriculum school student teacher university | electronic: laptop | email: inbox mail |
error: debug | event: concert | fashion: dress jacket outfit shirt shoe style wear | file: document folder | finance:
asset bitcoin bond crypto cryptocurrency dividend earnings equity etf ethereum forex fund hedge inflation investor
nasdaq nft portfolio price revenue share stock ticker trader trading treasury valuation | fitness: exercise gym muscle
training workout yoga | flight: airline airport | food: breakfast chicken cuisine dessert dinner dish lunch meal vegan
vegetarian | football: nfl | fuel: gasoline petrol | fund: etf | game: gameplay level multiplayer play player puzzle
quest | gas: gasoline petrol | gift: anniversary birthday christmas valentine | grammar: proofread | guitar: chord |
health: disease doctor fever hospital illness medical medication patient symptom vaccine virus | hockey: nhl | house:
apartment bedroom condo estate landlord mortgage neighborhood property realtor villa | image: drawing painting photo
photograph picture portrait visual | internet: online web wifi | job: career employer hiring internship linkedin
occupation position recruiter salary vacancy | language: chinese english fluent french german grammar japanese korean
pronounce spanish vocabulary | law: attorney case compliance court legal regulation statute | learn: class curriculum
lesson skill teach training tutorial | loan: debt mortgage payoff repayment | location: address area coordinates
nearby place | map: area direction distance location nearby place route | market: competitor nasdaq | marketing:
advertisement audience brand campaign customer promotion | math: algebra calculus equation integral root square |
medical: diagnosis disease drug hospital patient pubmed symptom | memory: flashcard recall remember save store |
message: chat sms text | money: budget debt income loan mortgage salary saving | movie: actor cinema director drama
film horror netflix thriller | music: album artist band chord concert genre guitar lyric piano playlist singer song
spotify | network: firewall wifi | news: breaking current event headline journalist | note: memo | order: refund |
outdoor: hike | paper: arxiv journal pubmed | paraphrase: rephrase rewrite | people: contact person | pet: cat dog
puppy | petrol: gasoline | phone: smartphone | plant: flower garden grow | playlist: spotify | podcast: episode listen
| product: appliance brand buy buying camera electronics furniture gadget headphone item laptop phone purchase shoe
smartphone warranty | programming: code coding | puzzle: crossword riddle sudoku | query: sql | question: quiz |
recipe: bake breakfast chicken cook cooking dessert dinner dish ingredient meal vegan vegetarian | rent: apartment
bedroom landlord lease tenant | rephrase: rewrite | repository: code github project | research: academic arxiv
citation literature paper scholar scientist study | restaurant: cuisine dining dinner lunch menu reservation | resume:
career cv | rewrite: improve paraphrase polish rephrase | search: browse google internet web | security: attack breach
firewall hacker malware phishing threat virus vulnerability | seo: backlink keyword ranking traffic | server: firewall
host linux machine | shopping: buy buying cart checkout deal discount purchase store | show: drama episode netflix
season series tv | soccer: fifa goal league match premier | social: facebook follower hashtag influencer instagram
post tiktok tweet twitter | song: lyric | space: astronomy galaxy mars moon planet rocket satellite telescope universe
| sport: baseball basketball championship football golf hockey league match mlb nba nfl nhl playoff score soccer
standings team tennis tournament | sql: database query table | stock: dividend etf nasdaq stockmarket ticker | stream:
netflix | study: exam flashcard homework | summary: abstract key summarize | tax: deduction income vat | test: exam
question quiz | text: article essay grammar paragraph sentence write writing | ticket: concert | time: clock date hour
timezone | train: railway station | translate: chinese french german japanese korean language spanish | transport: bus
metro subway taxi train | travel: airport attraction beach destination flight getaway hike hotel itinerary resort
sightseeing tokyo tour tourist vacation visit | trip: attraction destination flight hotel itinerary rental sightseeing
tour tourist visit | tutor: homework | twitter: tweet | video: clip film footage tiktok youtube | watch: streaming |
weather: forecast humidity rain snow storm sunny temperature umbrella wind | web: browse google internet online
webpage website | website: blog browser css domain homepage hosting html landing url webpage wordpress | write:
article compose draft essay | writing: essay grammar
"""
"""A wish for one of the words after the colon may be served by a tool named by the first word, but not the reverse."""


def _synonyms() -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, dict[str, None]] = {}
    for group in _ALIKE.replace("\n", " | ").split("|"):
        members = group.split()
        for word in members:
            table.setdefault(word, {}).update(dict.fromkeys(other for other in members if other != word))
    for row in _BROADER.split("|"):
        broader, _, narrower = row.partition(":")
        for word in narrower.split():
            table.setdefault(word, {})[broader.strip()] = None
    return tuple((word, tuple(others)) for word, others in sorted(table.items()))


SYNONYMS: Final = _synonyms()
"""`(word, words it may stand for)`, by word."""
