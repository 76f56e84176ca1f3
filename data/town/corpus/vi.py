"""Vietnamese: classifiers, adjectives after the noun, đã/đang/sẽ, mà, two-part questions.

Word order of a clause: subject, tense word, negation, frequency, modal, verb, object, manner, place, time. Tense
words may be left out where a time says enough. All text is in NFC.
"""

from __future__ import annotations

from collections.abc import Sequence

from town.corpus.meaning import (
    ANIMALS,
    DITRANSITIVE,
    DRINKS,
    FOOD,
    MASS,
    MOTION,
    NAMES,
    PEOPLE,
    PLACES,
    SPEAKERS,
    STEADY,
    Clause,
    Entity,
    Gap,
    Pick,
    Piece,
    Place,
    Sentence,
    once,
)

CODE = "vi"
LANGUAGES = {
    "en": "tiếng Anh", "de": "tiếng Đức", "fr": "tiếng Pháp", "es": "tiếng Tây Ban Nha", "zh": "tiếng Trung",
    "ja": "tiếng Nhật", "vi": "tiếng Việt",
}

# --- words ------------------------------------------------------------------------------

SPEAKER_WORDS = {"i": "tôi", "you": "bạn", "we": "chúng tôi"}
# concept: (classifier, nouns, the most usual first). An empty classifier: the noun is counted directly.
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "child": ("đứa", ("trẻ", "bé")), "woman": ("người", ("phụ nữ", "đàn bà")), "man": ("người", ("đàn ông",)),
    "girl": ("", ("cô bé", "bé gái")), "boy": ("", ("cậu bé", "bé trai")), "friend": ("người", ("bạn",)),
    "neighbor": ("người", ("hàng xóm", "láng giềng")), "doctor": ("", ("bác sĩ",)),
    "teacher": ("", ("thầy giáo", "giáo viên")), "student": ("", ("nữ sinh", "học sinh")),
    "farmer": ("người", ("nông dân",)), "driver": ("người", ("tài xế", "lái xe")), "cook": ("", ("đầu bếp",)),
    "painter": ("", ("họa sĩ",)), "guest": ("vị", ("khách",)), "mother": ("người", ("mẹ", "má")),
    "father": ("người", ("bố", "cha")), "sister": ("người", ("chị gái",)), "brother": ("người", ("anh trai",)),
    "dog": ("con", ("chó",)), "cat": ("con", ("mèo",)), "horse": ("con", ("ngựa",)), "bird": ("con", ("chim",)),
    "bread": ("", ("bánh mì",)), "apple": ("quả", ("táo",)), "cheese": ("", ("pho mát", "phô mai")),
    "soup": ("", ("súp", "canh")), "cake": ("cái", ("bánh ngọt",)), "fish": ("con", ("cá",)), "rice": ("", ("cơm",)),
    "egg": ("quả", ("trứng",)),
    "water": ("", ("nước",)), "tea": ("", ("trà", "chè")), "coffee": ("", ("cà phê",)), "milk": ("", ("sữa",)),
    "book": ("quyển", ("sách",)), "letter": ("lá", ("thư",)), "newspaper": ("tờ", ("báo",)),
    "map": ("tấm", ("bản đồ",)),
    "car": ("chiếc", ("ô tô", "xe hơi")), "bicycle": ("chiếc", ("xe đạp",)), "key": ("chiếc", ("chìa khóa",)),
    "bag": ("chiếc", ("túi", "túi xách")), "chair": ("cái", ("ghế",)), "table": ("cái", ("bàn",)),
    "lamp": ("cái", ("đèn",)), "clock": ("chiếc", ("đồng hồ",)), "ticket": ("tấm", ("vé",)),
    "picture": ("bức", ("tranh",)), "phone": ("chiếc", ("điện thoại",)), "umbrella": ("chiếc", ("ô", "dù")),
    "coat": ("chiếc", ("áo khoác", "áo choàng")), "shoe": ("chiếc", ("giày",)), "gift": ("món", ("quà",)),
    "flower": ("bông", ("hoa",)), "window": ("", ("cửa sổ",)), "door": ("cánh", ("cửa",)),
    "machine": ("cái", ("máy",)), "boat": ("chiếc", ("thuyền", "tàu")), "cup": ("cái", ("cốc", "tách")),
    "ball": ("quả", ("bóng",)), "box": ("cái", ("hộp", "thùng")), "camera": ("chiếc", ("máy ảnh",)),
}
# Other correct classifiers.
CLASSIFIERS = {"book": ("quyển", "cuốn"), "letter": ("lá", "bức"), "car": ("chiếc", "cái"), "gift": ("món",)}
# concept: (classifier, noun, prepositions of "at" before the bare noun, before a classifier)
PLACE_NOUNS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "house": ("ngôi", ("nhà",), ("trong",), "trong"), "school": ("ngôi", ("trường", "trường học"), ("ở", "tại"), "ở"),
    "market": ("khu", ("chợ",), ("ở", "ngoài"), "ở"), "station": ("", ("nhà ga",), ("ở", "tại"), "ở"),
    "garden": ("khu", ("vườn",), ("trong", "ngoài"), "trong"), "kitchen": ("căn", ("bếp",), ("trong",), "trong"),
    "park": ("", ("công viên",), ("trong", "ở"), "trong"), "city": ("", ("thành phố",), ("trong", "ở"), "ở"),
    "village": ("ngôi", ("làng",), ("trong", "ở"), "ở"), "hospital": ("", ("bệnh viện",), ("ở", "tại"), "ở"),
    "library": ("", ("thư viện",), ("ở", "tại", "trong"), "ở"),
    "office": ("", ("văn phòng",), ("ở", "tại", "trong"), "ở"), "river": ("dòng", ("sông",), ("bên",), "bên"),
    "bridge": ("cây", ("cầu",), ("trên",), "trên"), "shop": ("", ("cửa hàng",), ("ở", "tại"), "ở"),
    "museum": ("", ("bảo tàng",), ("ở", "tại"), "ở"), "hotel": ("", ("khách sạn",), ("ở", "tại"), "ở"),
    "street": ("con", ("phố", "đường"), ("trên", "ngoài"), "trên"), "forest": ("khu", ("rừng",), ("trong",), "trong"),
}
AROUND = {"near": ("gần",), "behind": ("sau", "phía sau"), "in_front_of": ("trước", "phía trước")}

ADJECTIVES: dict[str, tuple[str, ...]] = {
    "old": ("cũ",), "new": ("mới",), "big": ("to", "lớn"), "small": ("nhỏ", "bé"), "red": ("màu đỏ", "đỏ"),
    "blue": ("màu xanh dương", "xanh dương"), "green": ("màu xanh lá cây", "xanh lá cây"),
    "white": ("màu trắng", "trắng"), "black": ("màu đen", "đen"), "heavy": ("nặng",), "expensive": ("đắt", "đắt tiền"),
    "cheap": ("rẻ", "rẻ tiền"), "beautiful": ("đẹp", "xinh đẹp"), "young": ("trẻ",), "tired": ("mệt", "mệt mỏi"),
    "happy": ("vui", "vui vẻ"), "clean": ("sạch", "sạch sẽ"), "empty": ("trống", "trống rỗng"), "warm": ("ấm", "ấm áp"),
    "cold": ("lạnh", "lạnh lẽo"), "good": ("tốt",), "long": ("dài",),
}
COLOURS = ("red", "blue", "green", "white", "black")

ADVERBS = {
    "quickly": ("nhanh chóng", "một cách nhanh chóng"), "slowly": ("chậm rãi", "một cách chậm rãi"),
    "carefully": ("cẩn thận", "một cách cẩn thận"), "often": ("thường", "hay"), "always": ("luôn", "luôn luôn"),
    "alone": ("một mình",),
}
FREQUENT = ("often", "always")
DAYS = {"monday": "thứ Hai", "tuesday": "thứ Ba", "wednesday": "thứ Tư", "thursday": "thứ Năm",
        "friday": "thứ Sáu", "saturday": "thứ Bảy", "sunday": "Chủ nhật"}
TIMES = {
    "yesterday": ("hôm qua",), "today": ("hôm nay",), "tomorrow": ("ngày mai",), "now": ("bây giờ", "lúc này"),
    "this_morning": ("sáng nay",), "this_evening": ("tối nay",), "last_week": ("tuần trước", "tuần vừa rồi"),
    "next_week": ("tuần sau", "tuần tới"), "every_day": ("mỗi ngày", "hằng ngày"),
    "at_night": ("ban đêm", "vào ban đêm"),
} | {f"on_{day}": (f"vào {word}", word) for day, word in DAYS.items()}
HABITUAL = ("every_day", "at_night")

# verb: (words, kind). "act" can be in progress (đang đọc); "event" is momentary; "state" takes no đang.
VERBS: dict[str, tuple[tuple[str, ...], str]] = {
    "have": (("có",), "state"), "buy": (("mua",), "act"), "sell": (("bán",), "act"),
    "see": (("nhìn thấy", "thấy"), "event"), "find": (("tìm thấy", "tìm được"), "event"), "eat": (("ăn",), "act"),
    "drink": (("uống",), "act"), "read": (("đọc",), "act"), "write": (("viết",), "act"), "open": (("mở",), "act"),
    "close": (("đóng",), "act"), "clean": (("lau", "lau chùi"), "act"), "repair": (("sửa", "sửa chữa"), "act"),
    "carry": (("mang",), "act"), "lose": (("làm mất", "đánh mất"), "event"), "need": (("cần",), "state"),
    "love": (("yêu",), "state"), "know": (("quen", "quen biết"), "state"), "meet": (("gặp",), "event"),
    "help": (("giúp", "giúp đỡ"), "act"), "visit": (("thăm", "đến thăm"), "act"),
    "call": (("gọi điện cho", "gọi điện thoại cho"), "act"), "pick_up": (("lấy",), "act"), "invite": (("mời",), "act"),
    "paint": (("vẽ",), "act"), "cook": (("nấu",), "act"), "look_for": (("tìm", "tìm kiếm"), "act"),
    "forget": (("quên", "bỏ quên"), "event"),
    "give": (("đưa", "trao"), "act"), "show": (("cho",), "act"), "bring": (("mang", "đem"), "act"), "send": (("gửi",), "act"),
    "sleep": (("ngủ",), "act"), "work": (("làm việc",), "act"), "wait": (("đợi", "chờ"), "act"),
    "sing": (("hát", "ca hát"), "act"), "laugh": (("cười",), "act"), "dance": (("nhảy múa", "khiêu vũ"), "act"),
    "live": (("sống",), "state"), "get_up": (("thức dậy", "ngủ dậy"), "event"),
    "go": (("đi",), "act"), "travel": (("đi du lịch", "du lịch"), "act"), "arrive": (("đến", "tới"), "event"),
    "come_back": (("trở về", "quay về"), "event"), "run": (("chạy",), "act"),
    "be": (("là",), "state"), "be_at": (("ở",), "state"),
    "say": (("nói",), "event"), "think": (("nghĩ", "cho"), "state"), "believe": (("tin",), "state"),
    "hope": (("hy vọng", "mong"), "state"),
}
BY_OBJECT = {("pick_up", "person"): ("đón",), ("carry", "bag"): ("xách", "mang"), ("love", "thing"): ("rất thích", "yêu thích"),
             ("clean", "cup"): ("rửa",), ("clean", "car"): ("rửa", "lau"),
             ("clean", "bicycle"): ("rửa", "lau"), ("close", "book"): ("gấp",), ("close", "umbrella"): ("gấp",),
             ("open", "letter"): ("mở",), ("cook", "egg"): ("nấu", "luộc")}
MAIN = ("main", "then")
MODALS = {"want": ("muốn",), "can": ("có thể",), "must": ("phải",)}
NOT_MODALS = {"want": ("không muốn",), "can": ("không thể",), "must": ("không được",)}
NUMBERS = ("không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín", "mười")

# --- noun phrases -----------------------------------------------------------------------


def _word(options: Sequence[str], key: str, pick: Pick) -> str:
    """One of the words; the n-th has weight 1/n², so that rare synonyms stay rare."""
    if len(options) == 1:
        return options[0]
    return pick(key, options, [1 / (n * n) for n in range(1, len(options) + 1)])


def _kind(concept: str) -> str:
    if concept in NAMES or concept in PEOPLE or concept in SPEAKERS:
        return "person"
    if concept in ANIMALS:
        return "animal"
    if concept in PLACES:
        return "place"
    return "food" if concept in FOOD or concept in DRINKS else "thing"


def _forms(adjective: str, concept: str) -> tuple[str, ...]:
    """The words of an adjective for a given noun."""
    kind = _kind(concept)
    if adjective == "old":
        return {"person": ("già", "lớn tuổi"), "animal": ("già",), "place": ("cũ", "cổ")}.get(kind, ("cũ",))
    if adjective == "small" and kind != "thing":
        return ("nhỏ", "nhỏ bé") if kind != "food" else ("nhỏ",)
    if adjective == "big" and kind == "person":
        return ("to lớn",)
    if adjective == "young" and kind == "animal":
        return ("non",)
    if adjective == "warm" and kind == "food":
        return ("nóng", "ấm")
    if adjective == "cold" and kind != "place":
        return ("lạnh",)
    if adjective == "warm" and kind == "thing":
        return ("ấm",)
    if adjective == "good":
        if kind == "food":
            return ("ngon",)
        if kind == "person":
            return ("giỏi",)
        return ("hay",) if concept == "book" else ("tốt",)
    if adjective == "beautiful" and kind != "person":
        return ("đẹp",)
    if adjective == "clean" and concept in ("house", "kitchen"):
        return ("sạch sẽ", "sạch")
    if adjective == "empty":
        return ("trống", "trống rỗng") if concept in ("box", "bag", "cup") else ("trống", "vắng")
    return ADJECTIVES[adjective]


# Feelings and age after a person's noun, where the bare word would read as a predicate.
BESIDE = {"tired": ("mệt mỏi",), "happy": ("vui vẻ", "hạnh phúc"), "old": ("lớn tuổi", "già"), "young": ("trẻ", "trẻ tuổi")}


def _adjectives(adjectives: Sequence[str], concept: str, slot: str, pick: Pick) -> str:
    """Adjectives after a noun, colours last; two that are not colours are joined by và."""
    several = len(adjectives) > 1
    ranked = sorted(adjectives, key=lambda a: a in COLOURS)
    forms = [BESIDE[a] if a in BESIDE and _kind(concept) == "person" else _forms(a, concept) for a in ranked]
    words = [_word(f[:1] if several else f, f"{slot}.{a}", pick) for a, f in zip(ranked, forms, strict=True)]
    if several and ranked[-1] not in COLOURS:
        return " ".join(words[:-1]) + " và " + words[-1]
    return " ".join(words)


def _number(n: int) -> str:
    return NUMBERS[n] if 0 <= n <= 10 else str(n)


def _pronoun(entity: Entity) -> str:
    concept = entity.concept
    if concept in SPEAKERS:
        return SPEAKER_WORDS[concept]
    sex = NAMES.get(concept) or PEOPLE.get(concept)
    if entity.number > 1:
        return "họ" if sex else "chúng"
    special = {"mother": "bà ấy", "father": "ông ấy", "child": "nó", "girl": "em ấy", "boy": "cậu ấy"}
    return special.get(concept) or {"f": "cô ấy", "m": "anh ấy"}.get(sex or "", "nó")


def _owner(owner: Entity, slot: str, near: bool, pick: Pick) -> str:
    """The possessor after its noun; `near`: của may be left out (mẹ tôi)."""
    if owner.pronoun or owner.concept in SPEAKERS:
        word = _pronoun(owner)
    else:
        word = " ".join(p.text for p in _np(owner, slot, pick, f"{slot}.owner"))
    return pick(f"{slot}.of", (word, "của " + word), (2, 1)) if near else "của " + word


def _np(
    entity: Entity, slot: str, pick: Pick, path: str, none: bool = False, many: bool = False, point: bool = False,
    own: bool = False,
) -> list[Piece]:
    """A noun phrase. `none`: an indefinite one under negation (quyển sách nào); `many`: "how many" is
    asked; `point`: a definite noun must show where it ends (quyển sách đó); `own`: the owner is the subject."""
    concept = entity.concept
    if entity.pronoun or concept in SPEAKERS:
        return [Piece(_pronoun(entity), slot)]
    person = concept in PEOPLE
    if concept in NAMES:
        classifier, noun = "", concept
    elif concept in NOUNS:
        classifier, nouns = NOUNS[concept]
        if concept in CLASSIFIERS:
            classifier = _word(CLASSIFIERS[concept], f"{path}.classifier", pick)
        if concept == "shoe" and entity.number == 2:
            classifier = "đôi"
        noun = _word(nouns, f"noun.{concept}", pick)
    else:
        classifier, nouns = PLACE_NOUNS[concept][:2]
        noun = _word(nouns, f"noun.{concept}", pick)
    single = entity.number == 1 or (concept == "shoe" and entity.number == 2)
    counted = f"{classifier} {noun}".strip()
    base = counted
    after: list[str] = []
    if entity.adjectives:
        after.append(_adjectives(entity.adjectives, concept, path, pick))
    if entity.owner is not None:
        kin = concept in ("mother", "father", "sister", "brother")
        near = kin and not after and (entity.owner.pronoun or entity.owner.concept in SPEAKERS)
        if kin and single and not entity.counted:
            base = noun
        if own:
            words = ["của mình", _owner(entity.owner, path, False, pick)]
            after.append(pick(f"{path}.own", words, (2, 1)))
        else:
            after.append(_owner(entity.owner, path, near, pick))
    end = ""
    if concept in NAMES:
        head = noun
    elif many:
        few = concept not in MASS and entity.number <= 10  # mấy expects a small number
        head = _word(("bao nhiêu", "mấy") if few else ("bao nhiêu",), f"{path}.many", pick) + " " + base
    elif entity.counted:
        n = 1 if concept == "shoe" and entity.number == 2 else entity.number
        head = f"{_number(n)} {base}"
    elif concept in MASS:
        head = base
        if entity.definite and entity.owner is None:
            if entity.relative is None:
                end = "đó" if point else pick(f"{path}.the", ("", "đó"), (4, 1))
        elif not entity.definite and not none:
            head = pick(f"{path}.some", (base, "một ít " + base), (4, 1))
    elif entity.owner is not None:
        head = base if single else ("các " if person else "những ") + base
    elif entity.definite:
        if single:
            if point and not entity.relative:
                end = "đó"
            elif not entity.relative:
                end = pick(f"{path}.the", ("", "ấy" if person else "đó"), (4, 1))
            head = base
        else:
            several = ("những ",) if classifier and classifier != "vị" else ("các ", "những ")
            head = (pick(f"{path}.the", several, (3, 1)) if len(several) > 1 else several[0]) + base
            end = "đó" if point and not entity.relative else ""
    elif none:
        head = base
        end = "" if entity.relative else "nào"
    elif single:
        head = "một " + base
    else:
        head = pick(f"{path}.some", ("vài ", "một số "), (2, 1)) + base
    if entity.relative is None:
        return [Piece(" ".join([head, *after, *([end] if end else [])]), slot)]
    inner = slot if slot.endswith(".relative") else f"{slot}.relative"
    clause = entity.relative
    out = [Piece(" ".join([head, *after]), slot)]
    said = [Piece(p.text, inner) for p in _clause(clause, inner, pick, f"{path}.relative", "relative", entity)]
    if not isinstance(clause.subject, Gap) or pick(f"{path}.that", (False, True), (2, 1)) or clause.verb == "be":
        out.append(Piece("mà", inner))
    return [*out, *said, *([Piece(end, slot)] if end else [])]


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone; Vietnamese nouns have one form for every use."""
    return " ".join(p.text for p in _np(entity, "who", pick, "who", point=True))


def _place(place: Place | None, path: str, pick: Pick, asked: bool, use: str) -> str:
    """A place; `use` is "at", "goal" (đến ...), "bare" (after a verb that needs no preposition) or "be" (after ở)."""
    if asked:
        relation = place.relation if place else "at"
        if relation == "from":
            return "từ đâu"
        return {"at": "ở đâu", "be": "đâu", "goal": "đâu", "bare": "đâu"}[use]
    assert place is not None
    classifier, nouns, bare, full = PLACE_NOUNS[place.concept]
    word = _word(nouns, f"noun.{place.concept}", pick)
    if place.adjective or not place.definite:
        noun = f"{classifier} {word}".strip()
        if not place.definite:
            noun = "một " + noun
        if place.adjective:
            noun += " " + _word(_forms(place.adjective, place.concept), f"{path}.{place.adjective}", pick)
        prepositions: tuple[str, ...] = (full,)
    else:
        noun, prepositions = word, bare
        if place.concept == "house" and (place.relation != "at" or use in ("bare", "goal")):
            noun = f"{classifier} {word}"
        if place.concept == "river" and use in ("bare", "goal") and place.relation not in AROUND:
            noun = "bờ " + word
    if place.relation == "from":
        return "từ " + noun
    if place.relation in AROUND:
        spot = _word(AROUND[place.relation], f"{path}.around", pick)
        return ("đến " if use == "goal" else "ở " if use == "at" else "") + f"{spot} {noun}"
    if use == "goal":
        return _word(("đến", "tới"), f"{path}.to", pick) + " " + noun
    if use == "bare":
        return noun
    preposition = _word(prepositions, f"{path}.at", pick)
    if use == "be":
        return noun if preposition in ("ở", "tại") else f"{preposition} {noun}"
    return f"{preposition} {noun}"


# --- clauses ----------------------------------------------------------------------------


def _head_noun(clause: Clause, head: Entity | None) -> str:
    """The concept that the complement describes; a thing when a fragment lacks it."""
    who = clause.subject if isinstance(clause.subject, Entity) else head
    return who.concept if who is not None else "book"


def _same(a: object, b: object) -> bool:
    """Whether pronoun `a` can refer to `b`."""
    if not isinstance(a, Entity) or not isinstance(b, Entity):
        return False
    if a.concept in SPEAKERS or b.concept in SPEAKERS:
        return a.concept == b.concept
    return a.pronoun and a.number == b.number and _pronoun(a) == _pronoun(b)


def _clause(
    clause: Clause, slot: str, pick: Pick, path: str, role: str = "main", head: Entity | None = None, drop: bool = False
) -> list[Piece]:
    """A clause. `role` is "main", "then" (with a nếu clause), "sub" (after khi, nếu) or "relative"; `head` the noun that a gap stands for; `drop`
    leaves the subject unsaid."""

    def at(name: str) -> str:
        return slot if role == "relative" else f"{slot}.{name}"

    verb, asks, place, tense, neg = clause.verb, clause.asks, clause.place, clause.tense, clause.negated
    where, gives = asks == "where", verb in DITRANSITIVE
    V, S, B, R = at("verb"), at("subject"), at("object"), at("recipient")

    subject: list[Piece] = []
    who = clause.subject
    if asks == "who":
        subject = [Piece("ai", S)]
    elif isinstance(who, Entity) and not drop:
        subject = _np(who, S, pick, f"{path}.subject", point=verb == "be" and role != "relative")

    # The time: in front or at the end.
    before: list[Piece] = []
    after: list[Piece] = []
    if asks == "when":
        word = pick(f"{path}.when", ("khi nào", "bao giờ"), (2, 1))
        if tense == "past":  # at the end it asks about the past, in front about the future
            after = [Piece(word, at("time"))]
        else:
            before = [Piece(word, at("time"))]
    elif clause.time:
        time = [Piece(_word(TIMES[clause.time], f"{path}.time", pick), at("time"))]
        first = clause.front == "time" and role in MAIN
        if not first and role in MAIN and asks != "who" and subject:
            first = pick(f"{path}.early", (False, True), (2, 1))
        if first:
            before = time
            if clause.front == "time" and pick(f"{path}.comma", (True, False), (2, 1)):
                before.append(Piece(",", "mark"))
        else:
            after = time

    # Object and recipient.
    target = clause.object
    filled = head if isinstance(target, Gap) else target
    concept = filled.concept if isinstance(filled, Entity) else None
    obj: list[Piece] = []
    if asks == "what" and verb != "be":
        obj = [Piece(pick(f"{path}.what", ("gì", "cái gì"), (2, 1)), B)]
        concept = None
    elif asks == "whom" and not gives:
        obj = [Piece("ai", B)]
        concept = "Anna"
    elif isinstance(target, Entity):
        own = bool(target.owner and asks != "who" and isinstance(who, Entity) and not who.pronoun
                   and _same(target.owner, who))
        obj = _np(target, B, pick, f"{path}.object", none=neg, many=asks == "how_many", own=own)
    to: list[Piece] = []
    if asks == "whom" and gives:
        to = [Piece("ai", R)]
    elif clause.recipient is not None:
        to = _np(clause.recipient, R, pick, f"{path}.recipient")

    manner: list[Piece] = []
    often: list[Piece] = []
    if clause.adverb in FREQUENT:
        often = [Piece(_word(ADVERBS[clause.adverb], f"{path}.adverb", pick), at("adverb"))]
    elif clause.adverb:
        manner = [Piece(_word(ADVERBS[clause.adverb], f"{path}.adverb", pick), at("adverb"))]

    relation = place.relation if place else "at"
    use = "at"
    if verb in ("go", "travel", "run", "come_back") or (verb is not None and relation == "to"):
        use = "goal" if (relation in ("to", "near", "behind", "in_front_of") and verb != "run") or relation == "to" \
            or (where and verb == "go") else "at"
    if verb == "arrive":
        use = "bare"
    if verb == "come_back" and relation == "to":
        use = "bare"
    if verb == "be_at":
        use = "be"
    if verb is None and relation == "to":
        use = "goal"
    spot = [Piece(_place(place, f"{path}.place", pick, where, use), at("place"))] if place or where else []

    if verb is None:
        said = [Piece("cho", R), *to] if to else []
        if clause.complement:
            said.append(Piece(_forms(clause.complement, _head_noun(clause, head))[0], at("complement")))
        return [*before, *subject, *often, *obj, *said, *manner, *spot, *after]

    # Tense, negation and modal.
    kind = VERBS[verb][1]
    habit = bool(often) or clause.time in HABITUAL
    yes_no = asks == "yes_no"
    mark, done = "", False
    if tense == "past" and kind != "state" and not habit and not clause.modal:
        if neg:
            mark = pick(f"{path}.past", ("", "đã"), (3, 1))
        elif yes_no:
            done = clause.time is None and pick(f"{path}.done", (False, True), (2, 1))
        elif isinstance(who, Entity) and who.relative is not None:
            mark = "đã"  # it also shows where the relative clause ends
        elif role in MAIN:
            mark = pick(f"{path}.past", ("đã", ""), (3, 1) if clause.time is None else (2, 1))
        elif role == "relative":
            mark = "đã" if isinstance(who, Gap) else pick(f"{path}.past", ("đã", ""), (1, 1))
    elif tense == "future" and role != "sub":
        mark = "sẽ"
        if yes_no and not neg and clause.time and not clause.modal:
            mark = pick(f"{path}.will", ("sẽ", "có"), (1, 1))
    elif tense == "present" and kind == "act" and not clause.modal and not neg and role == "main":
        if clause.time == "now":
            mark = "đang"
        elif clause.time is None and not habit:
            mark = pick(f"{path}.doing", ("đang", ""), (2, 1))
    modal = ""
    if clause.modal:
        modal = _word((NOT_MODALS if neg else MODALS)[clause.modal], f"{path}.modal", pick)
    elif neg:
        modal = "không"
    if yes_no and not neg:
        if clause.modal == "can":
            modal = "có thể"
        elif done:
            mark = "đã"
        elif mark == "đang":
            mark = "có đang"
        elif (verb not in ("have", "be_at") and not mark) or (verb == "be_at" and tense != "future"):
            mark = "có"
    front = [Piece(" ".join(w for w in (mark, modal) if w), V)] if mark or modal else []
    if often and (mark or modal):
        # Anna sẽ thường ..., Anna không thường ..., Anna thường muốn ...
        if clause.modal and not neg:
            lead = [*([Piece(mark, V)] if mark else []), *often, Piece(modal, V)]
        else:
            lead = [*front, *often]
    else:
        lead = [*often, *front]

    if subject and isinstance(who, Entity) and who.relative is not None and not lead and role in MAIN:
        lead = [Piece("thì", V)]  # shows where the relative clause ends

    question: list[Piece] = []
    if yes_no:
        question = [Piece("chưa" if done else "phải không" if neg else "không", "mark")]
        if neg:
            question.insert(0, Piece(",", "mark"))

    if verb == "be":
        return [*before, *subject, *_copula(clause, path, pick, lead, V, at("complement"), head), *after, *question]
    if verb == "be_at":
        new = isinstance(who, Entity) and not who.definite and not who.pronoun and who.owner is None and \
            who.concept not in (*NAMES, *SPEAKERS)
        if new and role in MAIN and place and asks is None and not clause.modal and subject:
            # Trong công viên có một đứa trẻ.
            there = [Piece(_place(place, f"{path}.place", pick, False, "at"), at("place"))]
            assert isinstance(who, Entity)
            found = _np(who, S, pick, f"{path}.subject", none=neg)
            return [*before, *there, *lead, Piece("có", V), *found, *after]
        return [*before, *subject, *lead, Piece("ở", V), *spot, *after, *question]

    stems = VERBS[verb][0]
    kinds = _kind(concept) if concept else None
    for sort in (concept, "person" if kinds in ("person", "animal") else "thing"):
        if concept and (verb, sort) in BY_OBJECT:
            stems = BY_OBJECT[verb, sort]  # type: ignore[index]
            break
    if verb == "visit" and place is not None:
        stems = ("thăm",)
    if verb == "forget" and spot:
        stems = ("bỏ quên", "để quên")
    stem = _word(stems, f"{path}.verb", pick)
    if neg and stem.startswith("rất "):
        stem = stem[4:]

    if gives:
        core = _giving(clause, verb, stem, obj, to, pick, path, V, R)
    elif verb == "pick_up" and asks == "what":
        core = [Piece(stem, V), *obj]
    elif verb == "call" and not obj and not isinstance(target, Gap):
        core = [Piece(stem.removesuffix(" cho"), V)]
    else:
        core = [Piece(stem, V), *obj]
    if verb in MOTION and spot and use in ("bare", "goal"):
        core += spot
        spot = []
    early: list[Piece] = []
    if clause.front == "place" and role in MAIN and spot and use == "at" and not where and relation != "from":
        early, spot = spot, []
        if pick(f"{path}.comma", (True, False), (2, 1)):
            early.append(Piece(",", "mark"))
    if manner and obj and clause.adverb in ("quickly", "slowly", "carefully") \
            and not manner[0].text.startswith("một cách") and not gives and pick(f"{path}.how", (False, True), (2, 1)):
        return [*before, *early, *subject, *lead, *manner, *core, *spot, *after, *question]
    return [*before, *early, *subject, *lead, *core, *manner, *spot, *after, *question]


def _copula(
    clause: Clause, path: str, pick: Pick, lead: list[Piece], verb: str, slot: str, head: Entity | None
) -> list[Piece]:
    """An adjective is its own predicate; a colour takes có."""
    if clause.complement is None:
        return [*lead, Piece("thế nào", slot)] if clause.asks == "what" else [*lead, Piece("là", verb)]
    noun = _head_noun(clause, head)
    if clause.complement in COLOURS:
        word = ADJECTIVES[clause.complement][0]
        has = not lead or not lead[-1].text.endswith("có")
        return [*lead, *([Piece("có", verb)] if has else []), Piece(word, slot)]
    return [*lead, Piece(_word(_forms(clause.complement, noun), f"{path}.complement", pick), slot)]


def _giving(
    clause: Clause, verb: str, stem: str, obj: list[Piece], to: list[Piece], pick: Pick, path: str, V: str, R: str
) -> list[Piece]:
    """gửi cho David một lá thư, gửi lá thư cho David."""
    if verb == "show":
        return [Piece("cho", V), *to, Piece("xem", V), *obj]
    given = [Piece(("đến cho " if verb == "bring" else "cho ") + to[0].text, R), *to[1:]] if to else []
    if not obj or not given or (isinstance(clause.object, Entity) and clause.object.pronoun):
        return [Piece(stem, V), *obj, *given]
    if pick(f"{path}.order", (verb != "bring", verb == "bring"), (2, 1)):
        return [Piece(stem, V), *given, *obj]
    return [Piece(stem, V), *obj, *given]


# --- sentences --------------------------------------------------------------------------


def _pronouns(clause: Clause) -> bool:
    """Whether the clause refers back with a pronoun."""
    for entity in (clause.subject, clause.object, clause.recipient):
        if isinstance(entity, Entity) and (entity.pronoun or (entity.owner is not None and entity.owner.pronoun)):
            return True
    return False


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order with its final mark; see :class:`town.corpus.meaning.Language`."""
    pick = once(pick, only=STEADY)
    main, second, link = sentence.main, sentence.second, sentence.link
    asks = main.asks or (second.asks if second is not None and link in ("and", "but") else None)
    mark = Piece("?" if asks else ".", "mark")
    return [*_body(main, second, link, pick), mark]


WORDS = {"that": ("rằng", "là"), "because": ("vì", "bởi vì"), "when": ("khi", "lúc"), "if": ("nếu",), "and": ("và",),
         "but": ("nhưng", "nhưng mà")}


def _body(main: Clause, second: Clause | None, link: str | None, pick: Pick) -> list[Piece]:
    comma = Piece(",", "mark")
    word = Piece(_word(WORDS[link], "link", pick), "link") if link else None
    if link == "that" and main.verb == "think" and word is not None:
        word = Piece("rằng", "link")
    first = _clause(main, "main", pick, "main", "then" if link == "if" else "main")
    start = [word] if word else []
    if second is None:
        return [*first, *([comma] if link in ("but", "and") else []), *start]
    if not first:
        return [*start, *_clause(second, "second", pick, "second")]
    role = "sub" if link in ("when", "if") else "main"
    if link in ("and", "but"):
        same = _same(second.subject, main.subject)
        drop = same and second.time is None and pick("second.drop", (False, True), (2, 1))
        stop = [] if drop and link == "and" else [comma]
        return [*first, *stop, *start, *_clause(second, "second", pick, "second", drop=drop)]
    follow = _clause(second, "second", pick, "second", role)
    if link in ("when", "if") and not _pronouns(second) and pick("second.first", (False, True), (1, 1)):
        then = [Piece("thì", "link")] if link == "if" else []
        if link == "if" and not pick("link.then", (True, False), (3, 1)):
            then = []
        return [*start, *follow, *(then or [comma]), *first]
    return [*first, *start, *follow]


def join(pieces: Sequence[Piece]) -> str:
    """Words with spaces between, none before a mark; the first letter is a capital."""
    text = ""
    for p in pieces:
        if p.text:
            text += p.text if not text or p.text[0] in ".,?" else " " + p.text
    return text[:1].upper() + text[1:]


# --- phrases ----------------------------------------------------------------------------

PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("Hãy dịch sang {language}: {text}", "Dịch câu sau sang {language}: {text}",
                  "Câu này nói thế nào bằng {language}? {text}"),
    "summarize": ("Hãy tóm tắt đoạn văn sau bằng một câu: {text}", "Tóm tắt đoạn văn này: {text}",
                  "Hãy nêu ý chính của đoạn sau: {text}"),
    "summary_opening": ("", "Tóm lại:", "Nói ngắn gọn:"),
    "answer_question": ("Hãy đọc: {text} Câu hỏi: {question}", "Đọc đoạn văn rồi trả lời câu hỏi. {text} Câu hỏi: {question}",
                        "Dựa vào đoạn văn, hãy trả lời: {text} {question}"),
    "passage": ("[{number}] {text}", "({number}) {text}"),
    "use_passages": ("Hãy dùng các đoạn văn để trả lời. {passages} Câu hỏi: {question}",
                     "Đọc các đoạn sau rồi trả lời câu hỏi. {passages} Câu hỏi: {question}"),
    "from_passage": ("Đoạn {number} viết: {answer}", "Theo đoạn {number}: {answer}", "Đoạn {number} cho biết: {answer}"),
    "solve": ("{problem}", "Hãy giải từng bước: {problem}", "Hãy trình bày các bước giải: {problem}"),
    "step_first": ("Trước hết, {equation}.", "Đầu tiên, ta có {equation}.", "Bước một: {equation}."),
    "step_next": ("Sau đó, {equation}.", "Tiếp theo, ta có {equation}.", "Rồi {equation}."),
    "conclusion": ("Vậy: {sentence}", "Do đó: {sentence}", "Kết luận: {sentence}"),
    "tell_about": ("Hãy kể cho tôi nghe về {who}.", "Bạn có thể kể về {who} không?", "Cho tôi biết đôi điều về {who}."),
    "tell_opening": ("", "Vâng.", "Tất nhiên rồi.", "Rất sẵn lòng."),
    "ask_more": ("Cảm ơn bạn. {question}", "Cho tôi hỏi thêm: {question}", "Còn một điều nữa: {question}"),
    "write_code": ("{task}", "Nhờ bạn giúp tôi: {task}", "Chào bạn! {task} Cảm ơn!"),
    "code_opening": ("Đây là hàm cần viết:", "Hàm như sau:", "Mã như sau:"),
}
CODE_TASKS: dict[str, tuple[str, ...]] = {
    "sum": ("Viết hàm Python {name} trả về tổng các số trong danh sách {a}.",
            "Hãy viết một hàm Python tên là {name} để tính tổng các số của danh sách {a}."),
    "product": ("Viết hàm Python {name} trả về tích các số trong danh sách {a}.",
                "Hãy viết một hàm Python tên là {name} để tính tích các số của danh sách {a}."),
    "maximum": ("Viết hàm Python {name} trả về số lớn nhất trong danh sách {a}.",
                "Hãy viết một hàm Python tên là {name} để tìm số lớn nhất của danh sách {a}."),
    "minimum": ("Viết hàm Python {name} trả về số nhỏ nhất trong danh sách {a}.",
                "Hãy viết một hàm Python tên là {name} để tìm số nhỏ nhất của danh sách {a}."),
    "average": ("Viết hàm Python {name} trả về trung bình cộng của các số trong danh sách {a}.",
                "Hãy viết một hàm Python tên là {name} để tính trung bình cộng của danh sách {a}."),
    "count_above": ("Viết hàm Python {name} trả về số lượng các số lớn hơn {k} trong danh sách {a}.",
                    "Hãy viết một hàm Python tên là {name} để đếm xem danh sách {a} có bao nhiêu số lớn hơn {k}."),
    "keep_even": ("Viết hàm Python {name} trả về các số chẵn trong danh sách {a}.",
                  "Hãy viết một hàm Python tên là {name} để lấy ra các số chẵn của danh sách {a}."),
    "keep_below": ("Viết hàm Python {name} trả về các số nhỏ hơn {k} trong danh sách {a}.",
                   "Hãy viết một hàm Python tên là {name} để lấy ra các số của danh sách {a} nhỏ hơn {k}."),
    "scale": ("Viết hàm Python {name} trả về danh sách {a} với mỗi số được nhân với {k}.",
              "Hãy viết một hàm Python tên là {name} để nhân mỗi số của danh sách {a} với {k}."),
    "shift": ("Viết hàm Python {name} trả về danh sách {a} với mỗi số được cộng thêm {k}.",
              "Hãy viết một hàm Python tên là {name} để cộng {k} vào mỗi số của danh sách {a}."),
    "reverse": ("Viết hàm Python {name} trả về danh sách {a} theo thứ tự ngược lại.",
                "Hãy viết một hàm Python tên là {name} để đảo ngược danh sách {a}."),
    "contains": ("Viết hàm Python {name} cho biết danh sách {a} có chứa số {k} hay không.",
                 "Hãy viết một hàm Python tên là {name} để kiểm tra xem số {k} có trong danh sách {a} không."),
}
