"""Japanese: word order, particles, verb classes, polite and plain forms, counters.

Every predicate is a word with an inflection class. Aspect, wish, ability and duty each turn a word
into a longer word (読む, 読んでいる, 読みたい, 読める, 読まなければならない), and :func:`inflect` gives the
last one its tense, negation and politeness. The clause before a conjunction or a noun takes the plain
form, the main clause the polite one.

Numbers are written with digits everywhere (3冊の本).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple, TypeVar

from town.corpus.meaning import (
    ANIMALS,
    DRINKS,
    FOOD,
    MASS,
    NAMES,
    PEOPLE,
    PLACES,
    SPEAKERS,
    Clause,
    Entity,
    Gap,
    Pick,
    Piece,
    Place,
    Sentence,
    asked,
)

T = TypeVar("T")

CODE = "ja"
LANGUAGES = {
    "en": "英語", "de": "ドイツ語", "fr": "フランス語", "es": "スペイン語",
    "zh": "中国語", "ja": "日本語", "vi": "ベトナム語",
}

# --- words ------------------------------------------------------------------------------
# The first variant of everything is the most usual one.

NAME_WORDS = {
    "Anna": "アンナ", "Ben": "ベン", "Clara": "クララ", "David": "デイビッド", "Emma": "エマ", "Felix": "フェリックス",
    "Julia": "ジュリア", "Leo": "レオ", "Maria": "マリア", "Paul": "ポール", "Sara": "サラ", "Tom": "トム",
}
NOUNS: dict[str, tuple[str, ...]] = {
    "child": ("子供",), "woman": ("女の人", "女性"), "man": ("男の人", "男性"), "girl": ("女の子", "少女"),
    "boy": ("男の子", "少年"), "friend": ("友達", "友人"), "neighbor": ("隣人", "近所の人"), "doctor": ("医者", "医師"),
    "teacher": ("先生", "教師"), "student": ("学生",), "farmer": ("農夫", "農家の人"), "driver": ("運転手", "ドライバー"),
    "cook": ("料理人", "コック"), "painter": ("画家",), "guest": ("お客さん", "客"), "mother": ("母親",),
    "father": ("父親",), "sister": ("姉",), "brother": ("弟",), "i": ("私",), "you": ("あなた",), "we": ("私たち",),
    "dog": ("犬",), "cat": ("猫",), "horse": ("馬",), "bird": ("鳥",),
    "bread": ("パン",), "apple": ("りんご",), "cheese": ("チーズ",), "soup": ("スープ",), "cake": ("ケーキ",),
    "fish": ("魚",), "rice": ("ご飯", "お米"), "egg": ("卵",), "water": ("水",), "tea": ("お茶", "紅茶"),
    "coffee": ("コーヒー",), "milk": ("牛乳", "ミルク"),
    "book": ("本",), "letter": ("手紙",), "newspaper": ("新聞",), "map": ("地図",),
    "car": ("車", "自動車"), "bicycle": ("自転車",), "key": ("鍵",), "bag": ("かばん", "バッグ"), "chair": ("椅子",),
    "table": ("テーブル",), "lamp": ("ランプ",), "clock": ("時計",), "ticket": ("切符", "チケット"), "picture": ("絵",),
    "phone": ("電話",), "umbrella": ("傘",), "coat": ("コート",), "shoe": ("靴",), "gift": ("プレゼント", "贈り物"),
    "flower": ("花",), "window": ("窓",), "door": ("ドア", "扉"), "machine": ("機械",), "boat": ("船", "ボート"),
    "cup": ("カップ",), "ball": ("ボール",), "box": ("箱",), "camera": ("カメラ",),
    "house": ("家",), "school": ("学校",), "market": ("市場",), "station": ("駅",), "garden": ("庭",),
    "kitchen": ("台所", "キッチン"), "park": ("公園",), "city": ("町", "街"), "village": ("村",), "hospital": ("病院",),
    "library": ("図書館",), "office": ("会社", "オフィス"), "river": ("川",), "bridge": ("橋",), "shop": ("店", "お店"),
    "museum": ("博物館",), "hotel": ("ホテル",), "street": ("通り",), "forest": ("森",),
}
NOUNS |= {name: (word,) for name, word in NAME_WORDS.items()}
# Somebody else's family (the speaker's is in NOUNS under "own").
KIN_OWN = {"mother": "母", "father": "父", "sister": "姉", "brother": "弟"}
KIN_OTHER = {"mother": ("お母さん", "母親"), "father": ("お父さん", "父親"), "sister": ("お姉さん",), "brother": ("弟さん",)}
COUNTERS = {
    "horse": "頭", "bird": "羽", "dog": "匹", "cat": "匹", "fish": "匹", "book": "冊", "letter": "通", "newspaper": "部",
    "map": "枚", "car": "台", "bicycle": "台", "key": "本", "chair": "脚", "table": "台", "lamp": "台", "ticket": "枚",
    "picture": "枚", "phone": "台", "umbrella": "本", "coat": "着", "shoe": "足", "flower": "本", "door": "枚",
    "window": "枚", "machine": "台", "boat": "隻", "camera": "台", "house": "軒", "shop": "軒", "hotel": "軒",
    "river": "本", "bridge": "本", "street": "本",
} | dict.fromkeys(PEOPLE, "人")  # everything else: 個, places か所


class Adjective(NamedTuple):
    """`text` inflects by `cls`; `attributive` stands before a noun."""

    text: str
    cls: str
    attributive: str


def _i(text: str) -> Adjective:
    return Adjective(text, "i", text)


_WARM = (Adjective("暖かい", "i", "暖かい"),)
_HOT_TO_TOUCH = (Adjective("温かい", "i", "温かい"),)
# By concept and by the kind of noun ("" for any other).
ADJECTIVES: dict[str, dict[str, tuple[Adjective, ...]]] = {
    "old": {"": (_i("古い"),), "animate": (Adjective("年を取っている", "1", "年を取った"),
                                          Adjective("年老いている", "1", "年老いた"))},
    "new": {"": (_i("新しい"),)},
    "big": {"": (_i("大きい"), Adjective("大きい", "i", "大きな"))},
    "small": {"": (_i("小さい"), Adjective("小さい", "i", "小さな"))},
    "red": {"": (_i("赤い"),)}, "blue": {"": (_i("青い"),)}, "white": {"": (_i("白い"),)}, "black": {"": (_i("黒い"),)},
    "green": {"": (Adjective("緑色", "no", "緑色の"), Adjective("緑", "no", "緑の"))},
    "heavy": {"": (_i("重い"),)},
    "expensive": {"": (_i("高い"), Adjective("高価", "na", "高価な"))},
    "cheap": {"": (_i("安い"),)},
    "beautiful": {"": (_i("美しい"), Adjective("きれい", "na", "きれいな"))},
    "young": {"": (_i("若い"),)},
    "tired": {"": (Adjective("疲れている", "1", "疲れた"),)},
    "happy": {"": (Adjective("幸せ", "na", "幸せな"),)},
    "clean": {"": (Adjective("清潔", "na", "清潔な"),)},
    "empty": {"": (Adjective("空っぽ", "no", "空っぽの"), Adjective("空", "no", "空の"))},
    "warm": {"": _HOT_TO_TOUCH, "place": _WARM, "wear": _WARM},
    "cold": {"": (_i("冷たい"),), "place": (_i("寒い"),), "animate": (_i("寒い"),)},
    "good": {"": (Adjective("いい", "ii", "いい"), Adjective("いい", "ii", "良い")), "food": (_i("おいしい"),)},
    "long": {"": (_i("長い"),)},
}
COLOURS = frozenset(("red", "blue", "green", "white", "black"))

ADVERBS = {
    "quickly": ("急いで", "素早く"), "slowly": ("ゆっくり", "ゆっくりと"), "carefully": ("慎重に", "注意深く"),
    "often": ("よく", "しばしば"), "always": ("いつも",), "alone": ("一人で",),
}
TIMES = {
    "yesterday": ("昨日",), "today": ("今日",), "tomorrow": ("明日",), "now": ("今",), "this_morning": ("今朝",),
    "this_evening": ("今晩", "今夜"), "last_week": ("先週",), "next_week": ("来週",), "every_day": ("毎日",),
    "at_night": ("夜に",), "on_monday": ("月曜日に", "月曜に"), "on_tuesday": ("火曜日に", "火曜に"),
    "on_wednesday": ("水曜日に", "水曜に"), "on_thursday": ("木曜日に", "木曜に"), "on_friday": ("金曜日に", "金曜に"),
    "on_saturday": ("土曜日に", "土曜に"), "on_sunday": ("日曜日に", "日曜に"),
}
HABIT = frozenset(("every_day", "at_night", "often", "always"))  # they rule out the progressive
RELATIONS = {"at": "", "to": "", "from": "", "near": "の近く", "behind": "の後ろ", "in_front_of": "の前"}


class Verb(NamedTuple):
    """A verb; `case` marks its object, `at` the place of the action.

    `kind`: "act" (する), "run" (in the present していること), "point" (never ている), "state" (always ている),
    "know" (ている, but not when negated), "adj" (not a verb by form).
    """

    text: str
    cls: str
    kind: str = "act"
    case: str = "を"
    at: str = "で"


VERBS: dict[str, tuple[Verb, ...]] = {
    "have": (Verb("持つ", "5", "state"),),
    "have animal": (Verb("飼う", "5", "state"),),
    "have person": (Verb("いる", "1", "point", "が"),),
    "buy": (Verb("買う", "5"), Verb("購入する", "suru")),
    "sell": (Verb("売る", "5"),),
    "see": (Verb("見る", "1"),),
    "see person": (Verb("見かける", "1", "point"), Verb("見る", "1")),
    "find": (Verb("見つける", "1", "point"), Verb("発見する", "suru", "point")),
    "eat": (Verb("食べる", "1", "run"),),
    "eat soup": (Verb("飲む", "5", "run"),),
    "drink": (Verb("飲む", "5", "run"),),
    "read": (Verb("読む", "5", "run"),),
    "write": (Verb("書く", "5", "run"),),
    "open": (Verb("開ける", "1"),),
    "open book": (Verb("開く", "5"),),
    "close": (Verb("閉める", "1"), Verb("閉じる", "1")),
    "close book": (Verb("閉じる", "1"),),
    "clean": (Verb("きれいにする", "suru", "run"), Verb("掃除する", "suru", "run")),
    "clean cup": (Verb("洗う", "5", "run"), Verb("きれいにする", "suru", "run")),
    "clean shoe": (Verb("磨く", "5", "run"), Verb("きれいにする", "suru", "run")),
    "clean car": (Verb("洗う", "5", "run"), Verb("きれいにする", "suru", "run")),
    "repair": (Verb("修理する", "suru", "run"), Verb("直す", "5", "run")),
    "carry": (Verb("運ぶ", "5", "run"),),
    "lose": (Verb("なくす", "5", "point"), Verb("失う", "5", "point")),
    "need": (Verb("必要", "na", "adj", "が"), Verb("必要とする", "suru", "state")),
    "love": (Verb("大好き", "na", "adj", "が"), Verb("愛する", "suru", "state")),
    "love person": (Verb("愛する", "suru", "state"), Verb("大好き", "na", "adj", "が")),
    "know": (Verb("知る", "5", "know"),),
    "meet": (Verb("会う", "5", "act", "に"), Verb("会う", "5", "act", "と")),
    "help": (Verb("手伝う", "5", "run"), Verb("助ける", "1", "run")),
    "visit": (Verb("訪ねる", "1", "act"), Verb("訪問する", "suru", "act")),
    "call": (Verb("電話をかける", "1", "act", "に"), Verb("電話する", "suru", "act", "に")),
    "pick_up": (Verb("取りに行く", "iku", "point", at="に"), Verb("受け取る", "5", "point")),
    "pick_up animate": (Verb("迎えに行く", "iku", "point", at="に"), Verb("迎えに行く", "iku", "point", at="へ")),
    "invite": (Verb("招待する", "suru", "point"), Verb("招く", "5", "point")),
    "paint": (Verb("描く", "5", "run"), Verb("絵に描く", "5", "run")),
    "paint picture": (Verb("描く", "5", "run"),),
    "cook": (Verb("料理する", "suru", "run"), Verb("調理する", "suru", "run")),
    "cook soup": (Verb("作る", "5", "run"), Verb("料理する", "suru", "run")),
    "cook rice": (Verb("炊く", "5", "run"),),
    "cook bread": (Verb("焼く", "5", "run"),),
    "cook cake": (Verb("焼く", "5", "run"),),
    "look_for": (Verb("探す", "5", "run"),),
    "forget": (Verb("忘れる", "1", "point", at="に"), Verb("置き忘れる", "1", "point", at="に")),
    "give": (Verb("あげる", "1", "point"), Verb("渡す", "5", "point")),
    "give me": (Verb("くれる", "1", "point"), Verb("渡す", "5", "point")),
    "show": (Verb("見せる", "1"),),
    "show me": (Verb("見せてくれる", "1"), Verb("見せる", "1")),
    "bring": (Verb("持ってくる", "kuru", "point"), Verb("届ける", "1")),
    "bring away": (Verb("持っていく", "iku", "point"), Verb("届ける", "1")),
    "bring me": (Verb("持ってきてくれる", "1", "point"), Verb("持ってくる", "kuru", "point")),
    "send": (Verb("送る", "5"),),
    "send me": (Verb("送ってくれる", "1", "point"), Verb("送る", "5")),
    "sleep": (Verb("寝る", "1", "run"), Verb("眠る", "5", "run")),
    "work": (Verb("働く", "5", "run"), Verb("仕事をする", "suru", "run")),
    "wait": (Verb("待つ", "5", "run"),),
    "sing": (Verb("歌う", "5", "run"), Verb("歌を歌う", "5", "run")),
    "laugh": (Verb("笑う", "5", "run"),),
    "dance": (Verb("踊る", "5", "run"), Verb("ダンスをする", "suru", "run")),
    "live": (Verb("住む", "5", "state", at="に"), Verb("暮らす", "5", "state")),
    "get_up": (Verb("起きる", "1", "point"), Verb("起床する", "suru", "point")),
    "go": (Verb("行く", "iku", "point", at="に"),),
    "travel": (Verb("旅行する", "suru", "run"), Verb("旅をする", "suru", "run")),
    "arrive": (Verb("着く", "5", "point", at="に"), Verb("到着する", "suru", "point", at="に")),
    "come_back": (Verb("戻る", "5", "point", at="に"), Verb("帰る", "5", "point", at="に")),
    "run": (Verb("走る", "5", "run"),),
    "be": (),
    "be_at": (Verb("ある", "aru", "point", at="に"),),
    "be_at animate": (Verb("いる", "1", "point", at="に"),),
    "say": (Verb("言う", "5", "run"), Verb("話す", "5", "run")),
    "think": (Verb("思う", "5", "run"), Verb("考える", "1", "run")),
    "believe": (Verb("信じる", "1", "state"),),
    "hope": (Verb("願う", "5", "state"), Verb("望む", "5", "state")),
}
MOTION_WITH_HE = frozenset(("go", "travel", "come_back", "run"))
# The grammar below builds the words of modals and links; these are their marks.
MODALS = {"want": ("たい", "たがっている", "たいと思っている"), "can": ("ことができる", "られる"),
          "must": ("なければならない", "ないといけない", "なくてはいけない")}
LINKS = {"that": ("と", "ことを"), "because": ("ので", "から"), "when": ("とき", "ときに"), "if": ("たら", "ば"),
         "and": ("て", "し"), "but": ("が", "けれども")}

PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("次の文を{language}に訳してください。{text}", "{language}に翻訳してください：{text}",
                  "次の文章を{language}に翻訳してください。{text}"),
    "summarize": ("次の文章を要約してください。{text}", "次の文章を1文でまとめてください。{text}", "要約してください：{text}"),
    "summary_opening": ("", "要約：", "要するに、"),
    "answer_question": ("次の文章を読んで、質問に答えてください。{text} 質問：{question}",
                        "文章：{text} 質問：{question}", "{text} 上の文章を読んで答えてください。{question}"),
    "passage": ("[{number}] {text}", "（{number}）{text}"),
    "use_passages": ("次の資料を使って質問に答えてください。{passages} 質問：{question}",
                     "資料をもとに答えてください。{passages} 質問：{question}"),
    "from_passage": ("資料{number}によると、次のとおりです。{answer}", "資料{number}にはこう書いてあります。{answer}"),
    "solve": ("次の問題を順を追って解いてください。{problem}", "{problem}", "問題：{problem}"),
    "step_first": ("まず、{equation} です。", "最初に、{equation} です。", "はじめに、{equation} です。"),
    "step_next": ("次に、{equation} です。", "それから、{equation} です。", "続いて、{equation} です。"),
    "conclusion": ("したがって、{sentence}", "だから、{sentence}", "答え：{sentence}"),
    "tell_about": ("{who}について何か教えてください。", "{who}のことを話してください。", "{who}について話してくれますか。"),
    "tell_opening": ("はい。", "もちろんです。", "", "喜んで。"),
    "ask_more": ("ありがとうございます。{question}", "もう一つ聞きたいのですが、{question}", "わかりました。では、{question}"),
    "write_code": ("{task}", "お願いがあります。{task}", "次の課題をお願いします。{task}"),
    "code_opening": ("関数は次のとおりです。", "こちらがその関数です。", "はい、この関数です。"),
}


def _task(what: str) -> tuple[str, ...]:
    return (f"{what}を返す Python の関数 {{name}} を書いてください。", f"{what}を返す関数 {{name}} を Python で書いてください。",
            f"Python で、{what}を返す関数 {{name}} を作ってください。")


CODE_TASKS: dict[str, tuple[str, ...]] = {
    "sum": _task("リスト {a} の数の合計"),
    "product": _task("リスト {a} の数の積"),
    "maximum": _task("リスト {a} の中で一番大きい数"),
    "minimum": _task("リスト {a} の中で一番小さい数"),
    "average": _task("リスト {a} の数の平均"),
    "count_above": _task("リスト {a} の中で {k} より大きい数の個数"),
    "keep_even": _task("リスト {a} の偶数だけのリスト"),
    "keep_below": _task("リスト {a} の中で {k} より小さい数のリスト"),
    "scale": _task("リスト {a} のすべての数を {k} 倍したリスト"),
    "shift": _task("リスト {a} のすべての数に {k} を足したリスト"),
    "reverse": _task("リスト {a} を逆の順に並べたリスト"),
    "contains": _task("リスト {a} に数 {k} が含まれているかどうか"),
}

# --- inflection ---------------------------------------------------------------------------

# Last kana of a five-grade verb: before ない, before ます, before ば, て form, た form.
_GODAN = {
    "う": ("わ", "い", "え", "って", "った"), "く": ("か", "き", "け", "いて", "いた"),
    "す": ("さ", "し", "せ", "して", "した"), "つ": ("た", "ち", "て", "って", "った"),
    "ぶ": ("ば", "び", "べ", "んで", "んだ"), "む": ("ま", "み", "め", "んで", "んだ"),
    "る": ("ら", "り", "れ", "って", "った"),
}


def _verb_stems(text: str, cls: str) -> tuple[str, str, str, str, str]:
    """The forms before ない, ます and ば, and the て and た forms."""
    if cls == "1":
        root = text[:-1]
        return root, root, root + "れ", root + "て", root + "た"
    if cls == "suru":
        root = text[:-2]
        return root + "し", root + "し", root + "すれ", root + "して", root + "した"
    if cls == "kuru":  # written in kana in the て form
        root = text[:-2]
        return root + "こ", root + "き", root + "くれ", root + "きて", root + "きた"
    root = text[:-1]
    a, i, e, te, ta = (root + kana for kana in _GODAN[text[-1]])
    if cls == "iku":
        te, ta = root + "って", root + "った"
    return (root[:-1] if cls == "aru" else a), i, e, te, ta


@cache
def inflect(text: str, cls: str, form: str, past: bool = False, negated: bool = False) -> str:
    """One form of a word.

    Parameters
    ----------
    text, cls : str
        Dictionary form and class: "5", "1", "suru", "kuru", "iku", "aru" (verbs), "i", "ii" (adjectives),
        "na", "no" (nouns that take だ; the text has no だ).
    form : str
        "polite", "plain", "noun" (plain before a noun), "short" (polite, the colloquial negative of adjectives),
        "te", "stem" (て and 連用形 for joining clauses), "ba" (without its ば), "masu" (before ます), "ta".
    """
    if form == "ta":
        return inflect(text, cls, "plain", True, negated)
    if cls in ("i", "ii"):
        root = "よ" if cls == "ii" else text[:-1]
        if negated:
            if form == "polite":
                return root + "くありません" + ("でした" if past else "")
            return inflect(root + "くない", "i", "polite" if form == "short" else form, past)
        ends = {"te": "くて", "stem": "く", "ba": "けれ"}
        if form in ends:
            return root + ends[form]
        word = root + "かった" if past else text
        return word + "です" if form in ("polite", "short") else word
    if cls in ("na", "no"):
        if negated:
            if form in ("polite", "short"):
                return text + "ではありません" + ("でした" if past else "")
            if form == "ba":
                return text + "でなけれ"
            return inflect(text + "ではない", "i", form, past)
        if form in ("te", "stem", "ba"):
            return text + ("なら" if form == "ba" else "で")
        if past:
            return text + ("でした" if form in ("polite", "short") else "だった")
        if form == "noun":
            return text + ("な" if cls == "na" else "の")
        return text + ("です" if form in ("polite", "short") else "だ")
    nai, masu, e, te, ta = _verb_stems(text, cls)
    if form == "masu":
        return masu
    if form in ("polite", "short"):
        return masu + (("ませんでした" if past else "ません") if negated else ("ました" if past else "ます"))
    if negated:
        if form in ("te", "stem"):
            if cls == "aru":
                return nai + "なく"
            if text.endswith("いる") and cls == "1":
                return text[:-2] + "おらず"
            return (text[:-2] + "せ" if cls == "suru" else nai) + "ず"
        return inflect(nai + "ない", "i", form, past)
    if form == "te":
        return te
    if form == "stem":
        return text[:-2] + "おり" if text.endswith("いる") and cls == "1" else masu
    if form == "ba":
        return e
    return ta if past else text


@cache
def potential(text: str, cls: str) -> tuple[str, str]:
    """The potential form of a verb and its class."""
    if cls == "suru":
        return text[:-2] + ("できる" if text[-3:-2] not in ("を", "に", "と") else "することができる"), "1"
    if cls == "1":
        return text[:-1] + "られる", "1"
    if cls == "kuru":
        return text[:-2] + "こられる", "1"
    if cls == "aru":
        return text + "ことができる", "1"
    return _verb_stems(text, cls)[2] + "る", "1"


# --- the state of one sentence --------------------------------------------------------------

_ZIPF = tuple(tuple(1 / rank for rank in range(1, n + 1)) for n in range(9))


@dataclass
class _Saying:
    """The picks of one sentence; a concept keeps its word throughout.

    `silent`: the current clause has no overt subject, so that 彼女の would have no referent.
    """

    pick: Pick
    silent: bool = False
    words: dict[str, str] = field(default_factory=dict)

    def one(self, key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        return options[0] if len(options) == 1 else self.pick(key, options, weights or _ZIPF[len(options)])

    def noun(self, concept: str, options: Sequence[str]) -> str:
        if len(options) == 1:
            return options[0]
        key = "noun." + concept
        if key not in self.words:
            self.words[key] = self.pick(key, options, _ZIPF[len(options)])
        return self.words[key]


def _first_person(entity: Entity | Gap | None) -> bool:
    return isinstance(entity, Entity) and entity.concept in ("i", "we")


def _mine(entity: Entity | None) -> bool:
    """Whether the entity is me, us, or our family, the receivers of くれる."""
    return entity is not None and (_first_person(entity) or (entity.owner is not None and _first_person(entity.owner)))


def _same(a: Entity | Gap | None, b: Entity | Gap | None) -> bool:
    return (isinstance(a, Entity) and isinstance(b, Entity) and a.concept == b.concept and a.number == b.number
            and (a.pronoun or b.pronoun or a.concept in NAMES or a.concept in SPEAKERS))


def _owns(subject: Entity | Gap | None, owner: Entity) -> bool:
    """Whether the subject is the owner, expressed as 自分の."""
    return _same(subject, owner) or (
        isinstance(subject, Entity) and subject.concept == owner.concept and subject.number == owner.number
        and subject.definite and owner.definite and subject.owner == owner.owner)


def _animate(concept: str) -> bool:
    return concept in PEOPLE or concept in NAMES or concept in SPEAKERS or concept in ANIMALS


def _person(concept: str) -> bool:
    return concept in PEOPLE or concept in NAMES or concept in SPEAKERS


def _adjective(concept: str, head: str | None) -> tuple[Adjective, ...]:
    by_kind = ADJECTIVES[concept]
    if head is not None and len(by_kind) > 1:
        kind = ("animate" if _animate(head) else "place" if head in PLACES and head != "river"
                else "food" if head in FOOD or head in DRINKS else "wear" if head in ("coat", "shoe") else "")
        return by_kind.get(kind, by_kind[""])
    return by_kind[""]


# --- noun phrases -----------------------------------------------------------------------------


def _attributes(adjectives: tuple[str, ...], head: str, path: str, say: _Saying) -> str:
    if not adjectives:
        return ""
    words = [say.one(f"{path}.adjective.{a}", _adjective(a, head)) for a in adjectives]
    if len(words) == 2:
        first, last = words
        # A て form links two qualities; before a colour, and for states, they follow each other directly.
        if adjectives[0] in COLOURS and adjectives[1] not in COLOURS:
            first, last = last, first
        if adjectives[0] == "good" and last.cls != "1":
            first, last = last, first
        if last.cls == "1" and first.cls != "1":
            first, last = last, first
        stack = first.attributive + last.attributive
        if first.cls == "1":
            return stack
        joined = inflect(first.text, first.cls, "te") + last.attributive
        return str(say.one(f"{path}.adjectives", (stack, joined) if set(adjectives) & COLOURS else (joined,)))
    return words[0].attributive


def _pronoun(entity: Entity, say: _Saying) -> str:
    many = entity.number > 1
    concept = entity.concept
    sex = NAMES.get(concept) or PEOPLE.get(concept)
    if sex == "n":
        return "その子たち" if many else "その子"
    if sex:
        return ("彼女たち" if many else "彼女") if sex == "f" else ("彼ら" if many else "彼")
    if concept in ANIMALS:
        return "その" + say.noun(concept, NOUNS[concept])
    return "それら" if many else "それ"


def _counter(concept: str) -> str:
    return COUNTERS.get(concept) or ("か所" if concept in PLACES else "個")


def _head(entity: Entity, path: str, say: _Saying, subject: Entity | Gap | None = None) -> str:
    """A noun phrase without its relative clause and its number."""
    concept = entity.concept
    if concept in SPEAKERS:
        return NOUNS[concept][0]
    if entity.pronoun:
        return _pronoun(entity, say)
    owner = entity.owner
    adjectives = _attributes(entity.adjectives, concept, path, say)
    options = NOUNS[concept]
    before = ""
    if owner is not None:
        kin = concept in KIN_OTHER
        own = owner.concept in SPEAKERS
        before = (NOUNS[owner.concept][0] if own else _head(owner, f"{path}.owner", say, subject)) + "の"
        if kin:
            options = (KIN_OWN[concept],) if owner.concept in ("i", "we") else KIN_OTHER[concept]
        if kin and owner.concept == "i":
            before = say.one(f"{path}.owner", ("", before))
        elif _owns(subject, owner):
            oneself = "自分たちの" if owner.number > 1 or owner.concept == "we" else "自分の"
            options_before = (before, "") if kin else (oneself, before)
            before = ("" if kin else oneself) if say.silent else say.one(f"{path}.owner", options_before)
    noun = say.noun(concept if options is NOUNS[concept] else f"{concept}.kin", options)
    if entity.number > 1 and not entity.counted and concept in PEOPLE and not noun.endswith("達"):
        noun += "たち"
    return before + adjectives + noun


def _noun(entity: Entity, path: str, slot: str, say: _Saying, particle: str,
          subject: Entity | Gap | None = None, floats: bool = False, many: str | None = None) -> list[Piece]:
    """A noun phrase with its particle; `floats` lets the number follow the particle, `many` asks for it."""
    out: list[Piece] = []
    concept = entity.concept
    if entity.relative is not None:
        inner = slot if slot.endswith(".relative") else f"{slot}.relative"
        parts = _clause(entity.relative, f"{path}.relative", say, "noun", fixed=inner, head=concept, topic="が")
        out += [Piece("".join(p.text for p in parts.all()), inner)]
    text = _head(entity, path, say, subject)
    number = None
    if many is not None:
        number = many
    elif entity.counted and not entity.pronoun and concept not in SPEAKERS and concept not in MASS:
        number = f"{entity.number}{_counter(concept)}"
    if number is None:
        text += particle
    else:
        orders: tuple[str, ...] = (f"{text}{particle}{number}", f"{number}の{text}{particle}")
        if entity.owner is not None:  # 私の3冊の本 keeps the owner in front
            orders = orders[:1] if floats else (f"{text}{number}{particle}",)
        elif not floats:
            orders = orders[1:]
        text = str(say.one(f"{path}.number", orders))
    out.append(Piece(text, slot))
    return out


# --- clauses --------------------------------------------------------------------------------


@dataclass
class _Parts:
    """A clause in surface order: everything before the topic, the topic, the rest and the predicate."""

    front: list[Piece]
    topic: list[Piece]
    middle: list[Piece]
    predicate: list[Piece]

    def all(self) -> list[Piece]:
        return self.front + self.topic + self.middle + self.predicate


def _verbs(clause: Clause) -> tuple[Verb, ...]:
    """The verbs that can express the clause's verb with this object."""
    verb = clause.verb
    assert verb is not None
    thing = clause.object.concept if isinstance(clause.object, Entity) and clause.asks != "what" else None
    if verb == "be_at":
        who = clause.subject.concept if isinstance(clause.subject, Entity) else None
        alive = clause.asks == "who" or who is None or _animate(who)
        return VERBS["be_at animate" if alive else "be_at"]
    if verb == "bring" and _first_person(clause.subject):
        return VERBS["bring away"]
    if clause.recipient is not None and _mine(clause.recipient) and not _first_person(clause.subject):
        if clause.modal is None:
            return VERBS[f"{verb} me"] if f"{verb} me" in VERBS else VERBS[verb]
        return VERBS[verb][1:] or VERBS[verb] if verb == "give" else VERBS[verb]
    if clause.asks == "whom" and f"{verb} person" in VERBS:
        return VERBS[f"{verb} person"]
    if thing is None:
        return VERBS[verb]
    if verb == "have" and thing in ANIMALS:
        return VERBS["have animal"]
    if verb in ("open", "close") and thing in ("book", "umbrella", "letter", "newspaper", "map"):
        return VERBS[f"{verb} book"]
    if f"{verb} {thing}" in VERBS:
        return VERBS[f"{verb} {thing}"]
    if verb == "pick_up" and _animate(thing):
        return VERBS["pick_up animate"]
    if _person(thing) and f"{verb} person" in VERBS:
        return VERBS[f"{verb} person"]
    return VERBS[verb]


def _with_modal(clause: Clause, path: str, say: _Saying, text: str, cls: str, kind: str,
                wish_is_mine: bool) -> tuple[str, str, bool]:
    """The word with its modal, its class, and whether it is negated in form."""
    negated = clause.negated
    verbal = cls not in ("i", "ii", "na", "no")
    if clause.modal == "want":
        if not verbal:  # 幸せになりたい
            text, cls = (text + "に" if cls in ("na", "no") else inflect(text, cls, "stem")) + "なる", "5"
        masu = inflect(text, cls, "masu")
        if wish_is_mine:
            return masu + "たい", "i", negated
        return str(say.one(f"{path}.modal", (masu + "たがっている", masu + "たいと思っている"))), "1", negated
    if clause.modal == "can":
        if not verbal:
            text, cls = (text + "に" if cls in ("na", "no") else inflect(text, cls, "stem")) + "なる", "5"
        able = potential(text, cls)
        word = say.one(f"{path}.modal", ((text + "ことができる", "1"), able))
        if text == "知る" or "ことができる" in able[0]:
            word = (text + "ことができる", "1")
        return word[0], word[1], negated
    if negated:  # it is forbidden
        return inflect(text, cls, "te") + ("はいける"), "1", True
    ba = inflect(text, cls, "ba", negated=True)
    nai = inflect(text, cls, "plain", negated=True)
    word = say.one(f"{path}.modal", ((ba + "ばなる", "5"), (nai + "といける", "1"), (nai[:-1] + "くてはいける", "1")))
    return word[0], word[1], True


def _predicate(clause: Clause, path: str, say: _Saying, form: str, verb: Verb | None, complement: Adjective | None,
               wish_is_mine: bool, open_aspect: bool) -> tuple[str, str]:
    """Predicate text as (part of the complement, part of the verb)."""
    past = clause.tense == "past"
    if complement is not None:
        text, cls, kind = complement.text, complement.cls, "adj"
    else:
        assert verb is not None
        text, cls, kind = verb.text, verb.cls, verb.kind
    if kind == "adj" and complement is None and clause.modal:
        text, cls = ("必要とする", "suru") if clause.verb == "need" else ("愛する", "suru")
        kind = "state"
    negated = clause.negated
    if clause.modal:
        if kind in ("state", "know") and clause.modal == "must" and clause.verb in ("have", "know"):
            text, cls = inflect(text, cls, "te") + "いる", "1"
        word, word_cls, negated = _with_modal(clause, f"{path}.verb", say, text, cls, kind, wish_is_mine)
    else:
        word, word_cls = text, cls
        lasting = kind == "state" or (kind == "know" and not negated)
        if clause.tense == "present" and kind in ("run", "act") and open_aspect:
            habit = clause.time in HABIT or clause.adverb in HABIT
            if clause.verb in ("say", "think"):
                lasting = not (_first_person(clause.subject) or (clause.asks is not None and clause.verb == "think"))
            elif clause.time == "now":
                lasting = True
            elif kind == "run" and not habit:
                lasting = bool(say.one(f"{path}.verb.aspect", (True, False)))
        if lasting:
            word, word_cls = inflect(text, cls, "te") + "いる", "1"
    if form == "polite" and complement is not None and clause.tense == "future" and not clause.modal:
        plain = inflect(word, word_cls, "plain", False, negated)
        out = (plain[:-1] if word_cls in ("na", "no") and not negated else plain) + "でしょう"
    else:
        if form == "polite" and negated and word_cls in ("i", "ii"):
            form = str(say.one(f"{path}.verb.negative", ("polite", "short")))
        out = inflect(word, word_cls, form, past, negated)
    if complement is None:
        return "", out
    root = {"1": 2, "i": 1, "ii": 1, "na": 0, "no": 0}[complement.cls]
    cut = len(complement.text) - root
    return out[:cut], out[cut:]


def _place(place: Place | None, clause: Clause, path: str, say: _Saying, verb: Verb | None, unknown: bool) -> str:
    relation = place.relation if place else ("to" if clause.verb in MOTION_WITH_HE else "at")
    if unknown and relation not in ("to", "from"):
        relation = "at"
    if unknown:
        name = "どこ"
    else:
        assert place is not None
        adjective = _attributes((place.adjective,) if place.adjective else (), place.concept, path, say)
        name = adjective + say.noun(place.concept, NOUNS[place.concept])
    text = name + RELATIONS[relation]
    if relation == "from":  # movement towards the place to fetch somebody
        return text + (verb.at if verb and clause.verb == "pick_up" and verb.cls == "iku" else "から")
    if clause.verb == "arrive":
        return text + "に"
    if relation == "to":
        return text + str(say.one(f"{path}.particle", ("へ", "に")))
    if clause.verb in ("go", "come_back"):
        return text + str(say.one(f"{path}.particle", ("へ", "に")))
    return text + (verb.at if verb else "で")


def _clause(clause: Clause, path: str, say: _Saying, form: str, fixed: str | None = None, head: str | None = None,
            topic: str | None = "は", wish_is_mine: bool | None = None, open_aspect: bool = True,
            main: bool = False, drops: bool = False) -> _Parts:
    """The constituents of a clause in order.

    Parameters
    ----------
    path : str
        Prefix of the pick keys, and of the slots unless `fixed` names the one slot of all pieces.
    form : str
        The form of the predicate (see :func:`inflect`).
    head : str, optional
        The noun that a relative clause modifies.
    topic : str, optional
        "は" (the grammar then decides between は and が), "が", or None: the subject is left out.
    main : bool
        A main clause: a comma may precede the topic.
    drops : bool
        Whether a pronoun subject may be dropped.
    """

    def slot(name: str) -> str:
        return fixed or f"{path}.{name}"

    if clause.asks == "who":  # the answer must not show in the wording
        clause = replace(clause, subject=None)
    subject, thing, asks = clause.subject, clause.object, clause.asks
    before, say.silent = say.silent, topic is None
    if head is not None:  # fill the gap, for word choice only
        filled = replace(clause, subject=Entity(head, pronoun=True)) if isinstance(subject, Gap) else (
            replace(clause, object=Entity(head, pronoun=True)) if isinstance(thing, Gap) else clause)
    else:
        filled = clause
    new = (isinstance(subject, Entity) and not subject.definite and not subject.pronoun and subject.owner is None
           and subject.concept not in NAMES and subject.concept not in SPEAKERS)
    verb: Verb | None = None
    complement: Adjective | None = None
    if clause.verb == "be" or (clause.verb is None and clause.complement):
        if clause.complement:
            what = filled.subject.concept if isinstance(filled.subject, Entity) else None
            complement = say.one(f"{path}.complement", _predicates(clause.complement, what))
    elif clause.verb is not None:
        options = _verbs(filled)
        if form == "noun" or clause.modal or topic == "が" or new or asks == "who":  # no が ... が
            options = tuple(v for v in options if v.kind != "adj") or options
        if asks in ("what", "whom") and len(options) > 1 and clause.verb == "meet":
            options = options[:1]
        verb = say.one(f"{path}.verb.word", options)

    predicate: list[Piece] = []
    if clause.verb is None:
        if complement is not None:
            predicate = [Piece(inflect(complement.text, complement.cls, "plain").removesuffix("だ"), slot("complement"))]
    elif verb is not None or complement is not None:
        if wish_is_mine is None:
            wish_is_mine = _first_person(subject) or (
                asks is not None and isinstance(subject, Entity) and subject.concept == "you")
        done, rest = _predicate(clause, path, say, form, verb, complement, wish_is_mine, open_aspect)
        if done:
            predicate.append(Piece(done, slot("complement")))
        if rest:
            predicate.append(Piece(rest, slot("verb")))

    # Existence: 庭に犬がいます.
    exists = clause.verb == "be_at" and new and clause.place is not None and asks is None

    time: list[Piece] = []
    if asks == "when":
        time = [Piece("いつ", slot("time"))]
    elif clause.time is not None:
        time = [Piece(str(say.one(f"{path}.time", TIMES[clause.time])), slot("time"))]

    place: list[Piece] = []
    if asks == "where" or clause.place is not None:
        place = [Piece(_place(clause.place, clause, f"{path}.place", say, verb, asks == "where"), slot("place"))]

    adverb: list[Piece] = []
    if clause.adverb is not None:
        word = str(say.one(f"{path}.adverb", ADVERBS[clause.adverb]))
        if clause.adverb == "alone" and isinstance(subject, Entity) and (subject.number > 1 or subject.concept == "we"):
            word = "自分たちだけで"
        adverb = [Piece(word, slot("adverb"))]

    case = verb.case if verb else "を"
    things: list[Piece] = []
    if asks == "what":
        things = [Piece("何" + case, slot("object"))]
    elif asked(clause) == "object" and asks == "whom":
        things = [Piece("誰" + case, slot("object"))]
    elif isinstance(thing, Entity):
        many = None
        if asks == "how_many":
            many = "どれくらい" if thing.concept in MASS else "何" + _counter(thing.concept)
        things = _noun(thing, f"{path}.object", slot("object"), say, case, filled.subject, floats=True, many=many)

    recipient: list[Piece] = []
    if asked(clause) == "recipient":
        recipient = [Piece("誰に", slot("recipient"))]
    elif clause.recipient is not None:
        recipient = _noun(clause.recipient, f"{path}.recipient", slot("recipient"), say, "に", filled.subject)

    others = bool(predicate or time or place or adverb or things or recipient)
    about: list[Piece] = []
    if asks == "who":
        about = [Piece("誰が", slot("subject"))]
    elif isinstance(subject, Entity) and topic is not None:
        particle = topic
        if new and not clause.negated and asks is None and clause.verb != "be" and not (
                isinstance(thing, Entity) and thing.relative and isinstance(thing.relative.object, Gap)):
            particle = "が"  # but not 画家がジュリアが見たかばんを
        drop = False
        if drops and others and clause.verb and (subject.pronoun or subject.concept in SPEAKERS):
            if subject.concept == "you":  # dropped in questions only
                drop = asks is not None and say.one(f"{path}.subject.drop", (True, False))
            elif subject.concept != "we":
                drop = say.one(f"{path}.subject.drop", (False, True), (3, 1))
        if not drop:
            about = _noun(subject, f"{path}.subject", slot("subject"), say, particle,
                          floats=exists and particle == "が")

    # Order: topic, time, place, adverb of frequency, recipient, object, manner, predicate.
    front: list[Piece] = []
    comma = "、" if main else ""
    if exists:
        # The place opens the sentence and the new thing follows it.
        front, middle = time, place + about
        if time and main:
            front = [Piece(time[0].text + "、", time[0].slot)]
        say.silent = before
        return _Parts(front, [], middle + adverb, predicate)
    goal = clause.verb in ("go", "travel", "arrive", "come_back", "run", "live", "be_at")
    if time and asks != "when" and about:
        early = clause.front == "time" or say.one(f"{path}.time.order", (False, True))
        if early:
            front, time = [Piece(time[0].text + comma, time[0].slot)], []
    if place and clause.front == "place" and asks != "where" and not goal and about and not front:
        front, place = [Piece(place[0].text + comma, place[0].slot)], []
    middle = list(time)
    frequency = clause.adverb in ("often", "always")
    if frequency:
        middle += adverb
    if not goal:
        middle += place
    pair = (recipient, things)
    if recipient and things and asks is None and say.one(f"{path}.object.order", (False, True), (3, 1)):
        pair = (things, recipient)
    late = not frequency and bool(adverb)
    if late and (things or (goal and place)):
        late = bool(say.one(f"{path}.adverb.order", (True, False)))
    if adverb and not frequency and not late:
        middle += adverb
    middle += pair[0] + pair[1]
    if time and len(middle) > 1 and middle[0] is time[0] and middle[1].text[0] == "本":  # 昨日、本を: not 日本
        middle[0] = Piece(time[0].text + "、", time[0].slot)
    if goal:
        middle += place
    if late:
        middle += adverb
    say.silent = before
    return _Parts(front, about, middle, predicate)


@cache
def _predicates(concept: str, head: str | None) -> tuple[Adjective, ...]:
    """The adjectives of a predicate, where those that differ only before a noun count once."""
    unique = {a.text: a for a in reversed(_adjective(concept, head))}
    return tuple(reversed(unique.values()))


# --- sentences ----------------------------------------------------------------------------------


def _empty(clause: Clause) -> bool:
    return not (clause.verb or clause.subject or clause.object or clause.recipient or clause.complement
                or clause.place or clause.time or clause.adverb)


def _has_predicate(clause: Clause) -> bool:
    return clause.verb is not None and (clause.verb != "be" or clause.complement is not None)


def _mentions(clause: Clause, entity: Entity | Gap | None) -> bool:
    """Whether a pronoun other than the subject refers to `entity`."""
    others = [clause.object, clause.recipient]
    others += [e.owner for e in (clause.subject, clause.object, clause.recipient) if isinstance(e, Entity)]
    return any(isinstance(e, Entity) and e.pronoun and _same(e, entity) for e in others)


def _named(clause: Clause, before: Clause) -> Clause:
    """A clause that precedes `before`: its pronouns for entities mentioned later become nouns."""
    later = [before.object, before.recipient]

    def name(entity: Entity | Gap | None) -> Entity | Gap | None:
        if isinstance(entity, Entity) and entity.pronoun:
            for other in later:
                if isinstance(other, Entity) and not other.pronoun and _same(entity, other):
                    return replace(other, relative=None, counted=False, adjectives=())
        return entity

    subject, thing, recipient = name(clause.subject), name(clause.object), name(clause.recipient)
    if subject is clause.subject and thing is clause.object and recipient is clause.recipient:
        return clause
    return replace(clause, subject=subject, object=thing, recipient=recipient)  # type: ignore[arg-type]


def _subordinate(clause: Clause, link: str, say: _Saying, tense: str, topic: str | None,
                 wish_is_mine: bool | None, same: bool) -> list[Piece]:
    """The second clause with the conjunction at its end."""
    if link == "because":
        word = str(say.one("link", LINKS["because"]))
        parts = _clause(clause, "second", say, "noun" if word == "ので" else "plain", topic=topic,
                        wish_is_mine=wish_is_mine)
        if word == "ので" and parts.predicate and parts.predicate[-1].text == "の":  # 緑なので, not 緑のので
            parts.predicate[-1] = replace(parts.predicate[-1], text="な")
        return [*parts.all(), Piece(word + "、", "link")]
    if link == "when":
        once = tense != "past" and _telic(clause)  # it comes first: 着いたとき; habitual: 着くと
        habit = once and tense == "present"
        word = say.one("link", ("と", "とき") if habit else LINKS["when"])
        parts = _clause(replace(clause, tense="past") if once and not habit else clause, "second", say,
                        "plain" if word == "と" else "noun", topic=topic, wish_is_mine=wish_is_mine)
        return [*parts.all(), Piece(word + "、", "link")]
    # if: たら always; ば if nobody controls what follows
    state = clause.negated or clause.modal is not None or clause.verb in ("be", "be_at")
    form = str(say.one("link", ("ta", "ba") if state or not same else ("ta",)))
    parts = _clause(clause, "second", say, form, topic=topic, wish_is_mine=wish_is_mine, open_aspect=False)
    tail = "ら" if form == "ta" else "ば"
    if form == "ba" and parts.predicate and parts.predicate[-1].text.endswith("なら"):
        verb = parts.predicate[-1]
        parts.predicate[-1:] = [replace(verb, text=verb.text[:-2])] if verb.text != "なら" else []
        tail = "なら"
    out = parts.all()
    if say.one("link.if", (False, True)):
        out.insert(0, Piece("もし", "link"))
    return [*out, Piece(tail + "、", "link")]


def _state(clause: Clause) -> bool:
    """Whether the clause describes a state, not an event."""
    return clause.modal is not None or clause.verb in ("be", "be_at", "have", "need", "love", "know", "live")


def _telic(clause: Clause) -> bool:
    """Whether "when it will happen" means after it (着いたとき), not during it (寝るとき)."""
    return not clause.negated and not _state(clause) and clause.verb in (
        "arrive", "come_back", "get_up", "find", "lose", "forget", "meet", "buy", "sell", "open", "close", "see",
        "pick_up", "give", "bring", "send", "show", "call", "invite", "visit")


def _close(out: list[Piece], asks: bool, say: _Saying) -> list[Piece]:
    if not out:  # a lone copula
        return []
    if out[-1].text.endswith("、"):
        text = out[-1].text[:-1]
        out[-1:] = [replace(out[-1], text=text)] if text else []
    out.append(Piece(str(say.one("mark", ("か。", "か？"))) if asks else "。", "mark"))
    return out


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order, its final mark included.

    Parameters
    ----------
    sentence : Sentence
        A meaning, or a part of one (missing verbs and subjects are left out).
    pick : Pick
        Chooses among the ways to say it.

    Returns
    -------
    list of Piece
        Empty when a partial meaning has no word of its own (a copula without its complement).
    """
    say = _Saying(pick)
    main, second, link = sentence.main, sentence.second, sentence.link
    asks = main.asks is not None and _has_predicate(main)
    if second is not None and _same(main.subject, second.subject) and _empty(replace(second, subject=None)):
        second = None  # "Anna slept because she" cannot be continued yet
    if second is None or _empty(second):
        parts = _clause(main, "main", say, "polite", main=True, drops=True)
        out = parts.all()
        if link == "but" and _has_predicate(main):
            out.append(Piece("が、", "link"))
        return _close(out, asks, say)

    if _empty(main):
        if link in ("because", "when", "if") and _has_predicate(second):
            return _close(_subordinate(second, link, say, main.tense, "が", None, False), False, say)
        if link == "that" and _has_predicate(second):
            return _close([*_clause(second, "second", say, "plain", topic="が").all(), Piece("と", "link")], False, say)
        out = _clause(second, "second", say, "polite", main=True, drops=True).all()
        if link in ("and", "but"):
            out.insert(0, Piece("そして、" if link == "and" else "しかし、", "link"))
        return _close(out, False, say)

    if link in ("and", "but", None):
        return _close(_coordinate(main, second, link, say), False, say)

    if not _has_predicate(second):  # the fragment follows as an afterthought
        first = _clause(main, "main", say, "polite", main=True, drops=True).all()
        rest = _clause(second, "second", say, "plain", topic="が").all()
        return _close([*first, Piece("、", "mark"), *rest], False, say)

    same = _same(main.subject, second.subject)
    if link == "that":
        return _close(_reported(main, second, say, same), asks, say)

    second = _named(second, main)
    wish = True if _first_person(second.subject) else None
    now = link != "because" and main.tense == "present"  # habitual, not at this moment
    if same or _mentions(second, main.subject):
        inner = _subordinate(second, link, say, main.tense, None if same else "が", wish, same)
        drop = same and isinstance(main.subject, Entity) and (
            main.subject.pronoun or main.subject.concept in SPEAKERS)
        if same and say.one("order", (False, True)):
            # 疲れていたので、アンナは寝ました; a pronoun may then be dropped altogether.
            after = _clause(main, "main", say, "polite", drops=drop, open_aspect=not now)
            return _close([*inner, *after.all()], asks, say)
        parts = _clause(main, "main", say, "polite", open_aspect=not now)
        topic = [replace(p, text=p.text[:-1] + "は") if p.text.endswith("が") else p for p in parts.topic]
        if topic and not same:
            topic.append(Piece("、", "mark"))
        return _close([*topic, *inner, *parts.front, *parts.middle, *parts.predicate], asks, say)
    inner = _subordinate(second, link, say, main.tense, "が", wish, same)
    after = _clause(main, "main", say, "polite", drops=True, open_aspect=not now)
    return _close([*inner, *after.all()], asks, say)


def _reported(main: Clause, second: Clause, say: _Saying, same: bool) -> list[Piece]:
    """A reported clause: say, think, believe or hope that."""
    hope = main.verb == "hope"
    parts = _clause(main, "main", say, "polite", main=True)
    if main.tense == second.tense == "past" and second.time is None and _state(second):
        # A state that lasted while it was reported keeps its original tense: 疲れていると言いました.
        second = replace(second, tense=say.one("second.verb.tense", ("present", "past")))
    inner = _clause(second, "second", say, "noun" if hope else "plain", topic=None if same else "が",
                    wish_is_mine=True if same else None)
    if hope and inner.predicate and second.complement and inner.predicate[-1].text == "の":
        inner.predicate[-1] = replace(inner.predicate[-1], text="である")
    before_it = []
    if same and second.subject and second.modal != "want" and say.one("second.subject.self", (False, True), (3, 1)):
        many = second.subject.number > 1 or second.subject.concept == "we"  # type: ignore[union-attr]
        before_it = [Piece("自分たちが" if many else "自分が", "second.subject")]
    quote = "ことを" if hope else "と"
    if main.negated and not hope and parts.predicate:
        quote = str(say.one("link", ("と", "とは")))
    before = [*parts.front, *parts.topic, *parts.middle]
    if before and not same:
        before.append(Piece("、", "mark"))
    return [*before, *before_it, *inner.all(), Piece(quote, "link"), *parts.predicate]


def _coordinate(main: Clause, second: Clause, link: str | None, say: _Saying) -> list[Piece]:
    """Two coordinated clauses."""
    same = _same(main.subject, second.subject)
    after = _clause(second, "second", say, "polite", topic=None if same else "は").all()
    if not _has_predicate(main):
        before = _clause(main, "main", say, "polite").all()
        return [*before, Piece("、", "link"), *after]
    if link == "but":
        word = str(say.one("link", LINKS["but"]))
        before = _clause(main, "main", say, "polite", main=True, drops=same).all()
        return [*before, Piece(word + "、", "link"), *after]
    # The て form leaves tense, negation and wish to the last verb, so the clauses must agree in them.
    joins = main.tense == second.tense and (not same or not (second.modal or second.negated))
    form = str(say.one("link", ("te", "stem") if joins and main.complement is None else ("te",))) if joins else "polite"
    before = _clause(main, "main", say, form, main=True).all()
    return [*before, Piece("、" if joins else "し、", "link"), *after]


def join(pieces: Sequence[Piece]) -> str:
    """The text of pieces; Japanese needs no spaces."""
    return "".join(piece.text for piece in pieces)


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone; every use takes the bare phrase, because the phrases include the particle."""
    found = _noun(entity, "phrase", "phrase", _Saying(pick), "")
    return "".join(piece.text for piece in found)
