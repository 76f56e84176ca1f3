"""Mandarin Chinese (simplified): measure words, 的 before the noun, 了/没/会/在, 把, no articles.

Word order of a clause: subject, time, frequency, negation or modal, place, manner, (把 object), verb,
object. Tense is said by particles and adverbs only; what a noun's definiteness or number leaves
unsaid in Chinese stays unsaid.
"""

from __future__ import annotations

from collections.abc import Sequence

from town.corpus.meaning import (
    ANIMALS,
    DITRANSITIVE,
    DRINKS,
    FOOD,
    KIN,
    MASS,
    MOTION,
    NAMES,
    PEOPLE,
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

CODE = "zh"
LANGUAGES = {"en": "英语", "de": "德语", "fr": "法语", "es": "西班牙语", "zh": "中文", "ja": "日语", "vi": "越南语"}

# --- words ------------------------------------------------------------------------------

NAME_WORDS = {
    "Anna": "安娜", "Ben": "本恩", "Clara": "克拉拉", "David": "大卫", "Emma": "艾玛", "Felix": "菲利克斯",
    "Julia": "朱莉娅", "Leo": "利奥", "Maria": "玛丽亚", "Paul": "保罗", "Sara": "萨拉", "Tom": "汤姆",
}
SPEAKER_WORDS = {"i": "我", "you": "你", "we": "我们"}
# concept: (measure word, nouns, the most usual first)
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "child": ("个", ("孩子", "小孩")), "woman": ("个", ("女人", "女子")), "man": ("个", ("男人",)),
    "girl": ("个", ("女孩", "姑娘")), "boy": ("个", ("男孩",)), "friend": ("个", ("朋友",)),
    "neighbor": ("个", ("邻居",)), "doctor": ("位", ("医生", "大夫")), "teacher": ("位", ("老师", "教师")),
    "student": ("个", ("学生",)), "farmer": ("个", ("农民", "农夫")), "driver": ("个", ("司机",)),
    "cook": ("个", ("厨师",)), "painter": ("位", ("画家",)), "guest": ("位", ("客人",)),
    "mother": ("位", ("妈妈", "母亲")), "father": ("位", ("爸爸", "父亲")), "sister": ("个", ("姐姐",)),
    "brother": ("个", ("哥哥",)),
    "dog": ("只", ("狗",)), "cat": ("只", ("猫",)), "horse": ("匹", ("马",)), "bird": ("只", ("鸟",)),
    "bread": ("块", ("面包",)), "apple": ("个", ("苹果",)), "cheese": ("块", ("奶酪",)), "soup": ("碗", ("汤",)),
    "cake": ("块", ("蛋糕",)), "fish": ("条", ("鱼",)), "rice": ("碗", ("米饭",)), "egg": ("个", ("鸡蛋",)),
    "water": ("杯", ("水",)), "tea": ("杯", ("茶",)), "coffee": ("杯", ("咖啡",)), "milk": ("杯", ("牛奶",)),
    "book": ("本", ("书",)), "letter": ("封", ("信",)), "newspaper": ("份", ("报纸",)), "map": ("张", ("地图",)),
    "car": ("辆", ("汽车", "车")), "bicycle": ("辆", ("自行车",)), "key": ("把", ("钥匙",)),
    "bag": ("个", ("包",)), "chair": ("把", ("椅子",)), "table": ("张", ("桌子",)), "lamp": ("盏", ("灯", "台灯")),
    "clock": ("个", ("时钟", "钟")), "ticket": ("张", ("票",)), "picture": ("幅", ("画",)),
    "phone": ("部", ("手机",)), "umbrella": ("把", ("雨伞", "伞")), "coat": ("件", ("大衣", "外套")),
    "shoe": ("只", ("鞋", "鞋子")), "gift": ("份", ("礼物",)), "flower": ("朵", ("花",)),
    "window": ("扇", ("窗户", "窗子")), "door": ("扇", ("门",)), "machine": ("台", ("机器",)),
    "boat": ("条", ("船",)), "cup": ("个", ("杯子",)), "ball": ("个", ("球",)), "box": ("个", ("箱子", "盒子")),
    "camera": ("台", ("相机", "照相机")),
}
# concept: (measure word, nouns, suffix for "at", suffix for a goal or source)
PLACES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "house": ("座", ("房子",), ("里",), "那里"), "school": ("所", ("学校",), ("", "里"), ""),
    "market": ("个", ("市场",), ("上", "里"), ""), "station": ("个", ("车站",), ("", "里"), ""),
    "garden": ("个", ("花园",), ("里",), ""), "kitchen": ("个", ("厨房",), ("里",), ""),
    "park": ("个", ("公园",), ("里",), ""), "city": ("座", ("城市",), ("里",), ""),
    "village": ("个", ("村子", "村庄"), ("里",), ""), "hospital": ("家", ("医院",), ("", "里"), ""),
    "library": ("个", ("图书馆",), ("", "里"), ""), "office": ("间", ("办公室",), ("", "里"), ""),
    "river": ("条", ("河",), ("边",), "边"), "bridge": ("座", ("桥",), ("上",), "上"),
    "shop": ("家", ("商店",), ("", "里"), ""), "museum": ("家", ("博物馆",), ("", "里"), ""),
    "hotel": ("家", ("酒店", "旅馆"), ("", "里"), ""), "street": ("条", ("街", "街道"), ("上",), "上"),
    "forest": ("片", ("森林", "树林"), ("里",), ""),
}
AROUND = {"near": ("附近", "旁边"), "behind": ("后面",), "in_front_of": ("前面",)}

# adjective: (before the noun, as a predicate after 很); several forms of each
ADJECTIVES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "old": (("旧",), ("旧",)), "new": (("新",), ("新",)), "big": (("大",), ("大",)), "small": (("小",), ("小",)),
    "red": (("红色的", "红"), ("红色", "红")), "blue": (("蓝色的", "蓝"), ("蓝色", "蓝")),
    "green": (("绿色的", "绿"), ("绿色", "绿")), "white": (("白色的", "白"), ("白色", "白")),
    "black": (("黑色的", "黑"), ("黑色", "黑")),
    "heavy": (("沉重的", "很重的"), ("重", "沉")), "expensive": (("昂贵的", "很贵的"), ("贵",)),
    "cheap": (("便宜的",), ("便宜",)), "beautiful": (("漂亮的", "美丽的"), ("漂亮", "美丽")),
    "young": (("年轻的",), ("年轻",)), "tired": (("疲惫的", "很累的"), ("累", "疲惫")),
    "happy": (("高兴的", "快乐的"), ("高兴", "开心")), "clean": (("干净的",), ("干净",)),
    "empty": (("空的", "空"), ("空",)), "warm": (("温暖的", "暖和的"), ("暖和", "温暖")),
    "cold": (("冰冷的",), ("冷",)), "good": (("好",), ("好",)), "long": (("长长的", "很长的"), ("长",)),
}
CLASSIFYING = ("red", "blue", "green", "white", "black", "empty")  # 是红色的, not 很红色
# These lose 的 next to the noun when another adjective precedes.
LOOSE = ("红色的", "蓝色的", "绿色的", "白色的", "黑色的", "年轻的", "漂亮的", "便宜的", "干净的")

ADVERBS = {
    "quickly": ("很快地", "快速地"), "slowly": ("慢慢地", "缓慢地"), "carefully": ("小心地", "仔细地"),
    "often": ("经常", "常常"), "always": ("总是", "老是"), "alone": ("一个人", "独自"),
}
FREQUENT = ("often", "always")
DAYS = {"monday": "一", "tuesday": "二", "wednesday": "三", "thursday": "四", "friday": "五", "saturday": "六",
        "sunday": "日"}
TIMES = {
    "yesterday": ("昨天",), "today": ("今天",), "tomorrow": ("明天",), "now": ("现在", "此刻"),
    "this_morning": ("今天早上", "今天上午"), "this_evening": ("今天晚上", "今晚"),
    "last_week": ("上周", "上个星期"), "next_week": ("下周", "下个星期"), "every_day": ("每天", "天天"),
    "at_night": ("夜里", "晚上"),
} | {f"on_{day}": (f"星期{n}", f"周{n}") for day, n in DAYS.items()}
HABITUAL = ("every_day", "at_night")

# verb: (stems, kind). "act" can be in progress (在看书); "event" is momentary; "state" takes no 了.
VERBS: dict[str, tuple[tuple[str, ...], str]] = {
    "have": (("有",), "state"), "buy": (("买",), "act"), "sell": (("卖",), "act"),
    "see": (("看见", "看到"), "event"), "find": (("找到", "发现"), "event"), "eat": (("吃",), "act"),
    "drink": (("喝",), "act"), "read": (("看", "读"), "act"), "write": (("写",), "act"),
    "open": (("打开",), "event"), "close": (("关上",), "event"), "clean": (("擦",), "act"),
    "repair": (("修理", "修"), "act"), "carry": (("拿",), "act"), "lose": (("弄丢", "丢"), "event"),
    "need": (("需要",), "state"), "love": (("喜爱", "爱"), "state"), "know": (("认识",), "state"),
    "meet": (("遇见", "遇到"), "event"), "help": (("帮助", "帮"), "act"), "visit": (("拜访", "看望"), "act"),
    "call": (("打",), "act"), "pick_up": (("取",), "event"), "invite": (("邀请",), "event"),
    "paint": (("画",), "act"), "cook": (("做",), "act"), "look_for": (("找", "寻找"), "act"),
    "forget": (("忘记", "忘"), "event"),
    "give": (("给",), "event"), "show": (("看",), "event"), "bring": (("带",), "event"), "send": (("寄",), "event"),
    "sleep": (("睡觉",), "act"), "work": (("工作", "干活"), "act"), "wait": (("等",), "act"),
    "sing": (("唱歌",), "act"), "laugh": (("笑",), "act"), "dance": (("跳舞",), "act"),
    "live": (("住",), "state"), "get_up": (("起床",), "event"),
    "go": (("去",), "event"), "travel": (("旅行", "旅游"), "event"), "arrive": (("到", "到达"), "event"),
    "come_back": (("回",), "event"), "run": (("跑",), "act"),
    "be": (("是",), "state"), "be_at": (("在",), "state"),
    "say": (("说",), "state"), "think": (("觉得", "认为"), "state"), "believe": (("相信",), "state"),
    "hope": (("希望",), "state"),
}
# Verbs whose word depends on the object.
BY_OBJECT = {
    ("eat", "soup"): ("喝",), ("read", "map"): ("看",), ("pick_up", "person"): ("接",), ("love", "person"): ("爱",),
    ("carry", "bag"): ("提",), ("close", "book"): ("合上",), ("close", "umbrella"): ("收起",),
} | {("clean", o): ("洗",) for o in ("coat", "cup", "shoe", "bag", "car", "bicycle")} | {
    ("carry", o): ("搬",)
    for o in ("chair", "table", "machine", "box", "boat", "bicycle", "window", "door", "picture", "lamp", "clock")
}
# With 把 the verb needs its result: "把门打开了".
RESULT = {
    "open": "打开", "close": "关上", "clean": "擦干净", "repair": "修好", "sell": "卖掉", "lose": "弄丢",
    "write": "写好", "eat": "吃掉", "drink": "喝掉", "cook": "做好",
}
PAST = {"sleep": ("睡觉了", "睡了一觉"), "wait": ("等了一会儿", "等了等"), "sing": ("唱了歌", "唱歌了"),
        "dance": ("跳了舞", "跳舞了")}

# Nobody plans these, so 要 is wrong for the future.
UNWILLED = ("lose", "forget", "see", "find", "meet", "laugh")
MAIN = ("main", "then")
MODALS = {"want": ("想", "想要"), "can": ("能", "可以"), "must": ("必须", "得")}
NOT_MODALS = {"want": ("不想", "不愿意"), "can": ("不能", "没办法"), "must": ("不可以", "不许")}

DIGITS = "零一两三四五六七八九十"

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


def _forms(adjective: str, concept: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The attributive and predicative words of an adjective for a given noun."""
    kind = _kind(concept)
    if adjective == "old":
        if kind == "person":
            return ("年老的", "上了年纪的"), ("老",)
        if kind in ("animal", "place"):
            return ("老",), ("老",)
    if adjective == "young" and kind == "animal":
        return ("年幼的",), ("年幼",)
    if adjective in CLASSIFYING[:5] and (kind == "animal" or concept in ("apple", "flower")):
        long, short = ADJECTIVES[adjective][0]
        return (short, long), ADJECTIVES[adjective][1]
    if adjective == "big" and kind == "person":
        return ("高大的",), ("高大",)
    if adjective == "warm" and kind == "food":
        return ("热", "热乎乎的"), ("热",)
    if adjective == "cold" and kind == "food":
        return ("冷", "凉"), ("凉", "冷")
    if adjective == "cold" and kind == "place":
        return ("寒冷的",), ("冷",)
    if adjective == "good" and kind == "food":
        return ("好吃的",) if concept in FOOD else ("好喝的",), ("好吃",) if concept in FOOD else ("好喝",)
    return ADJECTIVES[adjective]


def _adjectives(adjectives: Sequence[str], concept: str, noun: str, slot: str, pick: Pick) -> str:
    """A noun with its adjectives: those with 的 first, the last of several without (昂贵的红色雨伞)."""
    alone = len(adjectives) == 1
    words = []
    for a in adjectives:
        forms = _forms(a, concept)[0]
        words.append(_word(forms if alone or a not in CLASSIFYING else forms[:1], f"{slot}.{a}", pick))
    # The most closely bound word is next to the noun; the sort is stable.
    words.sort(key=lambda w: 0 if w.endswith("的") and w not in LOOSE else 1 if w.endswith("的") else 2)
    if len(words) > 1:
        words = [w if w.endswith("的") else w + "的" for w in words[:-1]] + words[-1:]
        if words[-1] in LOOSE and len(noun) > 1:  # but 漂亮的信
            words[-1] = words[-1][:-1]
    if words and words[-1] == noun[0]:  # 大的大衣
        words[-1] += "的"
    return "".join(words) + noun


def _number(n: int) -> str:
    return DIGITS[n] if 0 < n <= 10 else str(n)


def _pronoun(entity: Entity) -> str:
    if entity.concept in SPEAKERS:
        return SPEAKER_WORDS[entity.concept]
    sex = NAMES.get(entity.concept) or PEOPLE.get(entity.concept)
    word = "它" if sex is None else "她" if sex == "f" else "他"
    return word + "们" if entity.number > 1 else word


def _owner(owner: Entity, near: bool, slot: str, pick: Pick) -> str:
    """The possessor; `near`: a pronoun may omit 的 (我妈妈)."""
    if owner.pronoun or owner.concept in SPEAKERS:
        word = _pronoun(owner)
        if near:
            return pick(f"{slot}.owner", (word, word + "的"), (2, 1))
        return word + "的"
    return "".join(p.text for p in _np(owner, slot, pick, f"{slot}.owner")) + "的"


def _np(
    entity: Entity, slot: str, pick: Pick, path: str, bare: bool = False, own: bool = False, many: bool = False,
    point: bool = False,
) -> list[Piece]:
    """A noun phrase. `bare`: an indefinite noun takes no 一; `own`: 自己的 may replace the
    owner; `many`: "how many" is asked; `point`: a definite noun alone needs 那 (not 男人, men in general)."""
    if entity.pronoun or entity.concept in SPEAKERS:
        return [Piece(_pronoun(entity), slot)]
    if entity.concept in NAMES:
        noun, measure = NAME_WORDS[entity.concept], "个"
    else:
        measure, nouns = NOUNS[entity.concept] if entity.concept in NOUNS else PLACES[entity.concept][:2]
        noun = _word(nouns, f"noun.{entity.concept}", pick)
    person = entity.concept in PEOPLE
    single = entity.number == 1
    if entity.concept == "shoe" and entity.number == 2:  # a pair
        measure, single = "双", True
    noun = _adjectives(entity.adjectives, entity.concept, noun, path, pick)
    before = ""
    if entity.owner is not None:
        near = entity.concept in KIN and not entity.adjectives and not entity.counted
        before = _owner(entity.owner, near, path, pick)
        if own:
            before = pick(f"{path}.own", (before, "自己的"), (2, 1))
    if many:
        if entity.concept in MASS:
            count = "多少"
        else:
            few = ("几" + measure,) * (entity.number <= 10)  # 几 expects a small number
            count = _word(("多少" + measure, "多少", *few), f"{path}.many", pick)
    elif entity.counted:
        count = _number(1 if measure == "双" else entity.number) + measure
    elif entity.concept in NAMES:
        count = ""
    elif entity.owner is not None:
        count = ""
        if entity.number > 1 and person:
            noun += "们"
    elif entity.definite:
        if single:
            # 那 is one of several right ways; a relative clause favours it more than a bare noun does.
            options = ("", "那" + measure)
            count = options[1] if point else pick(f"{path}.the", options, (2, 1) if entity.relative else (5, 1))
        elif person:
            count = pick(f"{path}.the", ("们", "那些"), (2, 1))
            if count == "们":
                noun, count = noun + "们", ""
        else:
            count = pick(f"{path}.the", ("那些", "这些"), (3, 1))
    elif bare:
        count = ""
    elif entity.concept in MASS:
        count = pick(f"{path}.some", ("", "一些"), (3, 1))
    elif single:
        count = "一" + measure
    else:
        count = pick(f"{path}.some", ("一些", "几" + measure), (2, 1))
    if entity.relative is None:
        return [Piece(before + count + noun, slot)]
    inner = slot if slot.endswith(".relative") else f"{slot}.relative"
    clause = entity.relative
    said = _clause(clause, inner, pick, f"{path}.relative", "relative", entity)
    relative = [Piece(p.text, inner) for p in said] + [Piece("的", inner)]
    if before:
        return [Piece(before, slot), *relative, Piece(count + noun, slot)]
    if count and (entity.definite or not isinstance(clause.subject, Gap)):  # 安娜买的那本书
        return [*relative, Piece(count + noun, slot)]
    return [Piece(count, slot)] * bool(count) + relative + [Piece(noun, slot)]


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone; Chinese nouns have one form for every use."""
    return "".join(p.text for p in _np(entity, "who", pick, "who", point=entity.relative is None))


def _place(place: Place | None, path: str, pick: Pick, asked: bool, use: str) -> str:
    """A place; `use` is "at" (with 在), "from" (with 从), "goal" (without preposition) or "bare"."""
    start = {"at": "在", "from": "从"}.get(use, "")
    if asked:
        return start + pick(f"{path}.where", ("哪里", "哪儿"), (2, 1))
    assert place is not None
    measure, nouns, inside, end = PLACES[place.concept]
    noun = _word(nouns, f"noun.{place.concept}", pick)
    if place.adjective:
        noun = _adjectives((place.adjective,), place.concept, noun, path, pick)
    if not place.definite:
        noun = "一" + measure + noun
    if place.relation in AROUND:
        return start + noun + _word(AROUND[place.relation], f"{path}.around", pick)
    if place.relation == "at" and use != "goal":
        return start + noun + _word(inside, f"{path}.inside", pick)
    return start + noun + ("里" if use == "from" and place.concept == "house" else end)


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
    return a.pronoun and _pronoun(a) == _pronoun(b)


def _parts(
    clause: Clause, slot: str, pick: Pick, path: str, role: str, head: Entity | None
) -> tuple[list[Piece], list[Piece], list[Piece], list[Piece]]:
    """Topic, subject, time and the rest of a clause.

    `role` is "main", "then" (the consequence of a condition: nothing in progress), "if", "when" or
    "relative"; the last two take no 了, "if" and "when" no 会.
    `head` is the noun that a gap refers to.
    """

    def at(name: str) -> str:
        return slot if role == "relative" else f"{slot}.{name}"

    asks, verb = clause.asks, clause.verb
    subject: list[Piece] = []
    if asks == "who":
        subject = [Piece("谁", at("subject"))]
    elif isinstance(clause.subject, Entity):
        subject = _np(clause.subject, at("subject"), pick, f"{path}.subject", bare=False)

    # The time: before or after the subject.
    topic: list[Piece] = []
    time: list[Piece] = []
    if asks == "when":
        time = [Piece("什么时候", at("time"))]
    elif clause.time:
        word = _word(TIMES[clause.time], f"{path}.time", pick)
        first = clause.front == "time" and role in MAIN
        if not first and role in (*MAIN, "if") and subject and asks not in ("who", "when"):
            first = pick(f"{path}.early", (False, True), (2, 1))
        time = [Piece(word, at("time"))]
        if first:
            topic, time = time, []
            if clause.front == "time" and subject and pick(f"{path}.comma", (False, True), (2, 1)):
                topic.append(Piece("，", "mark"))
    if clause.time == "every_day" and verb is not None and not clause.negated and asks is None \
            and clause.adverb not in FREQUENT and pick(f"{path}.dou", (True, False), (2, 1)):
        time = [*time, Piece("都", at("time"))]

    rest, lifted = _predicate(clause, slot, pick, path, role, head, at)
    if lifted:  # "公园里有一个孩子": the subject comes after the verb
        subject = []
    if clause.front == "place" and role in MAIN:
        places = [p for p in rest if p.slot == at("place")]
        if places and places[0].text.startswith("在") and verb not in ("be_at", "live"):
            rest = [p for p in rest if p.slot != at("place")]
            topic = [*places, *topic] if not topic else [*topic, *places]
            if pick(f"{path}.comma", (True, False), (2, 1)):
                topic.append(Piece("，", "mark"))
    return topic, subject, time, rest


def _predicate(
    clause: Clause, slot: str, pick: Pick, path: str, role: str, head: Entity | None, at: object
) -> tuple[list[Piece], bool]:
    """Everything after subject and time; True if the subject is part of it."""
    assert callable(at)
    verb, asks, place = clause.verb, clause.asks, clause.place
    plain = role in ("when", "relative")
    where = asks == "where"
    whom = asks == "whom"
    gives = verb in DITRANSITIVE
    V, B, R, P, A = at("verb"), at("object"), at("recipient"), at("place"), at("adverb")

    # Object and recipient.
    obj: list[Piece] = []
    target = clause.object
    filled = head if isinstance(target, Gap) else target
    concept = filled.concept if isinstance(filled, Entity) else None
    if asks == "what" or (whom and not gives):
        obj = [Piece("什么" if asks == "what" else "谁", B)]
        concept = "person" if whom else None
    elif isinstance(target, Entity):
        own = bool(
            target.owner is not None and isinstance(clause.subject, Entity) and asks != "who"
            and not clause.subject.pronoun and _same(target.owner, clause.subject)
        )
        obj = _np(target, B, pick, f"{path}.object", bare=clause.negated, own=own, many=asks == "how_many")
    to: list[Piece] = []
    if whom and gives:
        to = [Piece("谁", R)]
    elif clause.recipient is not None:
        to = _np(clause.recipient, R, pick, f"{path}.recipient")

    out: list[Piece] = []
    if verb is None:  # a fragment
        if clause.adverb:
            out.append(Piece(_word(ADVERBS[clause.adverb], f"{path}.adverb", pick), A))
        if place or where:
            use = "from" if place and place.relation == "from" else "goal" if place and place.relation == "to" else "at"
            out.append(Piece(_place(place, f"{path}.place", pick, where, use), P))
        if to:
            out += [Piece("给" + to[0].text, R), *to[1:]]
        if clause.complement:
            concept = _head_noun(clause, head)
            out.append(Piece("很" * (clause.complement not in CLASSIFYING) +
                             _forms(clause.complement, concept)[1][0], at("complement")))
        return out + obj, False

    stems, kind = VERBS[verb]
    thing = "person" if concept is not None and (concept == "person" or _kind(concept) in ("person", "animal")) \
        else concept
    if (verb, thing) in BY_OBJECT:
        stems = BY_OBJECT[verb, thing]  # type: ignore[index]
    stem = _word(stems, f"{path}.verb", pick)

    # Negation, modal, future and progressive precede the place.
    habit = clause.adverb in FREQUENT or clause.time in HABITUAL
    neg, tense = clause.negated, clause.tense
    yes_no = asks == "yes_no"
    aux, perfect, progressive = "", False, False
    if clause.modal:
        if neg:
            words: tuple[str, ...] = NOT_MODALS[clause.modal]
            if clause.modal == "can" and tense == "past":
                words = ("没能", "不能")
        else:
            words = MODALS[clause.modal]
            if clause.modal == "must" and verb == "be":
                words = words[:1]
        aux = _word(words, f"{path}.modal", pick)
    elif verb == "have" and neg:
        aux = "不会" if tense == "future" and role not in ("if", "when") else "没"
    elif tense == "future" and role not in ("if", "when"):
        if neg:
            aux = "不会"
        elif kind == "state":
            aux = "会"
        else:
            words = ("会", "要", "将")
            if verb in UNWILLED or (isinstance(clause.subject, Entity) and _kind(clause.subject.concept) != "person"):
                words = ("会", "将")
            aux = _word(words if asks is None and path == "main" else ("会",), f"{path}.will", pick)
    elif neg and tense == "past" and kind != "state" and not habit:
        aux = _word(("没有", "没"), f"{path}.not", pick)
    elif neg and tense == "present" and kind == "act" and not habit and clause.time in ("now", "today", None):
        aux = _word(("没在", "不") if clause.time == "now" else ("不", "没在"), f"{path}.not", pick)
    elif neg:
        aux = "不"
    elif tense == "past":
        bought = role == "relative" and isinstance(clause.subject, Gap) and bool(obj)  # 买了书的男人
        perfect = kind != "state" and not habit and (not plain or bought)
    elif tense == "present" and kind == "act" and not habit and role == "main":
        if clause.time == "now":
            progressive = True
        elif clause.time in (None, "today"):
            progressive = pick(f"{path}.doing", (True, False), (2, 1))

    freq = clause.adverb if clause.adverb in FREQUENT else None
    if freq:
        word = _word(ADVERBS[freq], f"{path}.adverb", pick)
        if neg and not clause.modal and verb != "have":
            out += [Piece(aux, V), Piece("经常" if freq == "often" else "总是", A)]
            aux = ""
        else:
            out.append(Piece(word, A))

    if verb == "be":
        return out + _copula(clause, path, pick, role, head, aux, V, at("complement")), False
    if verb == "be_at":
        subject = clause.subject
        if isinstance(subject, Entity) and not subject.definite and not subject.pronoun and subject.owner is None \
                and role in MAIN and not clause.modal and (place or where) and asks != "who" \
                and subject.concept not in (*NAMES, *SPEAKERS) and not where:
            # 公园里有一个孩子
            aux = "没" if aux == "不" else aux
            spot = Piece(_place(place, f"{path}.place", pick, where, "bare"), P)
            who = _np(subject, at("subject"), pick, f"{path}.subject", bare=neg)
            return [*out, spot, Piece(aux + "有", V), *who], True
        out.append(Piece(aux + "在", V))
        if place or where:
            out.append(Piece(_place(place, f"{path}.place", pick, where, "bare"), P))
        return out, False

    # Whether the place precedes or follows the verb.
    relation = place.relation if place else None
    before, after = "", ""
    if place or where:
        goes = verb in MOTION
        if relation == "from":
            before = _place(place, f"{path}.place", pick, where, "from")
        elif goes and not (verb == "run" and relation == "at"):
            after = _place(place, f"{path}.place", pick, where, "goal")
        elif verb == "live":
            after = _place(place, f"{path}.place", pick, where, "at")
        elif relation == "to" and verb == "carry":
            after = _place(place, f"{path}.place", pick, where, "goal")
        elif relation == "to":
            before = "到" + _place(place, f"{path}.place", pick, where, "goal")
        else:
            before = _place(place, f"{path}.place", pick, where, "at")
    if progressive:
        if before.startswith("在"):  # one 在 serves both
            aux = "正" if clause.time == "now" else ""
        else:
            aux = _word(("正在", "在"), f"{path}.zai", pick) if clause.time == "now" else "在"
        if verb in MOTION and after:
            aux = ""
    if aux == "没在" and before.startswith("在"):
        aux = "没"
    have_not = False
    if yes_no and perfect:
        have_not = pick(f"{path}.ask", (False, True), (2, 1))
        if have_not:
            aux, perfect = "有没有", False
    if aux:
        out.append(Piece(aux, V))
    if before:
        out.append(Piece(before, P))
    if clause.adverb and not freq:
        out.append(Piece(_word(ADVERBS[clause.adverb], f"{path}.adverb", pick), A))
    le = "了" * perfect

    if gives:
        return out + _giving(clause, verb, stem, le, obj, to, aux, pick, path, V, B, R), False
    if verb == "call":
        if obj:
            return [*out, Piece("给" + obj[0].text, B), *obj[1:], Piece(f"打{le}电话", V)], False
        return [*out, Piece(("给" + _pronoun(head) if isinstance(target, Gap) and head else "") + f"打{le}电话", V)], False
    if verb in MOTION:
        mover = clause.subject if isinstance(clause.subject, Entity) else head
        beast = mover is not None and _kind(mover.concept) == "animal"
        return out + _moving(verb, stem, le, after, relation, beast, pick, path, V, P), False
    if verb == "live":
        return [*out, Piece("住" if after else "生活", V), *([Piece(after, P)] if after else [])], False
    if verb == "have" and clause.modal == "want" and not neg:
        out[-1 if not before else 0] = Piece("想要", V)
        return out + obj, False
    if verb == "forget" and before.startswith("在") and isinstance(target, Entity) \
            and clause.front != "place" and asks in (None, "who", "yes_no"):
        # 把雨伞忘在了车站
        out.remove(Piece(before, P))
        return [*out, Piece("把" + obj[0].text, B), *obj[1:], Piece(f"忘在{le}", V), Piece(before[1:], P)], False
    if verb == "forget":
        stem = ("忘了带" if perfect else stem + "带") if stem == "忘" else stem + le + "带"
        return [*out, Piece(stem, V), *obj], False
    if verb == "carry" and after:
        whole = [Piece("把" + obj[0].text, B), *obj[1:]] if obj else []
        return [*out, *whole, Piece(f"{stem}到{le}", V), Piece(after, P)], False

    definite = isinstance(target, Entity) and (target.definite or target.owner is not None)
    if verb in RESULT and obj and definite and not neg and asks is None and role in MAIN and not habit \
            and (perfect or tense == "future" or clause.modal) and clause.modal != "can" \
            and pick(f"{path}.ba", (False, True), (2, 1)):
        result = RESULT[verb].replace("擦", stem) if verb == "clean" else RESULT[verb]
        if verb == "close":
            result = stem
        if (verb, concept) == ("eat", "soup"):
            result = "喝掉"
        return [*out, Piece("把" + obj[0].text, B), *obj[1:], Piece(result + le, V)], False
    if perfect and verb in PAST:
        return [*out, Piece(_word(PAST[verb], f"{path}.past", pick), V)], False
    if verb == "work" and (before or clause.time):
        le = ""
    return [*out, Piece(stem + le, V), *obj], False


def _copula(
    clause: Clause, path: str, pick: Pick, role: str, head: Entity | None, aux: str, verb: str, slot: str
) -> list[Piece]:
    """很 + adjective, or 是 + 的 for colours."""
    if clause.complement is None:
        return [Piece("怎么样", slot)] if clause.asks == "what" else [Piece(aux + "是", verb)]
    concept = _head_noun(clause, head)
    word = _word(_forms(clause.complement, concept)[1], f"{path}.complement", pick)
    if clause.complement in CLASSIFYING:
        return [Piece(aux + "是", verb), Piece(word + "的", slot)]
    if clause.negated or clause.modal or clause.asks == "yes_no" or role == "when":
        return [*([Piece(aux, verb)] if aux else []), Piece(word, slot)]
    return [Piece(aux + "很", verb), Piece(word, slot)]


def _giving(
    clause: Clause, verb: str, stem: str, le: str, obj: list[Piece], to: list[Piece], aux: str, pick: Pick,
    path: str, V: str, B: str, R: str,
) -> list[Piece]:
    """给大卫寄了一封信, 把信寄给了大卫."""
    target = clause.object
    definite = isinstance(target, Entity) and (target.definite or target.owner is not None or target.pronoun)
    gap = isinstance(target, Gap)
    ba = False
    if definite and obj and to and clause.asks not in ("what", "how_many"):
        ba = (isinstance(target, Entity) and target.pronoun) or pick(f"{path}.ba", (True, False), (3, 1))
    taken = [Piece("把" + obj[0].text, B), *obj[1:]] if ba else []
    given = [Piece("给" + to[0].text, R), *to[1:]] if to else []
    if verb == "give":
        if ba:
            give = _word(("给了", "交给了") if le else ("交给",), f"{path}.give", pick)
            return [*taken, Piece(give, V), *to]
        return [Piece("给" + le, V), *to, *obj]
    if verb == "show":
        show = given or [Piece("给人", V)]
        return [*taken, *show, Piece("看" + le, V), *([] if ba else obj)]
    if ba or (gap and to):
        return [*taken, Piece(f"{stem}给{le}", V), *to]
    full = "带来" if verb == "bring" else stem
    return [*given, Piece(full + le, V), *obj]


def _moving(
    verb: str, stem: str, le: str, after: str, relation: str | None, beast: bool, pick: Pick, path: str, V: str,
    P: str,
) -> list[Piece]:
    goal = [Piece(after, P)] if after else []
    if verb == "travel":
        return [Piece("去", V), *goal, Piece(stem + le, V)] if goal else [Piece(stem + le, V)]
    if verb == "come_back":
        if goal:
            return [Piece("回到" + le, V), *goal]
        return [Piece("回来" + le, V)]
    if verb == "run":
        if goal:
            return [Piece(_word(("跑到", "跑去"), f"{path}.run", pick) + le, V), *goal]
        return [Piece(("跑" if relation == "from" or beast else "跑步") + le, V)]
    if verb == "arrive" and not goal:
        stem = "到达"
    if verb == "go" and not goal:
        return [Piece("离开" + le, V)]
    return [Piece(stem + le, V), *goal]


def _clause(clause: Clause, slot: str, pick: Pick, path: str, role: str, head: Entity | None = None) -> list[Piece]:
    topic, subject, time, rest = _parts(clause, slot, pick, path, role, head)
    return [*topic, *subject, *time, *rest]


# --- sentences --------------------------------------------------------------------------


def _refers(clause: Clause, to: Clause) -> bool:
    """Whether a pronoun of `clause` may refer to something that `to` names."""
    named: list[Entity] = []
    for entity in (to.subject, to.object, to.recipient):
        if isinstance(entity, Entity):
            named += [e for e in (entity, entity.owner) if e is not None and not e.pronoun]
    for entity in (clause.subject, clause.object, clause.recipient):
        if isinstance(entity, Entity):
            for e in (entity, entity.owner):
                # "the girl ... her key": the owner is named in the clause itself
                if e is None or not e.pronoun or (e is entity.owner and _names(clause.subject, e)):
                    continue
                if any(_same(e, n) for n in named):
                    return True
    return False


def _names(subject: object, pronoun: Entity) -> bool:
    return isinstance(subject, Entity) and not subject.pronoun and _same(pronoun, subject)


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order with its final mark; see :class:`town.corpus.meaning.Language`."""
    pick = once(pick, only=STEADY)
    main, second, link = sentence.main, sentence.second, sentence.link
    out = _body(main, second, link, pick)
    asks = main.asks or (second.asks if second is not None and link in ("and", "but") else None)
    if asks == "yes_no":
        # 有没有 is a question by itself.
        out.append(Piece("？" if any(p.text == "有没有" for p in out) else "吗？", "mark"))
    else:
        out.append(Piece("？" if asks else "。", "mark"))
    return out


def _body(main: Clause, second: Clause | None, link: str | None, pick: Pick) -> list[Piece]:
    comma = Piece("，", "mark")
    if second is None:
        out = _clause(main, "main", pick, "main", "main")
        if link is None:
            return out
        words = {"that": "", "because": "因为", "when": "当时", "if": "如果", "and": "", "but": "但是"}[link]
        return [*out, *([comma] if link != "that" else []), *([Piece(words, "link")] if words else [])]
    if not any(getattr(main, s) for s in ("verb", "subject", "object", "recipient", "place", "time", "adverb",
                                          "complement")):
        start = {"because": "因为", "if": "如果", "but": "但是"}.get(link or "")
        rest = _clause(second, "second", pick, "second", "main")
        return [Piece(start, "link"), *rest] if start else rest

    if link in ("and", "but"):
        joins: tuple[str, ...] = ("但是", "可是", "不过") if link == "but" else ("", "而")
        same = _same(second.subject, main.subject)
        first = _clause(main, "main", pick, "main", "main")
        topic, subject, time, rest = _parts(second, "second", pick, "second", "main", None)
        if same and link == "and":
            joins = ("", "并且", "而且")
        word = _word(joins, "link", pick)
        if same and (word == "并且" or (link == "but" and pick("second.drop", (False, True), (2, 1)))):
            subject = []
        return [*first, comma, *([Piece(word, "link")] if word else []), *topic, *subject, *time, *rest]
    if link is None or link == "that":
        first = _clause(main, "main", pick, "main", "main")
        return [*first, *_clause(second, "second", pick, "second", "main")]

    # A clause that may come first in Chinese; its pronouns must not precede their referents.
    shared = _same(second.subject, main.subject) and isinstance(main.subject, Entity) and not main.subject.pronoun
    named = _refers(second, main)
    role = link if link in ("if", "when") else "main"
    topic, subject, time, rest = _parts(second, "second", pick, "second", role, None)
    clause = [*topic, *subject, *time, *rest]
    m_topic, m_subject, m_time, m_rest = _parts(main, "main", pick, "main", "then" if link == "if" else "main", None)
    whole = [*m_topic, *m_subject, *m_time, *m_rest]
    if link == "because":
        word = _word(("因为", "由于") if not named else ("因为",), "link", pick)
        if not named and (word == "由于" or pick("second.first", (True, False), (2, 1))):
            so = pick("link.so", ("所以", ""), (2, 1))
            return [Piece(word, "link"), *clause, comma, *([Piece(so, "link")] if so else []), *whole]
        return [*whole, comma, Piece("因为", "link"), *clause]
    if link == "if":
        word = _word(("如果", "要是"), "link", pick)
        then = Piece("就", "link")
        tail = [Piece("的话", "link")] if pick("link.end", (False, True), (3, 1)) else []
        if shared and m_subject:
            return [*m_subject, Piece(word, "link"), *topic, *time, *rest, *tail, comma, *m_topic[:1], *m_time, then,
                    *m_rest]
        if named:
            return [*whole, comma, Piece(word, "link"), *clause, Piece("的话", "link")]
        if main.asks is not None or not m_subject:
            return [Piece(word, "link"), *clause, *tail, comma, *whole]
        return [Piece(word, "link"), *clause, *tail, comma, *m_topic, *m_subject, *m_time, then, *m_rest]
    end = Piece(_word(("的时候", "时"), "link", pick), "link")
    if shared and m_subject:
        return [*m_topic, *m_subject, *m_time, *topic, *time, *rest, end, comma, *m_rest]
    if named:
        topic, subject, time, rest = _parts(second, "second", pick, "second", "main", None)
        meanwhile = Piece("当时" if main.tense == "past" else "那时", "link")
        return [*whole, comma, meanwhile, *topic, *subject, *time, *rest]
    return [*clause, end, comma, *whole]


def join(pieces: Sequence[Piece]) -> str:
    """Chinese is written without spaces."""
    return "".join(p.text for p in pieces)


# --- phrases ----------------------------------------------------------------------------

PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("请把下面的句子翻译成{language}：{text}", "翻译成{language}：{text}", "用{language}怎么说：{text}"),
    "summarize": ("请用一句话概括这段文字：{text}", "用一句话总结下面的内容：{text}", "请概括大意：{text}"),
    "summary_opening": ("", "总之，", "简单地说，"),
    "answer_question": (
        "请阅读：{text}问题：{question}", "阅读短文并回答问题。{text}问题：{question}", "根据短文回答：{text}{question}",
    ),
    "passage": ("[{number}] {text}", "({number}) {text}"),
    "use_passages": (
        "请根据下列段落回答问题。{passages}问题：{question}", "阅读这些段落，然后回答。{passages}问题：{question}",
    ),
    "from_passage": ("第{number}段说：{answer}", "根据第{number}段：{answer}", "第{number}段写道：{answer}"),
    "solve": ("{problem}", "请一步一步解答：{problem}", "请写出计算步骤：{problem}"),
    "step_first": ("首先，{equation}。", "先算{equation}。", "第一步：{equation}。"),
    "step_next": ("然后，{equation}。", "再算{equation}。", "接着，{equation}。"),
    "conclusion": ("所以，{sentence}", "因此，{sentence}", "答案是：{sentence}"),
    "tell_about": ("请给我讲讲{who}。", "请告诉我一些关于{who}的事。", "你能说说{who}吗？"),
    "tell_opening": ("", "好的。", "当然可以。", "没问题。"),
    "ask_more": ("谢谢。{question}", "我还想问一下：{question}", "还有一个问题：{question}"),
    "write_code": ("{task}", "请帮我一个忙：{task}", "你好！{task}谢谢！"),
    "code_opening": ("函数如下：", "这是你要的函数：", "代码如下："),
}
CODE_TASKS: dict[str, tuple[str, ...]] = {
    "sum": (
        "写一个 Python 函数 {name}，返回列表 {a} 中所有数的和。",
        "请编写 Python 函数 {name}，计算列表 {a} 里各数的总和并返回。",
        "请写一个名为 {name} 的 Python 函数，求列表 {a} 中数字之和。",
    ),
    "product": (
        "写一个 Python 函数 {name}，返回列表 {a} 中所有数的乘积。",
        "请编写 Python 函数 {name}，计算列表 {a} 里各数的乘积并返回。",
    ),
    "maximum": (
        "写一个 Python 函数 {name}，返回列表 {a} 中最大的数。",
        "请编写 Python 函数 {name}，找出列表 {a} 里的最大值并返回。",
    ),
    "minimum": (
        "写一个 Python 函数 {name}，返回列表 {a} 中最小的数。",
        "请编写 Python 函数 {name}，找出列表 {a} 里的最小值并返回。",
    ),
    "average": (
        "写一个 Python 函数 {name}，返回列表 {a} 中所有数的平均值。",
        "请编写 Python 函数 {name}，计算列表 {a} 里各数的平均值并返回。",
    ),
    "count_above": (
        "写一个 Python 函数 {name}，返回列表 {a} 中大于 {k} 的数有多少个。",
        "请编写 Python 函数 {name}，统计列表 {a} 里比 {k} 大的数的个数并返回。",
    ),
    "keep_even": (
        "写一个 Python 函数 {name}，返回列表 {a} 中的所有偶数。",
        "请编写 Python 函数 {name}，从列表 {a} 里选出偶数并返回。",
    ),
    "keep_below": (
        "写一个 Python 函数 {name}，返回列表 {a} 中小于 {k} 的数。",
        "请编写 Python 函数 {name}，从列表 {a} 里选出比 {k} 小的数并返回。",
    ),
    "scale": (
        "写一个 Python 函数 {name}，把列表 {a} 中的每个数乘以 {k} 后返回。",
        "请编写 Python 函数 {name}，返回列表 {a} 的每个数都乘以 {k} 的结果。",
    ),
    "shift": (
        "写一个 Python 函数 {name}，把列表 {a} 中的每个数加上 {k} 后返回。",
        "请编写 Python 函数 {name}，返回列表 {a} 的每个数都加上 {k} 的结果。",
    ),
    "reverse": (
        "写一个 Python 函数 {name}，返回顺序颠倒的列表 {a}。",
        "请编写 Python 函数 {name}，把列表 {a} 反转后返回。",
    ),
    "contains": (
        "写一个 Python 函数 {name}，返回列表 {a} 中是否包含数字 {k}。",
        "请编写 Python 函数 {name}，判断列表 {a} 里有没有数字 {k}。",
    ),
}
