"""The verbs, objects, places and phrases that `sentence_rules` combines.

No known attack is spelled out here: an attack is a verb that sends, an object that is secret and a place outside, in
one sentence. Every pattern is applied to sentences of bounded length and has at most one gap, so none can be slow.
"""

from __future__ import annotations

import re
from typing import Final


def _any_of_words(*words: str) -> re.Pattern[str]:
    return re.compile(r"(?<![a-z])(?:" + "|".join(words) + r")(?![a-z])")


DROP: Final = _any_of_words(
    "ignor(?:e|ing)", "disregard(?:ing)?", "forget(?:ting)?", "overrid(?:e|ing)", "bypass(?:ing)?", "discard",
    "neglect", "skip", "dismiss", "abandon", "erase",
    "do(?: not|n't) (?:follow|obey|comply with|listen to|adhere to)", "stop following", "supersed(?:e|es|ing)",
    "replac(?:e|es) (?:all )?(?:your|the)", "void", "cancel", "nullify",
)  # fmt: skip
BEFORE: Final = _any_of_words(
    "previous(?:ly)?", "prior", "above", "earlier", "preceding", "former", "foregoing", "existing", "original",
    "initial", "all (?:other|of your|of the|your|the)", "any (?:other|of your|of the|your)", "your", "system",
    "safety", "everything", "anything", "developer", "so far", "before this", "up to now",
)  # fmt: skip
RULES: Final = _any_of_words(
    "instructions?", "prompts?", "rules?", "guidelines?", "guidance", "directives?", "polic(?:y|ies)", "constraints?",
    "restrictions?", "safeguards?", "guardrails?", "safety", "training", "context", "commands?", "orders?",
    "messages?", "programming", "limitations?", "told", "said", "protocols?", "alignment", "filters?", "directions?",
)  # fmt: skip
BARE_DROP: Final = re.compile(
    r"(?:^|[.!?:;,\"'(]\s{0,3}|\band |\bthen |\bplease |\bnow |\bmust |\bshould |\balso |\bto )(?:ignore|disregard"
    "|forget)(?: about)? (?:all |any |everything |anything |the |of |that |which |what |you |is |was |were |came "
    r"|stated |said |written |told ){0,5}(?:above|previous(?:ly)?|prior|before|earlier|preceding)\b"
)
ELSEWHERE: Final = re.compile(
    r"\b(?:ignorier|missacht|vergiss|vergesst)\w{0,4}\b.{0,40}\b(?:anweisung|regeln|vorgaben|instruktion)"
    r"|\b(?:ignore[rz]?|oublie[rz]?)\b.{0,40}\b(?:instructions|consignes|r\u00e8gles)\b.{0,20}\b(?:pr\u00e9c"
    r"|ant\u00e9r|ci-dessus)|\b(?:ignora|olvida|ignorar|descarta|dimentica|esque\u00e7a|desconsidere"
    r"|ignore)\b.{0,40}\b(?:instrucciones|istruzioni|instru\u00e7\u00f5es|reglas|regole|regras)\b|\b(?:negeer"
    r"|vergeet)\b.{0,40}\b(?:instructies|regels|opdrachten)\b"
    r"|\u0438\u0433\u043d\u043e\u0440\u0438\u0440.{0,40}(?:\u0438\u043d\u0441\u0442\u0440\u0443\u043a\u0446"
    r"|\u043f\u0440\u0430\u0432\u0438\u043b)|(?:\u5ffd\u7565|\u65e0\u89c6|\u7121\u8996"
    r"|\u5fd8\u8bb0).{0,20}(?:\u6307\u4ee4|\u6307\u793a|\u8bf4\u660e|\u89c4\u5219)|\u6307\u793a.{0,8}\u7121\u8996"
)
"""The same instruction in German, French, Spanish, Italian, Portuguese, Dutch, Russian, Chinese and Japanese."""
BECOME: Final = re.compile(
    r"\byou are (?:now|no longer)\b|\b(?:act|behave|respond|pretend|operate) as (?:if you (?:are|were)|an? (?:un"
    r"|admin|root))|\b(?:god|jailbreak|unrestricted|dan) mode\b|\b(?:you|enter|assistant"
    r"|model)\b.{0,30}\b(?:developer|debug|admin|root|sudo) mode\b|\bpretend (?:to be|you|that you)"
    r"|\bwithout (?:any )?(?:ethical |safety |content |moral )(?:restrictions?|limitations?|filters?)\b"
    r"|\bwithout (?:any )?(?:safeguards?|guardrails?)\b|\byour (?:new|real|true|actual|only"
    r"|updated) (?:instructions?|task|role|goal|objective|mission|purpose|job)\b"
    r"|\bnew (?:system )?(?:instructions?|directives?)\s?:|\bcomply with (?:the|any|every|all) (?:requests?"
    r"|instructions?|commands?)|\bdo anything now\b|\bjailbr(?:ea|o)k"
)
SHOW: Final = _any_of_words(
    "reveal", "disclos(?:e|ing)", "print", "repeat", "output", "return", "show", "tell", "dump", "expose", "leak",
    "send", "include", "give", "recite", "share", "append", "pass", "provide", "echo", "write out", "insert", "paste",
    "put", "copy",
)  # fmt: skip
PROMPT: Final = _any_of_words(
    "(?:your|the) (?:full |entire |whole |complete |hidden |initial |original |own )?system (?:prompt"
    "|message|instructions?)",
    "(?:your|the) (?:hidden|initial|original|internal|secret|confidential) (?:prompt|instructions?)",
    "your (?:full |entire |complete )?(?:prompt|instructions?)",
    "(?:whole|entire|full|complete|previous) (?:conversation|chat)",
    "(?:conversation|chat|message) (?:history|log|transcript|context)s?",
    "(?:user|previous|earlier|all)(?:'s)? messages", "your (?:chain of thought|reasoning|memory|context(?: window)?)",
    "(?:tool|function) (?:definitions|list) you",
)  # fmt: skip
SEND: Final = _any_of_words(
    "sends?", "sending", "posts?", "posting", "uploads?", "uploading", "transmits?", "transmitting", "forwards?",
    "forwarding", "exfiltrates?", "exfiltrating", "leaks?", "leaking", "e-?mails?", "mails?", "reports?", "shares?",
    "sharing", "relays?", "deliver", "delivers", "submits?", "submitting", "publish(?:es)?", "beacons?",
    "cop(?:y|ies)", "syncs?", "stream", "streams", "pushes", "push", "put", "puts", "writes?", "include", "includes",
    "including", "attach(?:es)?", "append", "appends", "embed", "embeds", "encode", "pass", "passes", "bcc", "cc",
    "phones? home", "logs?", "mirrors?", "transfers?", "broadcasts?",
)  # fmt: skip
STEAL: Final = _any_of_words(
    r"exfiltrat\w{0,4}", "leak(?:s|ing)?", "steal(?:s|ing)?", "harvest(?:s|ing)?", "siphon(?:s|ing)?",
    "smuggl(?:e|es|ing)", "phones? home", "beacons?",
)  # fmt: skip
SECRET: Final = _any_of_words(
    r"~?/?\.?(?:ssh|aws|gnupg|kube|docker)/[\w./*-]{1,60}", r"id_(?:rsa|ed25519|dsa|ecdsa)\w{0,4}", "id rsa",
    "/etc/(?:passwd|shadow|sudoers|hosts)", r"\.env(?:\.\w{1,20})?(?: files?)?", r"\.netrc", r"\.npmrc", r"\.pgpass",
    r"\.git-credentials", r"\.bash_history", r"[\w./~-]{0,40}mcp\.json", r"claude_desktop_config\.json", r"\.pem\b",
    "(?:api|private|secret|ssh|access|encryption|signing|host|deploy|pgp|gpg)[ _-]?keys?(?: pairs?"
    "| files?)?",
    "credentials?", "passwords?", "passphrases?", "secrets?",
    "(?:auth(?:entication)?|access|bearer|refresh|session|api|oauth|github|bot) tokens?",
    "tokens? (?:of|from|in) the", "session cookies?", "browser cookies?", "cookies", "wallets?", "seed phrases?",
    "mnemonics?", "environment variables?", "process env", r"os\.environ", r"process\.env", "keychain",
    "credit card(?: numbers?| details)?", "card numbers?", "social security(?: numbers?)?", "ssns?",
    "bank (?:account )?(?:details|numbers?|credentials)", "personal (?:data|information|details|files)",
    "private (?:messages?|data|files|information|repositor(?:y|ies))", "pii",
    "sensitive (?:data|information|files|details)", "confidential (?:data|information|files|documents?)",
    "crypto(?:graphic)? keys?", r"user(?:'s|s')? (?:private|personal|sensitive|confidential|home|ssh) \w{2,20}",
    "(?:browser|shell|command) history", "contact lists?",
    "(?:entire|whole|full) (?:file ?system|home directory|inbox|mailbox|database)",
    "(?:conversation|chat|message) (?:history|log|transcript)s?",
    "(?:user|customer)(?:'s|s')? (?:data|files|inputs?|queries|emails?)",
)  # fmt: skip
FILE_SECRET: Final = re.compile(
    r"\.ssh\b|\bid[_ ](?:rsa|ed25519|dsa|ecdsa)\b|\.aws/|/etc/(?:passwd|shadow|sudoers)|\.gnupg\b|\.kube/config"
    r"|\.netrc|\.npmrc|\.git-credentials|\.bash_history|\bmcp\.json\b|claude_desktop_config|(?<![\w.])\.env\b"
    r"|\bprivate[ _]keys?\b|\bseed phrase|\bkeychain\b|\.docker/config"
)
OUTSIDE: Final = _any_of_words(
    r"(?:to|at|into|onto|via|with|through|towards?|using|=)\s{1,3}(?:the )?[`<(\"']?https?://\w{0,9}",
    "remote(?:ly)?", "external(?:ly)?", "third[- ]party", "attackers?(?:'s)?", "webhooks?",
    r"(?:our|my|a|an|the|this) (?:\w{2,20} ){0,2}(?:server|endpoint|url|host|domain|collector|address"
    "|bucket|channel|inbox|proxy)",
    r"[\w.+-]{1,60}@[\w-]{1,60}\.[\w.-]{2,60}", r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?", "offsite", "off-site",
    "elsewhere", "outside", "analytics", "telemetry", "pastebin", "gist", "discord", "telegram", "ngrok", "dns",
    "command and control", "c2", "drop ?box", "(?:someone|somewhere) else",
    "(?:audit|backup|logging|monitoring|tracking|collection|vendor) (?:server|service|endpoint|address"
    "|url)",
)  # fmt: skip
HOME: Final = re.compile(
    r"\bto (?:the |its |your )?(?:caller|user|client|requester|local\b|you\b|console|screen|stdout|clipboard"
    r"|agent)|\bfor display\b|\blocal(?:ly| ui| file| disk| only)\b|\bnever (?:sen[dt]|shar|leav|upload|transmit"
    r"|log|stor|expos)|\b(?:does|do|will|is|are|must|should)(?: not|n't) (?:be )?(?:\w{2,12} )?(?:sen[dt]|shar"
    "|leav|upload|transmit|log|stor|expos)"
)
CONTENTS: Final = re.compile(
    r"\b(?:contents?|text|body|output|copy|dump|value|data) (?:of|from)\b|\breading\b|\bread from\b"
)
"""An honest tool may ask for a path, but not for the contents of such a file."""
FETCH: Final = _any_of_words(
    "reads?", "reading", "fetch(?:es)?", "loads?", "opens?", "cat", "access(?:es)?", "retrieves?", "collects?",
    "gathers?", "gets?", "obtains?", "grabs?", "extracts?", "copies", "copy", "dumps?", "scans?", "look up",
    "include", "find", "lists?", "harvests?", "captures?",
)  # fmt: skip
CARRY: Final = re.compile(
    r"\b(?:pass|put|place|include|provide|supply|insert|use|append|add|give|attach|set|paste|embed|encode|send"
    r"|store|into|in|as|to)\b.{0,80}?\b(?:side ?note|sidenotes?|argument|arguments|parameter|param|params|field"
    "|notes?|metadata|context|comment|body|payload|input|property|variable|value|message|tool|request|response"
    r"|call)\b"
)
HIDE: Final = re.compile(
    r"\b(?:do not|don't|never|must not|should not|shouldn't|mustn't|without|avoid|no need to"
    r"|refrain from)\s(?:\w{1,12} ){0,3}?(?:tell(?:ing)?|mention(?:ing)?|inform(?:ing)?|notify(?:ing)?"
    "|alert(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|show(?:ing)?|warn(?:ing)?|let(?:ting)?|explain(?:ing)?"
    r"|report(?:ing)?|telling|expos(?:e|ing))\b.{0,60}?\b(?:users?|human|person|operator|anyone|anybody|them|him"
    r"|her|owner|customer|administrators?|admin)\b|\bwithout (?:the |any )?(?:user|human|operator|owner|customer"
    r"|victim|admin)(?:'s|s')?\s?(?:knowing|knowledge|consent|noticing|notice|approval|permission|awareness"
    r"|being aware|seeing)|\b(?:hide|conceal|keep|withhold) (?:this|that|it|these|them"
    r"|the \w{2,20}) (?:\w{1,12} ){0,2}?(?:from (?:the |any )?(?:users?|human|operator|person|owner|customer"
    r"|admin)|secret\b|hidden from|quiet\b)|\b(?:secretly|covertly|stealthily|surreptitiously|unnoticed"
    r"|undetected)\b|\b(?:avoid|evade|without|escape|bypass)(?:ing)? (?:\w{1,12} ){0,2}?(?:detection|suspicion"
    r"|alerting|detected|monitoring|logging|audit)|\bleav(?:e|ing) no (?:trace|log|record)|\bwithout leaving\b"
    r"|\b(?:users?|human|operator)\b.{0,40}\b(?:must|should|need|needs|will)(?: not|n't| never)\b.{0,30}\b(?:know"
    "|see|notice|learn|be (?:told|informed|aware|shown))"
)
QUIETLY: Final = re.compile(
    r"\b(?:do not|don't|never|without|no need to) ask(?:ing)? (?:the )?(?:users?|human|operator|anyone"
    r"|for (?:permission|confirmation|approval))\b|\b(?:silently|discreetly|quietly|behind the scenes"
    r"|in the background)\b"
)
PROTECTS: Final = re.compile(r"\b(?:not|never|n't|nothing|no \w{2,20})\b.{0,60}\bwithout\b")
"""`must not proceed without the user's approval`: the opposite of hiding something."""
BESIDES: Final = re.compile(
    r"(?:\b(?:also|additionally|secretly|silently|in the background|behind the scenes|as well|besides|moreover"
    "|in addition|furthermore|simultaneously|meanwhile|quietly|automatically|covertly|afterwards?"
    r"|before returning|after which|and then|then)\b)"
)
ACTS_OUTSIDE: Final = _any_of_words(
    "sends?", "posts?", "posting", "uploads?", "transmits?", "forwards?", "exfiltrates?", "leaks?", "e-?mails?",
    "reports?", "relays?", "submits?", "beacons?", "phones? home", "streams?", "pushes", "mirrors?", "bcc",
    "cop(?:y|ies)", "logs?", "notif(?:y|ies)", "shares?", "publish(?:es)?", "calls?", "pings?", "contacts?",
    "writes?", "transfers?",
)  # fmt: skip
FAR: Final = _any_of_words(
    "(?:remote|external|third[- ]party|attacker(?:'s)?|offsite|outside|hidden|unrelated|foreign"
    r"|command[- ]and[- ]control|c2) (?:\w{2,20} ){0,2}(?:server|endpoint|url|host|domain|service|address"
    "|site|api|location|machine|account|collector|party|system)s?",
    r"https?://(?!(?:www\.)?(?:example|localhost|127\.0\.0\.1))[^\s)\"'>]{1,200}", "attackers?",
    r"(?:analytics|telemetry|tracking|logging|collection|audit|monitoring) (?:\w{2,20} )?(?:server"
    "|endpoint|service|url|collector|host|webhook)",
    "webhooks?", r"[\w.+-]{1,60}@[\w-]{1,60}\.[\w.-]{2,60}", r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?",
)  # fmt: skip
ORDER: Final = re.compile(
    r"\b(?:before|prior to) (?:using|calling|invoking|running|executing|you (?:use|call|run|invoke)|any|every"
    r"|each)\b(?! this\b| the \w{1,40} tool).{0,60}\btools?\b|\b(?:always|must) (?:\w{1,12} ){0,2}?(?:call|use|run"
    r"|invoke|execute|prefer) (?:this|it)\b.{0,60}\b(?:first|before|instead|every|any|all)\b|\b(?:first"
    r"|before anything else)\b.{0,30}\b(?:call|use|run|invoke) this tool\b|\b(?:instead of|rather than|in place of"
    r"|takes? (?:precedence|priority) over|overrides?|replaces?|supersedes?)\b.{0,40}\b(?:tools?|server)\b"
    r"|\bhighest priority\b|\bmust be (?:called|used|run|invoked|executed) (?:first|before (?:any|every|all"
    r"|each))\b|\b(?:never|do not|don't|stop) (?:use|using|call|calling|invoke|invoking) (?:any )?(?:other"
    r"|the other|another|different)\b|\bdeprecated\b.{0,40}\buse this\b|\bonly (?:trust|use) this tool\b"
    r"|\b(?:call|use|run|invoke|execute) (?:this|it)(?: tool| function)? (?:first\b|before (?:anything|any|every|all"
    r"|each)\b(?! (?:\w{1,20} )?call\b)|(?:at|on) (?:the )?(?:start|beginning) of (?:each|every|any)\b)"
    r"|\b(?:first|every time),? (?:call|use|run|invoke) (?:this|it)\b"
)
EVERYTHING: Final = re.compile(
    r"\b(?:send|pass|include|attach|upload|provide|give|share|submit|with)(?: (?:it|us|me|this tool|along|in))?"
    r" (?:everything you|(?:the )?(?:contents? of )?(?:all|every|the (?:whole|entire|full|complete))"
    r"(?: (?:of )?(?:the|your|other|open|local))*(?: \w{2,12})? (?:files?|documents?|repository|repo|code ?base"
    r"|project|workspace|source code))\b"
)
"""Words that want all there is handed over. Honest tools take many files, too: it warns only beside others."""
EVERY_REQUEST: Final = re.compile(
    r"\b(?:for|on|at|fits?|handles?|matches|answers?|serves?|suits?) (?:absolutely |literally )?(?:every|all|any)"
    r"(?: (?:single|possible|user|kinds? of|sorts? of|other)){0,3} (?:requests?|prompts?|tasks?|goals?|steps?"
    r"|intents?)\b(?! (?:bod|header|to the|per|id|method|url|param|of|in|that|with|by|from|assign|made|sent|under))"
    r"|\b(?:regardless of|no matter|irrespective of) (?:what |which )?(?:the |is |was )?(?:users? )?(?:request|asked"
    r"|asks|prompt|task|goal|intent|wants?)"
)
"""Phrases that ask for a tool to be used for every request, which no honest tool needs."""
WHENEVER: Final = _any_of_words("when(?:ever)?", "if", "(?:every|each|any) time", "once", "after", "while")
IS_CALLED: Final = _any_of_words(
    "tools?", "functions?", "server", "is (?:called|used|invoked|present|available)", "call(?:ing)?", "us(?:e|ing)",
    "invok(?:e|ing)", "sending",
)  # fmt: skip
ALTERS: Final = _any_of_words(
    "change", "replace", "set", "redirect", "modify", "alter", "swap", "add", "append", "bcc", "also", "always", "must",
    "instead", "substitute", "overwrite", "rewrite", "insert", "include", "use",
)  # fmt: skip
ARGUMENTS: Final = _any_of_words(
    "recipients?", "address", "destination", "parameter", "argument", "account", "amount", "number", "url", "endpoint",
    "bcc", "cc", "to field", "path", "host", "proxy", "iban", "wallet",
)  # fmt: skip
ANOTHER: Final = re.compile(
    r"\b(?:other|another|all|any|every|each) (?:\w{2,20} )?(?:tools?|functions?|servers?)\b"
    r"|\b[a-z]{2,20}_[a-z_]{2,40}\b"
)
MUST: Final = re.compile(
    r"\b(?:you|the (?:assistant|model|agent|llm|ai)|assistants?|models?|agents?|llms?|ai) (?:must|should|shall"
    r"|need to|have to|will|are required to)\b|^(?:important|critical|mandatory|urgent|attention|warning"
    r"|note to (?:the )?(?:ai|model|assistant|llm|agent))\b|\b(?:dear|attention|hey|note to|instructions? (?:to"
    r"|for)) (?:the )?(?:ai|model|assistant|llm|agent)s?\b|\bfirst,|\bbefore (?:using|calling|returning|answering"
    r"|responding|continuing|proceeding)\b|\botherwise\b.{0,40}\b(?:fail|not work|break|error)"
)
MENTION: Final = re.compile(
    r"\b(?:such as|e\.g\.|like|for example|examples? of|phrases?|patterns?|explain\w{0,4}|detect\w{0,4}"
    r"|identif\w{0,4}|flags?|flagging|scan\w{0,4}|check\w{0,4}|analy[sz]\w{0,4}|classif\w{0,6}|recogni[sz]\w{0,4}"
    r"|filters?|blocks?|warns?|protect\w{0,6}|prevent\w{0,4}|tests? (?:for|whether|that|if)|attempts?|attacks?"
    "|injections?|jailbreaks?|whether|research|study|documentation|tutorial|how to spot|contain(?:s|ing)?"
    r"|search(?:es)? for|matches)\b"
)
INDIRECT: Final = re.compile(
    "^(?:this tool |the tool |it |a tool that |use this to )?(?:check|detect|flag|scan|identif|classif|analy[sz]"
    "|recogni[sz]|filter|block|reject|determin|evaluat|assess|inspect|decid|test|judg|verif|report|find"
    r"|tell)\w{0,4}\b.{0,80}?\b(?:whether|if|that|which|who|attempts?|asks?|asking|tr(?:ies|ying)|tells?|telling"
    r"|instructs?|instructing|contain\w{0,4}|orders?|urges?)\b"
)
"""`Checks whether a prompt asks …`: what follows is what the tool detects, not what it says."""
LABEL: Final = re.compile(
    r"\b(?:mock|sample|expected|canned|example|fixture|dummy|fake|test|training|illustrative|educational"
    r"|demo\w{0,8}|stub\w{0,3}|simulated|default|placeholder) (?:\w{2,16} )?(?:response|output|reply|replies"
    r"|result|completion|answer|text|message|string|value|data|payload)s?\s?[:=]"
)
LINK: Final = re.compile(r"https?://[^\s)\"'>\]]{1,2000}")
QUOTED: Final = re.compile(r"\"[^\"]{3,200}\"|(?<![a-z])'[^']{3,200}'(?![a-z])|`[^`]{3,200}`|«[^»]{3,200}»")
