"""Mandarin: hand-checked sentences, the lexicon, paraphrases and fragments."""

from __future__ import annotations

import pytest

from town.corpus import zh
from town.corpus.meaning import (
    KIN,
    MASS,
    NAMES,
    PLACES,
    Clause,
    Entity,
    Gap,
    Place,
    Sentence,
    concepts,
    paraphrases,
)

E, C, P, S = Entity, Clause, Place, Sentence
ANNA, DAVID, DOCTOR = E("Anna"), E("David"), E("doctor")
SHE, HE, IT = E("Anna", pronoun=True), E("David", pronoun=True), E("book", pronoun=True)
A_BOOK = E("book", definite=False)


def first(key, options, weights=None):
    return options[0]


def say(sentence, pick=first):
    return zh.join(zh.pieces(sentence, pick))


def every(sentence, most=500):
    return list(paraphrases(lambda pick: say(sentence, pick), most))


# The first option of every choice.
PAIRS = [
    (S(C("buy", ANNA, A_BOOK)), "安娜买了一本书。"),
    (S(C("buy", ANNA, E("apple", 3, True, False), time="yesterday")), "安娜昨天买了三个苹果。"),
    (S(C("buy", ANNA, E("apple", 12, True, False), place=P("market"))), "安娜在市场上买了12个苹果。"),
    (S(C("buy", ANNA, E("bread", definite=False), negated=True)), "安娜没有买面包。"),
    (S(C("buy", ANNA, A_BOOK, tense="future", time="tomorrow")), "安娜明天会买一本书。"),
    (S(C("buy", ANNA, E("shoe", 2, definite=False))), "安娜买了一双鞋。"),
    (S(C("read", DOCTOR, E("newspaper"), tense="present", time="now")), "医生现在正在看报纸。"),
    (S(C("read", DOCTOR, E("newspaper"), tense="present", time="every_day")), "医生每天都看报纸。"),
    (S(C("read", E("i"), E("letter", 2), tense="present")), "我在看那些信。"),
    (S(C("have", DAVID, E("horse", 2, True, False), tense="present")), "大卫有两匹马。"),
    (S(C("have", DAVID, E("car", definite=False), tense="present", negated=True)), "大卫没有汽车。"),
    (S(C("know", E("we"), E("teacher"), tense="present", negated=True)), "我们不认识老师。"),
    (S(C("see", E("cat"), E("bird", 2), place=P("garden"))), "猫在花园里看见了那些鸟。"),
    (S(C("open", E("driver"), E("window", adjectives=("big",)), adverb="slowly")), "司机慢慢地打开了大窗户。"),
    (S(C("call", ANNA, E("brother", owner=E("i")))), "安娜给我哥哥打了电话。"),
    (S(C("pick_up", ANNA, DAVID, place=P("station", "from"))), "安娜从车站接了大卫。"),
    (S(C("pick_up", ANNA, E("letter"), place=P("station"))), "安娜在车站取了信。"),
    (S(C("forget", DAVID, E("umbrella", owner=HE), place=P("office"))), "大卫把他的雨伞忘在了办公室。"),
    (S(C("love", SHE, E("coffee"), tense="present")), "她喜爱咖啡。"),
    (S(C("love", SHE, DAVID, tense="present")), "她爱大卫。"),
    (S(C("eat", E("child"), E("soup", adjectives=("warm",)), adverb="often", tense="present")), "孩子经常喝热汤。"),
    (S(C("give", ANNA, A_BOOK, DAVID)), "安娜给了大卫一本书。"),
    (S(C("give", ANNA, IT, DAVID)), "安娜把它给了大卫。"),
    (S(C("show", ANNA, E("picture", owner=SHE), E("i"))), "安娜把她的画给我看了。"),
    (S(C("bring", DAVID, E("flower", 5, True, False), E("mother", owner=E("you")), tense="future")),
     "大卫会给你妈妈带来五朵花。"),
    (S(C("send", DAVID, E("letter"), ANNA, negated=True)), "大卫没有把信寄给安娜。"),
    (S(C("sleep", E("child"), time="at_night", tense="present", place=P("hotel"))), "孩子夜里在酒店睡觉。"),
    (S(C("live", E("painter"), place=P("village", definite=False, adjective="old"))), "画家住在一个老村子里。"),
    (S(C("go", ANNA, place=P("school", "to"), time="on_monday", front="time")), "星期一安娜去了学校。"),
    (S(C("travel", E("we"), place=P("river", "to"), time="last_week")), "我们上周去河边旅行了。"),
    (S(C("arrive", ANNA, place=P("station"))), "安娜到了车站。"),
    (S(C("come_back", ANNA, place=P("forest", "from"), negated=True)), "安娜没有从森林回来。"),
    (S(C("run", E("dog"), place=P("house", "to"))), "狗跑到了房子那里。"),
    (S(C("be", ANNA, complement="tired", tense="present")), "安娜很累。"),
    (S(C("be", E("car"), complement="red", tense="present")), "汽车是红色的。"),
    (S(C("be", E("book"), complement="old", tense="present", negated=True)), "书不旧。"),
    (S(C("be", DOCTOR, complement="old", tense="future")), "医生会很老。"),
    (S(C("be_at", ANNA, place=P("kitchen"), tense="present")), "安娜在厨房里。"),
    (S(C("be_at", E("child", definite=False), place=P("park"))), "公园里有一个孩子。"),
    (S(C("buy", ANNA, A_BOOK, modal="want", tense="present")), "安娜想买一本书。"),
    (S(C("help", E("you"), E("farmer", 2), modal="must", tense="present")), "你必须帮助农民们。"),
    (S(C("repair", DAVID, E("bicycle", owner=ANNA), modal="can", tense="past")), "大卫能修理安娜的自行车。"),
    (S(C("wait", E("man", relative=C("buy", Gap(), A_BOOK)), place=P("bridge"))), "买了一本书的男人在桥上等了一会儿。"),
    (S(C("lose", DAVID, E("key", relative=C("find", ANNA, Gap())))), "大卫弄丢了安娜找到的钥匙。"),
    (S(C("be", E("girl", relative=C("call", DAVID, Gap())), complement="happy")), "大卫给她打电话的女孩很高兴。"),
    (S(C("see", ANNA, E("table", definite=False, adjectives=("old", "red")))), "安娜看见了一张红色的旧桌子。"),
    (S(C("say", ANNA), "that", C("sleep", DAVID, tense="present")), "安娜说大卫在睡觉。"),
    (S(C("hope", E("i"), tense="present"), "that", C("come_back", HE, tense="future")), "我希望他会回来。"),
    (S(C("sleep", ANNA), "because", C("be", SHE, complement="tired")), "安娜睡觉了，因为她很累。"),
    (S(C("sleep", ANNA), "because", C("sing", DAVID)), "因为大卫唱了歌，所以安娜睡觉了。"),
    (S(C("sing", DAVID), "when", C("arrive", ANNA, place=P("hotel"))), "安娜到酒店的时候，大卫唱了歌。"),
    (S(C("sing", ANNA), "when", C("see", SHE, DAVID)), "安娜看见大卫的时候，唱了歌。"),
    (S(C("help", DAVID, E("we"), tense="future"), "if", C("arrive", HE, tense="present")), "大卫如果到达，就会帮助我们。"),
    (S(C("help", DAVID, ANNA, tense="future"), "if", C("call", SHE, DAVID, tense="present")),
     "大卫会帮助安娜，如果她给大卫打电话的话。"),
    (S(C("buy", ANNA, A_BOOK), "and", C("drink", DAVID, E("tea", definite=False))), "安娜买了一本书，大卫喝了茶。"),
    (S(C("buy", ANNA, A_BOOK), "but", C("read", SHE, IT, negated=True)), "安娜买了一本书，但是她没有看它。"),
    (S(C("buy", ANNA, A_BOOK, asks="yes_no")), "安娜买了一本书吗？"),
    (S(C("be", ANNA, complement="happy", tense="present", asks="yes_no")), "安娜高兴吗？"),
    (S(C("buy", ANNA, A_BOOK, asks="who")), "谁买了一本书？"),
    (S(C("buy", ANNA, A_BOOK, asks="what", tense="future")), "安娜会买什么？"),
    (S(C("give", ANNA, E("book"), DAVID, asks="whom")), "安娜把书给了谁？"),
    (S(C("meet", ANNA, DAVID, place=P("park"), asks="where")), "安娜在哪里遇见了大卫？"),
    (S(C("go", ANNA, place=P("park", "to"), asks="where")), "安娜去了哪里？"),
    (S(C("go", ANNA, place=P("park", "to"), time="yesterday", asks="when")), "安娜什么时候去了公园？"),
    (S(C("go", ANNA, place=P("park", "to"), time="tomorrow", tense="future", asks="when")), "安娜什么时候会去公园？"),
    (S(C("have", ANNA, E("apple", 3, True, False), tense="present", asks="how_many")), "安娜有多少个苹果？"),
    (S(C(None, DOCTOR)), "医生。"),
    (S(C(None, DOCTOR, E("book"))), "医生书。"),
    (S(C("buy", DOCTOR)), "医生买了。"),
    (S(C("buy", None, E("book"))), "买了书。"),
    (S(C(None, None, place=P("garden"), time="yesterday")), "昨天在花园里。"),
]


def test_most_usual_words():
    assert not [(made, text) for meaning, text in PAIRS if (made := say(meaning)) != text]


# Other right wordings.
OTHERS = [
    (S(C("close", ANNA, E("door"), time="yesterday")),
     ("安娜昨天关上了门。", "昨天安娜关上了门。", "安娜昨天把门关上了。", "昨天安娜把那扇门关上了。")),
    (S(C("give", ANNA, E("letter"), DAVID)), ("安娜给了大卫信。", "安娜把那封信交给了大卫。")),
    (S(C("buy", ANNA, E("car", definite=False), asks="yes_no")), ("安娜买了一辆车吗？", "安娜有没有买一辆汽车？")),
    (S(C("sleep", ANNA), "because", C("sing", DAVID)),
     ("因为大卫唱了歌，安娜睡觉了。", "安娜睡觉了，因为大卫唱了歌。")),
    (S(C("have", ANNA, E("egg", 3, True, False), asks="how_many")), ("安娜有几个鸡蛋？", "安娜有多少鸡蛋？")),
    (S(C("be", E("mother", owner=E("i")), complement="happy")), ("我妈妈很高兴。", "我的母亲很开心。")),
    (S(C("buy", ANNA, A_BOOK), "and", C("sleep", SHE)), ("安娜买了一本书，她睡觉了。", "安娜买了一本书，并且睡觉了。")),
    (S(C("sing", DAVID, tense="future"), "if", C("call", ANNA, E("i"), tense="present")),
     ("如果安娜给我打电话，大卫就会唱歌。", "要是安娜给我打电话的话，大卫就会唱歌。")),
]


@pytest.mark.parametrize(("meaning", "texts"), OTHERS, ids=[texts[0] for _, texts in OTHERS])
def test_paraphrases(meaning, texts):
    said = every(meaning)
    assert len(said) == len(set(said))
    assert set(texts) <= set(said)


def test_noun_phrase():
    who = E("teacher", relative=C("know", E("i"), Gap(), tense="present"))
    assert zh.noun_phrase(who, first) == "我认识的老师"
    assert zh.noun_phrase(DOCTOR, first) == "那位医生"
    assert zh.noun_phrase(ANNA, first) == zh.join([zh.pieces(S(C(None, ANNA)), first)[0]])
    assert all(zh.noun_phrase(E(k, owner=ANNA), first) for k in KIN)
    assert len({zh.noun_phrase(E(n), first) for n in NAMES}) == len(NAMES)


# In the order of concepts().
MEASURED = """
三个孩子; 三个女人; 三个男人; 三个女孩; 三个男孩; 三个朋友; 三个邻居; 三位医生; 三位老师;
三个学生; 三个农民; 三个司机; 三个厨师; 三位画家; 三位客人; 三位妈妈; 三位爸爸; 三个姐姐;
三个哥哥; 三只狗; 三只猫; 三匹马; 三只鸟; 三个苹果; 三块蛋糕; 三条鱼; 三个鸡蛋; 三本书;
三封信; 三份报纸; 三张地图; 三辆汽车; 三辆自行车; 三把钥匙; 三个包; 三把椅子; 三张桌子;
三盏灯; 三个时钟; 三张票; 三幅画; 三部手机; 三把雨伞; 三件大衣; 三只鞋; 三份礼物; 三朵花;
三扇窗户; 三扇门; 三台机器; 三条船; 三个杯子; 三个球; 三个箱子; 三台相机
"""
NEW_PLACES = """
在一座新房子里; 在一所新学校; 在一个新市场上; 在一个新车站; 在一个新花园里; 在一个新厨房里;
在一个新公园里; 在一座新城市里; 在一个新村子里; 在一家新医院; 在一个新图书馆; 在一间新办公室;
在一条新河边; 在一座新桥上; 在一家新商店; 在一家新博物馆; 在一家新酒店; 在一条新街上;
在一片新森林里
"""
KNOWN_PLACES = """
在房子里; 在学校; 在市场上; 在车站; 在花园里; 在厨房里; 在公园里; 在城市里; 在村子里;
在医院; 在图书馆; 在办公室; 在河边; 在桥上; 在商店; 在博物馆; 在酒店; 在街上; 在森林里
"""


def _listed(text):
    return [" ".join(entry.split()) for entry in text.split(";")]


def test_three_of_everything():
    found = concepts()
    kinds = ("person", "animal", "food", "drink", "readable", "thing")
    nouns = [c for kind in kinds for c in found[kind] if c not in MASS]
    assert [say(S(C(None, E(c, 3, True, False))))[:-1] for c in nouns] == _listed(MEASURED)


def test_every_place():
    assert [say(S(C(None, None, place=P(c, "at", False, "new"))))[:-1] for c in PLACES] == _listed(NEW_PLACES)
    assert [say(S(C(None, None, place=P(c))))[:-1] for c in PLACES] == _listed(KNOWN_PLACES)
